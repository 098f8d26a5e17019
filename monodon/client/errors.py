"""Errors of the client.

ClientError
├── RequestFailed       the server refused the request, or failed
├── Unreachable         there is no answer
└── InvalidName         a name of an object cannot be read
"""


class ClientError(Exception):
    """An error whose message names the cause and, if possible, the remedy."""


class InvalidName(ClientError):
    pass


class Unreachable(ClientError):
    pass


class RequestFailed(ClientError):
    """An answer with an error. ``code`` is the error of its protocol, such as ``table-not-found``."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str = "",
        request_id: str = "",
        retry_after: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.request_id = request_id
        self.retry_after = retry_after
        """Seconds after which a retry may succeed; empty: not stated."""
