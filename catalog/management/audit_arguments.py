"""Arguments shared by the commands of the audit trail."""

from argparse import ArgumentTypeError
from datetime import UTC, datetime


def moment(text: str) -> datetime:
    """Parse a day or a time, by default in UTC."""
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not a time; use 2027-01-31 or 2027-01-31T12:00"
        ) from None
    return value if value.tzinfo else value.replace(tzinfo=UTC)
