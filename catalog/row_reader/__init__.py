"""A process of its own that decodes data files which clients have written.

A file of a kilobyte may expand to gigabytes, or take hours, in libraries that cannot be interrupted. So each
request is computed by a process with limits on its memory and its time, without credentials, settings or a
connection to the database:

    web process              server.py, without threads          worker.py, one for each request
    client.compute()  ─────▶ forks, ends late workers  ────────▶ decodes
            ▲                                                       │
            └──── which data files? bytes of a file? the result ────┘

The web process decides which files there are, checks each access, and sends the bytes. It decodes nothing, and
reads no more than a limited size of the worker's messages, which are JSON. The modules of the process, which are
all but ``client``, import neither Django nor the models.
"""
