import json

import pyarrow as pa
import pytest

from catalog.models import AuditEvent, Branch, TableVersion, Transaction
from tests.api.client import Lance, stream
from tests.api.lance.test_concurrency import WON, key, post, race  # noqa: F401 -- a fixture
from tests.cases import shared_cases
from tests.factories import files, make_lance_table, make_table, make_version, open_lance

PATH = "/v1/table/w$t/branches/create"
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.operation("CreateTableBranch"),
    pytest.mark.usefixtures("everywhere"),
]


def insert(lance: Lance, *values: int, branch: str = "") -> int:
    added = lance.post(
        f"/v1/table/w$t/insert?branch={branch}", raw=stream(pa.table({"a": list(values)}))
    )
    return added["version"]


def numbers(lance: Lance, branch: str = "") -> list[int]:
    answer = lance.post(f"/v1/table/w$t/version/list?branch={branch}")
    return [entry["version"] for entry in answer["versions"]]


@pytest.fixture
def table(lance):
    """Versions 1 and 2."""
    table = make_lance_table(("w", "t"), pa.table({"a": [1]}))
    insert(lance, 2)
    return table


def rows(table, branch: str) -> list[int]:
    dataset = open_lance(f"{table.location}/tree/{branch}")
    return dataset.to_table()["a"].to_pylist()


def test_a_branch_starts_at_the_newest_version_of_main(lance, table):
    answer = lance.post(PATH, {"name": "dev"})
    assert set(answer) == {"transaction_id"}
    assert numbers(lance, "dev") == [2]
    assert rows(table, "dev") == [1, 2]
    assert list(open_lance(table.location).branches.list()) == ["dev"]
    event = AuditEvent.objects.get(action="branch.create")
    assert str(event.transaction_id) == answer["transaction_id"]
    assert event.after | {"manifest_path": ""} == {
        "version": 2,
        "manifest_path": "",
        "branch": "dev",
        "from_version": 2,
    }
    (operation,) = Transaction.objects.get(pk=answer["transaction_id"]).operations
    assert operation["operation"] == "CreateTableBranch"


def test_a_branch_has_its_own_versions(lance, table):
    lance.post(PATH, {"name": "dev"})
    assert insert(lance, 30, branch="dev") == 3
    assert insert(lance, 3) == 3
    assert (numbers(lance, "dev"), numbers(lance)) == ([2, 3], [1, 2, 3])
    assert rows(table, "dev") == [1, 2, 30]
    assert open_lance(table.location).to_table()["a"].to_pylist() == [1, 2, 3]
    lance.post("/v1/table/w$t/delete", {"predicate": "a < 30", "branch": "dev"})
    assert rows(table, "dev") == [30]


def test_from_a_version_and_from_a_branch(lance, table):
    lance.post(PATH, {"name": "old", "from_version": 1})
    assert (numbers(lance, "old"), rows(table, "old")) == ([1], [1])
    insert(lance, 7, branch="old")
    lance.post(PATH, {"name": "old/er", "from_branch": "old"})
    lance.post(PATH, {"name": "x", "from_branch": "old", "from_version": 1})
    lance.post(PATH, {"name": "y", "from_branch": "main", "from_version": 2})
    assert (numbers(lance, "old/er"), rows(table, "old/er")) == ([2], [1, 7])
    assert (numbers(lance, "x"), rows(table, "x")) == ([1], [1])
    assert (numbers(lance, "y"), rows(table, "y")) == ([2], [1, 2])
    branch_file = json.loads(files(table.location)["_refs/branches/old%2Fer.json"])
    assert (branch_file["parentBranch"], branch_file["parentVersion"]) == ("old", 2)
    after = AuditEvent.objects.get(action="branch.create", after__branch="x").after
    assert (after["from_branch"], after["from_version"]) == ("old", 1)


def test_a_duplicate_name_is_refused(lance, table):
    lance.post(PATH, {"name": "dev"})
    before = files(table.location)
    for body in ({}, {"from_version": 1}, {"from_branch": "dev"}):
        lance.refused(409, 23, "has branch 'dev'", PATH, {"name": "dev", **body})
    assert files(table.location) == before


def test_a_branch_of_a_client(lance, table):
    """The catalog knows the branch only by its first version in the ledger."""
    make_version(("w", "t"), 2, branch="theirs")
    lance.refused(409, 23, "'theirs'", PATH, {"name": "theirs"})
    # This branch was created without the catalog, and its content is not changed.
    open_lance(table.location).create_branch("hidden", 2)
    refused = lance.refused(409, 23, "'hidden'", PATH, {"name": "hidden"})
    assert "files" in refused.json()["detail"]


