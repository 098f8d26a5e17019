"""pylance against a live server, with real files."""

import time
from collections.abc import Sequence
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.namespace import RestNamespace
from lance_namespace import (
    CreateNamespaceRequest,
    DropNamespaceRequest,
    DropTableRequest,
    ListNamespacesRequest,
    ListTablesRequest,
    TableExistsRequest,
)
from lance_namespace.errors import TableNotFoundError

from tests.clients.conftest import Place
from tests.live import LiveServer


@pytest.fixture
def ns(live: LiveServer) -> RestNamespace:
    return live.client()


@pytest.fixture
def local_table(ns: RestNamespace, request: pytest.FixtureRequest) -> list[str]:
    """The identifier of a table that does not exist yet, in its own namespace."""
    ns.create_namespace(CreateNamespaceRequest(id=[request.node.name]))
    return [request.node.name, "t"]


@pytest.fixture
def table(live: LiveServer, local_table: list[str], place: Place) -> list[str]:
    """The same; then the test runs with a table in an object store."""
    place(live, local_table[:1])
    return local_table


def numbers(values: Sequence[int]) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64()), "s": [f"row {v}" for v in values]})


def write(ns: RestNamespace, table: list[str], values: Sequence[int], mode: str) -> int:
    dataset = lance.write_dataset(numbers(values), namespace_client=ns, table_id=table, mode=mode)
    return int(dataset.version)


def read(ns: RestNamespace, table: list[str], version: int | None = None) -> list[int]:
    dataset = lance.dataset(namespace_client=ns, table_id=table, version=version)
    rows = dataset.to_table()
    assert rows["s"].to_pylist() == [f"row {n}" for n in rows["n"].to_pylist()]
    return sorted(rows["n"].to_pylist())


def ledger(live: LiveServer, table: list[str], branch: str = "") -> list[int]:
    path = "$".join(table).replace(" ", "%20")
    status, answer = live.post(f"/v1/table/{path}/version/list?branch={branch}")
    assert status == 200
    return [entry["version"] for entry in answer["versions"]]


def test_create_then_read(live: LiveServer, ns: RestNamespace, table: list[str]) -> None:
    assert write(ns, table, [1, 2, 3], "create") == 1

    assert read(ns, table) == [1, 2, 3]
    assert ledger(live, table) == [1]


def test_append_delete_overwrite_restore_compact(
    live: LiveServer, ns: RestNamespace, table: list[str]
) -> None:
    write(ns, table, [1, 2, 3], "create")
    write(ns, table, [4, 5], "append")
    lance.dataset(namespace_client=ns, table_id=table).delete("n = 2")
    write(ns, table, [6], "append")
    write(ns, table, [7, 8], "overwrite")
    lance.dataset(namespace_client=ns, table_id=table, version=4).restore()
    dataset = lance.dataset(namespace_client=ns, table_id=table)
    figures = dataset.optimize.compact_files(target_rows_per_fragment=1000)

    assert figures.fragments_removed == 3
    assert read(ns, table) == [1, 3, 4, 5, 6]
    latest = ledger(live, table)[-1]
    contents = {version: read(ns, table, version) for version in ledger(live, table) if version < 7}
    assert contents == {
        1: [1, 2, 3],
        2: [1, 2, 3, 4, 5],
        3: [1, 3, 4, 5],
        4: [1, 3, 4, 5, 6],
        5: [7, 8],
        6: [1, 3, 4, 5, 6],
    }
    # Additional versions of compaction change no row.
    assert latest > 6
    for version in range(7, latest + 1):
        assert read(ns, table, version) == [1, 3, 4, 5, 6]


