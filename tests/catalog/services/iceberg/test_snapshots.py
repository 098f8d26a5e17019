"""Opening a snapshot for its rows, the work that a preview hands over, tags, and rolling back.

The snapshots have no files: nothing here reads them.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from threading import BoundedSemaphore
from types import SimpleNamespace
from typing import Any

import pytest

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import (
    ColumnNotFound,
    ForeignFile,
    InvalidInput,
    InvalidMetadata,
    RequirementFailed,
    TableNotFound,
    TagAlreadyExists,
)
from catalog.formats.rows import conditions, profiles
from catalog.formats.rows.previews import BUSY, MOST_BYTES, Preview, Request
from catalog.models import Table
from catalog.row_reader import client
from catalog.row_reader.messages import Job
from catalog.services.iceberg import commits, tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.iceberg.previews import preview
from catalog.services.iceberg.refs import snapshot_refs
from tests.factories import ICEBERG_SCHEMA, make_iceberg_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
T = ("ns", "t")
FIRST, SECOND, THIRD = 11, 22, 33
TAGS = {"type": "list", "element-id": 9, "element": "string", "element-required": False}


def commit(*updates: dict[str, Any]) -> None:
    change = TableChange(table=T, requirements=[], updates=list(updates))
    commits.commit_table(actor=SYSTEM, change=change)


def add(number: int, parent: int | None = None, schema: int = 0) -> None:
    """A snapshot that becomes the current one of branch main."""
    document = load()
    snapshot = {
        "snapshot-id": number,
        "sequence-number": document["last-sequence-number"] + 1,
        "timestamp-ms": time.time_ns() // 1_000_000,
        "manifest-list": f"{document['location']}/metadata/snap-{number}.avro",
        "summary": {"operation": "append"},
        "schema-id": schema,
    }
    if parent is not None:
        snapshot["parent-snapshot-id"] = parent
    main = {"ref-name": "main", "type": "branch", "snapshot-id": number}
    commit({"action": "add-snapshot", "snapshot": snapshot}, {"action": "set-snapshot-ref", **main})


def load() -> dict[str, Any]:
    return tables.load_table(actor=SYSTEM, table=T).document


@pytest.fixture
def table() -> Table:
    """A table with two snapshots; the second one has a further column."""
    make_iceberg_table(*T)
    add(FIRST)
    fields = [*ICEBERG_SCHEMA["fields"], {"id": 3, "name": "tags", "required": False, "type": TAGS}]
    schema = {**ICEBERG_SCHEMA, "schema-id": 1, "fields": fields}
    commit(
        {"action": "add-schema", "schema": schema},
        {"action": "set-current-schema", "schema-id": -1},
    )
    add(SECOND, FIRST, schema=1)
    return Table.objects.select_related("namespace").named(T).get()


# --- opening -----------------------------------------------------------------------------------


def test_the_snapshot_of_main_is_opened_with_the_schema_of_the_table(table):
    opened = preview.open_snapshot(actor=SYSTEM, table=table)
    assert (opened.table, opened.snapshot_id, opened.has_own_schema) == (T, SECOND, False)
    assert opened.schema.names == ["id", "name", "tags"]
    named = preview.open_snapshot(actor=SYSTEM, table=table, snapshot_id=SECOND)
    assert (named.snapshot_id, named.has_own_schema) == (SECOND, False)
    assert [field.name for field in opened.layout.schema.fields] == opened.schema.names
    assert set(opened.layout.specs) == {0}
    assert (opened.layout.name_mapping, opened.layout.format_version) == (None, 2)


def test_an_older_snapshot_is_opened_with_its_own_schema(table):
    tag = {"ref-name": "v1", "type": "tag", "snapshot-id": FIRST}
    commit({"action": "set-snapshot-ref", **tag})
    for which in ({"snapshot_id": FIRST}, {"ref": "v1"}, {"ref": "v1", "snapshot_id": SECOND}):
        opened = preview.open_snapshot(actor=SYSTEM, table=table, **which)
        assert (opened.snapshot_id, opened.has_own_schema) == (FIRST, True)
        assert opened.schema.names == ["id", "name"]
    assert preview.open_snapshot(actor=SYSTEM, table=table, ref="main").snapshot_id == SECOND


def test_a_table_without_snapshots_is_opened():
    make_iceberg_table(*T)
    row = Table.objects.named(T).get()
    opened = preview.open_snapshot(actor=SYSTEM, table=row)
    assert (opened.snapshot_id, opened.has_own_schema) == (None, False)
    assert preview.preview(opened, Request(columns=["name"])) == Preview(["name"], [])
    empty = preview.profile(opened, "id")
    assert (empty.rows, empty.stopped) == (0, "")


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ({"ref": "v9"}, "There is no branch or tag 'v9'"),
        ({"ref": "x" * 300}, f"There is no branch or tag '{'x' * 200}'"),
        ({"snapshot_id": 99}, "snapshot-id: there is no snapshot 99"),
    ],
)
def test_unknown_snapshots_are_refused(table, which, message):
    with pytest.raises(InvalidInput) as refused:
        preview.open_snapshot(actor=SYSTEM, table=table, **which)
    assert refused.value.message == message


@pytest.mark.parametrize("entry", ["a text", {}, {"snapshot-id": "11"}])
def test_references_that_name_no_snapshot_are_refused(entry):
    with pytest.raises(InvalidInput, match="There is no branch or tag 'v1'"):
        preview._referenced({"refs": {"v1": entry}}, "v1")


def test_another_table_of_the_name_is_not_opened(table):
    tables.unregister_table(actor=SYSTEM, table=T)
    make_iceberg_table(*T)
    with pytest.raises(TableNotFound):
        preview.open_snapshot(actor=SYSTEM, table=table)


def test_files_without_field_ids_are_read_by_the_name_mapping(table):
    mapping = '[{"field-id": 1, "names": ["id", "number"]}]'
    name = "schema.name-mapping.default"
    commit({"action": "set-properties", "updates": {name: mapping}})
    opened = preview.open_snapshot(actor=SYSTEM, table=table)
    assert opened.layout.name_mapping is not None
    (field,) = opened.layout.name_mapping.root
    assert (field.field_id, field.names) == (1, ["id", "number"])
    commit({"action": "set-properties", "updates": {name: "no mapping"}})
    with pytest.raises(InvalidMetadata) as refused:
        preview.open_snapshot(actor=SYSTEM, table=table)
    assert refused.value.message.startswith("The metadata cannot be read: ")


# --- previews and profiles ---------------------------------------------------------------------


@pytest.fixture
def opened(table: Table) -> preview.OpenedSnapshot:
    return preview.open_snapshot(actor=SYSTEM, table=table, snapshot_id=FIRST)


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> Iterator[BoundedSemaphore]:
    """A single place for previews, which is free again at the end of the test."""
    semaphore = BoundedSemaphore(1)
    monkeypatch.setattr(preview, "_slots", semaphore)
    yield semaphore
    assert semaphore.acquire(blocking=False)


def test_the_row_reader_gets_the_page_with_its_limits(opened, slots, monkeypatch):
    result, calls = Preview(["id"], []), []
    condition = conditions.parse(opened.schema, "id", "gt", "5")

    def compute(job: Job, files: Any) -> Preview:
        assert not slots.acquire(blocking=False)
        calls.append((job, files._scan_request()))
        return result

    monkeypatch.setattr(client, "preview", compute)
    request = Request(columns=["id"], conditions=[condition], seconds=3)
    assert preview.preview(opened, request) is result
    ((job, scan),) = calls
    columns = [opened.schema.field("id")]
    assert job == Job(opened.layout, columns, request, 3, MOST_BYTES)
    assert scan == {
        "snapshot-id": FIRST,
        "use-snapshot-schema": True,
        "filter": {"type": "gt", "term": "id", "value": 5},
    }


def test_the_row_reader_gets_the_column_of_a_profile_with_its_limits(opened, slots, monkeypatch):
    result, calls = profiles.Profiler(opened.schema.field("name")).profile(), []

    def compute(job: Job, files: Any) -> profiles.Profile:
        assert not slots.acquire(blocking=False)
        calls.append((job, files._scan_request()["filter"]))
        return result

    monkeypatch.setattr(client, "profile", compute)
    assert preview.profile(opened, "name") is result
    job = Job(opened.layout, [opened.schema.field("name")], None, profiles.SECONDS, MOST_BYTES)
    assert calls == [(job, True)]


def test_conditions_that_skip_no_files_are_left_to_the_row_reader(table):
    opened = preview.open_snapshot(actor=SYSTEM, table=table)
    parsed = [
        conditions.parse(opened.schema, column, operator, value)
        for column, operator, value in [
            ("tags", "notnull", ""),
            ("name", "contains", "x"),
            ("id", "ge", "1"),
            ("name", "eq", "a"),
        ]
    ]
    files = preview._SnapshotFiles(opened, Request(conditions=parsed))
    assert files._scan_request()["filter"] == {
        "type": "and",
        "left": {"type": "gt-eq", "term": "id", "value": 1},
        "right": {"type": "eq", "term": "name", "value": "a"},
    }


def test_a_failure_of_the_row_reader_leaves_its_place_to_others(opened, slots, monkeypatch):
    def fail(*_: object) -> None:
        raise InvalidMetadata("torn")

    for name, call in (
        ("preview", lambda: preview.preview(opened, Request())),
        ("profile", lambda: preview.profile(opened, "id")),
    ):
        monkeypatch.setattr(client, name, fail)
        with pytest.raises(InvalidMetadata, match="torn"):
            call()
        assert slots.acquire(blocking=False)
        slots.release()


def test_previews_that_get_no_place_in_time_end_with_a_message(opened, slots, monkeypatch):
    monkeypatch.setattr(profiles, "SECONDS", 0.01)
    for name in ("preview", "profile"):
        monkeypatch.setattr(client, name, lambda *_: pytest.fail("no place is free"))
    slots.acquire()
    request = Request(columns=["name"], seconds=0.01)
    assert preview.preview(opened, request) == Preview(["name"], [], BUSY)
    assert preview.profile(opened, "id").stopped == BUSY
    slots.release()


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        ("gone", ColumnNotFound, "Table 'ns.t': Column 'gone' does not exist"),
        ("tags", InvalidInput, "Column 'tags' of type large_list<element: large_string> has no"),
    ],
)
def test_columns_without_a_profile_are_refused(table, column, error, message):
    with pytest.raises(error) as refused:
        preview.profile(preview.open_snapshot(actor=SYSTEM, table=table), column)
    assert refused.value.message.startswith(message)


class Reader:
    """The files of a table, of which "foreign" may not be read."""

    def __init__(self, directory: str) -> None:
        self.directory, self.required = directory, list[list[str]]()

    def require(self, locations: list[str]) -> None:
        self.required.append(locations)
        if "torn" in locations:
            raise ValueError("a wrong name")

    def real_path(self, location: str) -> str:
        if location == "foreign":
            raise ForeignFile(location, T)
        return f"{self.directory}/{location}"


def entry(location: str) -> SimpleNamespace:
    file = SimpleNamespace(
        file_path=location, file_format="PARQUET", key_metadata=None, content=None
    )
    return SimpleNamespace(file=file)


@pytest.fixture
def planned(opened: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that plans these files, in two groups; returns the files and their reader."""

    def plan(*groups: Any) -> tuple[Any, Reader]:
        planner = SimpleNamespace(groups=lambda: groups, files=iter)
        monkeypatch.setattr(preview, "Planner", lambda scan, files: planner)
        reader: Any = Reader(str(tmp_path))
        return preview._SnapshotFiles(replace(opened, files=reader), Request()), reader

    return plan


