"""The table that a file belongs to, and the operations that are permitted on the file.

A file belongs to the table that holds the deepest directory around it: the table's location, or one
of the paths that an Iceberg table entered (``IcebergPath``). It belongs to no single table if several
hold that directory. Paths are resolved first: ``..`` and other schemes are refused, and links in local
file systems are followed. A path in an object store must have the canonical spelling, because keys are
compared literally and nothing is opened to compare them.

    classify          the owner of each file
    require_readable  before a file is opened, planned or handed out for a table
    may_change        before a file is deleted, moved or rewritten for a table
    require_new       before a file is created for a table

A refusal is the same whether the file is another table's, a system file or missing.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

from catalog import access, regular_files
from catalog.access import Principal
from catalog.errors import ForeignFile
from catalog.identifiers import Identifier
from catalog.models import FileReference, TableFormat
from catalog.privileges import NOTHING
from catalog.services.storage import file_references, table_claims
from catalog.services.storage.file_owners import (
    Belonging,
    FileOwner,
    FutureTable,
    Holder,
    References,
)
from catalog.services.storage.table_claims import Claim, is_held_now, winners
from catalog.storage import locations, object_locations, spellings, stores

_MAX_TEXT = 2000
_MAX_LEVELS = 200
_LOOKED_UP = 300
"""Directories that are looked up together: a statement has at most 65,535 parameters."""
_SHORT = object_locations.MAX_KEY_BYTES // 4
"""Characters that no encoding makes longer than the longest key."""


NOBODY = Principal("", NOTHING, ceiling=NOTHING)
"""The reader for jobs: of other tables' files, it reads only those of recorded references.

