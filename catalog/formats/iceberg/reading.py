"""Typed reads from decoded JSON: a missing value or one of another kind raises with its path.

An integer must be exactly an ``int``: JSON's ``true`` is an ``int`` to Python, and ``1.0`` or a
number above 64 bits is decoded as a float. Ids have 63 bits, of which a float holds 53.
"""

import re
from typing import Any
from uuid import UUID

from catalog.errors import InvalidMetadata

Document = dict[str, Any]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def at(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def kind(value: object) -> str:
    """The JSON type of a value, for messages: they never echo a value that may be huge."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "an integer", float: "a fractional or too large number"}
    names |= {str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def wrong(path: str, expected: str, value: object) -> InvalidMetadata:
    return InvalidMetadata(f"{path or 'The document'} must be {expected}, not {kind(value)}")


def as_object(value: object, path: str) -> Document:
    if type(value) is not dict:
        raise wrong(path, "an object", value)
    return value


def as_array(value: object, path: str) -> list[Any]:
    if type(value) is not list:
        raise wrong(path, "an array", value)
    return value


def as_integer(value: object, path: str, low: int = 0, high: int = LONG_MAX) -> int:
    if type(value) is not int:
        raise wrong(path, "an integer", value)
    if not low <= value <= high:
        raise InvalidMetadata(f"{path} must be between {low} and {high}")
    return value


def as_text(value: object, path: str) -> str:
    if type(value) is not str:
        raise wrong(path, "a string", value)
    return value


def required(owner: Document, key: str, path: str) -> object:
    if key not in owner:
        raise InvalidMetadata(f"{at(path, key)} is missing")
    return owner[key]


def object_at(owner: Document, key: str, path: str) -> Document:
    return as_object(required(owner, key, path), at(path, key))


def array_at(owner: Document, key: str, path: str) -> list[Any]:
    return as_array(required(owner, key, path), at(path, key))


def integer_at(owner: Document, key: str, path: str, low: int = 0, high: int = LONG_MAX) -> int:
    return as_integer(required(owner, key, path), at(path, key), low, high)


def text_at(owner: Document, key: str, path: str) -> str:
    return as_text(required(owner, key, path), at(path, key))


def filled_text_at(owner: Document, key: str, path: str) -> str:
    text = text_at(owner, key, path)
    if not text:
        raise InvalidMetadata(f"{at(path, key)} must not be empty")
    return text


def boolean_at(owner: Document, key: str, path: str) -> bool:
    value = required(owner, key, path)
    if type(value) is not bool:
        raise wrong(at(path, key), "a boolean", value)
    return value


def optional_boolean_at(owner: Document, key: str, path: str) -> bool | None:
    value = owner.get(key)
    if value is not None and type(value) is not bool:
        raise wrong(at(path, key), "a boolean", value)
    return value


def optional_integer_at(
    owner: Document, key: str, path: str, low: int = 0, high: int = LONG_MAX
) -> int | None:
    """None if the key is absent or null: clients write both for "not set"."""
    value = owner.get(key)
    return None if value is None else as_integer(value, at(path, key), low, high)


def optional_text_at(owner: Document, key: str, path: str) -> str | None:
    value = owner.get(key)
    return None if value is None else as_text(value, at(path, key))


def integers_at(owner: Document, key: str, path: str, high: int = LONG_MAX) -> list[int]:
    here = at(path, key)
    values = array_at(owner, key, path)
    return [as_integer(value, f"{here}[{i}]", high=high) for i, value in enumerate(values)]


def texts_at(owner: Document, key: str, path: str) -> list[str]:
    here = at(path, key)
    return [as_text(v, f"{here}[{i}]") for i, v in enumerate(array_at(owner, key, path))]


def objects_at(owner: Document, key: str, path: str) -> list[Document]:
    here = at(path, key)
    return [as_object(v, f"{here}[{i}]") for i, v in enumerate(array_at(owner, key, path))]


def strings_by_name_at(owner: Document, key: str, path: str) -> dict[str, str]:
    """A map from string to string: table properties, a snapshot's summary."""
    return strings_by_name(required(owner, key, path), at(path, key))


def strings_by_name(value: object, path: str) -> dict[str, str]:
    values = as_object(value, path)
    for name, text in values.items():
        if type(text) is not str:
            raise wrong(f"{path}[{shown(name)}]", "a string", text)
    return values


def uuid_at(owner: Document, key: str, path: str) -> str:
    """A UUID in its hyphenated form, converted to lower case."""
    text = text_at(owner, key, path)
    if _UUID.fullmatch(text) is None:
        raise InvalidMetadata(f"{at(path, key)} must be a UUID, not {shown(text)}")
    return str(UUID(text))
