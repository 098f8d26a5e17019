"""Failures of the database or of the server, independent of the request."""

from catalog.errors.base import CatalogError


class ServiceUnavailable(CatalogError):
    """A part that the request needs is unavailable; nothing changed."""

    def __init__(
        self, template: str, *, detail: str | None = None, retry_seconds: int = 1, **facts: object
    ) -> None:
        """``retry_seconds``: when to try again."""
        super().__init__(template, detail=detail, **facts)
        self.retry_seconds = retry_seconds


class Busy(ServiceUnavailable):
    """A lock that the request needs is held, or too many requests wait for it; nothing changed."""


class OutcomeUnknown(CatalogError):
    """The database connection was lost during COMMIT: the change may or may not be stored."""
