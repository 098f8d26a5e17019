"""Locations of namespaces: no location is created in another namespace's, and none is revealed."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import LocationTaken
from catalog.models import Namespace, Principal, PrincipalKind, Table, TrashItem
from catalog.privileges import Privilege, closure
from catalog.services.access import api_keys
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.recovery import undrop
from catalog.services.storage import namespace_locations
from catalog.services.tables import namespace_operations, table_operations
from tests.access.protocols import KEY, give, make_requester
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.api.iceberg.test_views import creation
from tests.cases import shared_cases
from tests.factories import (
    ICEBERG_SCHEMA,
    make_iceberg_table,
    make_namespace,
    make_root,
    make_table,
    unchanged,
)


@pytest.fixture(autouse=True)
def requester(db, warehouse, settings) -> Principal:
    """A principal with all privileges in ``mine``, and none elsewhere."""
    settings.MONODON_TRASH_SECONDS = 3600
    make_root()
    requester = make_requester()
    give(requester, Privilege.ALL, make_namespace("mine"))
    make_iceberg_table("mine", "t")
    make_namespace("hidden")
    return requester


def location(*path: str) -> str:
    """Location of a namespace as a local path, read by an administrator."""
    _, properties = namespace_locations.describe(SYSTEM, path)
    return properties["location"].removeprefix("file://")


def commit_update(update: dict[str, Any]) -> Any:
    body = {"requirements": [], "updates": [update]}
    return Iceberg(KEY).call("POST", "namespaces/mine/tables/t", body)


def create(at: str, stage: bool = False, namespace: str = "mine") -> Any:
    body = {"name": "u", "schema": ICEBERG_SCHEMA, "location": f"file://{at}"}
    path = f"namespaces/{namespace}/tables"
    return Iceberg(KEY).call("POST", path, body | {"stage-create": stage})


def set_location(at: str, namespace: str = "mine") -> Any:
    body = {"removals": [], "updates": {"location": f"file://{at}"}}
    return Iceberg(KEY).call("POST", f"namespaces/{namespace}/properties", body)


def path_property(at: str) -> Any:
    return commit_update({"action": "set-properties", "updates": {"write.data.path": at}})


TABLES = {
    "declare": lambda at: Lance(KEY).call("POST", "/v1/table/mine$u/declare", {"location": at}),
    "register": lambda at: Lance(KEY).call("POST", "/v1/table/mine$u/register", {"location": at}),
    "create": create,
    "stage": lambda at: create(at, stage=True),
    "move": lambda at: commit_update({"action": "set-location", "location": f"file://{at}"}),
    "view": lambda at: Iceberg(KEY).call(
        "POST", "namespaces/mine/views", creation("v", location=f"file://{at}")
    ),
}
NAMESPACES = {
    "set": set_location,
    "new": lambda at: Iceberg(KEY).call(
        "POST",
        "namespaces",
        {"namespace": ["mine", "child"], "properties": {"location": f"file://{at}"}},
    ),
    "new by Lance": lambda at: Lance(KEY).call(
        "POST", "/v1/namespace/mine$child/create", {"properties": {"location": at}}
    ),
    "set by Lance": lambda at: Lance(KEY).call(
        "POST",
        "/v1/namespace/mine$child/create",
        {"mode": "Overwrite", "properties": {"location": at}},
    ),
}


@pytest.fixture(params=["default", "explicit", "inherited", "in the trash"])
def hidden(request, warehouse) -> str:
    """The location of a namespace of others."""
    if request.param == "default":
        return location("hidden")
    path = f"{warehouse}/theirs"
    make_namespace("outer", properties={"location": f"file://{path}"})
    if request.param == "inherited":
        make_namespace("outer", "inner")
        return location("outer", "inner")
    if request.param == "in the trash":
        commit([namespace_operations.DropNamespace(namespace=("outer",))], actor=SYSTEM)
    return path


@shared_cases("kind", TABLES)
@shared_cases("form", ["{}", "{}/t/u"])
def test_no_table_is_created_inside_another_namespace_location(hidden, kind, form):
    with unchanged():
        response = TABLES[kind](form.format(hidden))
    assert response.status_code == 409, response.content
    assert "another namespace" in response.content.decode()
    assert "namespace 'outer" not in response.content.decode()


@shared_cases("name", ["write.data.path", "write.metadata.path"])
def test_no_table_path_is_set_inside_another_namespace_location(hidden, name):
    with unchanged():
        response = commit_update(
            {"action": "set-properties", "updates": {name: f"file://{hidden}/x"}}
        )
    assert response.status_code == 409
    assert "another namespace" in response.content.decode()


@shared_cases("kind", NAMESPACES)
@shared_cases("form", ["{}", "{}/x"])
def test_no_namespace_location_is_inside_another_namespace(hidden, kind, form):
    with unchanged():
        response = NAMESPACES[kind](form.format(hidden))
    assert response.status_code == 409, response.content
    assert "another namespace" in response.content.decode()


@pytest.mark.parametrize("directory", ["org", "org/theirs"])
def test_no_table_path_encloses_another_namespace(requester, warehouse, directory):
    """Otherwise nobody else could create tables there, also after the requester has lost its grant."""
    theirs = make_namespace("theirs", properties={"location": f"file://{warehouse}/org/theirs"})
    Namespace.objects.filter(pk=theirs.pk).update(owner="owner")
    Principal.objects.create(name="owner", kind=PrincipalKind.SERVICE)

    def refused(*, names: bool) -> None:
        with unchanged():
            response = path_property(f"{warehouse}/{directory}")
        assert (response.status_code, "namespace 'theirs'" in response.content.decode()) == (
            409,
            names,
        )

    refused(names=False)
    grant = requester.grants.create(mask=closure(Privilege.CREATE).value, namespace=theirs)
    refused(names=True)
    grant.mask, grant.expires_at = Privilege.ALL.value, datetime(2100, 1, 1, tzinfo=UTC)
    grant.save()
    refused(names=True)
    owner = access.named("owner")
    assert owner is not None
    iceberg_commits.create_table(actor=owner, table=("theirs", "t"), schema=ICEBERG_SCHEMA)
    grant.expires_at = None
    grant.save()
    assert path_property(f"{warehouse}/{directory}").status_code == 200


def test_a_table_path_in_a_namespace_location_requires_create_there(requester, warehouse):
    theirs = make_namespace("theirs", properties={"location": f"file://{warehouse}/theirs"})
    requester.grants.create(mask=closure(Privilege.CREATE).value, namespace=theirs)
    assert path_property(f"{warehouse}/theirs/data").status_code == 200


@pytest.fixture
def enclosed(warehouse) -> None:
    make_namespace("outer", properties={"location": f"file://{warehouse}/a/b"})


@shared_cases("kind", [*TABLES, *NAMESPACES])
def test_no_location_encloses_another_namespace(enclosed, warehouse, kind):
    with unchanged():
        response = (TABLES | NAMESPACES)[kind](f"{warehouse}/a")
    assert response.status_code == 409, response.content
    assert "another namespace" in response.content.decode()


@pytest.fixture(params=["lance", "iceberg", "dropped", "view", "path"])
def foreign(request, warehouse) -> str:
    """The location of a table of others."""
    location, example = f"{warehouse}/a/b", request.param
    if example == "path":
        make_iceberg_table("hidden", "t", properties={"write.data.path": f"file://{location}"})
    elif example == "lance":
        make_table("hidden", "t", location=location)
    else:
        make_iceberg_table("hidden", "t", location=f"file://{location}")
    if example == "dropped":
        iceberg_tables.drop_table(actor=SYSTEM, table=("hidden", "t"))
    return location


@shared_cases("kind", NAMESPACES)
@shared_cases("form", ["{}", "{}/x", "{}/.."])
def test_a_namespace_location_may_not_contain_foreign_tables(foreign, kind, form):
    at = str(Path(foreign).parent) if form.endswith("..") else form.format(foreign)
    with unchanged():
        response = NAMESPACES[kind](at)
    assert response.status_code == 409, response.content
    assert "another" in response.content.decode()
    assert "hidden" not in response.content.decode()


@shared_cases("at", ["/etc/x", "s3://bucket/x", "relative", "file:///tmp/../etc", "{}"])
@shared_cases("kind", ["set", "new"])
def test_a_namespace_location_must_be_allowed_for_tables(warehouse, kind, at):
    text = at.format(warehouse)
    update = {"removals": [], "updates": {"location": text}}
    made = {"namespace": ["mine", "child"], "properties": {"location": text}}
    request = ("namespaces/mine/properties", update) if kind == "set" else ("namespaces", made)
    with unchanged():
        response = Iceberg(KEY).call("POST", *request)
    assert response.status_code == 400, response.content
    assert response.json()["error"]["type"] == "BadRequestException"


def test_a_linked_location_is_resolved(warehouse):
    (Path(warehouse) / "link").symlink_to(location("hidden"))
    with unchanged():
        response = set_location(f"{warehouse}/link/x")
    assert response.status_code == 409


def test_creators_in_a_namespace_may_use_its_location(requester, warehouse):
    assert create(f"{location('mine')}/u").status_code == 200
    other = Namespace.objects.named(("hidden",)).get()
    requester.grants.create(mask=(Privilege.CREATE | Privilege.BROWSE).value, namespace=other)
    location_ = f"{location('hidden')}/of mine"
    body = {"name": "v", "schema": ICEBERG_SCHEMA, "location": f"file://{location_}"}
    made = Iceberg(KEY).post("namespaces/mine/tables", body)
    assert made["metadata"]["location"] == f"file://{location_}"


def test_a_path_belongs_to_the_innermost_namespace(requester, warehouse):
    """The owner of the outer namespace grants somebody a part of it, and no more."""
    make_namespace("outer", properties={"location": f"file://{warehouse}/o"})
    inner = make_namespace("outer", "in", properties={"location": f"file://{warehouse}/o/in"})
    give(requester, Privilege.ALL, inner)
    assert create(f"{warehouse}/o/in/u", namespace="outer%1Fin").status_code == 200
    with unchanged():
        assert create(f"{warehouse}/o/out", namespace="outer%1Fin").status_code == 409
        assert set_location(f"{warehouse}/o/all", namespace="outer%1Fin").status_code == 409
        assert set_location(f"{warehouse}/o", namespace="outer%1Fin").status_code == 409


# --- who sees the location -------------------------------------------------------------------------------


@pytest.mark.parametrize("properties", [{}, {"location": "file://{}/x", "k": "v"}])
def test_readers_see_the_namespace_location(requester, warehouse, properties):
    properties = {k: v.format(warehouse) for k, v in properties.items()}
    row = make_namespace("told", properties=properties)
    client, lance = Iceberg(KEY), Lance(KEY)
    assert client.call("GET", "namespaces/told").status_code == 404
    others = {k: v for k, v in properties.items() if k != "location"}
    give(requester, Privilege.BROWSE, row)
    assert client.get("namespaces/told")["properties"] == others
    describe = lance.call("POST", "/v1/namespace/told/describe", {}).json()
    assert (describe.get("properties") or {}) == others
    give(requester, Privilege.READ, row)
    assert client.get("namespaces/told")["properties"] == {
        **others,
        "location": f"file://{location('told')}",
    }
    describe = lance.call("POST", "/v1/namespace/told/describe", {}).json()
    assert (describe.get("properties") or {}) == properties


# --- over time ---------------------------------------------------------------------------------


def test_a_new_namespace_does_not_get_a_former_location():
    first = location("mine")
    assert re.search(r"/mine-[0-9a-f]{32}$", first)
    commit([namespace_operations.DropNamespace(namespace=("mine",), cascade=True)], actor=SYSTEM)
    make_namespace("mine")
    second = location("mine")
    assert re.search(r"/mine-[0-9a-f]{32}$", second)
    assert second != first
    item = TrashItem.objects.get(namespace__isnull=False)
    undrop.undrop(actor=SYSTEM, item=item.pk, new=("back",))
    assert location("back").rpartition("-")[2] == first.rpartition("-")[2]


def test_a_dropped_namespace_keeps_its_explicit_location(warehouse):
    explicit = f"{warehouse}/theirs"
    make_namespace("outer", properties={"location": f"file://{explicit}"})
    commit([namespace_operations.DropNamespace(namespace=("outer",))], actor=SYSTEM)
    assert set_location(explicit).status_code == 409
    item = TrashItem.objects.get()
    undrop.undrop(actor=SYSTEM, item=item.pk)
    assert location("outer") == explicit


def test_tables_keep_their_files_when_their_namespace_moves(requester, warehouse):
    """Its former location is free, except for the tables in it."""
    make_namespace("outer", properties={"location": f"file://{warehouse}/one"})
    table = make_iceberg_table("outer", "t")
    assert table.location.startswith(f"{warehouse}/one/t-")
    two = {"location": f"file://{warehouse}/two"}
    update = namespace_operations.UpdateNamespaceProperties(namespace=("outer",), updates=two)
    commit([update], actor=SYSTEM)
    with unchanged():
        assert set_location(f"{warehouse}/one").status_code == 409
        assert set_location(table.location).status_code == 409
        assert create(f"{table.location}/x").status_code == 409
    assert set_location(f"{warehouse}/one/else").status_code == 200


def test_a_namespace_may_claim_its_own_locations(warehouse):
    """Its default location, the locations of its own tables and children, and its former location."""
    own = location("mine")
    make_iceberg_table("mine", "u", location=f"file://{own}/u")
    make_namespace("mine", "child", properties={"location": f"file://{own}/child"})
    for path in (own, f"{own}/x", own):
        assert set_location(path).status_code == 200
        assert Namespace.objects.named(("mine",)).get().location == path
    body = {"removals": ["location"], "updates": {}}
    assert Iceberg(KEY).post("namespaces/mine/properties", body)["removed"] == ["location"]
    assert Namespace.objects.named(("mine",)).get().location is None
    assert location("mine") == own


@pytest.mark.parametrize("inside", ["", "/x"])
def test_no_namespace_location_is_inside_a_table_that_waits_for_its_purge(warehouse, inside):
    """The table could not be restored, and its purge removes everything there."""
    table = make_table("mine", "gone", location=f"{warehouse}/gone")
    commit([table_operations.DropTable(table=("mine", "gone"))], actor=SYSTEM)
    item = TrashItem.objects.get()
    claimed = {"location": f"file://{table.location}{inside}"}
    update = namespace_operations.UpdateNamespaceProperties(namespace=("hidden",), updates=claimed)
    with unchanged():
        assert set_location(table.location + inside).status_code == 409
        with pytest.raises(LocationTaken):
            commit([update], actor=SYSTEM)
    undrop.undrop(actor=SYSTEM, item=item.pk)
    assert Table.objects.named(("mine", "gone")).exists()


def test_quoted_paths_do_not_escape_the_namespace(warehouse):
    with unchanged():
        response = set_location(quote(location("hidden"), safe="") + "/../x")
    assert response.status_code == 400


@pytest.mark.django_db(transaction=True)
def test_concurrent_claims_of_one_location_have_one_winner(warehouse):
    """A namespace's location and a table in it, both free when they are looked at first."""
    make_root()
    make_namespace("a")
    _, key = api_keys.create_api_key(actor=SYSTEM, name="rivals")
    client, lance = Iceberg(key), Lance(key)
    location = f"{warehouse}/contested"

    def claim() -> int:
        update = {"updates": {"location": f"file://{location}/x"}}
        return client.call("POST", "namespaces/a/properties", update).status_code

    def declare() -> int:
        return lance.call("POST", "/v1/table/a$t/declare", {"location": location}).status_code

    barrier = threading.Barrier(2)

    def run(act: Callable[[], int]) -> int:
        try:
            barrier.wait()
            return act()
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(run, (claim, declare))) == [200, 409]


def test_location_claims_hold_the_location_lock(warehouse):
    with CaptureQueriesContext(connection) as captured:
        assert set_location(f"{warehouse}/x").status_code == 200
    texts = [query["sql"] for query in captured]
    lock = next(i for i, text in enumerate(texts) if "pg_advisory_xact_lock" in text)
    rows = next(i for i, text in enumerate(texts) if "FOR NO KEY UPDATE" in text)
    write = next(i for i, text in enumerate(texts) if text.startswith('UPDATE "catalog_namespace"'))
    assert rows < lock < write
