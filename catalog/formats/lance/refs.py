"""Lance's references, tags and branches, as they lie in a table's directory.

Each is a JSON file, ``_refs/tags/<name>.json`` or ``_refs/branches/<name>.json``, whose name is
percent-encoded: a branch ``dev/x`` is in ``dev%2Fx.json``.
"""

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import orjson

from catalog.errors import InvalidInput
from catalog.formats.lance import naming

TAGS = "_refs/tags"
BRANCHES = "_refs/branches"
_ENDING = ".json"
# A file name has 255 bytes, of which Lance takes some for the name that it writes first.
_MAX_LENGTH = 200
_PART = re.compile(r"[A-Za-z0-9._-]+")
_TRANSACTION = re.compile(rb"([0-9]{1,20})-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.txn")
# What Lance itself puts into a branch's directory, where a branch 'dev/data' would lie as well.
_OWN = re.compile(r"_.*|data")


@dataclass(frozen=True, slots=True)
class TagFile:
    """What a tag's file says; the empty branch is main."""

    version: int
    branch: str = ""
    manifest_size: int = 0


@dataclass(frozen=True, slots=True)
class BranchFile:
    """What a branch's file says of its making; the empty parent is main."""

    parent_version: int
    parent: str = ""
    create_at: int = 0
    manifest_size: int = 0
    metadata: dict[str, str] = field(default_factory=dict)


def check_tag(name: str) -> str:
    """The name itself. Raises InvalidInput for a name that Lance does not take.

    It does take letters beyond ASCII, and cannot list the tags of a table any more once it has one.
    """
    _check(name, "Tag")
    if "/" in name or name.startswith(".") or name.endswith("."):
        raise InvalidInput(f"Tag name {name!r} holds a slash, or begins or ends with a dot")
    return name


def check_branch(name: str) -> str:
    """The name itself. Raises InvalidInput for a name that cannot be given to a new branch."""
    if name == "main":
        raise InvalidInput("The name 'main' belongs to the branch that every table has")
    _check(name, "Branch")
    naming.check_branch(name)
    for segment in name.split("/")[1:]:
        if is_own_directory(segment):
            raise InvalidInput(
                f"Branch name {name!r}: '{segment}' is a directory of the branch above it"
            )
    return name


def is_own_directory(segment: str) -> bool:
    """Whether Lance keeps a branch's own files, rather than branches below it, in this directory."""
    return _OWN.fullmatch(segment) is not None


def _check(name: str, kind: str) -> None:
    if not all(_PART.fullmatch(segment) for segment in name.split("/")):
        raise InvalidInput(f"{kind} name {name[:80]!r} holds more than letters, digits, '.-_'")
    if ".." in name or name.endswith(".lock"):
        raise InvalidInput(f"{kind} name {name[:80]!r} holds '..' or ends with '.lock'")
    if len(quote(name, safe="")) > _MAX_LENGTH:
        raise InvalidInput(f"{kind} name '{name[:40]}…' is longer than {_MAX_LENGTH} characters")


def file_name(name: str) -> str:
    """The file of a tag or a branch of this name."""
    return quote(name, safe="") + _ENDING


def name_of(file: str) -> str | None:
    """The tag or branch that a file is for; None for another file."""
    return unquote(file.removesuffix(_ENDING)) if file.endswith(_ENDING) else None


def begins_branch(manifest: bytes, version: int) -> bool:
    """Whether the manifest of this version is a branch's first.

    A manifest names the file of its transaction, ``<version read>-<uuid>.txn``. What begins a branch
    has the number of the version that it was made from; any other version has the next one.
    """
    named = _TRANSACTION.findall(manifest)
    return bool(named) and int(named[-1]) == version


def parse_tag(content: bytes) -> TagFile | None:
    """What a tag's file says; None when it does not read as one."""
    document = _parse(content)
    version = _number(document.get("version"))
    if version is None:
        return None
    return TagFile(
        version, _branch(document.get("branch")), _number(document.get("manifestSize")) or 0
    )


def parse_branch(content: bytes) -> BranchFile | None:
    """What a branch's file says; None when it does not read as one."""
    document = _parse(content)
    version = _number(document.get("parentVersion"))
    if version is None:
        return None
    metadata = document.get("metadata")
    return BranchFile(
        version,
        _branch(document.get("parentBranch")),
        _number(document.get("createAt")) or 0,
        _number(document.get("manifestSize")) or 0,
        {k: v for k, v in metadata.items() if isinstance(v, str)}
        if isinstance(metadata, dict)
        else {},
    )


def _parse(content: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _branch(value: object) -> str:
    return value if isinstance(value, str) and value != "main" else ""


def _number(value: object) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= naming.MAX_VERSION else None  # type: ignore[operator, return-value]
