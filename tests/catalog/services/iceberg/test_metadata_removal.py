"""Metadata files that a table no longer needs are removed after the commit, and not before."""

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from django.db.models.functions import Now

from catalog.access import SYSTEM
from catalog.errors import InvalidLocation, OutcomeUnknown
from catalog.models import AuditEvent, IcebergMetadata, StagedFile, Table, TableVersion, TrashItem
from catalog.services.engine import batch as engine_batch
from catalog.services.engine import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.iceberg.metadata_operations import CreateFromMetadata, RegisterFromMetadata
from catalog.services.iceberg.tables import LoadedTable
from catalog.services.recovery import purge, undrop
from catalog.storage import local_files
from tests.factories import make_iceberg_table, make_namespace, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]

T = ("ns", "t")
DELETE = {"write.metadata.delete-after-commit.enabled": "true"}


def make(properties: dict[str, str] | None = None, keep: int = 2, **create: Any) -> LoadedTable:
    all_properties = {
        "write.metadata.previous-versions-max": str(keep),
        **DELETE,
        **(properties or {}),
    }
    return make_iceberg_table(*T, properties=all_properties, **create)


def commit_properties(table: tuple[str, ...] = T, **properties: str) -> LoadedTable:
    update = {"action": "set-properties", "updates": properties}
    change = TableChange(table=table, requirements=[], updates=[update])
    return iceberg_commits.commit_table(actor=SYSTEM, change=change)


def commits(count: int, start: int = 0) -> LoadedTable:
    for number in range(start, start + count):
        table = commit_properties(number=str(number))
    return table


def metadata(table: LoadedTable) -> list[int]:
    """The numbers of the existing metadata files."""
    names = [path.name for path in Path(table.location).rglob("*.metadata.json")]
    return sorted(int(name.partition("-")[0]) for name in names)


def ledger(table: tuple[str, ...] = T) -> list[int]:
    rows = TableVersion.objects.visible().filter(table__in=Table.objects.named(table))
    return sorted(rows.values_list("version", flat=True))


def logged(table: LoadedTable) -> list[int]:
    entries = table.document["metadata-log"]
    return [int(Path(entry["metadata-file"]).name.partition("-")[0]) for entry in entries]


def test_files_that_leave_the_metadata_log_are_removed():
    make()
    table = commits(8)
    assert logged(table) == [6, 7]
    assert metadata(table) == ledger() == [6, 7, 8]
    assert not StagedFile.objects.exists()
    assert iceberg_tables.load_table(actor=SYSTEM, table=T).sequence == 8
    tombstones = TableVersion.objects.filter(deleted_at__isnull=False)
    assert sorted(tombstones.values_list("version", flat=True)) == [0, 1, 2, 3, 4, 5]
    last = AuditEvent.objects.filter(action="table.commit").latest("pk")
    assert last.after["removed_versions"] == [[5, 6]]


@pytest.mark.parametrize("value", ["false", "", "yes"])
def test_without_the_property_all_files_are_kept(value):
    make({"write.metadata.delete-after-commit.enabled": value})
    table = commits(5)
    assert logged(table) == [3, 4]
    assert metadata(table) == ledger() == [0, 1, 2, 3, 4, 5]
    assert "removed_versions" not in AuditEvent.objects.latest("pk").after


def test_the_commit_that_sets_the_properties_applies_them():
    make_iceberg_table(*T)
    commits(4)
    table = commit_properties(**DELETE, **{"write.metadata.previous-versions-max": "1"})
    assert logged(table) == [4]
    assert metadata(table) == ledger() == [4, 5]
    assert AuditEvent.objects.latest("pk").after["removed_versions"] == [[0, 4]]


def test_compressed_files_and_files_in_other_directories_are_removed(warehouse):
    make(
        {
            "write.metadata.compression-codec": "gzip",
            "write.metadata.path": f"file://{warehouse}/elsewhere",
        },
        keep=1,
    )
    commits(3)
    names = sorted(path.name[:5] for path in (warehouse / "elsewhere").iterdir())
    assert names == ["00002", "00003"]
    assert ledger() == [2, 3]


