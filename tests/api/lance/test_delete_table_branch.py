import pyarrow as pa
import pytest

from catalog.access import SYSTEM
from catalog.errors import BranchNotFound, CommitConflict
from catalog.models import AuditEvent, Branch, Table, TableVersion, Transaction
from catalog.services.lance import data_operations, ledger_namespace
from catalog.services.lance import datasets as lance_datasets
from catalog.storage import locations, stores
from tests.api.client import Lance, stream
from tests.api.lance.test_concurrency import WON, key, post, race  # noqa: F401 -- a fixture
from tests.api.lance.test_create_table_branch import insert, numbers, rows
from tests.cases import shared_cases
from tests.factories import (
    files,
    make_lance_table,
    make_table,
    make_version,
    open_lance,
    unchanged,
)
from tests.security.lance_attacks import always, edited

PATH = "/v1/table/w$t/branches/delete"
CREATE = "/v1/table/w$t/branches/create"
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.operation("DeleteTableBranch"),
    pytest.mark.usefixtures("everywhere"),
]


@pytest.fixture
def table(lance):
    """Main at 1, and a branch dev with versions 1 and 2."""
    table = make_lance_table(("w", "t"), pa.table({"a": [1]}))
    lance.post(CREATE, {"name": "dev"})
    insert(lance, 20, branch="dev")
    return table


def directories(table: Table, directory: str) -> list[str]:
    return stores.store_of(table.location).list_directories(table.location, directory)


def read(branch: str) -> list[int]:
    dataset = lance_datasets.read(actor=SYSTEM, table=("w", "t"), branch=branch)
    return dataset.to_table()["a"].to_pylist()


def test_the_branch_and_its_files_are_deleted(lance, table):
    before = set(files(table.location))
    answer = lance.post(PATH, {"name": "dev"})
    assert lance.post("/v1/table/w$t/branches/list") == {"branches": {}}
    lance.refused(404, 22, "'dev'", "/v1/table/w$t/version/list?branch=dev")
    lance.refused(
        404, 22, "'dev'", "/v1/table/w$t/version/describe", {"version": 1, "branch": "dev"}
    )
    lance.refused(
        404, 22, "'dev'", "/v1/table/w$t/insert?branch=dev", raw=stream(pa.table({"a": [3]}))
    )
    lance.refused(404, 22, "'dev'", PATH, {"name": "dev"})
    remaining_files = set(files(table.location))
    assert remaining_files == {
        name for name in before if not name.startswith(("tree/", "_refs/branches/"))
    }
    assert directories(table, "tree") == []
    assert (numbers(lance), read("")) == ([1], [1])
    event = AuditEvent.objects.get(action="branch.delete")
    assert (event.before, event.after) == ({"branch": "dev"}, {"branch": "dev", "deleted": 2})
    assert str(event.transaction_id) == answer["transaction_id"]
    (operation,) = Transaction.objects.get(pk=answer["transaction_id"]).operations
    assert operation["operation"] == "DeleteTableBranch"


def test_versions_of_a_deleted_branch_are_hidden_tombstones(lance, table):
    pk = Branch.objects.get().pk
    lance.post(PATH, {"name": "dev"})
    retired = f"dev//{pk}"
    hidden_paths = TableVersion.objects.filter(
        branch=retired, deleted_at__isnull=False, staged_path=None
    )
    assert sorted(hidden_paths.values_list("version", flat=True)) == [1, 2]
    lance.refused(404, 22, "", f"/v1/table/w$t/version/list?branch={retired}")
    lance.refused(404, 22, "", "/v1/table/w$t/version/describe", {"version": 1, "branch": retired})
    lance.refused(400, 13, "", CREATE, {"name": retired})
    lance.refused(400, 13, "", PATH, {"name": retired})


