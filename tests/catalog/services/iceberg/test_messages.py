"""Messages of refusals and of failures that a sweep repairs, and what loading a table does besides, without an HTTP request."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
from django.db import DatabaseError
from pyiceberg.manifest import DataFileContent, FileFormat

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import (
    CatalogError,
    CommitConflict,
    ForeignFile,
    InvalidIdentifier,
    InvalidInput,
    InvalidLocation,
    InvalidMetadata,
    TableNotFound,
    Unsupported,
)
from catalog.models import StagedFile, Table, TableFormat, TableKind
from catalog.services.iceberg import (
    commits,
    files,
    functions,
    locations,
    metadata_files,
    metadata_removal,
    request_signing,
    tables,
)
from catalog.services.iceberg.changes import TableChange
from catalog.services.iceberg.jobs import files as job_files
from catalog.services.iceberg.metadata_operations import BaseChanged
from catalog.services.iceberg.previews import preview
from catalog.services.iceberg.tables import LoadedTable
from tests.cases import shared_cases
from tests.factories import make_iceberg_table, make_root, unchanged


def entry(
    file_format: FileFormat = FileFormat.PARQUET,
    content: DataFileContent = DataFileContent.POSITION_DELETES,
    key: bytes | None = None,
) -> SimpleNamespace:
    file = SimpleNamespace(file_format=file_format, content=content, key_metadata=key)
    return SimpleNamespace(file=file)


@shared_cases(
    ("data", "deletes", "message"),
    [
        (
            entry(FileFormat.ORC),
            [],
            "The rows are in files that are not Parquet; only engines read them",
        ),
        (
            entry(key=b"k"),
            [],
            "The data files are encrypted; only engines with the keys read them",
        ),
        (
            entry(),
            [entry(), entry(content=DataFileContent.EQUALITY_DELETES)],
            "The snapshot has equality deletes, which only engines apply; compact the table first",
        ),
        (
            entry(),
            [entry(), entry(FileFormat.AVRO)],
            "The delete files are not Parquet; only engines read them",
        ),
    ],
)
def test_rows_that_cannot_be_shown(data, deletes, message):
    preview._require_parquet(entry(), [entry(), entry(FileFormat.PUFFIN)])
    with pytest.raises(Unsupported) as error:
        preview._require_parquet(data, deletes)
    assert error.value.message == message


def commit_twice() -> None:
    change = TableChange(table=("ns", "t"), requirements=[], updates=[])
    commits.commit_tables(actor=SYSTEM, changes=[change, change])


@shared_cases(
    ("call", "kind", "message"),
    [
        (
            commit_twice,
            InvalidInput,
            "A table comes twice in one transaction; join its updates",
        ),
        (
            lambda: functions.create_function(actor=SYSTEM, function=("f",), content=None),
            InvalidIdentifier,
            "The root namespace holds no functions",
        ),
        (
            lambda: locations._require_own_provider("org.example.Provider"),
            InvalidMetadata,
            (
                "Property 'write.location-provider.impl' names the class 'org.example.Provider', which"
                " engines would load; only classes of Iceberg itself may be named there"
            ),
        ),
        (
            lambda: metadata_files.require_lasting("ns/t/metadata/1.json"),
            InvalidLocation,
            "Location 'ns/t/metadata/1.json' is about to be written or removed",
        ),
        (
            lambda: metadata_files.unstage(SimpleNamespace(path="ns/t/metadata/2.json")),
            CommitConflict,
            "The commit took too long, and its metadata file was removed",
        ),
        (
            lambda: request_signing._configuration("/warehouse/t", "s3"),
            Unsupported,
            "The storage of this table does not sign requests",
        ),
    ],
    prepare=lambda: StagedFile.objects.create(path="ns/t/metadata/1.json"),
)
def test_refusals_name_the_rule(db, call, kind, message):
    with unchanged(), pytest.raises(CatalogError) as error:
        call()
    assert type(error.value) is kind
    assert error.value.message == message


def test_a_refusal_names_the_change_of_a_transaction(db):
    make_root()
    changes = [TableChange(table=("gone", name), requirements=[], updates=[]) for name in "ab"]
    for count, operation in ((1, None), (2, 0)):
        with unchanged(), pytest.raises(TableNotFound) as error:
            commits.commit_tables(actor=access.Principal("etl"), changes=changes[:count])
        assert error.value.operation == operation


def test_own_classes_of_iceberg_and_other_files_are_accepted(db):
    locations._require_own_provider(None)
    locations._require_own_provider("org.apache.iceberg.LocationProviders$ObjectStore")
    metadata_files.require_lasting("ns/t/metadata/3.json")


def test_a_commit_is_repeated_until_it_does_not_conflict(monkeypatch):
    monkeypatch.setattr(commits, "_PAUSE_SECONDS", 0)
    calls = []

    def attempt(failures: int) -> str:
        calls.append(failures)
        if len(calls) <= failures:
            raise BaseChanged("view", ("ns", "v"))
        return "done"

    assert commits._repeat(lambda: attempt(11)) == "done"
    assert len(calls) == 12
    calls.clear()
    with pytest.raises(CommitConflict) as error:
        commits._repeat(lambda: attempt(12))
    assert len(calls) == 12
    assert error.value.message == ("Cannot commit to view ns.v: others keep changing it; try again")
    conflict = BaseChanged("table", ("ns", "t"))
    assert conflict.message == "Cannot commit to table ns.t: another commit changed it"


@pytest.mark.parametrize("summary", [None, {}, {"operation": "append"}])
def test_a_snapshot_that_names_its_source_is_cherry_picked(summary):
    assert not files.is_cherry_picked({"summary": summary})
    assert files.is_cherry_picked({"summary": {"source-snapshot-id": "5"}})


@pytest.mark.usefixtures("warehouse")
def test_files_are_checked_for_jobs_of_unknown_kinds(db):
    loaded = make_iceberg_table("ns", "t")
    row = Table.objects.get(pk=loaded.pk)
    job_files.require_readable(row, loaded.document, "unknown", loaded.metadata_location)
    missing = f"{loaded.document['location']}/metadata/none.avro"
    snapshot = {"snapshot-id": 1, "manifest-list": missing}
    with pytest.raises(InvalidMetadata, match=r"none\.avro' cannot be read"):
        job_files.require_readable(
            row, {**loaded.document, "snapshots": [snapshot], "current-snapshot-id": 1}, "unknown"
        )


@pytest.mark.usefixtures("warehouse")
def test_jobs_that_remove_files_need_the_manifests_of_every_snapshot(db):
    loaded = make_iceberg_table("ns", "t")
    row = Table.objects.get(pk=loaded.pk)
    missing = f"{loaded.document['location']}/metadata/none.avro"
    older = {"snapshot-id": 1, "manifest-list": missing}
    document = {**loaded.document, "snapshots": [older]}
    job_files.require_readable(row, document, "compact")
    for kind in ("clean_up", "remove_orphans"):
        with pytest.raises(InvalidMetadata, match=r"none\.avro' cannot be read"):
            job_files.require_readable(row, document, kind)


@pytest.mark.usefixtures("warehouse")
def test_jobs_need_the_manifests_that_a_snapshot_without_a_list_names(db):
    loaded = make_iceberg_table("ns", "t")
    row = Table.objects.get(pk=loaded.pk)
    snapshot = {"snapshot-id": 1, "manifests": ["/etc/m.avro"]}
    document = {**loaded.document, "snapshots": [snapshot], "current-snapshot-id": 1}
    with pytest.raises(ForeignFile):
        job_files.require_readable(row, document, "compact")


@pytest.mark.usefixtures("warehouse")
def test_loading_a_table_counts_as_its_use_and_checks_the_files_of_jobs(db, monkeypatch):
    loaded = make_iceberg_table("ns", "t")
    counted, checked = [], []
    monkeypatch.setattr(tables.usage, "count", lambda *call: counted.append(call[1:]))
    monkeypatch.setattr(
        tables.job_files, "require_readable", lambda *call: checked.append(call[2:])
    )
    job = replace(SYSTEM, job_kind="compact")
    for actor, etags in ((SYSTEM, ()), (job, ()), (job, ("*",))):
        tables.load_table(actor=actor, table=("ns", "t"), etags=etags)
    assert counted == [(("ns", "t"), tables.Read.LOAD)] * 3
    assert checked == [("compact", loaded.metadata_location)]  # only with an answer


def test_the_answer_of_a_table_may_be_unread():
    table = LoadedTable(
        ("ns", "t"), 1, TableFormat.ICEBERG, TableKind.TABLE, "l", "m", 1, "e", answer=None
    )
    with pytest.raises(TypeError) as error:
        _ = table.document
    assert str(error.value) == "the answer was not read"


@pytest.mark.parametrize(
    ("name", "call", "cause"),
    [
        (
            "remove_recorded",
            lambda: metadata_removal._remove([SimpleNamespace(path="a")]),
            (DatabaseError("lost"), "The sweep will remove the expired metadata files: lost"),
        ),
        (
            "_removed",
            lambda: metadata_files._remove(["a"]),
            (OSError("disk"), "The next sweep will remove the remaining metadata files: disk"),
        ),
    ],
)
@pytest.mark.usefixtures("db")
def test_files_that_cannot_be_removed_are_left_to_the_sweep(monkeypatch, caplog, name, call, cause):
    error, message = cause

    def fail(*_: object) -> None:
        raise error

    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(metadata_files, name, fail)
    with unchanged():
        assert call() in {None, 0}
    assert caplog.messages == [message]