def test_invalid_starting_points_are_refused(lance, table):
    before = files(table.location)
    lance.refused(404, 22, "'nope'", PATH, {"name": "dev", "from_branch": "nope"})
    lance.refused(404, 22, "'é'", PATH, {"name": "dev", "from_branch": "é"})
    for version in (0, 3, 2**63 - 1, 2**63, 2**70):
        lance.refused(404, 11, "no version", PATH, {"name": "dev", "from_version": version})
    assert files(table.location) == before
    assert not Branch.objects.exists()


@shared_cases(
    "name",
    [
        "",
        "main",
        "a b",
        "a*",
        "..",
        ".",
        "a/../b",
        "a/./b",
        "/a",
        "a/",
        "a//b",
        "a..b",
        "a\\b",
        "a.lock",
        "a\x00",
        "a\nb",
        "é",
        "x" * 201,
        "x/" * 70 + "x",
        "_versions",
        "a/_versions",
        "a/data",
        "a/_refs/b",
        "../../x",
        "a%2Fb",
        "x" * 5000,
    ],
)
def test_invalid_names_are_refused(lance, table, name):
    before = files(table.location)
    lance.refused(400, 13, "name", PATH, {"name": name})
    assert files(table.location) == before


@pytest.mark.parametrize("name", ["dev", "a/b/c", "v1.0_x-y", "x" * 200, "data", ".a", "-"])
def test_valid_names_are_accepted(lance, table, name):
    lance.post(PATH, {"name": name})
    assert rows(table, name) == [1, 2]
    assert list(lance.post("/v1/table/w$t/branches/list")["branches"]) == [name]
    assert insert(lance, 3, branch=name.replace("/", "%2F")) == 3


@shared_cases(
    "body",
    [
        {},
        {"name": None},
        {"name": 1},
        {"name": "dev", "from_version": "1"},
        {"name": "dev", "from_version": -1},
        {"name": "dev", "from_version": 1.5},
        {"name": "dev", "from_branch": 1},
        {"name": "dev", "id": ["w", "u"]},
    ],
)
def test_malformed(lance, table, body):
    lance.refused(400, 13, "", PATH, body)


def test_no_table_and_no_data(lance):
    lance.refused(404, 1, "'w'", PATH, {"name": "dev"})
    make_table("w", "t")
    lance.refused(409, 19, "declared", PATH, {"name": "dev"})
    lance.refused(404, 4, "'w.u'", "/v1/table/w$u/branches/create", {"name": "dev"})


def test_read_only_key(reader, table):
    reader.refused(403, 15, "", PATH, {"name": "dev"})


@pytest.mark.django_db(transaction=True)
def test_creators_of_one_branch(key):  # noqa: F811
    table = make_lance_table(("w", "t"), pa.table({"a": [1]}))
    insert(Lance(key), 2)
    for number in range(4):
        name = f"b{number}"
        calls = [post(PATH, {"name": name, "from_version": 1 + n % 2}) for n in range(5)]
        outcome = race(key, *calls)
        assert sorted(outcome) == [WON] + [(409, 23)] * 4
        chosen = 1 + outcome.index(WON) % 2
        assert list(TableVersion.objects.filter(branch=name).values_list("version")) == [(chosen,)]
        assert rows(table, name) == [1, 2][:chosen]


@pytest.mark.django_db(transaction=True)
def test_concurrent_creators_without_the_queue(key, monkeypatch):  # noqa: F811
    """As on two machines, only the ledger decides."""
    from contextlib import nullcontext

    from catalog.services.lance.refs import ref_files

    monkeypatch.setattr(ref_files, "turns", lambda names: nullcontext())
    make_lance_table(("w", "t"), pa.table({"a": [1]}))
    insert(Lance(key), 2)
    for number in range(4):
        name = f"b{number}"
        calls = [post(PATH, {"name": name, "from_version": 1 + n % 2}) for n in range(4)]
        outcome = race(key, *calls)
        assert sorted(outcome) == [WON] + [(409, 23)] * 3
        assert numbers(Lance(key), name) == [1 + outcome.index(WON) % 2]
        assert Branch.objects.filter(name=name).count() == 1
