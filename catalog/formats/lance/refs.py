"""Lance's tags and branches as files in a table's directory.

Each is a JSON file, ``_refs/tags/<name>.json`` or ``_refs/branches/<name>.json``, with a
percent-encoded name: the branch ``dev/x`` is in ``dev%2Fx.json``.
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
# A file name has at most 255 bytes, of which Lance needs some for its temporary name.
_MAX_LENGTH = 200
_PART = re.compile(r"[A-Za-z0-9._-]+")
_TRANSACTION = re.compile(rb"([0-9]{1,20})-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.txn")
# Lance's own entries in a branch's directory, which would also hold a branch 'dev/data'.
_OWN = re.compile(r"_.*|data")


@dataclass(frozen=True, slots=True)
class TagFile:
    """The content of a tag's file; the empty branch is main."""

    version: int
    branch: str = ""
    manifest_size: int = 0


@dataclass(frozen=True, slots=True)
class BranchFile:
    """The content of a branch's file; the empty parent is main."""

    parent_version: int
    parent: str = ""
    create_at: int = 0
    manifest_size: int = 0
    metadata: dict[str, str] = field(default_factory=dict)


def check_tag(name: str) -> str:
    """Return the name. Raises InvalidInput for a name that Lance does not accept.

    Letters beyond ASCII are refused as well: Lance accepts them, but then cannot list the table's
    tags any more.
    """
    _check(name, "Tag")
    if "/" in name or name.startswith(".") or name.endswith("."):
        raise InvalidInput(f"Tag name {name!r} holds a slash, or begins or ends with a dot")
    return name


def check_branch(name: str) -> str:
    """Return the name. Raises InvalidInput for a name that a new branch cannot have."""
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
    """True if a directory of this name holds a branch's own files rather than nested branches."""
    return _OWN.fullmatch(segment) is not None


def _check(name: str, kind: str) -> None:
    if not all(_PART.fullmatch(segment) for segment in name.split("/")):
        raise InvalidInput(f"{kind} name {name[:80]!r} holds more than letters, digits, '.-_'")
    if ".." in name or name.endswith(".lock"):
        raise InvalidInput(f"{kind} name {name[:80]!r} holds '..' or ends with '.lock'")
    if len(quote(name, safe="")) > _MAX_LENGTH:
        raise InvalidInput(f"{kind} name '{name[:40]}…' is longer than {_MAX_LENGTH} characters")


def file_name(name: str) -> str:
    """The file name of a tag or branch."""
    return quote(name, safe="") + _ENDING


def name_of(file: str) -> str | None:
    """The tag or branch of a file name; None for other files."""
    return unquote(file.removesuffix(_ENDING)) if file.endswith(_ENDING) else None


def begins_branch(manifest: bytes, version: int) -> bool:
    """True if the manifest of this version is the first of a branch.

    A manifest names the file of its transaction, ``<version read>-<uuid>.txn``. The first manifest of
    a branch has the number of the version that it was created from; other versions have the next
    number.
    """
    named = _TRANSACTION.findall(manifest)
    return bool(named) and int(named[-1]) == version


def parse_tag(content: bytes) -> TagFile | None:
    """The parsed file of a tag; None if it is malformed."""
    document = _parse(content)
    version, branch = _number(document.get("version")), _branch(document.get("branch"))
    if version is None or branch is None:
        return None
    return TagFile(version, branch, _number(document.get("manifestSize")) or 0)


def parse_branch(content: bytes) -> BranchFile | None:
    """The parsed file of a branch; None if it is malformed."""
    document = _parse(content)
    version, parent = _number(document.get("parentVersion")), _branch(document.get("parentBranch"))
    if version is None or parent is None:
        return None
    metadata = document.get("metadata")
    return BranchFile(
        version,
        parent,
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


def _branch(value: object) -> str | None:
    """The name of a branch; None for one that no branch can have."""
    if not isinstance(value, str) or value in {"", "main"}:
        return ""
    try:
        return naming.check_branch(value)
    except InvalidInput:
        return None


def _number(value: object) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= naming.MAX_VERSION else None  # type: ignore[operator, return-value]