The principal that starts a job, or the scheduler, may read more than the readers of its result.
"""
_OUTSIDE = FileOwner(Belonging.OUTSIDE)
_UNCLAIMED = FileOwner(Belonging.OUTSIDE, is_unclaimed=True)
_Shared = Mapping[int, list[str] | None]


class TableFiles:
    """Decides about the files of one table, for the length of one operation.

    Directories are resolved and looked up once. A file below the table's own location, without a
    link on the way, costs no statement. Files in object stores cost no request.
    """

    def __init__(self, table: Holder, *, also: Collection[str] = ()) -> None:
        """``also`` are canonical directories that the table gets in the operation itself."""
        self._table = table
        self._is_lance = table.format == TableFormat.LANCE
        self._own = tuple({table.location, *also})
        # Not entered yet: dropped tables may still have files there, and the commit checks the others.
        self._future = self._own if not table.pk else tuple(also)
        self._inside = tuple(directory.rstrip("/") + "/" for directory in self._own)
        self._real: dict[str, str | None] = {}
        self._owners: dict[str, FileOwner] = {}
        self._simple: dict[str, str] = {}
        self._deeper: dict[str, list[Claim]] | None = None
        self._roots: list[str] = []
        self._home = ""

    @classmethod
    def of_nobody(cls, identifier: Identifier) -> Self:
        """For a table whose location is not known yet: no file belongs to it."""
        return cls(FutureTable(identifier, "/."))  # no canonical path is, or begins with, that

    @property
    def table(self) -> Holder:
        return self._table

    # -- questions

    def classify(self, paths: Iterable[str]) -> dict[str, FileOwner]:
        """The owner of each file. One statement, and another for the first call."""
        self._load_deeper()
        return self._classify(paths)

    def require_readable(self, actor: Principal, paths: Iterable[str]) -> dict[str, str]:
        """The real path of each file, if all may be read for this table on behalf of ``actor``.

        Principals that may read every table that holds a file may read the file. Other principals may
        read files in directories with a reference that was recorded by a principal that may read that
        table. Raises ForeignFile. Nothing is opened.
        """
        return self.check(actor, paths)[0]

    def check(self, actor: Principal, paths: Iterable[str]) -> tuple[dict[str, str], References]:
        """``require_readable`` and ``references`` of the same files."""
        real, unreadable, owners = self.judge(actor, paths)
        if unreadable:
            raise self.refusal(unreadable[0])
        return real, self._references(owners)

    def judge(
        self, actor: Principal, paths: Iterable[str]
    ) -> tuple[dict[str, str], list[str], Iterable[FileOwner]]:
        """The real path of each readable file, the other files, and owners of both."""
        real: dict[str, str] = {}
        others, unreadable = [], []
        for text in paths:
            path = self._path_if_simple(text)
            if path is None:
                others.append(text)
            else:
                real[text] = path
        if not others:
            return real, [], ()
        owners = self._classify(others)
        foreign = {
            pk
            for owner in owners.values()
            if owner.belonging == Belonging.OTHER
            for pk in owner.table_ids
        }
        readable = access.readable_tables(actor, foreign) if foreign else set()
        shared = self._shared_directories(foreign - readable)
        for text, owner in owners.items():
            path = owner.path if self._may_read(owner, readable, shared) else None
            if path is None:
                unreadable.append(text)
            else:
                real[text] = path
        return real, unreadable, owners.values()

    def _may_read(self, owner: FileOwner, readable: Collection[int], shared: _Shared) -> bool:
        if owner.path is None or owner.belonging == Belonging.OUTSIDE:
            return False
        return owner.belonging != Belonging.OTHER or all(
            source in readable
            or source == self._table.pk
            or (source in shared and file_references.is_within(owner.path, shared[source]))
            for source in owner.table_ids
        )

    def may_change(self, path: str) -> bool:
        """True if a file may be deleted, moved or rewritten for this table: only its own files may."""
        return self.classify([path])[path].belonging == Belonging.OWN

    def require_new(self, path: str, text: str) -> None:
        """Check that a file which is to be created would lie in a directory that this table holds.

        ``path`` is canonical; ``text`` names it in the refusal. No statement below the table's location.
        Raises ForeignFile.
        """
        if path.startswith(self._inside):
            return
        owner = self.classify([path])[path]
        if owner.belonging != Belonging.OWN and self._table.pk not in owner.table_ids:
            raise self.refusal(text, "written")

    def own_paths(self, paths: Iterable[str]) -> dict[str, str]:
        """The real paths of those files that may be changed."""
        return {
            text: owner.path
            for text, owner in self.classify(paths).items()
            if owner.belonging == Belonging.OWN and owner.path is not None
        }

    def canonical(self, paths: Iterable[str]) -> dict[str, str]:
        """The paths by which files are compared, whoever owns them: of one spelling, with links followed."""
        location = self._table.location
        return {
            text: spellings.object_of(text, location)
            or self._resolve(text)
            or spellings.local_file(text)
            for text in paths
        }

    def refusal(self, path: str, verb: str = "read") -> ForeignFile:
        return ForeignFile(path, self._table.identifier, verb)

    def _shared_directories(self, sources: Collection[int]) -> _Shared:
        """The directories of other tables to which this one has valid references.

        None stands for all directories of a table. Two statements.
        """
        if not sources or not self._table.pk:
            return {}
        rows = FileReference.objects.attached().filter(
            table_id=self._table.pk, source_id__in=sources
        )
        references = {row.source_id: row for row in rows}
        valid = file_references.valid_sources(
            {source: row.principal for source, row in references.items()}
        )
        return {source: references[source].directories for source in valid}

    def references(self, paths: Iterable[str]) -> References:
        """The references of the table that these files cause. See ``file_references``."""
        others = [path for path in paths if self._path_if_simple(path) is None]
        return self._references(self._classify(others).values()) if others else References()

    def _references(self, owners: Iterable[FileOwner]) -> References:
        """Missing directories are not recorded: whoever named them would block tables that get them later."""
        foreign: set[tuple[int, str]] = set()
        free: set[str] = set()
        for owner in owners:
            if owner.belonging == Belonging.OTHER and owner.path is not None:
                directory = owner.path.rpartition("/")[0]
                foreign |= {(pk, directory) for pk in owner.table_ids if pk != self._table.pk}
            elif owner.path is not None and (
                owner.belonging == Belonging.FREE or owner.is_unclaimed
            ):
                free.add(owner.path.rpartition("/")[0])
        present = {path for path in free if locations.is_object(path) or Path(path).is_dir()}
        return References(frozenset(foreign), frozenset(present))

    def prefixes(self) -> tuple[list[str], list[str]]:
        """The directories that this table holds, and those that others hold at or inside them.

        For a process that decides without the database: a file belongs to this table alone if the
        deepest of these directories around it is one of the former.
        """
        self._load_deeper()
        deeper = self._deeper or {}
        mine = {*self._own, *(path for path, claims in deeper.items() if self._wins(claims))}
        self._look_up(mine)
        mine = {path for path in mine if self._owners[path].belonging == Belonging.OWN}
        foreign = [path for path, claims in deeper.items() if not self._wins(claims)]
        return sorted(mine - set(foreign)), sorted(foreign)

    # -- owners

    def _path_if_simple(self, text: str) -> str | None:
        """The real path of a file below the table's own location; None if this needs the full check."""
        directory, _, name = text.rpartition("/")
        inside = self._simple.get(directory)
        if inside is None:
            real = f"{self._real_directory(directory) or ''}/"
            inside = self._simple[directory] = real if real.startswith(self._inside) else ""
        if not inside or len(text) >= _MAX_TEXT:
            return None
        path = inside + name
        return path if _is_plain(path, name) and _is_regular_or_missing(path) else None

    def _classify(self, paths: Iterable[str]) -> dict[str, FileOwner]:
        resolved = {text: self._resolve(text) for text in paths}
        self._look_up({path.rpartition("/")[0] for path in resolved.values() if path is not None})
        owners = {}
        for text, path in resolved.items():
            owner = _OUTSIDE
            if path is not None:
                parent_owner = self._owners[path.rpartition("/")[0]]
                if parent_owner is not _OUTSIDE:
                    owner = replace(parent_owner, path=path)
            owners[text] = owner
        return owners

    def _look_up(self, directories: set[str]) -> None:
        """Find the owners of directories. One statement for 300, none for those in the location."""
        remaining = iter(directories - self._owners.keys())
        while unknown := list(islice(remaining, _LOOKED_UP)):
            self._look_up_some(unknown)

    def _look_up_some(self, unknown: Collection[str]) -> None:
        claims = dict(self._deeper or {})
        ancestors = {
            parent
            for directory in unknown
            # Tables do not lie inside one another; ``_deeper`` has the exceptions.
            if not f"{directory}/".startswith(self._inside)
            for parent in (directory, *locations.parents(directory))
        }
        if ancestors:
            if not self._roots:
                self._roots, self._home = locations.allowed_roots(), locations.home()
            claims.update(table_claims.claims_of(ancestors))
        for directory in unknown:
            self._owners[directory] = self._owner(directory, claims)

    def _owner(self, directory: str, claims: Mapping[str, list[Claim]]) -> FileOwner:
        for parent in (directory, *locations.parents(directory)):
            held = claims.get(parent)
            if held:
                around = _dropped_around(parent, held, claims)
                if not around and (
                    self._wins(held) or (parent in self._future and not is_held_now(held))
                ):
                    return FileOwner(Belonging.OWN)
                owners = {claim.table_id for claim in winners(held)}
                return FileOwner(Belonging.OTHER, frozenset(owners | around))
            if parent in self._own:
                return FileOwner(Belonging.OWN)
        if locations.is_object(directory):
            return _OUTSIDE if stores.configuration_of(directory) is None else _UNCLAIMED
        if locations.is_below_any(directory, self._roots[1:]) and not self._is_servers(directory):
            return FileOwner(Belonging.FREE)
        is_unclaimed = f"{directory}/".startswith(f"{self._roots[0]}/")
        return _UNCLAIMED if is_unclaimed else _OUTSIDE

    def _is_servers(self, directory: str) -> bool:
        return any(
            f"{directory}/".startswith(f"{own}/") for own in (self._roots[0], self._home) if own
        )

    def _wins(self, claims: Collection[Claim]) -> bool:
        return {claim.table_id for claim in winners(claims)} == {self._table.pk}

    def _load_deeper(self) -> None:
        """The claims at and inside this table's directories. Only older releases allowed them."""
        if self._deeper is not None:
            return
        self._deeper = table_claims.claims_inside(self._table.pk, self._own)
        self._owners.clear()

    # -- paths

    def _resolve(self, text: Any) -> str | None:
        """The real path of a file; None if no table may have such a file."""
        if not isinstance(text, str) or len(text) >= _MAX_TEXT or text.count("/") > _MAX_LEVELS:
            return None
        spellings = self._spellings(text)
        resolved = {self._resolve_one(spelling) for spelling in spellings}
        return resolved.pop() if len(resolved) == 1 else None

    def _resolve_one(self, text: str) -> str | None:
        directory, _, name = text.rpartition("/")
        real = self._real_directory(directory)
        if real is None:
            return None
        path = f"{real}/{name}"
        if not _is_plain(path, name):
            return None
        if _is_regular_or_missing(path):
            return path
        target = stores.store_of(path).resolve(path)
        return target if target != path and _is_regular_or_missing(target) else None

    def _spellings(self, text: str) -> set[str]:
        """The paths that readers derive from the text; all must name the same file."""
        if not self._is_lance:
            return {text}
        path = locations.lance_path(text)
        if path is None:
            return {"//"}
        if not locations.is_absolute(path):
            path = f"{self._table.location}/{path}"
        return {path}

    def _real_directory(self, directory: str) -> str | None:
        """The real path of a directory; None for a spelling that no table's path has."""
        if directory not in self._real:
            path = locations.literal_directory(directory)
            if path is not None and not locations.is_object(path):
                path = stores.store_of(path).resolve(path)
            self._real[directory] = path
        return self._real[directory]


