"""Arrow schemas and types as the Lance protocol writes them in JSON (spec: JsonArrowSchema).

Types have the names of the reference server: ``{"type": "utf8"}``. That form has no field for the
unit of a time or the zone of a timestamp. They are written as ``unit`` and ``timezone``, which other
readers ignore. A decimal has its precision times 1000 plus its scale as ``length``. A dictionary is
written as the type of its values.

The reader accepts these names, and those of Lance's own files that LanceDB's clients send:
``string``, ``float``, ``timestamp:us:UTC``, ``decimal:128:10:2``.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from catalog.errors import InvalidInput

Json = dict[str, Any]

_MAX_LENGTH = 2**31 - 1
_MAX_DEPTH = 64
_UNITS = {"time32": ("s", "ms"), "time64": ("us", "ns")}
_ANY_UNIT = ("s", "ms", "us", "ns")

_PLAIN: dict[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date32": pa.date32(),
    "date64": pa.date64(),
    "utf8": pa.string(),
    "large_utf8": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
}
_NAME = {type_: name for name, type_ in _PLAIN.items()}
_ALIASES = {
    "boolean": "bool",
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "string": "utf8",
    "large_string": "large_utf8",
    "date32:day": "date32",
    "date64:ms": "date64",
}
_DECIMAL = re.compile(r"decimal:(?:(128|256):)?(\d{1,3}):(-?\d{1,3})")
_DECIMALS: dict[str, tuple[Callable[[int, int], pa.DataType], int]] = {
    "128": (pa.decimal128, 38),
    "256": (pa.decimal256, 76),
}


# -- to JSON


def schema_to_json(schema: pa.Schema) -> Json:
    """A schema as JSON, with its metadata."""
    document: Json = {"fields": [field_to_json(field) for field in schema]}
    if schema.metadata:
        document["metadata"] = _texts(schema.metadata)
    return document


def field_to_json(field: pa.Field) -> Json:
    """A field as JSON. An extension type is its storage type, with its name in the metadata."""
    type_, metadata = field.type, _texts(field.metadata or {})
    if isinstance(type_, pa.BaseExtensionType):
        metadata = {"ARROW:extension:name": type_.extension_name, **metadata}
        type_ = type_.storage_type
    document: Json = {"name": field.name, "nullable": field.nullable, "type": type_to_json(type_)}
    if metadata:
        document["metadata"] = metadata
    return document


def type_to_json(type_: pa.DataType) -> Json:
    """A type as JSON. A type without a name in this form keeps its name in PyArrow."""
    is_ = pa.types
    if type_ in _NAME:
        return {"type": _NAME[type_]}
    if is_.is_dictionary(type_):
        return type_to_json(type_.value_type)
    if is_.is_decimal(type_):
        return {
            "type": f"decimal{type_.bit_width}",
            "length": type_.precision * 1000 + type_.scale,
        }
    if is_.is_timestamp(type_):
        zone = {} if type_.tz is None else {"timezone": type_.tz}
        return {"type": "timestamp", "unit": type_.unit, **zone}
    if is_.is_duration(type_):
        return {"type": "duration", "unit": type_.unit}
    if is_.is_time(type_):
        return {"type": f"time{type_.bit_width}", "unit": type_.unit}
    if is_.is_fixed_size_binary(type_):
        return {"type": "fixed_size_binary", "length": type_.byte_width}
    return _nested_to_json(type_)


def _nested_to_json(type_: pa.DataType) -> Json:
    is_ = pa.types
    if is_.is_struct(type_):
        return {"type": "struct", "fields": [field_to_json(field) for field in type_.fields]}
    if is_.is_map(type_):
        entries = pa.field(
            "entries", pa.struct([type_.key_field, type_.item_field]), nullable=False
        )
        return {"type": "map", "fields": [field_to_json(entries)]}
    if is_.is_fixed_size_list(type_):
        item = field_to_json(type_.value_field)
        return {"type": "fixed_size_list", "fields": [item], "length": type_.list_size}
    if is_.is_large_list(type_):
        return {"type": "large_list", "fields": [field_to_json(type_.value_field)]}
    if is_.is_list(type_):
        return {"type": "list", "fields": [field_to_json(type_.value_field)]}
    return {"type": str(type_)}


def _texts(metadata: Mapping[bytes, bytes]) -> dict[str, str]:
    return {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, value in metadata.items()
    }


# -- from JSON


def type_from_json(value: object) -> pa.DataType:
    """The type that JSON describes, as an object or a bare name. Raises InvalidInput."""
    return _type(value, 0)


def _type(value: object, depth: int) -> pa.DataType:
    if isinstance(value, str):
        value = {"type": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise InvalidInput(f"{_shown(value)} is not an Arrow type: an object with a 'type' is")
    if depth > _MAX_DEPTH:
        raise InvalidInput(f"The Arrow type is nested deeper than {_MAX_DEPTH} levels")
    head, _, parameters = value["type"].partition(":")
    head = head.lower()
    name = f"{head}:{parameters}" if parameters else head
    name = _ALIASES.get(name, name)
    if name in _PLAIN:
        return _PLAIN[name]
    if head in {"timestamp", "duration", "time32", "time64"}:
        return _time(head, parameters, value)
    if name.startswith("decimal"):
        return _decimal(name, value)
    if head == "fixed_size_binary":
        return pa.binary(_length(value, name, parameters))
    return _nested(name, value, depth)


def _time(kind: str, parameters: str, value: Mapping[str, Any]) -> pa.DataType:
    written, _, zone = parameters.partition(":")
    units = _UNITS.get(kind, _ANY_UNIT)
    unit = written or value.get("unit") or ("us" if kind in {"timestamp", "duration"} else None)
    if unit not in units:
        raise InvalidInput(
            f"Arrow type '{kind}' needs a 'unit', one of {', '.join(units)}: {_shown(value)}"
        )
    if kind == "timestamp":
        timezone = (None if zone in {"", "-"} else zone) or value.get("timezone") or None
        if timezone is not None and not isinstance(timezone, str):
            raise InvalidInput(f"The 'timezone' of a timestamp is a text: {_shown(value)}")
        return pa.timestamp(unit, timezone)
    makers = {"duration": pa.duration, "time32": pa.time32, "time64": pa.time64}
    return makers[kind](unit)


def _decimal(name: str, value: Mapping[str, Any]) -> pa.DataType:
    match = _DECIMAL.fullmatch(name)
    if match:
        bits, precision, scale = match[1] or "128", int(match[2]), int(match[3])
    else:
        bits, encoded = name.removeprefix("decimal"), value.get("length")
        if bits not in _DECIMALS:
            raise _unknown(value)
        if not isinstance(encoded, int) or isinstance(encoded, bool):
            raise InvalidInput(
                f"Arrow type '{name}' needs a 'length', its precision times 1000 plus its scale"
            )
        precision = (encoded + 128) // 1000  # a scale may be negative
        scale = encoded - precision * 1000
    make, most = _DECIMALS[bits]
    if not 1 <= precision <= most or not -most <= scale <= precision:
        raise InvalidInput(
            f"A decimal of {bits} bits has a precision of 1 to {most} and no larger scale: "
            f"{_shown(value)}"
        )
    return make(precision, scale)


def _nested(name: str, value: Mapping[str, Any], depth: int) -> pa.DataType:
    if name not in {"list", "large_list", "fixed_size_list", "struct", "map"}:
        raise _unknown(value)
    items = value.get("fields")
    if not isinstance(items, list):
        raise InvalidInput(f"Arrow type '{name}' needs its 'fields': {_shown(value)}")
    fields = [_field(item, depth + 1) for item in items]
    if name == "struct":
        return pa.struct(fields)
    if len(fields) != 1:
        raise InvalidInput(f"Arrow type '{name}' has one field, not {len(fields)}")
    if name == "fixed_size_list":
        return pa.list_(fields[0], _length(value, name))
    if name == "map":
        entries = fields[0].type
        if not pa.types.is_struct(entries) or entries.num_fields != 2:
            raise InvalidInput("The field of a map is a struct of the key and the value")
        return pa.map_(entries.field(0), entries.field(1))
    return pa.large_list(fields[0]) if name == "large_list" else pa.list_(fields[0])


def _field(value: object, depth: int) -> pa.Field:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise InvalidInput(f"{_shown(value)} is not an Arrow field: an object with a 'name' is")
    nullable, metadata = value.get("nullable"), value.get("metadata") or {}
    if not isinstance(nullable, bool):
        raise InvalidInput(f"Arrow field '{value['name']}' needs 'nullable', true or false")
    if not isinstance(metadata, Mapping) or not all(isinstance(v, str) for v in metadata.values()):
        raise InvalidInput(f"The 'metadata' of Arrow field '{value['name']}' is a map of texts")
    return pa.field(value["name"], _type(value.get("type"), depth), nullable, metadata or None)


def _length(value: Mapping[str, Any], name: str, parameters: str = "") -> int:
    length = (
        int(parameters) if parameters.isascii() and parameters.isdigit() else value.get("length")
    )
    if not isinstance(length, int) or isinstance(length, bool) or not 0 < length <= _MAX_LENGTH:
        raise InvalidInput(f"Arrow type '{name}' needs a 'length' of 1 or more: {_shown(value)}")
    return length


def _unknown(value: Mapping[str, Any]) -> InvalidInput:
    return InvalidInput(
        f"Arrow type {value['type'][:80]!r} is not known",
        detail=f"Known are {', '.join(_PLAIN)}, decimal128, decimal256, time32, time64, timestamp,"
        " duration, fixed_size_binary, list, large_list, fixed_size_list, struct and map.",
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:119]}…"