def test_nothing_is_removed_before_the_commit(monkeypatch):
    make(keep=1)
    table = commits(2)
    was = local_files.remove_file_in_place

    def look(path: str) -> bool:
        assert IcebergMetadata.objects.get().sequence == 3
        assert StagedFile.objects.get(path=path).is_condemned
        assert ledger() == [2, 3]
        return was(path)

    monkeypatch.setattr(local_files, "remove_file_in_place", look)
    commits(1)
    assert metadata(table) == [2, 3]


@pytest.mark.parametrize("failure", [OutcomeUnknown("lost"), InvalidLocation("x", "is wrong")])
def test_a_failed_commit_removes_nothing(monkeypatch, failure):
    make(keep=1)
    table = commits(2)

    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(commit, "insert_together", fail)
    with pytest.raises(type(failure)):
        commits(1)
    monkeypatch.undo()
    assert set(metadata(table)) >= {1, 2}
    assert ledger() == [1, 2]
    assert not StagedFile.objects.filter(path__contains="/00001-").exists()


def test_the_sweep_removes_files_that_a_crash_left(monkeypatch):
    """The server is killed between the commit and the removal."""
    make(keep=1)
    table = commits(2)
    monkeypatch.setattr(engine_batch.Batch, "finish", lambda batch: None)
    commits(1)
    monkeypatch.undo()
    assert metadata(table) == [1, 2, 3]
    assert ledger() == [2, 3]
    assert metadata_files.sweep() == 0
    StagedFile.objects.update(created_at=Now() - timedelta(minutes=16))
    assert metadata_files.sweep() == 1
    assert metadata(table) == [2, 3]
    assert not StagedFile.objects.exists()


def test_a_file_that_cannot_be_removed_does_not_fail_the_commit(monkeypatch):
    make(keep=1)
    table = commits(2)

    def refuse(path: str) -> bool:
        raise PermissionError("not allowed")

    with monkeypatch.context() as patch:
        patch.setattr(local_files, "remove_file_in_place", refuse)
        assert commits(1).sequence == 3
    assert metadata(table) == [1, 2, 3]
    assert Path(StagedFile.objects.get().path).exists()


# --- files of others ---------------------------------------------------------------------------


def plant(victim: LoadedTable, name: str = "mine") -> LoadedTable:
    """A table registered from a file whose metadata log names all files of another table."""
    document = dict(victim.document)
    others = [
        f"file://{path}" for path in sorted(Path(victim.location).rglob("*")) if path.is_file()
    ]
    directory = Path(victim.location).parent / name / "metadata"
    directory.mkdir(parents=True)
    document |= {
        "location": f"file://{directory.parent}",
        "table-uuid": "11111111-2222-3333-4444-555555555555",
        "properties": {**DELETE, "write.metadata.previous-versions-max": "1"},
        "metadata-log": [
            {"timestamp-ms": document["last-updated-ms"], "metadata-file": file} for file in others
        ],
    }
    file = directory / "00009-x.metadata.json"
    file.write_bytes(orjson.dumps(document))
    return iceberg_commits.register_table(
        actor=SYSTEM, table=("ns", name), metadata_location=f"file://{file}"
    )


def test_files_of_other_tables_in_the_log_are_kept():
    make_iceberg_table("other", "t")
    victim = commit_properties(("other", "t"), a="b")
    before = metadata(victim)
    make_namespace("ns")
    mine = plant(victim)
    for number in range(3):
        mine = commit_properties(("ns", "mine"), number=str(number))
    assert metadata(victim) == before == [0, 1]
    assert ledger(("other", "t")) == [0, 1]
    # Its own files are removed, including the one from which it was registered.
    assert metadata(mine) == ledger(("ns", "mine")) == [11, 12]


def test_a_file_in_the_ledger_of_another_table_is_kept():
    make(keep=1)
    table = commits(1)
    first = next(Path(table.location).rglob("00000-*"))
    make_iceberg_table("other", "u")
    other = Table.objects.named(("other", "u")).get()
    TableVersion.objects.create(table=other, version=77, manifest_path=f"file://{first}")
    commits(2, start=1)
    assert metadata(table) == [0, 2, 3]
    assert ledger() == [0, 2, 3]