def test_the_name_can_be_used_again(lance, table):
    """The new branch has the same version numbers and none of the former content."""
    assert read("dev") == [1, 20]
    for value in (30, 40):
        lance.post(PATH, {"name": "dev"})
        lance.post(CREATE, {"name": "dev"})
        assert (numbers(lance, "dev"), read("dev"), rows(table, "dev")) == ([1], [1], [1])
        assert insert(lance, value, branch="dev") == 2
        assert (numbers(lance, "dev"), read("dev")) == ([1, 2], [1, value])
        assert rows(table, "dev") == [1, value]
    assert TableVersion.objects.filter(branch="dev").count() == 2
    assert TableVersion.objects.exclude(branch="").filter(deleted_at__isnull=False).count() == 4


def test_branches_used_by_others_are_not_deleted(lance, table):
    lance.post(CREATE, {"name": "dev/sub", "from_branch": "dev"})
    lance.post("/v1/table/w$t/tags/create", {"tag": "v", "version": 2, "branch": "dev"})
    before = files(table.location)
    lance.refused(409, 19, "tag 'v'", PATH, {"name": "dev"})
    lance.post("/v1/table/w$t/tags/delete", {"tag": "v"})
    before.pop("_refs/tags/v.json")
    lance.refused(409, 19, "branch 'dev/sub'", PATH, {"name": "dev"})
    assert files(table.location) == before
    lance.post(PATH, {"name": "dev/sub"})
    lance.post(PATH, {"name": "dev"})


def test_a_branch_below_it_is_kept(lance, table):
    """Its files are inside the other branch's directory, although it started from another branch."""
    lance.post(CREATE, {"name": "dev/x/y"})
    insert(lance, 5, branch="dev%2Fx%2Fy")
    lance.post(PATH, {"name": "dev"})
    assert rows(table, "dev/x/y") == [1, 5]
    assert directories(table, "tree/dev") == ["x"]
    lance.post(CREATE, {"name": "dev"})
    assert (numbers(lance, "dev"), rows(table, "dev")) == ([1], [1])
    lance.post(PATH, {"name": "dev/x/y"})
    assert rows(table, "dev") == [1]


def test_leftover_files_are_removed_by_a_retry(lance, table, monkeypatch):
    """After a crash between commit and removal, a repeated request removes the files."""
    with monkeypatch.context() as patch:
        patch.setattr(type(stores.store_of(table.location)), "remove", _fail)
        lance.post(PATH, {"name": "dev"})  # the branch is deleted nevertheless
    assert lance.post("/v1/table/w$t/branches/list") == {"branches": {}}
    lance.refused(404, 22, "'dev'", "/v1/table/w$t/version/list?branch=dev")
    lance.refused(409, 23, "'dev'", CREATE, {"name": "dev"})
    lance.post(PATH, {"name": "dev"})
    assert directories(table, "tree") == []
    lance.refused(404, 22, "'dev'", PATH, {"name": "dev"})
    lance.post(CREATE, {"name": "dev"})
    assert rows(table, "dev") == [1]


def _fail(store: stores.Store, path: str) -> bool:
    raise OSError("the disk failed")


def test_a_branch_without_its_file_is_deleted_before_others(lance, table):
    """A branch without its own file may have been created from any other, and must be deleted first."""
    make_version(("w", "t"), 1, branch="theirs")
    refused = lance.refused(409, 14, "branch 'theirs' may have begun there", PATH, {"name": "dev"})
    assert "first" in refused.json()["detail"]
    lance.post(PATH, {"name": "theirs"})
    path = f"{table.location}/_refs/branches/dev.json"
    assert stores.store_of(path).remove(path)
    lance.post(PATH, {"name": "dev"})
    assert directories(table, "tree") == []


def test_deleted_by_a_client(lance, table):
    """The client does not notify the catalog; this request updates the ledger."""
    open_lance(table.location).branches.delete("dev")
    assert list(lance.post("/v1/table/w$t/branches/list")["branches"]) == ["dev"]
    lance.post(PATH, {"name": "dev"})
    assert lance.post("/v1/table/w$t/branches/list") == {"branches": {}}


@shared_cases(
    "name", ["main", "", "..", ".", "../tree/dev", "/", "dev/", "a\x00", "x" * 5000, "_versions"]
)
def test_unknown_branches_are_refused(lance, table, name):
    before = files(table.location)
    lance.refused(400, 13, "", PATH, {"name": name})
    assert files(table.location) == before


