"""Arguments that the commands of the audit trail share."""

from argparse import ArgumentTypeError
from datetime import UTC, datetime


def moment(text: str) -> datetime:
    """A day or a moment, in UTC unless it tells its zone."""
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is no time; use 2027-01-31 or 2027-01-31T12:00"
        ) from None
    return value if value.tzinfo else value.replace(tzinfo=UTC)
