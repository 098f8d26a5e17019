from pathlib import Path

import pyarrow as pa
import pytest

from catalog.models import AuditEvent, TableVersion
from catalog.services.lance.ledger import references
from tests.api.client import Lance, stream
from tests.cases import shared_cases
from tests.factories import (
    files,
    make_lance_table,
    make_namespace,
    make_table,
    make_version,
    relative,
    stage,
)

pytestmark = pytest.mark.operation("BatchDeleteTableVersions")

DELETE = "/v1/table/ws$t/version/delete"


def between(*ranges: tuple[int, int]) -> dict:
    return {"ranges": [{"start_version": start, "end_version": end} for start, end in ranges]}


def remaining_versions(lance: Lance, query: str = "") -> list[int]:
    versions = lance.post(f"/v1/table/ws$t/version/list{query}")["versions"]
    return [version["version"] for version in versions]


@pytest.fixture
def five(db):
    """A table with versions 1 to 5, and another table that must not change."""
    table = make_table("ws", "t")
    for version in range(1, 6):
        make_version(("ws", "t"), version)
    make_table("ws", "other")
    make_version(("ws", "other"), 1)
    return table


@pytest.mark.parametrize(
    ("ranges", "remaining"),
    [
        ([(0, 5)], [5]),
        ([(1, 2)], [2, 3, 4, 5]),
        ([(0, 4)], [4, 5]),
        ([(3, 5)], [1, 2, 5]),
        ([(1, 2), (3, 5)], [2, 5]),
        ([(1, 3), (2, 4)], [4, 5]),
        ([(2, 2)], [1, 2, 3, 4, 5]),
        ([(6, 2**63 - 1)], [1, 2, 3, 4, 5]),
        ([], [1, 2, 3, 4, 5]),
    ],
)
def test_start_is_inclusive_and_end_exclusive(lance: Lance, five, ranges, remaining):
    answer = lance.post(DELETE, between(*ranges))
    assert answer["deleted_count"] == 5 - len(remaining)
    assert remaining_versions(lance) == remaining
    assert TableVersion.objects.filter(table=five).count() == 5  # tombstones
    assert TableVersion.objects.visible().filter(table__name="other").count() == 1


def test_deleted_twice_counts_once(lance: Lance, five):
    assert lance.post(DELETE, between((1, 3)))["deleted_count"] == 2
    assert lance.post(DELETE, between((1, 4)))["deleted_count"] == 1
    assert lance.post(DELETE, between((1, 4)))["deleted_count"] == 0


def test_files_are_kept(lance: Lance):
    table = make_table("ws", "t")
    make_version(("ws", "t"), 1, relative(stage(table, 1)))
    make_version(("ws", "t"), 2, relative(stage(table, 2)))
    before = files(table.location)
    lance.post(DELETE, between((0, 2)))
    assert files(table.location) == before != {}


def test_on_a_branch(lance: Lance, five):
    make_version(("ws", "t"), 1, branch="dev")
    make_version(("ws", "t"), 2, branch="dev")
    answer = lance.post(DELETE, between((0, 2)) | {"branch": "dev"})
    assert answer["deleted_count"] == 1
    assert remaining_versions(lance, "?branch=dev") == [2]
    assert remaining_versions(lance) == [1, 2, 3, 4, 5]
    lance.refused(404, 22, "has no branch 'x'", DELETE, between((0, -1)) | {"branch": "x"})


@pytest.mark.parametrize("ranges", [[(0, -1)], [(5, 6)], [(1, 2), (5, -1)], [(4, 2**63 - 1)]])
def test_the_newest_version_is_not_deleted(lance: Lance, five, ranges):
    error = "Version 5 is the newest of table 'ws.t', and cannot be deleted"
    lance.refused(409, 19, error, DELETE, between(*ranges))
    batch = {"id": ["ws", "t"], **between(*ranges)}
    operations = {"operations": [{"delete_table_versions": batch}]}
    lance.refused(409, 19, error, "/v1/table/batch-commit", operations)


def test_the_newest_version_of_a_branch_is_not_deleted(lance: Lance, five):
    make_version(("ws", "t"), 1, branch="dev")
    error = "Version 1 is the newest of table 'ws.t' on branch 'dev', and cannot be deleted"
    lance.refused(409, 19, error, DELETE, between((0, -1)) | {"branch": "dev"})


