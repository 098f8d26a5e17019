"""Failures of the database or of the server, independent of the request."""

from catalog.errors.base import CatalogError


class ServiceUnavailable(CatalogError):
    """A part that the request needs is unavailable; nothing changed."""

    retry_seconds = 1
    """When to try again."""


class Busy(ServiceUnavailable):
    """A lock that the request needs is held, or too many requests wait for it; nothing changed."""


class OutcomeUnknown(CatalogError):
    """The database connection was lost during COMMIT: the change may or may not be stored."""
