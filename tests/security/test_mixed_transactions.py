"""Transactions over tables of both formats, in which one takes or leaves directories that another names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catalog.access import SYSTEM
from catalog.errors import CatalogError, LocationTaken
from catalog.models import FreeDirectory, Table
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg.changes import TableChange
from catalog.services.lance.ledger.registration_operations import DeclareTable
from catalog.services.storage import file_references, recorded_references
from catalog.services.tables.table_operations import DeregisterTable
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import files, make_iceberg_table, unchanged

pytestmark = pytest.mark.django_db
T, LANCE = ("ns", "i"), ("ns", "lance")
Updates = list[dict[str, Any]]


def set_path(path: str) -> Updates:
    return [{"action": "set-properties", "updates": {"write.data.path": f"file://{path}"}}]


def set_location(path: str) -> Updates:
    return [{"action": "set-location", "location": f"file://{path}"}]


def both(updates: Updates, *also: Any) -> None:
    change = TableChange(table=T, requirements=[], updates=updates)
    iceberg_commits.commit_tables(actor=SYSTEM, changes=[change], also=also)


CONFLICTS: dict[str, Callable[[str, str], tuple[Updates, str]]] = {
    "at a new path": lambda new, old: (set_path(f"{new}/data"), f"{new}/data"),
    "around a new path": lambda new, old: (set_path(f"{new}/data"), new),
    "inside a new location": lambda new, old: (set_location(new), f"{new}/data"),
    "at a new location": lambda new, old: (set_location(new), new),
    "around a new location": lambda new, old: (set_location(f"{new}/i"), new),
    "at the former location": lambda new, old: (set_location(new), old),
}


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("conflict", CONFLICTS)
def test_a_lance_table_takes_no_directory_of_an_iceberg_table(
    warehouse: Path, conflict: str, is_first: bool
):
    """Its location is looked up before the other changes, unless it is the first table of the batch."""
    make_iceberg_table(*T)
    open_table(*T).append(rows(1))
    old = Table.objects.get(name="i").location
    updates, location = CONFLICTS[conflict](f"{warehouse}/new", old)
    others = [] if is_first else [DeclareTable(table=("ns", "x"), location=f"{warehouse}/x")]
    before = files(warehouse)
    with unchanged(), pytest.raises(LocationTaken):
        both(updates, *others, DeclareTable(table=LANCE, location=location))
    assert files(warehouse) == before


def test_a_location_that_the_transaction_leaves_is_not_free_for_its_other_tables(warehouse: Path):
    """The files of the commit are checked before it, and would be read as those of the table."""
    make_iceberg_table(*T)
    commit([DeclareTable(table=LANCE, location=f"{warehouse}/lance")], actor=SYSTEM)
    leave = DeregisterTable(table=LANCE)
    for updates in (set_location(f"{warehouse}/lance"), set_path(f"{warehouse}/lance/data")):
        with unchanged(), pytest.raises(CatalogError):
            both(updates, leave)


def test_a_lance_table_at_files_that_the_transaction_refers_to_keeps_them(
    warehouse: Path, tmp_path: Path, settings
):
    root = tmp_path / "root"
    root.mkdir()
    settings.MONODON_ALLOWED_ROOTS = [str(root)]
    make_iceberg_table(*T)
    directory = root / "dir"
    directory.mkdir()
    statistics = directory / "statistics.puffin"
    statistics.write_bytes(b"PFA1")
    open_table(*T).append(rows(1))
    snapshot = open_table(*T).current_snapshot()
    assert snapshot is not None
    named = {
        "snapshot-id": snapshot.snapshot_id,
        "statistics-path": f"file://{statistics}",
        "file-size-in-bytes": 4,
        "file-footer-size-in-bytes": 4,
        "blob-metadata": [],
    }
    update = {
        "action": "set-statistics",
        "snapshot-id": snapshot.snapshot_id,
        "statistics": named,
    }
    both([update], DeclareTable(table=LANCE, location=str(directory)))
    table = Table.objects.get(name="lance")
    assert FreeDirectory.objects.get().path == str(directory)
    recorded_references.record_claimed(table)
    assert file_references.count_dependents(table) == 1
