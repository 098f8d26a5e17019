"""The clock of the database, the only one that processes of several machines share.

Leases are set and compared by it, so that a worker whose own clock is wrong neither takes over a job
of another worker nor loses its own.
"""

from datetime import timedelta

from django.db.models import DateTimeField, DurationField, ExpressionWrapper, Func, Value
from django.db.models.expressions import Combinable


class _Clock(Func):
    """The time at which the database evaluates it, also in a transaction that waited for a lock."""

    template = "clock_timestamp()"
    output_field = DateTimeField()


def database_now() -> Combinable:
    """The current time."""
    return _Clock()


def after(moment: Combinable, duration: timedelta) -> Combinable:
    """The time ``duration`` after a moment."""
    length = Value(duration, output_field=DurationField())
    return ExpressionWrapper(moment + length, output_field=DateTimeField())
