"""The lineage over the management API."""

import pytest

from catalog.access import SYSTEM, On, credentials
from catalog.models import ApiKey, Principal, SearchDocument, Table
from catalog.privileges import parse
from catalog.services.access import api_keys, grants
from catalog.services.iceberg import view_sources
from tests.api.conftest import warehouse
from tests.api.management.client import Management
from tests.factories import make_table, snapshot
from tests.lineage import make_view, materialize

__all__ = ["warehouse"]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]

KEY = "mnd_bob"


@pytest.fixture
def rows() -> dict[str, Table]:
    """raw → clean (materialized) → daily (view in ``other``)."""
    rows = {name: make_table("ws", name) for name in ("raw", "clean")}
    materialize(rows["clean"], rows["raw"])
    rows["daily"] = make_view(("other", "daily"), "SELECT * FROM ws.clean JOIN ws.none")
    view_sources.read_due()
    return rows


def node(row: Table, kind: str, distance: int) -> dict[str, object]:
    return {
        "id": row.pk,
        "name": list(row.identifier),
        "format": row.format,
        "kind": kind,
        "state": row.state,
        "distance": distance,
        "problem": "",
    }


@pytest.mark.operation("GetTableLineage")
def test_nodes_and_edges(rows):
    _, key = api_keys.create_api_key(actor=SYSTEM, name="everybody")
    raw, clean, daily = rows["raw"], rows["clean"], rows["daily"]
    client = Management(key)
    assert client.get("tables/other$daily/lineage?hops=1") == {
        "nodes": [node(clean, "materialized_view", -1), node(daily, "view", 0)],
        "edges": [{"source": clean.pk, "dependent": daily.pk, "kind": "view"}],
        "is_complete": True,
        "unresolved": ["ws.none"],
    }
    below = client.get("tables/ws$raw/lineage?direction=downstream")
    assert below["nodes"] == [
        node(raw, "table", 0),
        node(clean, "materialized_view", 1),
        node(daily, "view", 2),
    ]
    assert client.get("tables/ws$raw/lineage?direction=upstream")["edges"] == []
    dependents = client.get("tables/ws$raw/dependents")
    assert dependents["views"] == [["ws", "clean"], ["other", "daily"]]


@pytest.mark.operation("GetTableColumnLineage")
def test_columns(rows):
    _, key = api_keys.create_api_key(actor=SYSTEM, name="everybody")
    client = Management(key)
    make_view(("other", "sums"), "SELECT day, a + b AS total FROM ws.raw")
    for name, columns in {"raw": ("day", "a", "b"), "clean": ("id",)}.items():
        document = {"columns": [[column, "int", ""] for column in columns], "schema_version": "1"}
        SearchDocument.objects.create(table=rows[name], **document)
    view_sources.read_due()
    day = [{"table": ["ws", "raw"], "column": "day"}]
    assert client.get("tables/other$sums/lineage/columns") == {
        "columns": [
            {"name": "day", "origins": [day], "is_copy": True, "remarks": [], "dialects": []},
            {
                "name": "total",
                "origins": [[{"table": ["ws", "raw"], "column": name}] for name in "ab"],
                "is_copy": False,
                "remarks": [],
                "dialects": [],
            },
        ],
        "problem": "",
        "readers": [],
        "is_complete": True,
    }
    raw = client.get("tables/ws$raw/lineage/columns")
    assert (raw["columns"], raw["problem"], raw["is_complete"]) == ([], "", True)
    uses = [(use["column"], use["view"], use["view_column"]) for use in raw["readers"]]
    assert uses == [
        ("a", ["other", "sums"], "total"),
        ("b", ["other", "sums"], "total"),
        ("day", ["other", "sums"], "day"),
    ]
    assert [use["is_copy"] for use in raw["readers"]] == [False, False, True]
    assert all(use["is_certain"] for use in raw["readers"])
    (use,) = client.get("tables/ws$clean/lineage/columns")["readers"]
    assert (use["column"], use["view"], use["view_column"]) == ("*", ["other", "daily"], "*")


def test_refusals_and_hidden_objects(rows):
    """bob may browse ``ws`` only, and read ``raw``."""
    bob = Principal.objects.create(name="bob", kind="user")
    ApiKey.objects.create(name="bob", principal=bob, digest=credentials.key_digest(KEY))
    grants.set_grant(
        actor=SYSTEM, on=On.namespace(("ws",)), principal=bob.name, privileges=parse(["read"])
    )
    before = snapshot()
    client = Management(KEY)
    names = [node["name"] for node in client.get("tables/ws$raw/lineage")["nodes"]]
    assert names == [["ws", "raw"], ["ws", "clean"]]
    assert client.get("tables/ws$raw/dependents")["views"] == [["ws", "clean"]]
    for path in ("lineage", "lineage/columns"):
        assert client.call("GET", f"tables/other$daily/{path}").status_code == 404
    # daily reads all columns of clean, but bob does not see daily.
    assert client.get("tables/ws$clean/lineage/columns")["readers"] == []
    for query in ("hops=0", "hops=11", "hops=x", "direction=sideways"):
        assert client.call("GET", f"tables/ws$raw/lineage?{query}").status_code == 400
    assert snapshot() == before
