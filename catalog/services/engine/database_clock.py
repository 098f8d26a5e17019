"""The current time of the database.

Leases use it instead of the clocks of workers. A worker with a wrong clock therefore cannot take over
the job of another worker, and does not lose its own.
"""

from datetime import UTC, datetime, timedelta

from django.db import connection
from django.db.models import DateTimeField, DurationField, ExpressionWrapper, Func, Value
from django.db.models.expressions import Combinable

_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


class _Clock(Func):
    """The time at which the database evaluates it, also in a transaction that waited for a lock."""

    template = "clock_timestamp()"
    output_field = DateTimeField()


def database_now() -> Combinable:
    """The current time."""
    return _Clock()


def read_clock() -> datetime:
    """The current time as a value. One statement."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (now,) = cursor.fetchone()
    moment: datetime = now
    return moment


def after(moment: Combinable, duration: timedelta) -> Combinable:
    """The time ``duration`` after a moment."""
    length = Value(duration, output_field=DurationField())
    return ExpressionWrapper(moment + length, output_field=DateTimeField())


def cutoff(age: float) -> datetime:
    """The time ``age`` seconds ago, not before 1970. Jobs remove versions and files that are older.

    The database sets the times of versions, and the machine that writes a local file sets the file's time.
    Therefore the earlier one of the database's and this machine's current times is used: if one clock
    is wrong, fewer versions and files are removed, never more. One statement.
    """
    now = min(read_clock(), datetime.now(UTC))
    # A policy may retain versions for longer than there are dates.
    return now - timedelta(seconds=min(age, (now - _EARLIEST).total_seconds()))


def cutoff_ms(age: float) -> int:
    """The same time, in milliseconds since 1970."""
    return int(cutoff(age).timestamp() * 1000)
