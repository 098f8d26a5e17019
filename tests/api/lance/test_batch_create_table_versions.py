import pytest

from catalog.models import TableVersion, Transaction
from tests.api.client import Lance
from tests.cases import shared_cases
from tests.factories import files, final_path, make_table, make_version, manifest, relative, stage

pytestmark = pytest.mark.operation("BatchCreateTableVersions")

CREATE = "/v1/table/version/batch-create"


def entry(table: str, version: int, path: str | None = None, **more) -> dict:
    path = path or f"x/{table}/{version}"
    return {"id": ["ws", table], "version": version, "manifest_path": path, **more}


@pytest.fixture(autouse=True)
def tables(db):
    return {name: make_table("ws", name) for name in ("a", "b", "c")}


def test_creates_versions_of_several_tables(lance: Lance, tables):
    staged = [stage(tables["a"], 1), stage(tables["b"], 1), stage(tables["a"], 2)]
    answer = lance.post(
        CREATE,
        {
            "entries": [
                entry("a", 1, relative(staged[0]), manifest_size=7, metadata={"k": "v"}),
                entry("b", 1, relative(staged[1])),
                entry("a", 2, relative(staged[2])),
                entry("c", 9, branch="dev"),
            ]
        },
    )
    assert [(v["version"], v["manifest_path"]) for v in answer["versions"]] == [
        (1, relative(final_path(tables["a"], 1))),
        (1, relative(final_path(tables["b"], 1))),
        (2, relative(final_path(tables["a"], 2))),
        (9, "x/c/9"),
    ]
    assert answer["versions"][0]["manifest_size"] == len(
        manifest(1)
    )  # not the size given by the writer
    assert answer["versions"][0]["metadata"] == {"k": "v"}
    assert not any(path.exists() for path in staged)
    assert {str(row.transaction_id) for row in TableVersion.objects.all()} == {
        answer["transaction_id"]
    }
    facts = lance.post(f"/v1/transaction/{answer['transaction_id']}/describe")["properties"]
    assert facts["monodon.operations"] == ",".join(["CreateTableVersion"] * 4)
    assert facts["monodon.targets"] == "ws.a,ws.b,ws.c"
    versions = lance.post("/v1/table/ws$c/version/list?branch=dev")["versions"]
    assert [v["version"] for v in versions] == [9]


def test_one_conflict_refuses_all(lance: Lance, tables):
    make_version(("ws", "b"), 1)
    staged = stage(tables["a"], 1)
    entries = [entry("a", 1, relative(staged)), entry("c", 1), entry("b", 1)]
    lance.refused(
        409, 14, "Operation 2: Table 'ws.b' has version 1 already", CREATE, {"entries": entries}
    )
    assert list(files(tables["a"].location).values()) == [manifest(1)]
    assert staged.exists()


def test_the_same_version_twice(lance: Lance):
    lance.refused(
        409,
        14,
        "Operation 1: Table 'ws.a' has version 1 already",
        CREATE,
        {"entries": [entry("a", 1), entry("a", 1)]},
    )


def test_the_same_number_on_two_branches(lance: Lance):
    entries = [entry("a", 1), entry("a", 1, branch="x"), entry("a", 1, branch="y")]
    assert len(lance.post(CREATE, {"entries": entries})["versions"]) == 3


def test_an_empty_batch(lance: Lance):
    before = Transaction.objects.count()
    assert lance.post(CREATE, {"entries": []}) == {"versions": []}
    assert Transaction.objects.count() == before


@shared_cases(
    ("status", "code", "error", "entries"),
    [
        (404, 4, "Operation 1: Table 'ws.x'", [entry("a", 1), entry("x", 1)]),
        (404, 1, "Operation 0: Namespace 'no'", [entry("a", 1) | {"id": ["no", "t"]}]),
        (400, 13, "Operation 1: ", [entry("a", 1), entry("b", 1) | {"id": []}]),
        (400, 13, "Operation 1: ", [entry("a", 1), entry("b", 1) | {"id": ["ws", ""]}]),
        (400, 13, "Operation 1: Manifest path", [entry("a", 1), entry("b", 1, "../x")]),
        (400, 13, "Operation 1: Version", [entry("a", 1), entry("b", 2**63)]),
        (400, 13, "entries.1.version", [entry("a", 1), entry("b", -1)]),
        (400, 13, "entries.1.id", [entry("a", 1), {"version": 1, "manifest_path": "x/1"}]),
        (400, 13, "entries.0", ["a"]),
    ],
)
def test_invalid_entries_are_refused(lance: Lance, status, code, error, entries):
    lance.refused(status, code, error, CREATE, {"entries": entries})


def test_entries_are_required(lance: Lance):
    lance.refused(400, 13, "entries", CREATE, {})


def test_read_only_key(reader: Lance):
    reader.refused(403, 15, "may not write to 'ws.a'", CREATE, {"entries": [entry("a", 1)]})
