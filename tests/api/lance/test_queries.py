"""Number of statements of the hot operations, and the order of locks and writes."""

import re
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.api.client import Lance
from tests.factories import make_namespace, make_table, make_version, manifest, relative, stage

_FRAME = re.compile(r"(SAVEPOINT|RELEASE SAVEPOINT|BEGIN|COMMIT)\b")


def statements(lance: Lance, method: str, path: str, body: dict | None = None) -> list[str]:
    """The statements of a successful call, without those of its transaction."""
    with CaptureQueriesContext(connection) as captured:
        response = lance.call(method, path, body)
    assert response.status_code == 200, response.content
    return [q["sql"] for q in captured.captured_queries if not _FRAME.match(q["sql"])]


@pytest.fixture(autouse=True)
def _catalog(lance: Lance):
    for number in range(5):
        make_table("ws", f"t{number}")
        make_version(("ws", f"t{number}"), 1)
        make_version(("ws", f"t{number}"), 2, branch="dev")
    make_namespace("ws", "inner")
    lance.get("/v1/table")  # the key is in the cache now


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/table/ws$t0/describe", {"id": ["ws", "t0"]}),
        ("POST", "/v1/table/ws$t0/describe?with_table_uri=true&check_declared=true", {}),
        ("POST", "/v1/table/ws$t0/exists", {}),
        ("POST", "/v1/namespace/ws/describe", {}),
        ("POST", "/v1/namespace/ws$inner/exists", {}),
        ("GET", "/v1/namespace/$/list", None),
        ("GET", "/v1/namespace/ws/table/list?limit=2", None),
        ("GET", "/v1/table", None),
        ("POST", "/v1/table/ws$t0/version/describe", {"version": 1}),
        ("POST", "/v1/table/ws$t0/version/describe", {"version": 2, "branch": "dev"}),
        ("POST", "/v1/table/ws$t0/version/list?limit=1&descending=true", None),
    ],
)
def test_reads_take_one_statement(lance: Lance, method, path, body):
    assert len(statements(lance, method, path, body)) == 1


def test_a_key_costs_one_lookup_and_then_none(lance: Lance):
    from catalog.services.access import known_keys

    known_keys.forget_keys()
    # the key with its principal, and the groups of that; it was used within the last minute
    assert len(statements(lance, "GET", "/v1/table")) == 1 + 2
    assert len(statements(lance, "GET", "/v1/table")) == 1


def test_create_version_elsewhere(lance: Lance):
    body = {"version": 9, "manifest_path": "elsewhere/9"}
    # the table, which the process caches; then lock, version, transaction and audit row in one
    assert len(statements(lance, "POST", "/v1/table/ws$t0/version/create", body)) == 2
    body["version"] = 10
    assert len(statements(lance, "POST", "/v1/table/ws$t0/version/create", body)) == 1


def test_create_version_with_a_staged_manifest(lance: Lance):
    table = make_table("ws", "staged")
    make_version(("ws", "staged"), 1)
    body = {"version": 2, "manifest_path": relative(stage(table, 2))}
    # the move of the manifest takes no statement; the row is settled later with many others
    assert len(statements(lance, "POST", "/v1/table/ws$staged/version/create", body)) == 2


@pytest.mark.parametrize("size", [1, 10, 50])
def test_a_batch_takes_as_many_statements_as_one_entry(lance: Lance, size):
    operations = [
        {
            "create_table_version": {
                "id": ["ws", f"t{number % 5}"],
                "version": 100 + number,
                "manifest_path": f"elsewhere/{number}",
            }
        }
        for number in range(size)
    ]
    body = {"operations": operations}
    assert len(statements(lance, "POST", "/v1/table/batch-commit", body)) == 2
    entries = [op["create_table_version"] | {"branch": "dev"} for op in operations]
    path = "/v1/table/version/batch-create"
    queries = statements(lance, "POST", path, {"entries": entries})
    assert len(queries) == 2 + min(size, 5)  # and one query for the branch of each table


def test_a_batch_of_declares(lance: Lance):
    operations = [{"declare_table": {"id": ["ws", f"n{number}"]}} for number in range(10)]
    path = "/v1/table/batch-commit"
    assert len(statements(lance, "POST", path, {"operations": operations})) == 4


LOCK = re.compile(r"ORDER BY .*\bFOR NO KEY UPDATE OF ")
WRITES = ("INSERT", "WITH g0 AS (INSERT", "UPDATE", "DELETE")
WRITING = [
    ("/v1/namespace/ws/create", {"mode": "Overwrite"}),
    ("/v1/namespace/ws/drop", {"behavior": "Cascade"}),
    ("/v1/table/ws$new/declare", {"location": "mine"}),
    ("/v1/table/ws$new/register", {"location": "mine"}),
    ("/v1/table/ws$t0/register", {"location": "mine", "mode": "Overwrite"}),
    ("/v1/table/ws$t0/drop", None),
    ("/v1/table/ws$t0/deregister", {}),
    ("/v1/table/ws$t0/rename", {"new_table_name": "u", "new_namespace_id": ["ws", "inner"]}),
    ("/v1/table/ws$t0/version/create", {"version": 9, "manifest_path": "x/1", "branch": "dev"}),
    ("/v1/table/ws$t0/version/delete", {"ranges": [{"start_version": 0, "end_version": 1}]}),
]