def test_each_data_file_is_checked_with_its_delete_files(planned):
    a, b, c = ((entry(name), [] if name == "b" else [entry(f"{name} deletes")]) for name in "abc")
    files, reader = planned([a, b], [c])
    assert [files.next_file() for _ in range(5)] == [a, b, c, None, None]
    assert reader.required == [["a", "a deletes"], ["b"], ["c", "c deletes"]]


def test_files_of_a_preview_that_cannot_be_read_are_named(planned, tmp_path):
    def broken() -> Iterator[Any]:
        raise KeyError("file_path")
        yield

    (tmp_path / "a").write_bytes(b"0123456789")
    files, _ = planned([(entry("torn"), [])], broken())
    for message in ("'torn' cannot be read: a wrong name", "The metadata cannot be read: "):
        with pytest.raises(InvalidMetadata) as refused:
            files.next_file()
        assert refused.value.message.startswith(message)
    size, handle = files.open("a")
    os.close(handle)
    assert (size, files.read("a", 3, 4)) == (10, b"3456")
    for call in (files.open, lambda name: files.read(name, 0, 1)):
        with pytest.raises(InvalidMetadata) as refused:
            call("missing")
        assert refused.value.message == "'missing' cannot be read: No such file or directory"
        with pytest.raises(ForeignFile):
            call("foreign")


