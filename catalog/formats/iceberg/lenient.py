"""Reads from decoded JSON that never refuse: what is of another kind counts as missing.

For showing metadata. Registered tables come from many writers, and a page that tells what is wrong
with one has to open.
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
    """A number that a snapshot's summary tells as text."""
    if type(value) is int:
        return value
    return int(value) if type(value) is str and _WHOLE.fullmatch(value) else None


def moment(milliseconds: object) -> datetime | None:
    """A time told in milliseconds since 1970; None for what no calendar has."""
    if type(milliseconds) is not int:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def scalar(value: Any) -> object:
    """A value that can be compared and kept in a set."""
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
