"""The operation of a Lance version, and the rows and files that it added and removed, from manifests alone.

The message ``Transaction`` and its field numbers are those of Lance's ``protos/transaction.proto``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from catalog.formats.lance import manifest, wire
from catalog.formats.lance.manifest import BasePath, NotAManifest
from catalog.formats.lance.wire import Field, MalformedMessage

_LENGTH_BYTES = 4
# message Manifest
_FRAGMENTS, _TRANSACTION_SECTION = 2, 23
# messages Transaction, Overwrite, Clone, UpdateBases
_OVERWRITE, _CLONE, _UPDATE_BASES = 102, 113, 114
_INITIAL_BASES, _SOURCE_PATH, _BRANCH_NAME, _NEW_BASES = 5, 4, 5, 1
# message DataFragment
_FRAGMENT_ID, _FILES, _DELETION_FILE, _PHYSICAL_ROWS = 1, 2, 3, 4
# messages DataFile, DeletionFile
_FILE_PATH, _DELETED_ROWS = 1, 4

OPERATIONS: Mapping[int, str] = {
    100: "Append",
    101: "Delete",
    102: "Overwrite",
    103: "CreateIndex",
    104: "Rewrite",
    105: "Merge",
    106: "Restore",
    107: "ReserveFragments",
    108: "Update",
    109: "Project",
    110: "UpdateConfig",
    111: "DataReplacement",
    112: "UpdateMemWalState",
    113: "Clone",
    114: "UpdateBases",
}
"""The operations of a transaction by field number, as Lance's API names them."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """What a version needs of a fragment."""

    id: int
    physical_rows: int
    deleted_rows: int
    files: frozenset[str]
    """The paths of its data files."""

    @property
    def rows(self) -> int:
        return self.physical_rows - self.deleted_rows


@dataclass(frozen=True, slots=True)
class VersionContents:
    """The fragments of a version, and its operation if the manifest contains the transaction."""

    fragments: Mapping[int, Fragment]
    operation: str


@dataclass(frozen=True, slots=True)
class Change:
    """What a version changed. Amounts are None if the previous version is not known."""

    operation: str
    """Lance's name of the operation; empty if the manifest does not contain it."""
    rows: int
    """The rows of the version."""
    rows_added: int | None = None
    rows_removed: int | None = None
    files_added: int | None = None
    files_removed: int | None = None


NO_FRAGMENTS = VersionContents({}, "")
"""The contents of a table before its first version."""


def read(data: bytes) -> VersionContents:
    """Read a whole manifest file. Raises NotAManifest."""
    start = manifest.message_start(data[-manifest.FOOTER_BYTES :], len(data))
    begin, end = start + _LENGTH_BYTES, len(data) - manifest.FOOTER_BYTES
    try:
        top = wire.fields(data, begin, end, {_FRAGMENTS, _TRANSACTION_SECTION})
        fragments = [
            wire.cached(_fragment, data[first:last])
            for number, kind, first, last in top
            if number == _FRAGMENTS and kind == wire.BYTES
        ]
        return VersionContents(
            {fragment.id: fragment for fragment in fragments}, _operation(data, top)
        )
    except MalformedMessage as error:
        raise NotAManifest(f"its message is malformed: {error}") from None


def change(before: VersionContents | None, after: VersionContents) -> Change:
    """The difference of two successive versions."""
    rows = sum(fragment.rows for fragment in after.fragments.values())
    if before is None:
        return Change(after.operation, rows)
    rows_added = rows_removed = 0
    for id_ in before.fragments.keys() | after.fragments.keys():
        old, new = before.fragments.get(id_), after.fragments.get(id_)
        if old is not None and new is not None and _is_same(old, new, after.operation):
            deleted = new.deleted_rows - old.deleted_rows
            rows_removed += max(deleted, 0)
            rows_added += max(-deleted, 0)
        else:
            rows_removed += old.rows if old is not None else 0
            rows_added += new.rows if new is not None else 0
    old_files, new_files = _files(before), _files(after)
    return Change(
        after.operation,
        rows,
        rows_added,
        rows_removed,
        len(new_files - old_files),
        len(old_files - new_files),
    )


def _is_same(old: Fragment, new: Fragment, operation: str) -> bool:
    """True if the fragment has the same rows apart from deletions. An overwrite numbers fragments from the beginning."""
    if old.physical_rows != new.physical_rows:
        return False
    return operation != "Overwrite" or not old.files.isdisjoint(new.files)


def _files(contents: VersionContents) -> set[str]:
    return {path for fragment in contents.fragments.values() for path in fragment.files}


@lru_cache(maxsize=wire.CACHED)  # a version shares most fragments with the previous one
def _fragment(data: bytes) -> Fragment:
    fields = wire.fields(data, 0, len(data))
    deletion = wire.message(data, fields, _DELETION_FILE) or []
    return Fragment(
        wire.number(fields, _FRAGMENT_ID) or 0,
        wire.number(fields, _PHYSICAL_ROWS) or 0,
        wire.number(deletion, _DELETED_ROWS) or 0,
        frozenset(
            wire.text(data, file, _FILE_PATH) or "" for file in wire.messages(data, fields, _FILES)
        ),
    )


@dataclass(frozen=True, slots=True)
class AddedBases:
    """The base paths that a transaction brings in."""

    paths: tuple[BasePath, ...] = ()
    source: str = ""
    """The location of the table of which this one is a clone; empty for other transactions."""


NO_BASES = AddedBases()
"""Those of a transaction that brings in none."""


def added_bases(data: bytes) -> AddedBases:
    """The base paths that the transaction in a manifest file brings in. Raises NotAManifest.

    Other operations take over those of the version from which they continue. A clone as a new table has those
    of its source.
    """
    start = manifest.message_start(data[-manifest.FOOTER_BYTES :], len(data))
    begin, end = start + _LENGTH_BYTES, len(data) - manifest.FOOTER_BYTES
    try:
        transaction = _transaction(data, wire.fields(data, begin, end, {_TRANSACTION_SECTION}))
        clone = wire.message(data, transaction, _CLONE)
        if clone is not None and not wire.text(data, clone, _BRANCH_NAME):
            source = wire.text(data, clone, _SOURCE_PATH) or ""
            return AddedBases(manifest.read_head(data[start:]).base_paths, source)
        added = [
            base
            for operation, bases in (
                (_OVERWRITE, _INITIAL_BASES),
                (_UPDATE_BASES, _NEW_BASES),
            )
            for message in wire.messages(data, transaction, operation)
            for base in wire.messages(data, message, bases)
        ]
        return AddedBases(tuple(manifest.read_base(data, base) for base in added))
    except MalformedMessage as error:
        raise NotAManifest(f"its message is malformed: {error}") from None


def _operation(data: bytes, top: Sequence[Field]) -> str:
    """The operation of the transaction that the file contains; older files name another file instead."""
    numbers = {number for number, *_ in _transaction(data, top)} & OPERATIONS.keys()
    return OPERATIONS[numbers.pop()] if len(numbers) == 1 else ""


def _transaction(data: bytes, top: Sequence[Field]) -> list[Field]:
    """The fields of the transaction that the file contains; none if it names another file instead."""
    position = wire.number(top, _TRANSACTION_SECTION)
    if position is None:
        return []
    begin = position + _LENGTH_BYTES
    end = begin + int.from_bytes(data[position:begin], "little")
    if end > len(data):
        raise MalformedMessage("the transaction ends outside the file")
    return wire.fields(data, begin, end)