# --- tags, and rolling back --------------------------------------------------------------------


def test_a_tag_names_a_snapshot(table):
    snapshot_refs.create_tag(actor=SYSTEM, table=T, tag="v1", snapshot_id=FIRST)
    before = load()
    assert before["refs"]["v1"] == {"type": "tag", "snapshot-id": FIRST}
    with unchanged():
        with pytest.raises(InvalidInput, match="has no snapshot 99; choose one of its history"):
            snapshot_refs.create_tag(actor=SYSTEM, table=T, tag="v2", snapshot_id=99)
        for name in ("v1", "main"):
            with pytest.raises(TagAlreadyExists):
                snapshot_refs.create_tag(actor=SYSTEM, table=T, tag=name, snapshot_id=FIRST)
        with pytest.raises(TableNotFound):
            snapshot_refs.create_tag(actor=access.Principal("x"), table=T, tag="v2", snapshot_id=11)
    assert load() == before


def test_main_is_rolled_back_to_an_earlier_snapshot_of_its_history(table):
    add(THIRD, FIRST)  # a writer replaced the second snapshot
    keep = {"ref-name": "main", "type": "branch", "snapshot-id": THIRD, "max-ref-age-ms": 7}
    commit({"action": "set-snapshot-ref", **keep})
    assert list(snapshot_refs.ancestors(load())) == [FIRST]
    with unchanged():
        for number in (SECOND, THIRD):
            with pytest.raises(InvalidInput) as refused:
                snapshot_refs.roll_back(actor=SYSTEM, table=T, snapshot_id=number)
            assert refused.value.message == (
                f"Snapshot {number} is not an earlier snapshot of branch main of table 'ns.t'; roll"
                " back to one that is"
            )
        with pytest.raises(InvalidInput, match="has no snapshot 99"):
            snapshot_refs.roll_back(actor=SYSTEM, table=T, snapshot_id=99)
    snapshot_refs.roll_back(actor=SYSTEM, table=T, snapshot_id=FIRST)
    document = load()
    assert document["current-snapshot-id"] == FIRST
    main = {"type": "branch", "snapshot-id": FIRST, "max-ref-age-ms": 7}
    assert document["refs"] == {"main": main}
    assert list(snapshot_refs.ancestors(document)) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: snapshot_refs.roll_back(actor=SYSTEM, table=T, snapshot_id=FIRST),
        lambda: snapshot_refs.create_tag(actor=SYSTEM, table=T, tag="v1", snapshot_id=FIRST),
    ],
)
def test_a_reference_that_has_changed_meanwhile_is_kept(table, monkeypatch, call):
    """Another client commits after the table was read."""
    read = snapshot_refs._load

    def read_and_change(*arguments: Any) -> dict[str, Any]:
        document = read(*arguments)
        add(THIRD, SECOND, schema=1)
        tag = {"ref-name": "v1", "type": "tag", "snapshot-id": THIRD}
        commit({"action": "set-snapshot-ref", **tag})
        return document

    monkeypatch.setattr(snapshot_refs, "_load", read_and_change)
    with pytest.raises(RequirementFailed):
        call()
    refs = load()["refs"]
    assert {name: ref["snapshot-id"] for name, ref in refs.items()} == {"main": THIRD, "v1": THIRD}


def test_ancestors_end_where_the_metadata_ends_and_at_a_cycle():
    def document(current: object, **parents: object) -> dict[str, Any]:
        snapshots = [
            {"snapshot-id": int(name[1:]), "parent-snapshot-id": parent}
            for name, parent in parents.items()
        ]
        return {"current-snapshot-id": current, "snapshots": snapshots}

    ancestors = snapshot_refs.ancestors
    assert list(ancestors(document(3, s1=None, s2=1, s3=2, s4=3))) == [2, 1]
    assert list(ancestors(document(3, s2=1, s3=2))) == [2]
    assert list(ancestors(document(3, s1=3, s2=1, s3=2))) == [2, 1]
    assert list(ancestors(document(None, s1=None))) == []
    assert list(ancestors({})) == []
