"""Errors that prevent Monodon from starting, for display on the terminal.

ServerError
├── AlreadyRunning
├── PortUnavailable
├── DatabaseUnusable
└── GaveUp
"""


class ServerError(Exception):
    """An error whose message names the cause and the remedy, and is printed without a traceback."""


class AlreadyRunning(ServerError):
    pass


class PortUnavailable(ServerError):
    pass


class DatabaseUnusable(ServerError):
    pass


class GaveUp(ServerError):
    pass
