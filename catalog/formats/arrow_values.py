"""Single Arrow values as short texts for a table cell, whatever their size."""

import json
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalog.formats.lance import columns as lance_columns

_LONGEST = 200  # characters
_LEAVES = 50  # of a nested value
_FIRST = 4  # numbers of a vector
_HEAD = 12  # bytes of binary data
_BARS = 48  # of a vector
_LARGEST_MEDIA = 256 * 1024  # bytes of an image or a recording that is drawn
_DRAWN = {
    "PNG image": "image/png",
    "JPEG image": "image/jpeg",
    "GIF image": "image/gif",
    "WebP image": "image/webp",
    "WAV audio": "audio/wav",
    "Ogg audio": "audio/ogg",
    "FLAC audio": "audio/flac",
    "MP3 audio": "audio/mpeg",
}
"""Media types of the formats that browsers draw or play."""
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "PNG image",
    b"\xff\xd8\xff": "JPEG image",
    b"GIF8": "GIF image",
    b"BM": "BMP image",
    b"II*\x00": "TIFF image",
    b"MM\x00*": "TIFF image",
    b"OggS": "Ogg audio",
    b"fLaC": "FLAC audio",
    b"ID3": "MP3 audio",
}
_RIFF = {b"WEBP": "WebP image", b"WAVE": "WAV audio"}


class Kind(StrEnum):
    NULL = "null"
    NUMBER = "number"
    TEXT = "text"
    BYTES = "bytes"
    """The text is the first bytes in hexadecimal, or empty if the data was not read."""
    NESTED = "nested"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True)
class Shown:
    """A shortened value."""

    kind: Kind
    text: str
    note: str = ""
    """A description of what the text omits."""
    size: int | None = None
    """The size of binary data, in bytes."""
    bars: tuple[float, ...] = ()
    """The course of a vector: finite values, or means of as many neighbors."""
    media_type: str = ""
    """The type of ``media``."""
    media: bytes = b""
    """A small image or recording, as it is stored."""


NULL = Shown(Kind.NULL, "")


def show(scalar: pa.Scalar, field: pa.Field) -> Shown:
    """Shorten a value of a column. The work is bounded as well as the text; raises nothing."""
    if not scalar.is_valid:
        return NULL
    if lance_columns.is_blob(field):
        return _blob(scalar)
    if isinstance(scalar, pa.ExtensionScalar):
        scalar = scalar.value
    if isinstance(scalar, pa.DictionaryScalar):
        return show(scalar.value, field.with_type(scalar.type.value_type))
    type_ = scalar.type
    if lance_columns.dimension(type_) is not None:
        return _vector(scalar)
    if pa.types.is_nested(type_):
        nested = json.dumps(_Nested().plain(scalar), ensure_ascii=False, separators=(",", ":"))
        return Shown(Kind.NESTED, _clip(nested))
    if _is_binary(type_):
        return _binary(scalar)
    if _is_text(type_):
        text = _text(scalar)
        is_clipped = len(text) > _LONGEST
        return Shown(Kind.TEXT, _clip(text), f"{len(text):,} characters" if is_clipped else "")
    leaf = _leaf(scalar)
    kind = Kind.NUMBER if isinstance(leaf, int | float | bool) else Kind.TEXT
    return Shown(kind, _clip(json.dumps(leaf) if kind is Kind.NUMBER else str(leaf)))


def _blob(scalar: pa.Scalar) -> Shown:
    """A blob, of which a scan returns only the position and the size."""
    storage = scalar.value if isinstance(scalar, pa.ExtensionScalar) else scalar
    if isinstance(storage, pa.StructScalar) and "size" in storage:
        size = storage["size"].as_py()
        return Shown(Kind.BYTES, "", "blob", size) if size is not None else NULL
    return _binary(storage) if _is_binary(storage.type) else Shown(Kind.BYTES, "", "blob")


def _binary(scalar: pa.Scalar) -> Shown:
    buffer = scalar.as_buffer()
    head = buffer.slice(0, min(_HEAD, buffer.size)).to_pybytes()
    name = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")
    if head[:4] == b"RIFF":
        name = _RIFF.get(head[8:12], "")
    more = "…" if buffer.size > _HEAD else ""
    media_type = _DRAWN.get(name, "") if buffer.size <= _LARGEST_MEDIA else ""
    return Shown(
        Kind.BYTES,
        "" if name else head.hex() + more,
        name,
        buffer.size,
        media_type=media_type,
        media=buffer.to_pybytes() if media_type else b"",
    )


