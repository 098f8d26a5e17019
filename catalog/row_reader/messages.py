"""The messages between the web process and a worker.

Those of the web process are pickled, since the worker may trust it. Those of the worker are JSON, since a data
file might have taken it over; they are validated and limited.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import pyarrow as pa
from pydantic import ConfigDict, Field, TypeAdapter

from catalog.formats.iceberg.manifests import Entry
from catalog.formats.iceberg.rows.data_files import Layout
from catalog.formats.rows.previews import Preview, Request
from catalog.formats.rows.profiles import Profile

MAX_READ = 4 * 1024**2
"""Bytes of a file in one answer."""
MAX_ANSWER = 256 * 1024**2
"""The largest answer of the web process; the metrics of a data file may be long."""
MAX_QUESTION = 32 * 1024**2
"""The largest message of a worker: a page of shortened values."""
_MOST_MESSAGE_TEXT = 4000


@dataclass(frozen=True)
class Job:
    """What a worker computes: a page of rows, or without a request the profile of the only column."""

    layout: Layout
    columns: Sequence[pa.Field]
    request: Request | None
    seconds: float
    most_bytes: int


DataFileEntries = tuple[Entry, Sequence[Entry]]
"""A data file, and the delete files that apply to it."""


@dataclass(frozen=True)
class NextFile:
    """Asks for the next data file: its entries, pickled, or None after the last one."""

    kind: Literal["next"] = "next"


@dataclass(frozen=True)
class Open:
    """Asks for the size of a file, as decimal digits, and for the open file if it is a local one."""

    location: str
    kind: Literal["open"] = "open"


@dataclass(frozen=True)
class Read:
    """Asks for a part of a file that is not local."""

    location: str
    start: Annotated[int, Field(ge=0)]
    length: Annotated[int, Field(ge=0, le=MAX_READ)]
    kind: Literal["read"] = "read"


@dataclass(frozen=True)
class Finished:
    """The result, of which one is set."""

    preview: Preview | None = None
    profile: Profile | None = None
    kind: Literal["finished"] = "finished"


@dataclass(frozen=True)
class Refused:
    """The error that ends the work."""

    error: Literal["unsupported", "invalid", "memory"]
    message: Annotated[str, Field(max_length=_MOST_MESSAGE_TEXT)] = ""
    kind: Literal["refused"] = "refused"


Question = NextFile | Open | Read
Message = Question | Finished | Refused
_messages: TypeAdapter[Message] = TypeAdapter(
    Annotated[Message, Field(discriminator="kind")],
    config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", extra="forbid"),
)


def dump(message: Message) -> bytes:
    return _messages.dump_json(message)


def load(content: bytes | bytearray) -> Message:
    """A message of a worker. Raises ValueError."""
    return _messages.validate_json(content)


def refused(error: Literal["unsupported", "invalid"], message: str) -> Refused:
    return Refused(error, message[:_MOST_MESSAGE_TEXT])