@pytest.mark.parametrize(("path", "body"), WRITING)
def test_ordered_locks_come_before_every_write(lance: Lance, path, body):
    queries = statements(lance, "POST", path, body)
    first_write = next(i for i, sql in enumerate(queries) if sql.startswith(WRITES))
    locks = [i for i, sql in enumerate(queries) if "FOR NO KEY UPDATE" in sql]
    assert locks
    assert locks[0] < first_write
    for index in locks:
        assert LOCK.search(queries[index]), queries[index]
    assert not any("FOR UPDATE" in sql for sql in queries)


@pytest.mark.parametrize("path", ["/v1/namespace/new/create", "/v1/table/ws$new/declare"])
def test_a_creation_is_written_by_the_statement_that_locks(lance: Lance, path):
    *reads, write = statements(lance, "POST", path, {})
    assert not any(sql.startswith(WRITES) or "FOR NO KEY UPDATE" in sql for sql in reads)
    assert write.index("FOR NO KEY UPDATE") < write.index("INSERT INTO")


def test_a_version_is_written_by_the_statement_that_locks(lance: Lance):
    body = {"version": 9, "manifest_path": "x/1"}
    read, write = statements(lance, "POST", "/v1/table/ws$t0/version/create", body)
    assert "FOR NO KEY UPDATE" not in read
    lock = write.index("FOR NO KEY UPDATE OF t")
    assert "ORDER BY t.id" in write[:lock]
    inserts = [match.start() for match in re.finditer("INSERT INTO", write)]
    assert len(inserts) == 3
    assert min(inserts) > lock
    assert write.count("WHERE unchanged.yes") == 3


def put(location: str, version: int, name: str = "x") -> None:
    """A staged manifest at the location."""
    path = Path(location.removeprefix("file://")) / "_versions" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(manifest(version))


def test_a_stale_table_cache_is_detected(lance: Lance):
    """If the table was renamed, replaced or dropped, the write reads it again under its lock."""
    create, body = "/v1/table/ws$t0/version/create", {"version": 9, "manifest_path": "_versions/x"}
    old = lance.post("/v1/table/ws$t0/describe")["location"]
    put(old, 9)
    lance.post(create, body)
    lance.post("/v1/table/ws$t0/rename", {"new_table_name": "moved"})
    lance.refused(404, 4, "ws.t0", create, body)
    lance.post("/v1/table/ws$t0/declare")
    new = lance.post("/v1/table/ws$t0/describe")["location"]
    assert new != old
    put(new, 1)
    made = lance.post(create, body | {"version": 1, "manifest_path": f"{new}/_versions/x"})
    assert made["version"]["version"] == 1
    versions = lance.post("/v1/table/ws$t0/version/list")["versions"]
    assert [version["version"] for version in versions] == [1]
    put(new, 2)
    lance.post(create, body | {"version": 2})
    lance.post("/v1/table/ws$t0/drop")
    lance.refused(404, 4, "ws.t0", create, body | {"version": 3})
    moved = lance.post("/v1/table/ws$moved/version/list")["versions"]
    assert [version["version"] for version in moved] == [1, 9]


def test_a_cached_location_causes_no_refusal(lance: Lance, settings):
    """A location that overlapped with the old table's may be valid for the new one's."""
    settings.MONODON_MANIFEST_PATHS = []
    create = "/v1/table/ws$t0/version/create"
    put(lance.post("/v1/table/ws$t0/describe")["location"], 9)
    lance.post(create, {"version": 9, "manifest_path": "_versions/x"})
    lance.post("/v1/table/ws$t0/deregister")
    lance.post("/v1/table/ws$t0/declare")
    location = lance.post("/v1/table/ws$t0/describe")["location"]
    for version in (1, 2):
        put(location, version, f"x{version}")
        body = {"version": version, "manifest_path": f"{location}/_versions/x{version}"}
        assert lance.post(create, body)["version"]["version"] == version


def test_namespaces_are_locked_before_tables(lance: Lance):
    queries = statements(
        lance,
        "POST",
        "/v1/table/ws$t0/rename",
        {"new_table_name": "u", "new_namespace_id": ["ws", "inner"]},
    )
    locks = [sql for sql in queries if "FOR NO KEY UPDATE" in sql]
    assert ["catalog_namespace" in sql for sql in locks] == [True, False]
    assert 'FROM "catalog_table"' in locks[1]
