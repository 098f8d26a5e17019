"""The bounds of every map and list in a JSON body, for all protocols (``catalog.limits``)."""

from typing import Any

import orjson

from catalog.errors import InvalidInput
from catalog.limits import LONGER_LISTS, MAX_ENTRIES, MAX_VALUES

_Path = tuple[Any, str | int] | None  # the path to the container, and the key or index in it


def may_exceed(content: bytes) -> bool:
    """False if a body has too few commas to exceed a bound.

    This decides almost every body by counting bytes, in less than a microsecond.
    """
    return content.count(b",") >= MAX_ENTRIES


def check_json(content: bytes) -> None:
    """``check`` for a body that is not parsed yet. Invalid JSON passes."""
    if not may_exceed(content):
        return
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return  # the parser reports it
    check(body)


def check(body: Any) -> None:
    """Raise InvalidInput for a map or a list that is too long, with its name."""
    total = 0
    waiting: list[tuple[Any, _Path]] = [(body, None)]
    while waiting:
        value, path = waiting.pop()
        if isinstance(value, dict):
            size, limit = len(value), MAX_ENTRIES
            inner = [(child, (path, key)) for key, child in value.items() if _is_container(child)]
        else:
            size, limit = len(value), _limit_of_list(path)
            inner = [
                (child, (path, index)) for index, child in enumerate(value) if _is_container(child)
            ]
        if size > limit:
            raise InvalidInput(f"{_shown(path)} has {size} entries; at most {limit} are allowed")
        total += size
        if total > MAX_VALUES:
            raise InvalidInput(f"The request body holds more than {MAX_VALUES} values")
        waiting += inner


def _is_container(value: Any) -> bool:
    return type(value) is dict or type(value) is list


def _limit_of_list(path: _Path) -> int:
    name = None if path is None else path[1]
    return LONGER_LISTS.get(name, MAX_ENTRIES) if isinstance(name, str) else MAX_ENTRIES


def _shown(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, step = path
        text = step[:80] if isinstance(step, str) else f"[{step}]"
        parts.append(text)
    return ".".join(reversed(parts)).replace(".[", "[") or "The request body"
