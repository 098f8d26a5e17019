"""Locations in object stores: a tenant gets nothing of a bucket but the location of its namespace."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.http import HttpResponse
from django.test.utils import CaptureQueriesContext

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import InvalidLocation, PermissionDenied
from catalog.models import Grant, Namespace, Principal, Table, TrashItem
from catalog.privileges import Privilege, closure
from catalog.services.engine.commit import commit
from catalog.services.iceberg import locations as iceberg_locations
from catalog.services.lance.ledger import registration_operations
from catalog.services.recovery import undrop
from catalog.services.storage import namespace_locations, profile_bindings, profile_operations
from catalog.services.tables import namespace_operations, table_operations
from catalog.storage.configuration import Key, ServerIdentity, StoreKind
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
from tests.stores.counting import CountingStore

MINE = ("tenants", "mine")


@pytest.fixture
def store() -> Iterator[CountingStore]:
    with CountingStore() as counting:
        yield counting


def make(store: CountingStore, name: str, *roots: str) -> None:
    profile_operations.create_profile(
        actor=SYSTEM,
        name=name,
        kind=StoreKind.S3,
        roots=roots,
        endpoint=store.endpoint,
        path_style=True,
        identity=ServerIdentity.KEY,
        key=Key("AKIA", "a-secret"),
    )


def bind(profile: str, *path: str) -> None:
    profile_bindings.bind_namespace(actor=SYSTEM, namespace=path, profile=profile)


def location(*path: str) -> str:
    return namespace_locations.path_of(namespace_locations.line(path))


@pytest.fixture(autouse=True)
def requester(warehouse, settings, store) -> Principal:
    """A principal with all privileges in ``tenants.mine``, which shares a profile with others."""
    settings.MONODON_TRASH_SECONDS = 3600
    make_root()
    requester = make_requester()
    give(requester, Privilege.ALL, make_namespace(*MINE))
    make_iceberg_table(*MINE, "t")  # in the local warehouse: there is no profile yet
    make_namespace("tenants", "yours")
    make_namespace("hidden")
    make(store, "lake", "s3://lake/tables", "s3://lake/more")
    make(store, "other", "s3://other/root")
    bind("lake", "tenants")
    bind("other", "hidden")
    return requester


def actor() -> access.Principal:
    principal = access.named("who")
    assert principal is not None
    return principal


# --- attackers -------------------------------------------------------------------------------------

PLACES: dict[str, Callable[[], str]] = {
    "a free prefix of the shared root": lambda: "s3://lake/tables/free",
    "the root itself": lambda: "s3://lake/tables",
    "another root of the profile": lambda: "s3://lake/more/t",
    "a twin of the root": lambda: "s3://lake/tables2/t",
    "above the root": lambda: "s3://lake/t",
    "the bucket": lambda: "s3://lake",
    "the namespace's own location": lambda: location(*MINE),
    "a twin of its own location": lambda: location(*MINE) + "0/t",
    "above its own location": lambda: location(*MINE).rpartition("-")[0],
    "the location of the namespace above": lambda: location("tenants") + "/t",
    "the location of a sibling": lambda: location("tenants", "yours") + "/t",
    "around a sibling": lambda: location("tenants", "yours").rpartition("/")[0],
    "another profile": lambda: "s3://other/root/t",
    "the location of a hidden namespace": lambda: location("hidden") + "/t",
    "a bucket of nobody": lambda: "s3://nobody/t",
    "another kind of store": lambda: "gs://lake/tables/t",
}
SPELLINGS = {
    "dots": "{}/../free",
    "dots at the end": "{}/t/..",
    "encoded dots": "{}/%2e%2e/free",
    "encoded slashes": "{}/..%2f..%2ffree",
    "doubly encoded": "{}/%252e%252e/free",
    "an empty segment": "{}//t",
    "a dot": "{}/./t",
    "a backslash": "{}\\..\\free",
    "a wildcard": "{}/*",
    "a question mark": "{}/t?",
    "a policy variable": "{}/${{aws:username}}",
    "a query": "{}/t?versionId=1",
    "a fragment": "{}/t#x",
    "a line break": "{}/t\n",
    "a null": "{}/t\0",
    "full-width dots": "{}/．．/free",
    "spaces": "{}/ /t",
}


def _respelled(form: str) -> Callable[[], str]:
    return lambda: form.format(location(*MINE))


def _with_prefix(prefix: str) -> Callable[[], str]:
    return lambda: prefix + location(*MINE).removeprefix("s3://") + "/t"


HOSTILE: dict[str, Callable[[], str]] = {
    **PLACES,
    **{name: _respelled(form) for name, form in SPELLINGS.items()},
    "s3a": _with_prefix("s3a://"),
    "s3n": _with_prefix("s3n://"),
    "upper case": _with_prefix("S3://"),
    "a user": _with_prefix("s3://key:secret@"),
    "an endpoint": _with_prefix("s3://169.254.169.254/"),
    "http": _with_prefix("http://127.0.0.1/"),
    "one slash": _with_prefix("s3:/"),
    "three slashes": _with_prefix("s3:///"),
    "a space before": _with_prefix(" s3://"),
}


def _commit(update: dict[str, Any]) -> HttpResponse:
    body = {"requirements": [], "updates": [update]}
    return Iceberg(KEY).call("POST", "namespaces/tenants%1Fmine/tables/t", body)


def _create(at: str, stage: bool) -> HttpResponse:
    body = {"name": "u", "schema": ICEBERG_SCHEMA, "location": at, "stage-create": stage}
    return Iceberg(KEY).call("POST", "namespaces/tenants%1Fmine/tables", body)


def _path(name: str) -> Callable[[str], HttpResponse]:
    return lambda at: _commit({"action": "set-properties", "updates": {name: at}})


def _register_iceberg(kind: str) -> Callable[[str], HttpResponse]:
    return lambda at: Iceberg(KEY).call(
        "POST",
        f"namespaces/tenants%1Fmine/{kind}",
        {"name": "u", "metadata-location": f"{at}/metadata/00001.metadata.json"},
    )


TABLES: dict[str, Callable[[str], HttpResponse]] = {
    "declare": lambda at: Lance(KEY).call(
        "POST", "/v1/table/tenants$mine$u/declare", {"location": at}
    ),
    "register": lambda at: Lance(KEY).call(
        "POST", "/v1/table/tenants$mine$u/register", {"location": at}
    ),
    "register over another": lambda at: Lance(KEY).call(
        "POST", "/v1/table/tenants$mine$u/register", {"location": at, "mode": "Overwrite"}
    ),
    "create": lambda at: _create(at, stage=False),
    "stage": lambda at: _create(at, stage=True),
    "move": lambda at: _commit({"action": "set-location", "location": at}),
    "data path": _path("write.data.path"),
    "metadata path": _path("write.metadata.path"),
    "object storage path": _path("write.object-storage.path"),
    "view": lambda at: Iceberg(KEY).call(
        "POST", "namespaces/tenants%1Fmine/views", creation("v", location=at)
    ),
    "register Iceberg": _register_iceberg("register"),
    "register a view": _register_iceberg("register-view"),
}
NAMESPACES: dict[str, Callable[[str], HttpResponse]] = {
    "set": lambda at: Iceberg(KEY).call(
        "POST",
        "namespaces/tenants%1Fmine/properties",
        {"removals": [], "updates": {"location": at}},
    ),
    "new": lambda at: Iceberg(KEY).call(
        "POST",
        "namespaces",
        {"namespace": [*MINE, "child"], "properties": {"location": at}},
    ),
    "new by Lance": lambda at: Lance(KEY).call(
        "POST", "/v1/namespace/tenants$mine$child/create", {"properties": {"location": at}}
    ),
}
OWN = {
    ("set", "the namespace's own location"),
    ("register Iceberg", "the namespace's own location"),
    ("register a view", "the namespace's own location"),
}
"""What the requester may do: the files to register are below that location."""


@shared_cases("request_kind", [*TABLES, *NAMESPACES])
def test_a_hostile_location_is_refused_and_nothing_is_read(store, request_kind):
    send = {**TABLES, **NAMESPACES}[request_kind]
    with unchanged():
        for form, make_location in HOSTILE.items():
            if (request_kind, form) in OWN:
                continue
            at = make_location()
            response = send(at)
            assert response.status_code in {400, 409}, (form, at, response.content)
            assert store.requests == [], form


def test_refusals_do_not_tell_which_buckets_other_profiles_have(store):
    places = ("s3://other/root/t", "s3://nobody/root/t", "s3://lake/tables/t", location("hidden"))
    for send in (TABLES["declare"], TABLES["register"], TABLES["create"], NAMESPACES["set"]):
        answers = set()
        for at in places:
            with unchanged():
                response = send(at)
            answers.add((response.status_code, response.content.decode().replace(at, "AT")))
        assert len(answers) == 1, answers
    assert store.requests == []


def test_who_may_create_nothing_learns_nothing_and_reads_nothing(store, requester):
    Grant.objects.filter(principal=requester).delete()
    at = location(*MINE) + "/chosen"
    for name in ("declare", "register"):
        with unchanged():
            response = TABLES[name](at)
        assert response.status_code == 404, response.content
    give(requester, Privilege.BROWSE, Namespace.objects.named(MINE).get())
    for name in ("declare", "register"):
        with unchanged():
            response = TABLES[name](at)
        assert response.status_code == 403, response.content
    assert store.requests == []


# --- what is allowed ---------------------------------------------------------------------------------


def test_new_tables_are_placed_below_their_namespace(store):
    row = make_table(*MINE, "lance")
    base = location(*MINE)
    assert base.startswith("s3://lake/tables/")
    assert row.location.startswith(base + "/lance-")
    rows = namespace_locations.line(MINE)
    new = iceberg_locations.new_location(SYSTEM, (*MINE, "iceberg"), rows)
    assert new.startswith(base + "/iceberg-")
    assert store.requests == []


def test_a_location_below_the_namespace_is_free_to_choose():
    at = location(*MINE) + "/chosen"
    assert TABLES["declare"](at).status_code == 200
    assert Table.objects.get(name="u").location == at
    with unchanged():
        response = Lance(KEY).call(
            "POST", "/v1/table/tenants$mine$v/declare", {"location": at + "/inside"}
        )
    assert response.status_code == 409


def test_the_nearest_of_location_and_profile_counts():
    make_namespace("tenants", "inner", properties={"location": "s3://other/root/inner"})
    make_namespace("tenants", "inner", "deep")
    assert location("tenants", "inner", "deep").startswith("s3://other/root/inner/")
    bind("lake", "tenants", "inner", "deep")
    assert location("tenants", "inner", "deep").startswith("s3://lake/tables/")
    make_namespace("tenants", "inner", "deep", "deeper")
    assert location("tenants", "inner", "deep", "deeper").startswith("s3://lake/tables/")
    profile_bindings.unbind_namespace(actor=SYSTEM, namespace=("tenants", "inner", "deep"))
    assert location("tenants", "inner", "deep", "deeper").startswith("s3://other/root/inner/")


def test_an_unbound_namespace_stays_in_the_warehouse(warehouse):
    make_namespace("plain")
    assert make_table("plain", "t").location.startswith(f"{warehouse}/")
    with unchanged():
        response = Lance(KEY).call(
            "POST", "/v1/table/plain$u/declare", {"location": "s3://lake/tables/u"}
        )
    assert response.status_code == 404


def test_a_rename_keeps_the_place():
    row = make_table(*MINE, "moving")
    make_namespace("plain")
    rename = table_operations.RenameTable(table=(*MINE, "moving"), new=("plain", "moved"))
    commit([rename], actor=SYSTEM)
    assert Table.objects.get(name="moved").location == row.location


def test_manage_on_the_bound_namespace_opens_the_whole_root(requester):
    tenants = Namespace.objects.named(("tenants",)).get()
    Grant.objects.create(
        principal=requester, mask=closure(Privilege.MANAGE).value, namespace=tenants
    )
    assert TABLES["declare"]("s3://lake/tables/free").status_code == 200
    with unchanged():
        assert TABLES["register"]("s3://other/root/free").status_code == 400
    # Of a root that another namespace shares, nobody manages everything.
    bind("lake", "hidden")
    declare = registration_operations.DeclareTable(
        table=(*MINE, "w"), location="s3://lake/tables/free2"
    )
    with unchanged(), pytest.raises(InvalidLocation):
        commit([declare], actor=actor())
    hidden = Namespace.objects.named(("hidden",)).get()
    Grant.objects.create(
        principal=requester, mask=closure(Privilege.MANAGE).value, namespace=hidden
    )
    commit([declare], actor=actor())


def grant_until_2100(requester: Principal) -> Grant:
    """A temporary grant of all privileges on the namespace that is bound to the profile."""
    return Grant.objects.create(
        principal=requester,
        mask=Privilege.ALL.value,
        namespace=Namespace.objects.named(("tenants",)).get(),
        expires_at=datetime(2100, 1, 1, tzinfo=UTC),
    )


def test_manage_for_a_limited_time_opens_no_root(requester):
    """Tables and namespaces there would belong to the requester, also after the end."""
    grant = grant_until_2100(requester)
    location = "s3://lake/tables/landing"
    for create in (TABLES["declare"], NAMESPACES["new"], NAMESPACES["set"]):
        with unchanged():
            assert create(location).status_code == 400
    grant.expires_at = None
    grant.save()
    assert NAMESPACES["new"](location).status_code == 200


def test_a_temporary_manager_gets_no_bound_namespace_for_good(requester):
    """An overwritten namespace belongs to the requester, and is bound as before."""
    make_namespace("tenants", "bound")
    bind("lake", "tenants", "bound")
    grant = grant_until_2100(requester)

    def overwrite(*path: str) -> Namespace:
        create = namespace_operations.CreateNamespace(
            namespace=path, mode=namespace_operations.CreateMode.OVERWRITE
        )
        row: Namespace = commit([create], actor=actor()).results[0]
        return row

    assert overwrite("tenants", "yours").owner == "who"
    with unchanged(), pytest.raises(PermissionDenied, match="for a limited time"):
        overwrite("tenants", "bound")
    grant.expires_at = None
    grant.save()
    row = overwrite("tenants", "bound")
    assert row.owner == "who"
    assert row.storage_profile is not None


def test_administrators_may_use_any_profile_and_no_other_bucket():
    assert make_table("plain", "t", location="s3://other/root/t").location == "s3://other/root/t"
    with unchanged(), pytest.raises(InvalidLocation):
        make_table("hidden", "t", location="s3://nobody/t")


def test_a_namespace_location_may_be_below_its_own(store):
    base = location(*MINE)
    assert NAMESPACES["new"](f"{base}/child").status_code == 200
    assert location(*MINE, "child") == f"{base}/child"
    assert NAMESPACES["set"](f"{base}/moved").status_code == 200
    assert location(*MINE) == f"{base}/moved"
    assert store.requests == []


def test_a_namespace_comes_back_to_the_location_that_an_administrator_gave_it(requester, store):
    make_namespace(*MINE, "given", properties={"location": "s3://lake/more/given"})
    row = make_table(*MINE, "given", "t")
    assert row.location.startswith("s3://lake/more/given/")
    drop = namespace_operations.DropNamespace(namespace=(*MINE, "given"), cascade=True)
    commit([drop], actor=actor())
    item = TrashItem.objects.get(namespace__name="given")
    undrop.undrop(actor=actor(), item=item.pk)
    assert location(*MINE, "given") == "s3://lake/more/given"
    assert Table.objects.named((*MINE, "given", "t")).get().location == row.location
    assert store.requests == []


# --- the price -----------------------------------------------------------------------------------------


def _statements(*names: str) -> list[str]:
    declares = [registration_operations.DeclareTable(table=("plain", name)) for name in names]
    with CaptureQueriesContext(connection) as queries:
        commit(declares, actor=SYSTEM)
    return [query["sql"].partition(" ")[0] for query in queries]


def test_local_tables_need_no_statement_more_than_without_profiles():
    make_namespace("plain")
    _statements("first")  # reads the namespace, which is cached then
    with_profiles = _statements("a")
    for name in ("tenants", "hidden"):
        profile_bindings.unbind_namespace(actor=SYSTEM, namespace=(name,))
    for name in ("lake", "other"):
        profile_operations.delete_profile(actor=SYSTEM, name=name)
    assert _statements("b") == with_profiles
    assert not any("storageprofile" in text for text in _texts("c"))


def _texts(name: str) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        commit([registration_operations.DeclareTable(table=("plain", name))], actor=SYSTEM)
    return [query["sql"] for query in queries]


def test_a_batch_reads_the_storage_of_a_namespace_once():
    def declare(*names: str) -> int:
        operations = [registration_operations.DeclareTable(table=(*MINE, name)) for name in names]
        with CaptureQueriesContext(connection) as queries:
            commit(operations, actor=SYSTEM)
        return len(queries)

    # One declaration is tried in a single statement first, which reads the namespace once more.
    assert declare("a", "e") == declare("b", "c", "d")
    assert declare("f") <= declare("g", "h") + 4


def test_a_change_of_storage_in_a_batch_is_seen_by_its_later_operations():
    base = location("hidden")
    operations = [
        registration_operations.DeclareTable(table=("hidden", "before")),
        namespace_operations.UpdateNamespaceProperties(
            namespace=("hidden",), updates={"location": "s3://other/root/new"}
        ),
        registration_operations.DeclareTable(table=("hidden", "after")),
        profile_bindings.BindStorageProfile(namespace=("plain",), profile="other"),
        registration_operations.DeclareTable(table=("plain", "bound")),
    ]
    make_namespace("plain")
    before, _, after, _, bound = commit(operations, actor=SYSTEM).results
    assert before.location.startswith(f"{base}/before-")
    assert after.location.startswith("s3://other/root/new/after-")
    assert bound.location.startswith("s3://other/root/")