def test_every_commit_is_recorded_under_its_final_name(
    live: LiveServer, ns: RestNamespace, local_table: list[str]
) -> None:
    write(ns, local_table, [1], "create")
    for value in (2, 3):
        write(ns, local_table, [value], "append")

    _, answer = live.post(f"/v1/table/{local_table[0]}$t/version/list")

    for entry in answer["versions"]:
        manifest = Path("/" + entry["manifest_path"])
        assert manifest.name == f"{2**64 - 1 - entry['version']:020d}.manifest"
        assert manifest.stat().st_size == entry["manifest_size"]
        assert manifest.is_relative_to(live.warehouse)
    assert list(manifest.parent.glob("*.manifest-*")) == []


def test_a_branch_grows_beside_main(live: LiveServer, ns: RestNamespace, table: list[str]) -> None:
    write(ns, table, [1, 2], "create")
    main = lance.dataset(namespace_client=ns, table_id=table)
    branch = main.create_branch("dev/one")
    branch = lance.write_dataset(numbers([3]), branch, mode="append")
    lance.write_dataset(numbers([4]), branch, mode="append")
    write(ns, table, [10], "append")

    main = lance.dataset(namespace_client=live.client(), table_id=table)
    on_branch = main.checkout_version(("dev/one", None))

    assert sorted(on_branch.to_table()["n"].to_pylist()) == [1, 2, 3, 4]
    assert read(ns, table) == [1, 2, 10]
    assert ledger(live, table) == [1, 2]
    assert ledger(live, table, "dev/one") == [1, 2, 3]
    second = main.checkout_version(("dev/one", 2))
    assert sorted(second.to_table()["n"].to_pylist()) == [1, 2, 3]


def test_a_tag_opens_its_version(ns: RestNamespace, table: list[str]) -> None:
    write(ns, table, [1], "create")
    write(ns, table, [2], "append")
    dataset = lance.dataset(namespace_client=ns, table_id=table)
    dataset.tags.create("first", 1)

    again = lance.dataset(namespace_client=ns, table_id=table, version="first")

    assert again.version == 1
    assert again.to_table()["n"].to_pylist() == [1]


def test_a_second_client_sees_a_commit_immediately(
    live: LiveServer, ns: RestNamespace, table: list[str]
) -> None:
    other = live.client()
    write(ns, table, [0], "create")
    for value in range(1, 6):
        version = write(ns, table, [value], "append")
        dataset = lance.dataset(namespace_client=other, table_id=table)
        assert dataset.version == version
        assert sorted(dataset.to_table()["n"].to_pylist()) == list(range(value + 1))


def test_a_stale_client_rebases_its_append(
    live: LiveServer, ns: RestNamespace, table: list[str]
) -> None:
    write(ns, table, [0], "create")
    stale = lance.dataset(namespace_client=live.client(), table_id=table)
    write(ns, table, [1], "append")

    lance.write_dataset(numbers([2]), stale, mode="append")

    assert read(ns, table) == [0, 1, 2]
    assert ledger(live, table) == [1, 2, 3]


@pytest.mark.parametrize(
    "name",
    ["a b", "a+b", "a/b c", "a.b", "Größe – 測試", "100%", "ü?x=1&y#z", "a%2Fb"],
    ids=["space", "plus", "slash", "dot", "utf8", "percent", "query", "escaped"],
)
def test_unusual_names(live: LiveServer, ns: RestNamespace, table: list[str], name: str) -> None:
    space = [table[0], f"in {name}"]
    ns.create_namespace(CreateNamespaceRequest(id=space))
    identifier = [*space, name]
    write(ns, identifier, [1], "create")
    write(ns, identifier, [2], "append")

    assert read(ns, identifier) == [1, 2]
    assert read(ns, identifier, 1) == [1]
    assert ns.list_tables(ListTablesRequest(id=space)).tables == [name]
    assert ns.list_namespaces(ListNamespacesRequest(id=[table[0]])).namespaces == [f"in {name}"]


def test_namespaces_nest(live: LiveServer, ns: RestNamespace, table: list[str]) -> None:
    path = [table[0]]
    for level in range(1, 6):
        path = [*path, f"level {level}"]
        ns.create_namespace(CreateNamespaceRequest(id=path))
        write(ns, [*path, "t"], [level], "create")

    assert read(ns, [*path, "t"]) == [5]
    assert read(ns, [*path[:3], "t"]) == [2]
    assert ns.list_namespaces(ListNamespacesRequest(id=path[:2])).namespaces == ["level 2"]


