"""Registering the tables of a plan, one commit each.

A table that is registered already is left as it is, so that an interrupted registration continues
with the remaining tables when it is requested again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from catalog import access
from catalog.access import Principal
from catalog.errors import CatalogError, InvalidInput, TableAlreadyExists
from catalog.identifiers import Identifier, check
from catalog.models import Namespace, Table, TableFormat
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.lance.ledger.registration_operations import RegisterTable
from catalog.services.tables.namespace_operations import CreateMode, CreateNamespace
from catalog.storage import locations


class Outcome(StrEnum):
    """What became of a table of a plan."""

    REGISTERED = "registered"
    PRESENT = "present"
    """It was in the catalog under this name already."""
    REFUSED = "refused"
    """Nothing was changed; the message says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A table to register."""

    format: TableFormat
    table: Identifier
    location: str
    """Of a Lance table, its directory; of an Iceberg table, its metadata file."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of an entry."""

    table: Identifier
    outcome: Outcome
    message: str = ""


def register(*, actor: Principal, entries: Iterable[Entry]) -> Iterator[Result]:
    """Register tables one after the other, with the namespaces that are missing above them.

    Requires MANAGE on the whole catalog. Yields the result of each entry as soon as it is known; an
    entry that is refused changes nothing and does not keep the others from being registered.
    """
    access.require(actor, Privilege.MANAGE)
    for entry in entries:
        try:
            yield _register(actor, entry)
        except CatalogError as error:
            yield Result(entry.table, Outcome.REFUSED, error.message)


def _register(actor: Principal, entry: Entry) -> Result:
    if len(entry.table) < 2:
        raise InvalidInput("A table to register has a namespace and a name")
    present = Table.objects.named(entry.table).first()
    if present is not None:
        if _is_same(present, entry):
            return Result(entry.table, Outcome.PRESENT)
        raise TableAlreadyExists(entry.table)
    # In the transaction of the table: if the table is refused, no namespace remains.
    namespaces = _missing_namespaces(check(entry.table)[:-1])
    if entry.format == TableFormat.LANCE:
        register = RegisterTable(table=entry.table, location=entry.location, requires_versions=True)
        commit([*namespaces, register], actor=actor)
    else:
        iceberg_commits.register_table(
            actor=actor,
            table=entry.table,
            metadata_location=entry.location,
            namespaces=namespaces,
        )
    return Result(entry.table, Outcome.REGISTERED)


def _is_same(row: Table, entry: Entry) -> bool:
    """True if a present table is the one in storage that the entry names."""
    if row.format != entry.format:
        return False
    if locations.is_relative(entry.location):
        path = locations.check_location(entry.location)
    else:
        path = locations.iceberg_path(entry.location)
    return path == row.location or locations.is_below(path, row.location)


def _missing_namespaces(namespace: Identifier) -> list[CreateNamespace]:
    """The operations that create a namespace and those above it, as far as they do not exist."""
    paths = [namespace[:length] for length in range(1, len(namespace) + 1)]
    present = {row.identifier for row in Namespace.objects.named(*paths)}
    return [
        CreateNamespace(namespace=path, mode=CreateMode.EXIST_OK)
        for path in paths
        if path not in present
    ]
