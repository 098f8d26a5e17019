"""Why mutants are equivalent: no test can tell them from the original."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_LIST = Path(__file__).parent / "equivalent.toml"
_STRICT = re.compile(r"(, *)?strict=(True|False|None)|, (?=\))")
_KEYWORD = re.compile(r"[\"' ](SELECT|INSERT|UPDATE|DELETE|FROM|WHERE|RETURNING|ANY)\b")


def listed_reasons() -> dict[tuple[str, tuple[str, ...]], str]:
    """The reasons in ``equivalent.toml``, by function and changed lines."""
    entries: list[dict[str, Any]] = tomllib.loads(_LIST.read_text()).get("equivalent", [])
    return {(e["function"], tuple(e["change"].strip().split("\n"))): e["reason"] for e in entries}


def general_reason(change: Sequence[str]) -> str | None:
    """Why a changed line is equivalent in any function; None: no rule applies."""
    if len(change) != 2:
        return None
    old, new = (line[2:] for line in change)
    if "zip(" in old and "strict=" in old and _STRICT.sub("", old) == _STRICT.sub("", new):
        return "The lengths are always equal: the argument only asserts that."
    if _KEYWORD.search(old) and not _KEYWORD.search(new) and old.lower() == new.lower():
        return "The keywords of SQL may be written in lower case."
    return None
