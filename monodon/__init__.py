"""The client of a Monodon server: the command line, and the Python client ``monodon.client``.

This package imports no other package of the project, and starts without Django. In the wheel, the server is in
``monodon/_app``; ``monodon.local`` starts it as separate processes.
"""

__version__ = "0.1.0"
