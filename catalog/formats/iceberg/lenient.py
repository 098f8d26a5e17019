"""Lenient reads from decoded JSON: a value of another kind counts as missing.

Used to display metadata. Registered tables come from many writers, and the page that shows what is
wrong with a table must open.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from catalog.formats.iceberg.reading import Document

_WHOLE = re.compile(r"-?[0-9]{1,19}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def objects(value: object) -> list[Document]:
    return [item for item in value if type(item) is dict] if type(value) is list else []


def mapping(value: object) -> Document:
    return value if type(value) is dict else {}


def integers(value: object) -> list[int]:
    return [item for item in value if type(item) is int] if type(value) is list else []


def integer(value: object) -> int | None:
    return value if type(value) is int else None


def text(value: object) -> str:
    return value if type(value) is str else ""


def texts(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if type(item) is str) if type(value) is list else ()


def count(value: object) -> int | None:
    """A number that a snapshot's summary stores as text."""
    if type(value) is int:
        return value
    return int(value) if type(value) is str and _WHOLE.fullmatch(value) else None


def moment(milliseconds: object) -> datetime | None:
    """A time in milliseconds since 1970; None if it is out of range."""
    if type(milliseconds) is not int:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def scalar(value: Any) -> object:
    """A comparable and hashable form of a value."""
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
