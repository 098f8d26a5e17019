"""Former states of the catalog, over HTTP."""

import uuid
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.models import Grant, Namespace, PrincipalLevel, Table, Transaction
from catalog.privileges import Privilege, closure
from catalog.services.access import api_keys
from catalog.services.engine.commit import commit
from catalog.services.lance.ledger import version_operations
from catalog.services.tables import namespace_operations, table_operations
from tests.api.management.client import Management
from tests.factories import make_namespace, make_root, make_table, make_version

# The test runs in one transaction, in which the clock of the database continues.
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _catalog(db):
    make_root()


def now() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0].isoformat().replace("+00:00", "Z")


@pytest.mark.operation("GetHistory")
def test_a_listing_shows_the_catalog_at_a_former_time(reader: Management):
    table = make_table("a", "t")
    make_version(("a", "t"), 1)
    make_version(("a", "t"), 1, branch="dev")
    then = now()
    make_version(("a", "t"), 2)
    commit([table_operations.RenameTable(table=("a", "t"), new=("a", "u"))], actor=SYSTEM)
    make_table("b", "v")
    listing = reader.get(f"history?at={then}")
    assert listing["at"] == then
    assert [row["namespace"] for row in listing["namespaces"]] == [["a"]]
    (row,) = listing["tables"]
    assert (row["id"], row["uuid"], row["table"]) == (table.pk, str(table.uuid), ["a", "t"])
    assert (row["format"], row["kind"], row["is_materialized"]) == ("lance", "table", False)
    assert [(b["branch"], b["version"], b["actor"]) for b in row["branches"]] == [
        ("", 1, "system"),
        ("dev", 1, "system"),
    ]
    assert row["branches"][0]["metadata_location"] == "elsewhere/1.manifest"
    assert (row["has_more_branches"], listing["next_page_token"]) == (False, None)


@pytest.mark.operation("GetHistory")
def test_a_listing_has_pages_and_may_be_limited_to_a_namespace(reader: Management):
    for name in ("a", "b"):
        for table in ("t", "größe und mehr", "x.y"):
            make_table(name, "below", table)
    then = now()
    listed, token = [], ""
    while token is not None:
        page = reader.get(f"history?at={then}&namespace=a&limit=2&page_token={token}")
        assert len(page["namespaces"]) + len(page["tables"]) <= 2
        listed += [row["namespace"] for row in page["namespaces"]]
        listed += [row["table"] for row in page["tables"]]
        token = page["next_page_token"]
    assert listed[:2] == [["a"], ["a", "below"]]
    assert sorted(listed[2:]) == [
        ["a", "below", "größe und mehr"],
        ["a", "below", "t"],
        ["a", "below", "x.y"],
    ]
    below = reader.get(f"history?at={then}&namespace=b$below")
    assert (len(below["namespaces"]), len(below["tables"])) == (1, 3)


@pytest.mark.operation("GetHistory")
def test_a_transaction_id_stands_for_its_time(reader: Management):
    make_table("a", "t")
    committed = commit(
        [
            version_operations.CreateVersion(
                table=("a", "t"), version=1, manifest_path="x/1.manifest"
            )
        ],
        actor=SYSTEM,
    )
    make_version(("a", "t"), 2)
    listing = reader.get(f"history?at={committed.id}")
    (branch,) = listing["tables"][0]["branches"]
    assert (branch["version"], branch["transaction_id"]) == (1, committed.id)
    stamp = Transaction.objects.get(pk=committed.id).created_at
    assert datetime.fromisoformat(listing["at"]) == stamp


@pytest.mark.operation("ListChanges")
def test_changes_between_two_times(reader: Management):
    make_namespace("a", properties={"k": "1"})
    remaining, dropped = make_table("a", "kept"), make_table("a", "gone")
    make_version(("a", "kept"), 1)
    first = now()
    make_version(("a", "kept"), 2)
    make_version(("a", "kept"), 3)
    commit([table_operations.RenameTable(table=("a", "kept"), new=("a", "new"))], actor=SYSTEM)
    commit([table_operations.DeregisterTable(table=("a", "gone"))], actor=SYSTEM)
    update = namespace_operations.UpdateNamespaceProperties(namespace=("a",), updates={"k": "2"})
    commit([update], actor=SYSTEM)
    last = now()
    changes = reader.get(f"history/changes?from={first}&to={last}")
    assert (changes["since"], changes["until"]) == (first, last)
    (namespace,) = changes["namespaces"]
    assert (namespace["namespace"], namespace["changes"]) == (["a"], ["properties"])
    assert namespace["properties"] == {"before": {"k": "1"}, "after": {"k": "2"}}
    by_id = {row["id"]: row for row in changes["tables"]}
    assert by_id.keys() == {remaining.pk, dropped.pk}
    assert (by_id[dropped.pk]["changes"], by_id[dropped.pk]["after"]) == (["dropped"], None)
    row = by_id[remaining.pk]
    assert (row["before"], row["after"]) == (["a", "kept"], ["a", "new"])
    assert (row["changes"], row["actor"]) == (["renamed", "advanced"], "system")
    (branch,) = row["branches"]
    assert (branch["before"]["version"], branch["after"]["version"]) == (1, 3)
    assert (branch["commits"], changes["next_page_token"]) == (2, None)
    page = reader.get(f"history/changes?from={first}&to={last}&limit=1")
    assert (len(page["namespaces"]), page["tables"]) == (1, [])
    assert page["next_page_token"] is not None


