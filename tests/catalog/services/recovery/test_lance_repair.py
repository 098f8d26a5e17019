"""Repair of Lance tables whose newest version is incomplete."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from catalog.access import SYSTEM, Principal
from catalog.errors import InvalidTableState, PermissionDenied, TableHasNoData
from catalog.formats.lance.naming import NamingScheme, final_manifest_path
from catalog.models import AuditEvent, Table, TableVersion
from catalog.services.lance import data as lance_data
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import reconcile as lance_reconcile
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.recovery import lance_repair
from catalog.services.recovery.lance_repair import BranchReport
from catalog.storage import lance_options
from tests.factories import files, final_path, make_lance_table, make_table, snapshot

pytestmark = pytest.mark.django_db

T = ("ws", "t")


@pytest.fixture
def table(warehouse: Path) -> Table:
    row = make_lance_table(T)
    for number in (4, 5):
        append(number)
    lance_versions.settle(row)
    return row


def append(number: int) -> None:
    rows = pa.table({"id": [number], "name": ["x"]})
    lance_data.insert(actor=SYSTEM, table=T, data=rows.to_reader())


def ids() -> list[int]:
    dataset = lance_datasets.read(actor=SYSTEM, table=T)
    return sorted(dataset.to_table().column("id").to_pylist())


def numbers() -> list[int]:
    rows = TableVersion.objects.visible().order_by("version")
    return list(rows.values_list("version", flat=True))


@pytest.mark.usefixtures("everywhere")
def test_repair_leaves_a_readable_table_unchanged(table):
    before, on_disk = snapshot(), files(table.location)
    for is_dry_run in (True, False):
        result = lance_repair.repair(actor=SYSTEM, table=T, is_dry_run=is_dry_run)
        assert result.branches == (BranchReport("", 3, "", 3, (), (), 4),)
        assert (result.published, result.transaction_id) == ({}, None)
    assert (snapshot(), files(table.location)) == (before, on_disk)


def test_repair_retires_a_version_without_manifest(everywhere, table):
    everywhere.remove(f"{table.location}/{final_manifest_path('', 3, NamingScheme.V2)}")
    lance_datasets.clear_caches()
    planned = lance_repair.repair(actor=SYSTEM, table=T, is_dry_run=True)
    fault = "version 3, the newest: its manifest is missing"
    assert planned.branches == (BranchReport("", 3, fault, 2, (3,), (), 4),)
    assert planned.published == {"": 4}
    assert numbers() == [1, 2, 3]
    result = lance_repair.repair(actor=SYSTEM, table=T)
    assert result.branches == planned.branches
    assert numbers() == [1, 2, 4]
    assert ids() == [1, 2, 3, 4]
    event = AuditEvent.objects.get(action="version.repair")
    assert event.after == {
        "version": 4,
        "manifest_path": TableVersion.objects.get(version=4).manifest_path,
        "from_version": 2,
        "fault": fault,
        "retired": [[3, 4]],
    }
    append(6)
    assert (ids(), numbers()) == ([1, 2, 3, 4, 6], [1, 2, 4, 5])
    dataset = lance.dataset(
        table.location, storage_options=lance_options.storage_options(table.location)
    )
    assert dataset.count_rows() == 5


def test_repair_retires_a_version_without_data_file(everywhere, table):
    data = f"{table.location}/data"
    older = set(everywhere.files(data))
    append(6)
    (added,) = set(everywhere.files(data)) - older
    everywhere.remove(f"{data}/{added}")
    lance_datasets.clear_caches()
    result = lance_repair.repair(actor=SYSTEM, table=T)
    assert result.branches[0].fault == (
        f"version 4, the newest: its file 'data/{added}' is missing"
    )
    assert (result.published, numbers(), ids()) == ({"": 5}, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5])


def test_repair_retires_a_version_with_invalid_manifest(table):
    """Older releases recorded such manifests."""
    final_path(table, 3).write_bytes(b"no manifest")
    lance_datasets.clear_caches()
    assert "is not a Lance manifest" in lance_repair.repair(actor=SYSTEM, table=T).branches[0].fault
    assert (numbers(), ids()) == ([1, 2, 3, 4], [1, 2, 3, 4])


def test_repair_covers_newest_versions_deleted_by_older_releases(table):
    TableVersion.objects.filter(version=3).update(deleted_at="2026-01-01T00:00Z")
    result = lance_repair.repair(actor=SYSTEM, table=T)
    assert result.branches[0].fault == "version 3 was deleted, and its number never comes back"
    assert result.published == {"": 4}
    append(6)
    assert (numbers(), ids()) == ([1, 2, 4, 5], [1, 2, 3, 4, 6])


def test_repair_refuses_a_table_without_readable_version(table):
    for version in (1, 2, 3):
        final_path(table, version).unlink()
    before, on_disk = snapshot(), files(table.location)
    with pytest.raises(InvalidTableState, match="has no version whose files are complete"):
        lance_repair.repair(actor=SYSTEM, table=T)
    assert (snapshot(), files(table.location)) == (before, on_disk)


def test_repair_requires_the_manage_privilege(table):
    with pytest.raises(PermissionDenied):
        lance_repair.repair(actor=Principal("reader", lance_repair.Privilege.READ), table=T)


def test_a_declared_table_is_refused(warehouse):
    make_table(*T)
    with pytest.raises(TableHasNoData):
        lance_repair.repair(actor=SYSTEM, table=T)


# --- files that were removed without the catalog ------------------------------------------------


def test_the_schedule_retires_versions_without_manifests(table):
    final_path(table, 1).unlink()
    assert lance_reconcile.reconcile_due() == 1
    assert numbers() == [2, 3]
    event = AuditEvent.objects.get(action="version.reconcile")
    assert (event.actor, event.after) == (
        "system",
        {"ranges": [[1, 2]], "retired": 1, "reason": "the manifests were removed from storage"},
    )
    final_path(table, 2).unlink()
    assert lance_reconcile.reconcile_due() == 0  # checked within the last hour


def test_the_schedule_skips_unreachable_storage(table):
    away = Path(table.location).rename(f"{table.location}.unmounted")
    assert lance_reconcile.reconcile(table) == 0
    away.rename(table.location)
    final_path(table, 1).unlink()
    final_path(table, 3).unlink()  # the newest
    assert lance_reconcile.reconcile(table) == 0
    assert numbers() == [1, 2, 3]
