"""Iceberg's primitive types (spec: Schemas and Data Types; Default values; Appendix D).

``variant`` is included: it has no fields of its own, and is written as a name.
"""

import re

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.reading import INT_MAX, LONG_MAX, kind, shown

_PLAIN = frozenset(
    {
        "boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz",
        "timestamp_ns", "timestamptz_ns", "string", "uuid", "binary", "unknown", "variant",
        "geometry", "geography",
    }
)  # fmt: skip
_DECIMAL = re.compile(r"decimal\( *(?P<precision>[0-9]{1,2}) *, *(?P<scale>[0-9]{1,2}) *\)")
_FIXED = re.compile(r"fixed\[ *(?P<length>[0-9]{1,10}) *\]")
_GEOMETRY = re.compile(r"geometry\( *[^,() ][^,()]*\)")
_GEOGRAPHY = re.compile(
    r"geography\( *[^,() ][^,()]*(, *(spherical|vincenty|thomas|andoyer|karney) *)?\)"
)
_FIRST_VERSION = {
    "timestamp_ns": 3, "timestamptz_ns": 3, "unknown": 3, "variant": 3, "geometry": 3,
    "geography": 3,
}  # fmt: skip
WITHOUT_DEFAULT = frozenset({"unknown", "variant", "geometry", "geography"})
_INTEGERS = {"int": INT_MAX, "long": LONG_MAX}
_NUMBERS = frozenset({"float", "double"})


def base_name(type_name: str, path: str) -> str:
    """The type without parameters: ``decimal`` for ``decimal(9,2)``.

    Raises InvalidMetadata for an unknown type.
    """
    if type_name in _PLAIN:
        return type_name
    if match := _DECIMAL.fullmatch(type_name):
        precision, scale = int(match["precision"]), int(match["scale"])
        if not 1 <= precision <= 38 or scale > precision:
            raise InvalidMetadata(
                f"{path}: {type_name} needs a precision of 1 to 38 and no larger scale"
            )
        return "decimal"
    if match := _FIXED.fullmatch(type_name):
        if not 1 <= int(match["length"]) <= INT_MAX:
            raise InvalidMetadata(f"{path}: {type_name} needs a length of 1 to {INT_MAX}")
        return "fixed"
    if _GEOMETRY.fullmatch(type_name):
        return "geometry"
    if _GEOGRAPHY.fullmatch(type_name):
        return "geography"
    raise InvalidMetadata(f"{path}: unknown type {shown(type_name)}")


def plain_name(type_name: str) -> str:
    """A type's name in lower case, as Java reads it, except the parameters of geometry types."""
    name, bracket, parameters = type_name.partition("(")
    lower = name.lower()
    return (
        lower + bracket + (parameters if lower in {"geometry", "geography"} else parameters.lower())
    )


def first_version(base: str) -> int:
    """The first format version that has the type."""
    return _FIRST_VERSION.get(base, 1)


def check_default(base: str, value: object, path: str) -> None:
    """Raise InvalidMetadata if a default does not have its type's JSON form.

    Spec: JSON single-value serialization.
    """
    if value is None:
        return
    if base in WITHOUT_DEFAULT:
        raise InvalidMetadata(f"{path}: a column of type {base} has no default but null")
    if base == "boolean":
        fits = type(value) is bool
    elif base in _INTEGERS:
        limit = _INTEGERS[base]
        fits = type(value) is int and -limit - 1 <= value <= limit
    elif base in _NUMBERS:
        fits = type(value) in {int, float}
    else:
        fits = type(value) is str
    if not fits:
        raise InvalidMetadata(f"{path}: {kind(value)} is no default of a column of type {base}")
