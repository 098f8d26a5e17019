"""What can keep Monodon from starting, told to the person at the terminal.

ServerError
├── AlreadyRunning
├── PortUnavailable
├── DatabaseUnusable
└── GaveUp
"""


class ServerError(Exception):
    """The message is complete: it names the cause and what to do, and is printed without a traceback."""


class AlreadyRunning(ServerError):
    pass


class PortUnavailable(ServerError):
    pass


class DatabaseUnusable(ServerError):
    pass


class GaveUp(ServerError):
    pass