@pytest.mark.operation("CountChanges")
def test_counts_of_changes_between_two_times(reader: Management):
    make_table("a", "t")
    first = now()
    make_version(("a", "t"), 1)
    make_table("b", "u")
    last = now()
    counts = reader.get(f"history/counts?from={first}&to={last}")
    assert counts == {
        "since": first,
        "until": last,
        "namespaces_added": 1,
        "namespaces_dropped": 0,
        "tables_added": 1,
        "tables_dropped": 0,
        "tables_renamed": 0,
        "tables_advanced": 1,
        "commits": 1,
    }
    assert reader.get(f"history/counts?from={first}&to={last}&namespace=b")["tables_advanced"] == 0


def test_invalid_queries_are_refused(reader: Management):
    make_table("a", "t")
    then, unknown = now(), uuid.uuid4()
    later = (timezone.now() + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    refused = reader.refused
    refused(400, "invalid-input", "'at' is missing", "GET history")
    refused(400, "invalid-input", "'to' is missing", f"GET history/changes?from={then}")
    refused(400, "invalid-input", "'from' is missing", f"GET history/counts?to={then}")
    refused(400, "invalid-input", "neither a time", "GET history?at=yesterday")
    refused(400, "invalid-input", "has not come yet", f"GET history?at={later}")
    refused(
        400,
        "invalid-input",
        "is after the second",
        f"GET history/changes?from={then}&to=2026-01-01",
    )
    refused(400, "invalid-input", "Page token 'x'", f"GET history?at={then}&page_token=x")
    refused(404, "transaction-not-found", str(unknown), f"GET history?at={unknown}")
    refused(404, "namespace-not-found", "'no'", f"GET history?at={then}&namespace=no")
    refused(405, "method-not-allowed", "POST", f"POST history?at={then}")
    Management().refused(401, "unauthenticated", "No API key", f"GET history?at={then}")
    assert Table.objects.count() == 1


def test_a_page_takes_a_fixed_number_of_statements(reader: Management):
    counted = []
    for start in (0, 8):
        for i in range(start, start + 8):
            make_table("a", f"t{i}")
            make_version(("a", f"t{i}"), 1)
        path = f"history/changes?from=2026-01-01&to={now()}&namespace=a"
        reader.get(path)  # the key is in the cache now
        with CaptureQueriesContext(connection) as queries:
            assert len(reader.get(path)["tables"]) == start + 8
        counted.append(len(queries))
    assert counted[0] == counted[1]


@pytest.mark.parametrize(
    ("privilege", "is_visible"), [(Privilege.BROWSE, False), (Privilege.READ, True)]
)
def test_locations_of_tables_are_visible_only_to_readers(privilege, is_visible):
    """A parent namespace reveals only its name."""
    make_namespace("a", properties={"k": "1"})
    table = make_table("a", "t")
    make_version(("a", "t"), 1)
    key, secret = api_keys.create_api_key(actor=SYSTEM, name="bob", level=PrincipalLevel.GRANTED)
    mask = int(closure(privilege))
    Grant.objects.create(principal=key.principal, table=table, mask=mask)
    bob, then = Management(secret), now()
    (row,) = bob.get(f"history?at={then}")["tables"]
    where = "elsewhere/1.manifest" if is_visible else ""
    assert [branch["metadata_location"] for branch in row["branches"]] == [where]
    make_version(("a", "t"), 2)
    update = namespace_operations.UpdateNamespaceProperties(namespace=("a",), updates={"k": "2"})
    commit([update], actor=SYSTEM)
    page = bob.get(f"history/changes?from={then}&to={now()}")
    (branch,) = page["tables"][0]["branches"]
    assert (branch["before"]["version"], branch["after"]["version"]) == (1, 2)
    assert branch["before"]["metadata_location"] == where
    assert (branch["after"]["metadata_location"] == "") is not is_visible
    (namespace,) = page["namespaces"]
    assert (namespace["namespace"], namespace["actor"]) == (["a"], "")
    assert namespace["properties"] == {"before": None, "after": None}


@pytest.mark.parametrize("privilege", [Privilege.BROWSE, Privilege.READ])
def test_locations_of_namespaces_are_visible_only_to_readers(privilege, warehouse):
    places = [f"file://{warehouse}/place-{number}" for number in range(2)]
    make_namespace("a", properties={"k": "1", "location": places[0]})
    key, secret = api_keys.create_api_key(actor=SYSTEM, name="bob", level=PrincipalLevel.GRANTED)
    mask = int(closure(privilege))
    namespace = Namespace.objects.named(("a",)).get()
    Grant.objects.create(principal=key.principal, namespace=namespace, mask=mask)
    bob, then = Management(secret), now()
    updates = {"k": "2", "location": places[1]}
    commit(
        [namespace_operations.UpdateNamespaceProperties(namespace=("a",), updates=updates)],
        actor=SYSTEM,
    )
    (change,) = bob.get(f"history/changes?from={then}&to={now()}")["namespaces"]
    locations = [{"location": path} if privilege == Privilege.READ else {} for path in places]
    assert change["properties"] == {
        "before": {"k": "1"} | locations[0],
        "after": {"k": "2"} | locations[1],
    }