def _dropped_around(
    path: str, held: Collection[Claim], claims: Mapping[str, list[Claim]]
) -> set[int]:
    """The dropped tables whose files are kept at or around a path that another table has.

    They hold the files there too: the path may be older than the rule that refuses such paths.
    """
    owners = {claim.table_id for claim in winners(held)}
    if any(claim.is_location and claim.table_id in owners for claim in held):
        return set()
    around = (
        claim.table_id
        for parent in (path, *locations.parents(path))
        for claim in claims.get(parent, ())
        if claim.is_location and not (claim.is_present or claim.is_purged)
    )
    return set(around) - owners


def _is_plain(path: str, name: str) -> bool:
    """True if all readers of the canonical directory understand the same file by this name."""
    if not name or name in {".", ".."}:
        return False
    is_simple = name.isascii() and name.isprintable() and "%" not in name
    if locations.is_object(path):
        # Of such a name in a canonical directory, the full check, which takes 8 µs, finds no fault.
        is_simple &= "\\" not in name and name == name.strip() and len(path) <= _SHORT
        return is_simple or locations.literal_directory(path) is not None
    return (is_simple and ".purged-" not in name) or locations.path_fault(name) is None


def _is_regular_or_missing(path: str) -> bool:
    return locations.is_object(path) or not regular_files.is_special(path)
