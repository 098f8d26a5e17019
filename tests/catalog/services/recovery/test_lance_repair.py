"""Repair of Lance tables whose newest version is incomplete."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from catalog.access import SYSTEM, Principal
from catalog.errors import InvalidTableState, PermissionDenied, TableHasNoData, VersionNotFound
from catalog.formats.lance import manifest as lance_manifest
from catalog.formats.lance.naming import NamingScheme, final_manifest_path
from catalog.models import AuditEvent, Table, TableVersion
from catalog.services.lance import data as lance_data
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import reconcile as lance_reconcile
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.recovery import lance_repair
from catalog.services.recovery.lance_repair import BranchReport
from catalog.storage import lance_options
from tests.factories import files, final_path, make_lance_table, make_table, relative, snapshot
from tests.security import lance_attacks as attacks
from tests.security.lance_attacks import Change

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


def test_a_read_of_a_missing_version_makes_its_table_due(table):
    assert lance_reconcile.reconcile_due() == 0
    for version in (1, 2):
        final_path(table, version).unlink()
    assert lance_reconcile.reconcile_due() == 0  # checked within the last hour
    with pytest.raises(VersionNotFound):
        lance_reconcile.describe_version(actor=SYSTEM, table=T, version=1)
    assert numbers() == [2, 3]
    assert lance_reconcile.reconcile_due() == 1
    assert numbers() == [3]


def test_the_schedule_skips_unreachable_storage(table):
    away = Path(table.location).rename(f"{table.location}.unmounted")
    assert lance_reconcile.reconcile(table) == 0
    away.rename(table.location)
    final_path(table, 1).unlink()
    final_path(table, 3).unlink()  # the newest
    assert lance_reconcile.reconcile(table) == 0
    assert numbers() == [1, 2, 3]


# --- versions that earlier releases accepted -----------------------------------------------------


def change_newest(table: Table, version: int, change: Change) -> None:
    """Give the newest version another number or manifest, as a version that was accepted before."""
    newest = TableVersion.objects.filter(table=table).latest("version")
    path = Path(f"/{newest.manifest_path}")
    content = lance_manifest.with_version(change(path.read_bytes()), version)
    path.unlink()
    final_path(table, version).write_bytes(content)
    TableVersion.objects.filter(pk=newest.pk).update(
        version=version, manifest_path=relative(final_path(table, version))
    )
    lance_datasets.clear_caches()


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        (9, 1 << 40, "flags 0x10000000000"),
        (10, 1 << 40, "flags 0x10000000000"),
        (11, 2**32 - 1, "its highest fragment id is 4294967295"),
    ],
)
def test_repair_replaces_a_version_after_which_no_client_can_write(table, field, value, fault):
    number = attacks.number_field(field, value)
    change_newest(
        table,
        3,
        lambda content: attacks.with_field(
            attacks.edited(content, [], attacks.without_field(field)), [], number
        ),
    )
    with pytest.raises(Exception):  # noqa: B017, PT011 -- Lance panics, or does not support the flags
        append(6)
    assert numbers() == [1, 2, 3]
    (report,) = lance_repair.repair(actor=SYSTEM, table=T).branches
    assert report.fault.startswith("version 3, the newest: no client can write after it: ")
    assert fault in report.fault
    assert (report.last_complete, numbers()) == (2, [1, 2, 3, 4])
    append(6)
    assert (ids(), numbers()) == ([1, 2, 3, 4, 6], [1, 2, 3, 4, 5])


@pytest.mark.parametrize("top", [2**62, 2**62 - 5])
def test_repair_retires_a_number_that_leaves_no_room(table, top):
    change_newest(table, top, lambda content: content)
    assert ids() == [1, 2, 3, 4, 5]
    planned = lance_repair.repair(actor=SYSTEM, table=T, is_dry_run=True)
    fault = f"version {top}, the newest: its number leaves no room for later versions"
    assert planned.branches == (BranchReport("", top, fault, top, (), (), 3, (top,)),)
    assert numbers() == [1, 2, top]
    assert lance_repair.repair(actor=SYSTEM, table=T).published == {"": 3}
    assert (numbers(), ids()) == ([1, 2, 3], [1, 2, 3, 4, 5])
    append(6)
    assert (numbers(), ids()) == ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6])
    (report,) = lance_repair.repair(actor=SYSTEM, table=T).branches
    assert (report.fault, report.next_number) == ("", 5)


def test_repair_ignores_planted_manifests_with_high_numbers(table):
    for number in (2**61, 2**62, 2**62 + 5):
        final_path(table, number).write_bytes(b"planted")
    final_path(table, 3).unlink()
    lance_datasets.clear_caches()
    assert lance_repair.repair(actor=SYSTEM, table=T).published == {"": 4}
    append(6)
    assert (numbers(), ids()) == ([1, 2, 4, 5], [1, 2, 3, 4, 6])
