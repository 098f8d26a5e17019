"""What a database error says about the work that was under way."""

from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError

from catalog.errors import Busy, ServiceUnavailable

_T = TypeVar("_T")


class TransactionLost(OperationalError):
    """The connection was lost before the COMMIT was sent: PostgreSQL rolls the transaction back."""


class OutcomeLost(OperationalError):
    """The connection was lost after a write or a COMMIT was sent: it may stand."""


def repeated(work: Callable[[], _T]) -> _T:
    """Do what may be done twice, once more when its outcome was lost."""
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
    """PostgreSQL's code of an error that Django wrapped; empty when the server sent none."""
    return getattr(error.__cause__, "sqlstate", None) or ""


def refusal(error: DatabaseError | InterfaceError) -> ServiceUnavailable | None:
    """The refusal behind an error that passes; None for a fault of the program.

    It says nothing about whether something changed: the caller knows what was sent before.
    """
    cause = _CAUSES.get(sqlstate(error))
    if cause is not None:
        kind, message = cause
        return kind(message)
    is_away = isinstance(error, (OperationalError, InterfaceError))
    return ServiceUnavailable(_UNAVAILABLE) if is_away else None