def test_a_dropped_table_loses_its_files(
    live: LiveServer, ns: RestNamespace, local_table: list[str]
) -> None:
    write(ns, local_table, [1, 2], "create")
    location = Path(lance.dataset(namespace_client=ns, table_id=local_table).uri)
    assert location.is_dir()

    answer = ns.drop_table(DropTableRequest(id=local_table))

    assert answer.location == str(location)
    with pytest.raises(TableNotFoundError):
        ns.table_exists(TableExistsRequest(id=local_table))
    _wait_until_removed(live, location)
    # The name is free again, and the new table has other files.
    write(ns, local_table, [3], "create")
    assert read(ns, local_table) == [3]
    assert lance.dataset(namespace_client=ns, table_id=local_table).uri != str(location)


def test_dropping_a_namespace_drops_its_content(
    live: LiveServer, ns: RestNamespace, local_table: list[str]
) -> None:
    space = [local_table[0], "below"]
    ns.create_namespace(CreateNamespaceRequest(id=space))
    locations = []
    for identifier in (local_table, [*space, "t"]):
        write(ns, identifier, [1], "create")
        locations.append(Path(lance.dataset(namespace_client=ns, table_id=identifier).uri))

    ns.drop_namespace(DropNamespaceRequest(id=[local_table[0]], behavior="Cascade"))

    for identifier in (local_table, [*space, "t"]):
        with pytest.raises(Exception, match="does not exist"):
            lance.dataset(namespace_client=ns, table_id=identifier)
    for location in locations:
        _wait_until_removed(live, location)


def _wait_until_removed(live: LiveServer, location: Path, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while location.exists():
        assert time.monotonic() < deadline, f"{location} is still there:\n{live.log}"
        time.sleep(0.1)


def test_a_table_remains_writable_after_accepted_commits(
    live: LiveServer, ns: RestNamespace, local_table: list[str]
) -> None:
    """Versions without manifests are refused, and so is deleting the newest record."""
    write(ns, local_table, [1], "create")
    write(ns, local_table, [2], "append")
    path = f"/v1/table/{'$'.join(local_table)}/version"
    location = live.post(f"/v1/table/{'$'.join(local_table)}/describe")[1]["location"]
    directory = Path(location.removeprefix("file://")) / "_versions"
    missing = {"version": 3, "manifest_path": f"{directory}/{2**64 - 4:020d}.manifest-gone"}
    assert live.post(f"{path}/create", missing)[0] == 404
    ranges = [{"start_version": 1, "end_version": -1}]
    assert live.post(f"{path}/delete", {"ranges": ranges})[0] == 409
    assert write(ns, local_table, [3], "append") == 3
    assert read(ns, local_table) == [1, 2, 3]


def test_a_repaired_table_is_writable(
    live: LiveServer, ns: RestNamespace, local_table: list[str]
) -> None:
    """After the newest manifest is lost, stock clients can neither read nor append until the
    repair."""
    write(ns, local_table, [1], "create")
    write(ns, local_table, [2], "append")
    write(ns, local_table, [3], "append")
    name = "$".join(local_table)
    location = live.post(f"/v1/table/{name}/describe")[1]["location"]
    newest = Path(location.removeprefix("file://")) / f"_versions/{2**64 - 4:020d}.manifest"
    newest.unlink()
    with pytest.raises(OSError, match=r".+"):
        write(ns, local_table, [4], "append")
    status, answer = live.post(f"/management/v1/tables/{name}/repair", {})
    assert (status, answer["published"]) == (200, {"": 4})
    assert ledger(live, local_table) == [1, 2, 4]
    assert read(ns, local_table) == [1, 2]
    assert write(ns, local_table, [5], "append") == 5
    assert read(ns, local_table) == [1, 2, 5]