def _vector(scalar: pa.Scalar) -> Shown:
    values = scalar.values
    numbers = [_rounded(values[i]) for i in range(min(_FIRST, len(values)))]
    more = ", …" if len(values) > _FIRST else ""
    floats = _floats(values)
    norm = _norm(floats)
    norm_text = "" if norm is None else f", norm {norm:.4g}"
    return Shown(
        Kind.VECTOR,
        f"[{', '.join(numbers)}{more}]",
        f"{len(values):,} values{norm_text}",
        bars=_bars(floats),
    )


def _rounded(scalar: pa.Scalar) -> str:
    number = _half(scalar) if isinstance(scalar, pa.ExtensionScalar) else scalar.as_py()
    if number is None:
        return "null"
    return f"{float(number):.4g}" if isinstance(number, float) else str(number)


def _half(scalar: pa.ExtensionScalar) -> float | None:
    """The value of a bfloat16, which is the upper half of a float."""
    if not scalar.is_valid:
        return None
    number: float = struct.unpack("<f", b"\x00\x00" + scalar.value.as_py())[0]
    return number


def _floats(values: pa.Array) -> pa.Array:
    if isinstance(values, pa.ExtensionArray):
        return pa.array([_half(value) for value in values], pa.float64())
    return values.cast(pa.float64(), safe=False)


def _norm(numbers: pa.Array) -> float | None:
    total = pc.sum(pc.multiply(numbers, numbers)).as_py()
    return None if total is None else float(total) ** 0.5


def _bars(numbers: pa.Array) -> tuple[float, ...]:
    """At most ``_BARS`` means of neighboring values; null, NaN and infinite values count as 0."""
    finite = np.nan_to_num(
        np.asarray(numbers.fill_null(0.0), dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0
    )
    if not finite.size:
        return ()
    with np.errstate(over="ignore"):
        means = [part.mean() for part in np.array_split(finite, min(_BARS, finite.size))]
    return tuple(float(mean) if np.isfinite(mean) else 0.0 for mean in means)


class _Nested:
    """Converts a nested value to JSON values, up to a limited number of leaves."""

    def __init__(self) -> None:
        self._remaining_leaves = _LEAVES

    def plain(self, scalar: pa.Scalar) -> Any:
        if not scalar.is_valid:
            self._remaining_leaves -= 1
            return None
        if isinstance(scalar, pa.ExtensionScalar | pa.DictionaryScalar):
            return self.plain(scalar.value)
        if isinstance(scalar, pa.StructScalar):
            return self._struct(scalar)
        if pa.types.is_map(scalar.type):
            return self._map(scalar)
        if pa.types.is_nested(scalar.type):
            return self._list(scalar)
        self._remaining_leaves -= 1
        if _is_binary(scalar.type):
            return f"{scalar.as_buffer().size:,} bytes"
        return _clip(_text(scalar)) if _is_text(scalar.type) else _leaf(scalar)

    def _struct(self, scalar: pa.StructScalar) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for index in range(scalar.type.num_fields):
            if self._remaining_leaves <= 0:
                members["…"] = f"{scalar.type.num_fields - index:,} more"
                break
            members[_clip(scalar.type.field(index).name)] = self.plain(scalar[index])
        return members

    def _map(self, scalar: pa.Scalar) -> dict[str, Any]:
        members: dict[str, Any] = {}
        entries = scalar.values
        for index in range(len(entries)):
            if self._remaining_leaves <= 0:
                members["…"] = f"{len(entries) - index:,} more"
                break
            entry = entries[index]
            members[_clip(str(self.plain(entry[0])))] = self.plain(entry[1])
        return members

    def _list(self, scalar: pa.Scalar) -> Any:
        values = getattr(scalar, "values", None)
        if values is None:  # an unknown kind of nested type
            return str(scalar.type)
        items: list[Any] = []
        for index in range(len(values)):
            if self._remaining_leaves <= 0:
                items.append(f"… {len(values) - index:,} more")
                break
            items.append(self.plain(values[index]))
        return items


def _leaf(scalar: pa.Scalar) -> Any:
    """A value that is not text, bytes or nested, as a number or a text."""
    type_ = scalar.type
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return scalar.as_py()
    try:
        # Arrow's dates and times have a wider range than Python's.
        return scalar.cast(pa.string()).as_py()
    except (pa.ArrowException, ValueError):
        pass
    try:
        return f"{scalar.cast(pa.int64()).as_py()} ({type_})"
    except (pa.ArrowException, ValueError):
        return str(type_)


def _is_binary(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
        or pa.types.is_binary_view(type_)
    )


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_string_view(type_)
    )


def _text(scalar: pa.Scalar) -> str:
    return str(scalar.as_buffer().to_pybytes(), "utf-8", "replace")


def _clip(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
