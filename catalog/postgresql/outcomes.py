"""Database errors, classified by the outcome of the interrupted work."""

from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError

from catalog.errors import Busy, ServiceUnavailable

_T = TypeVar("_T")


class TransactionLost(OperationalError):
    """The connection was lost before COMMIT was sent: PostgreSQL rolls the transaction back."""


class OutcomeLost(OperationalError):
    """The connection was lost after a write or COMMIT was sent: the change may be stored."""


def repeated(work: Callable[[], _T]) -> _T:
    """Call an idempotent function, and call it again if its outcome was lost."""
    try:
        return work()
    except OutcomeLost:
        return work()


_UNAVAILABLE = "The database is not available"
_CAUSES: dict[str, tuple[type[ServiceUnavailable], str]] = {
    # lock_not_available, deadlock_detected, serialization_failure
    "55P03": (Busy, "Another transaction held a lock for too long; try again"),
    "40P01": (Busy, "The transaction met others that wait for it; try again"),
    "40001": (Busy, "The transaction met others that changed the same; try again"),
    # query_canceled
    "57014": (ServiceUnavailable, "The database took longer than one statement may take"),
    # too_many_connections, and the class of insufficient resources
    "53300": (ServiceUnavailable, "The database has no connection left; try again"),
    "53100": (ServiceUnavailable, "The database has no disk space left"),
    "53200": (ServiceUnavailable, "The database has no memory left; try again"),
    # read_only_sql_transaction
    "25006": (ServiceUnavailable, "The database accepts no writes: it is a replica"),
}


def sqlstate(error: BaseException) -> str:
    """The SQLSTATE of an error that Django wrapped; empty if the server sent none."""
    return getattr(error.__cause__, "sqlstate", None) or ""


def refusal(error: DatabaseError | InterfaceError) -> ServiceUnavailable | None:
    """The catalog's error for a transient database error; None for a programming error.

    It does not say whether anything changed: the caller knows which statements were sent before.
    """
    cause = _CAUSES.get(sqlstate(error))
    if cause is not None:
        kind, message = cause
        return kind(message)
    is_away = isinstance(error, (OperationalError, InterfaceError))
    return ServiceUnavailable(_UNAVAILABLE) if is_away else None