def test_versions_created_in_the_batch_count_as_newest(lance: Lance, five):
    """After a batch adds a version, the previous one is no longer the newest."""
    create = {"id": ["ws", "t"], "version": 6, "manifest_path": "x/6"}
    batch = {"id": ["ws", "t"], **between((1, 6))}
    answer = lance.post(
        "/v1/table/batch-commit",
        {"operations": [{"create_table_version": create}, {"delete_table_versions": batch}]},
    )
    assert answer["results"][1]["delete_table_versions"]["deleted_count"] == 5
    assert remaining_versions(lance) == [6]


def test_versions_used_by_tags_and_branches_are_not_deleted(lance: Lance):
    make_lance_table(("ws", "t"))
    for number in (4, 5, 6):
        rows = pa.table({"id": [number], "name": ["x"]})
        lance.call("POST", "/v1/table/ws$t/insert", raw=stream(rows))
    lance.post("/v1/table/ws$t/tags/create", {"tag": "v", "version": 1})
    lance.post("/v1/table/ws$t/branches/create", {"name": "dev", "from_version": 2})
    error = "Version 1 of table 'ws.t' cannot be deleted: tag 'v' needs it"
    lance.refused(409, 19, error, DELETE, between((1, 2)))
    error = "Version 2 of table 'ws.t' cannot be deleted: branch 'dev' needs it"
    lance.refused(409, 19, error, DELETE, between((2, 4)))
    assert lance.post(DELETE, between((3, 4)))["deleted_count"] == 1
    assert remaining_versions(lance) == [1, 2, 4]


@pytest.mark.parametrize(("files", "size"), [(101, 0), (3, 500_000)])
def test_files_of_tags_are_read_up_to_a_limit(lance: Lance, warehouse, monkeypatch, files, size):
    """They are read while the table is locked, and its clients may write any number of them."""
    monkeypatch.setattr(references, "_MAX_FILES", 100)
    monkeypatch.setattr(references, "_MAX_BYTES", 1_000_000)
    row = make_lance_table(("ws", "t"))
    for number in (4, 5):
        rows = pa.table({"id": [number], "name": ["x"]})
        lance.call("POST", "/v1/table/ws$t/insert", raw=stream(rows))
    tags = Path(row.location) / "_refs" / "tags"
    tags.mkdir(parents=True)
    for number in range(files):
        tags.joinpath(f"{number}.json").write_bytes(b" " * size)
    error = (
        "Table 'ws.t' has too many tags and branches in storage to delete versions:"
        " more than 100 files or 1,000,000 bytes"
    )
    lance.refused(409, 19, error, DELETE, between((1, 2)))
    assert remaining_versions(lance) == [1, 2, 3]
    tags.joinpath("0.json").unlink()
    assert lance.post(DELETE, between((1, 2)))["deleted_count"] == 1


def test_audited_and_describable(lance: Lance, five):
    answer = lance.post(DELETE, between((1, 3)))
    facts = lance.post(f"/v1/transaction/{answer['transaction_id']}/describe")
    assert facts["properties"]["monodon.operations"] == "DeleteTableVersions"
    event = AuditEvent.objects.get(action="version.delete")
    assert event.after == {"ranges": [[1, 3]], "deleted": 2}


@shared_cases(
    ("body", "error"),
    [
        ({}, "ranges"),
        ({"ranges": [{"start_version": 1}]}, "end_version"),
        ({"ranges": [{"end_version": 1}]}, "start_version"),
        ({"ranges": [{"start_version": "1", "end_version": 2}]}, "start_version"),
        ({"ranges": {"start_version": 1, "end_version": 2}}, "ranges"),
        (between((3, 1)), "3 to 1"),
        (between((-1, 1)), "-1 to 1"),
        (between((1, -2)), "1 to -2"),
        (between((1, 2), (0, 2**63)), "0 to 9223372036854775808"),
        (between((1, 2)) | {"id": ["t"]}, "['t']"),
    ],
)
def test_malformed_requests_are_refused(lance: Lance, five, body, error):
    lance.refused(400, 13, error, DELETE, body)


def test_missing(lance: Lance):
    make_namespace("ws")
    lance.refused(404, 4, "Table 'ws.t' does not exist", DELETE, between((0, -1)))
    lance.refused(404, 1, "Namespace 'x'", "/v1/table/x$t/version/delete", between((0, -1)))


def test_read_only_key(reader: Lance, five):
    reader.refused(403, 15, "may not write to 'ws.t'", DELETE, between((0, -1)))
