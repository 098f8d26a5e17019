"""Stock pylance with tags and branches, against the real server."""

import lance
import pyarrow as pa
import pytest
from lance.namespace import RestNamespace
from lance_namespace import (
    CreateNamespaceRequest,
    CreateTableTagRequest,
    DeleteTableTagRequest,
    GetTableTagVersionRequest,
    ListTableTagsRequest,
    UpdateTableTagRequest,
)

from tests.live import LiveServer


@pytest.fixture
def ns(live: LiveServer) -> RestNamespace:
    return live.client()


@pytest.fixture
def table(ns: RestNamespace, request: pytest.FixtureRequest) -> list[str]:
    """A table with versions 1 and 2."""
    ns.create_namespace(CreateNamespaceRequest(id=[request.node.name]))
    table = [request.node.name, "t"]
    for values, mode in (([1], "create"), ([2], "append")):
        lance.write_dataset(pa.table({"n": values}), namespace_client=ns, table_id=table, mode=mode)
    return table


def open_table(ns: RestNamespace, table: list[str]) -> lance.LanceDataset:
    return lance.dataset(namespace_client=ns, table_id=table)


def call(live: LiveServer, table: list[str], ending: str, body: dict | None = None) -> tuple:
    return live.post(f"/v1/table/{'$'.join(table)}/{ending}", body or {})


def test_tags_created_by_a_client_in_storage(
    live: LiveServer, ns: RestNamespace, table: list[str]
) -> None:
    dataset = open_table(ns, table)
    dataset.tags.create("v1", 1)
    assert ns.get_table_tag_version(GetTableTagVersionRequest(id=table, tag="v1")).version == 1
    listed = ns.list_table_tags(ListTableTagsRequest(id=table)).tags
    assert {name: tag.version for name, tag in listed.items()} == {"v1": 1}
    dataset.tags.update("v1", 2)
    assert ns.get_table_tag_version(GetTableTagVersionRequest(id=table, tag="v1")).version == 2
    dataset.tags.delete("v1")
    assert call(live, table, "tags/list") == (200, {"tags": {}})


def test_tags_created_by_the_catalog(live: LiveServer, ns: RestNamespace, table: list[str]) -> None:
    ns.create_table_tag(CreateTableTagRequest(id=table, tag="v1", version=1))
    assert open_table(ns, table).checkout_version("v1").to_table()["n"].to_pylist() == [1]
    ns.update_table_tag(UpdateTableTagRequest(id=table, tag="v1", version=2))
    assert open_table(ns, table).checkout_version("v1").count_rows() == 2
    ns.delete_table_tag(DeleteTableTagRequest(id=table, tag="v1"))
    assert open_table(ns, table).tags.list() == {}


def test_a_branch_created_by_a_client(
    live: LiveServer, ns: RestNamespace, table: list[str]
) -> None:
    branch = open_table(ns, table).create_branch("dev", 1)
    branch.insert(pa.table({"n": [7]}))
    status, listed = call(live, table, "branches/list")
    assert status == 200
    assert {name: branch["parentVersion"] for name, branch in listed["branches"].items()} == {
        "dev": 1
    }
    status, versions = call(live, table, "version/list?branch=dev")
    assert [entry["version"] for entry in versions["versions"]] == [1, 2]
    assert call(live, table, "branches/create", {"name": "dev"})[0] == 409
    assert call(live, table, "branches/delete", {"name": "dev"})[0] == 200
    assert open_table(ns, table).branches.list() == {}


def test_a_branch_created_by_the_catalog(
    live: LiveServer, ns: RestNamespace, table: list[str]
) -> None:
    assert call(live, table, "branches/create", {"name": "dev", "from_version": 1})[0] == 200
    branch = open_table(ns, table).checkout_version(("dev", None))
    assert branch.to_table()["n"].to_pylist() == [1]
    branch.insert(pa.table({"n": [7]}))
    branch.tags.create("d", ("dev", 2))
    assert call(live, table, "tags/version", {"tag": "d"}) == (200, {"version": 2, "branch": "dev"})
    assert call(live, table, "branches/delete", {"name": "dev"})[0] == 409
    assert call(live, table, "tags/delete", {"tag": "d"})[0] == 200
    assert call(live, table, "branches/delete", {"name": "dev"})[0] == 200

    # A client that still has the branch open can neither restore it nor write to a new branch of
    # its name.
    with pytest.raises(OSError, match="Commit result for version 3 is unknown"):
        branch.insert(pa.table({"n": [8]}))
    assert call(live, table, "branches/list") == (200, {"branches": {}})
    assert call(live, table, "branches/create", {"name": "dev", "from_version": 1})[0] == 200
    again = open_table(ns, table).checkout_version(("dev", None))
    assert again.to_table()["n"].to_pylist() == [1]
    assert again.insert(pa.table({"n": [9]})) is None
    latest = open_table(ns, table).checkout_version(("dev", None))
    assert latest.to_table()["n"].to_pylist() == [1, 9]