def test_refusals(lance, reader):
    lance.refused(404, 1, "'w'", PATH, {"name": "dev"})
    make_table("w", "t")
    lance.refused(409, 19, "declared", PATH, {"name": "dev"})
    lance.refused(404, 4, "'w.u'", "/v1/table/w$u/branches/delete", {"name": "dev"})
    for body in ({}, {"name": None}, {"name": 1}):
        lance.refused(400, 13, "name", PATH, body)
    reader.refused(403, 15, "", PATH, {"name": "dev"})
    make_lance_table(("w", "u"))
    for name in ("nope", "é", "DEV"):
        lance.refused(404, 22, f"'{name}'", "/v1/table/w$u/branches/delete", {"name": name})


def test_a_late_writer_does_not_restore_the_branch(lance, table):
    """Writes to the deleted branch do not restore it."""

    snapshot = lance_datasets.find_snapshot(actor=SYSTEM, table=("w", "t"), branch="dev")
    base = ("dev", snapshot.version, snapshot.entry.created_at)
    late = data_operations.InsertIntoTable(
        table=("w", "t"), branch="dev", version=3, manifest_path="elsewhere/3.manifest", base=base
    )
    lance.post(PATH, {"name": "dev"})
    with unchanged(), pytest.raises(BranchNotFound):
        ledger_namespace.commit([late], actor=SYSTEM)
    # The version does not become part of a new branch of this name either, despite its number.
    lance.post(CREATE, {"name": "dev"})
    insert(lance, 30, branch="dev")
    with unchanged(), pytest.raises(CommitConflict):
        ledger_namespace.commit([late], actor=SYSTEM)


@pytest.mark.django_db(transaction=True)
def test_concurrent_changes_of_a_branch_keep_the_ledger_consistent(key):  # noqa: F811
    """Concurrent deletes, creations and writes: each version is on the branch that the ledger names."""
    make_lance_table(("w", "t"), pa.table({"a": [1]}))
    client, write = Lance(key), stream(pa.table({"a": [2]}))
    for _ in range(4):
        client.call("POST", CREATE, {"name": "dev"})
        outcome = race(
            key,
            post(PATH, {"name": "dev"}),
            post(PATH, {"name": "dev"}),
            post(CREATE, {"name": "dev"}),
            lambda own: own.call("POST", "/v1/table/w$t/insert?branch=dev", raw=write),
            post(CREATE, {"name": "sub", "from_branch": "dev"}),
        )
        # Version 2 of the first dev does not belong to the next one.
        missing, refused = {(404, 11), (404, 22)}, {(409, 14), (409, 19), (409, 23)}
        assert set(outcome) <= {WON} | missing | refused, outcome
        for name in Branch.objects.values_list("name", flat=True):
            for version in numbers(client, name):
                lance_datasets.read(
                    actor=SYSTEM, table=("w", "t"), branch=name, version=version
                ).to_table()
        client.call("POST", PATH, {"name": "sub"})
    assert read("") == [1]


def test_a_late_client_does_not_restore_the_branch(lance, table, everywhere):
    """The client records a version it has written; only the first manifest of a branch recreates
    it."""
    name = f"tree/dev/_versions/{2**64 - 3}.manifest"
    content = files(table.location)[name]
    lance.post(PATH, {"name": "dev"})
    path = locations.store_path(table.location, name)
    body = {"version": 2, "branch": "dev", "manifest_path": f"{path}-x"}
    create = "/v1/table/w$t/version/create"
    lance.refused(404, 22, "'dev'", create, body)
    everywhere.write(f"{table.location}/{name}-x", content)
    lance.refused(404, 22, "'dev'", create, body)
    assert lance.post("/v1/table/w$t/branches/list") == {"branches": {}}
    # A branch that another client begins.
    lance.post(CREATE, {"name": "other"})
    first = files(table.location)[f"tree/other/_versions/{2**64 - 2}.manifest"]
    everywhere.write(f"{table.location}/{name}-y", edited(first, [20], always("dev")))
    body = {"version": 1, "branch": "dev", "manifest_path": f"{path}-y"}
    lance.post(create, body)
    assert numbers(lance, "dev") == [1]
