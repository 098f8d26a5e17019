"""Finding the tables that lie in storage below a directory, and planning their names.

A directory with ``_versions`` is a Lance table, and one with metadata files in ``metadata`` is an Iceberg
table. Directories are listed level by level, so that the number of requests to a store depends on the
number of tables, not on the number of their files. No file is opened.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from django.db.models import Q

from catalog import access
from catalog.access import On, Principal
from catalog.errors import ServiceUnavailable
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.identifiers import Identifier, digest
from catalog.models import Table, TableFormat
from catalog.privileges import Privilege
from catalog.storage import locations, stores
from catalog.storage.stores import Store, StoredFile

MAX_TABLES = 10_000
"""The most tables of one plan."""
_MAX_DEPTH = 8
_MAX_DIRECTORIES = 100_000
_METADATA = re.compile(
    r"(?:v?\d+(?:-[0-9a-fA-F-]{36})?|[0-9a-fA-F-]{36})\.(?:gz\.)?metadata\.json(?:\.gz)?"
)
# What catalogs append to a directory's name so that it is unique.
_UNIQUE_ENDING = re.compile(
    r"[-_](?:[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$"
)


class CandidateStatus(StrEnum):
    """What a registration would do with a table in storage."""

    NEW = "new"
    """It would be registered."""
    REGISTERED = "registered"
    """It is in the catalog already."""
    NAME_TAKEN = "name-taken"
    """Another table, in the catalog or in the plan, has the name."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table in storage, and the name that a plan gives it."""

    format: TableFormat
    location: str
    """Canonical location of the table."""
    table: Identifier
    """The name under which it would be, or is, registered."""
    metadata_location: str | None = None
    """Of an Iceberg table, its newest metadata file."""
    status: CandidateStatus = CandidateStatus.NEW


@dataclass(frozen=True, slots=True)
class Plan:
    """The tables below a directory."""

    location: str
    namespace: Identifier
    candidates: list[Candidate] = field(default_factory=list)
    """Sorted by location."""
    is_complete: bool = True
    """False if there are more tables or directories than one plan covers."""


@dataclass(frozen=True, slots=True)
class _StoredTable:
    format: TableFormat
    location: str
    metadata_location: str | None = None


def plan(
    *,
    actor: Principal,
    location: str,
    namespace: Identifier,
    formats: frozenset[TableFormat] = frozenset(TableFormat),
) -> Plan:
    """Find the tables below a location and name them after their directories.

    Directories between the location and a table become namespaces below ``namespace``. Endings such as
    ``.lance``, ``.db`` and unique suffixes are left out. Requires MANAGE on the whole catalog, because
    the names of directories are shown whoever they belong to. Nothing is changed. Raises
    InvalidLocation, NamespaceNotFound, and ServiceUnavailable if the storage fails.
    """
    access.require(actor, Privilege.MANAGE)
    access.require(actor, Privilege.CREATE, On.namespace(namespace))
    root = _root(location)
    tables: list[_StoredTable] = []
    is_complete = True
    try:
        for table in _walk(stores.store_of(root), root):
            if table is None or len(tables) == MAX_TABLES:
                is_complete = False
                break
            if table.format in formats:
                tables.append(table)
    except OSError as error:
        raise ServiceUnavailable(
            f"{location!r} cannot be listed: {error.strerror or error}; try again"
        ) from error
    tables.sort(key=lambda table: table.location)
    return Plan(root, namespace, _candidates(root, namespace, tables), is_complete)


def _root(location: str) -> str:
    """The canonical form of a location, which may be a root itself. Raises InvalidLocation."""
    text = location.rstrip("/")
    roots = {*locations.allowed_roots(), *stores.object_roots()}
    for spelling in (text, text.removeprefix("file://")):
        if spelling in roots:
            return spelling
    return (
        locations.check_location(text)
        if locations.is_relative(text)
        else locations.iceberg_path(text)
    )


def _walk(store: Store, root: str) -> Iterator[_StoredTable | None]:
    """The tables below a directory; None if there are too many directories."""
    waiting = deque([(root, 0)])
    visited = 0
    while waiting:
        directory, depth = waiting.popleft()
        visited += 1
        if visited > _MAX_DIRECTORIES:
            yield None
            return
        names = sorted(store.list_directories(directory, ""))
        table = _table_at(store, directory, names) if directory != root else None
        if table is not None:
            yield table
        elif depth < _MAX_DEPTH:
            waiting.extend(
                (f"{directory}/{name}", depth + 1)
                for name in names
                if not name.startswith((".", "_"))
            )


def _table_at(store: Store, directory: str, names: list[str]) -> _StoredTable | None:
    if "_versions" in names:
        return _StoredTable(TableFormat.LANCE, directory)
    if "metadata" in names:
        files = [
            file
            for file in store.list_files(directory, "metadata")
            if _METADATA.fullmatch(file.name)
        ]
        if files:
            newest = max(files, key=_age)
            path = locations.iceberg_uri(f"{directory}/metadata/{newest.name}")
            return _StoredTable(TableFormat.ICEBERG, directory, path)
    return None


def _age(file: StoredFile) -> tuple[int, float, str]:
    return metadata_documents.sequence_of(file.name), file.modified_at, file.name


# --- names -------------------------------------------------------------------------------------


def _candidates(root: str, namespace: Identifier, tables: list[_StoredTable]) -> list[Candidate]:
    registered = _registered([table.location for table in tables])
    names = [_name(root, namespace, table.location) for table in tables]
    taken = _taken(
        [
            name
            for name, table in zip(names, tables, strict=True)
            if table.location not in registered
        ]
    )
    candidates = []
    for name, table in zip(names, tables, strict=True):
        status = CandidateStatus.NEW
        identifier = name
        if table.location in registered:
            status, identifier = CandidateStatus.REGISTERED, registered[table.location]
        elif digest(name) in taken:
            status = CandidateStatus.NAME_TAKEN
        else:
            taken.add(digest(name))
        candidates.append(
            Candidate(table.format, table.location, identifier, table.metadata_location, status)
        )
    return candidates


def _registered(directories: list[str]) -> dict[str, Identifier]:
    """The present tables at these locations."""
    rows = Table.objects.present().filter(location__in=directories).select_related("namespace")
    return {row.location: row.identifier for row in rows}


def _taken(names: list[Identifier]) -> set[object]:
    """The digests of those names that a present table or view has."""
    digests = {digest(name) for name in names}
    return set(
        Table.objects.present().filter(Q(digest__in=digests)).values_list("digest", flat=True)
    )


def _name(root: str, namespace: Identifier, location: str) -> Identifier:
    *above, last = location[len(root) + 1 :].split("/")
    levels = [level.removesuffix(".db") or level for level in above]
    return (*namespace, *levels, _table_name(last))


def _table_name(directory: str) -> str:
    name = directory.removesuffix(".lance")
    return _UNIQUE_ENDING.sub("", name) or directory