def test_removal_follows_no_link(warehouse, monkeypatch):
    make(keep=1)
    table = commits(2)
    directory = Path(table.location) / "metadata"
    was = engine_batch.Batch.finish

    def swap(batch: engine_batch.Batch) -> None:
        """An attacker with access to the directory replaces it by a link."""
        shutil.move(directory, warehouse / "moved")
        directory.symlink_to(warehouse / "moved")
        was(batch)

    monkeypatch.setattr(engine_batch.Batch, "finish", swap)
    commits(1)
    assert len(list((warehouse / "moved").glob("00001-*"))) == 1


def test_a_file_that_is_about_to_be_removed_cannot_be_registered(monkeypatch):
    make(keep=1)
    table = commits(2)
    monkeypatch.setattr(engine_batch.Batch, "finish", lambda batch: None)
    commits(1)
    monkeypatch.undo()
    file = next(Path(table.location).rglob("00001-*"))
    with unchanged(), pytest.raises(InvalidLocation, match="about to be"):
        iceberg_commits.register_table(
            actor=SYSTEM, table=T, metadata_location=f"file://{file}", overwrite=True
        )


def test_a_file_that_was_removed_since_it_was_read_cannot_be_registered(monkeypatch):
    make(keep=1)
    table = commits(2)
    file = next(Path(table.location).rglob("00001-*"))
    prepare = RegisterFromMetadata.prepare

    def prepare_late(operation: RegisterFromMetadata) -> CreateFromMetadata:
        monkeypatch.undo()
        commits(1, start=2)
        return prepare(operation)

    monkeypatch.setattr(RegisterFromMetadata, "prepare", prepare_late)
    with pytest.raises(InvalidLocation, match="was removed a few minutes ago"):
        iceberg_commits.register_table(
            actor=SYSTEM, table=T, metadata_location=f"file://{file}", overwrite=True
        )
    assert not file.exists()
    assert iceberg_tables.load_table(actor=SYSTEM, table=T).sequence == 3
    assert ledger() == metadata(table) == [2, 3]


def test_a_file_that_was_restored_can_be_registered():
    make(keep=1)
    table = commits(2)
    file = next(Path(table.location).rglob("00001-*"))
    content = file.read_bytes()
    commits(1, start=2)
    file.write_bytes(content)
    TableVersion.objects.filter(deleted_at__isnull=False).update(
        deleted_at=Now() - timedelta(minutes=16)
    )
    iceberg_commits.register_table(
        actor=SYSTEM, table=T, metadata_location=f"file://{file}", overwrite=True
    )
    assert ledger() == [1]


def test_the_sweep_keeps_registered_files(monkeypatch):
    make(keep=1)
    table = commits(2)
    monkeypatch.setattr(engine_batch.Batch, "finish", lambda batch: None)
    commits(1)
    monkeypatch.undo()
    file = next(Path(table.location).rglob("00001-*"))
    other = Table.objects.get()
    TableVersion.objects.create(table=other, version=77, manifest_path=f"file://{file}")
    StagedFile.objects.update(created_at=Now() - timedelta(minutes=16))
    metadata_files.sweep()
    assert file.exists()
    assert not StagedFile.objects.exists()


# --- after removal -----------------------------------------------------------------------------


def test_a_table_with_removed_files_is_dropped_undropped_and_purged(settings):
    settings.MONODON_TRASH_SECONDS = 3600
    make()
    commits(5)
    iceberg_tables.drop_table(actor=SYSTEM, table=T, purge=True)
    undrop.undrop(actor=SYSTEM, item=TrashItem.objects.get().pk)
    table = commits(2, start=5)
    assert metadata(table) == ledger() == [5, 6, 7]
    iceberg_tables.drop_table(actor=SYSTEM, table=T, purge=True)
    removed: list[str] = []
    assert purge.remove_files(Table.objects.get(), removed.extend).remaining == ""
    assert len(removed) == len(set(removed)) > 0
    assert metadata(table) == []
