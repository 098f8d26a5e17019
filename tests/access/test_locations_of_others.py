"""Locations of foreign tables are refused, and not revealed to principals that may not browse
them."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpResponse

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import LocationTaken, NotRecoverable
from catalog.models import Job, JobKind, JobStatus, Namespace, Principal, Table, TrashItem
from catalog.privileges import Privilege
from catalog.services.access import known_keys
from catalog.services.engine.commit import commit
from catalog.services.iceberg import views as iceberg_views
from catalog.services.lance.ledger import registration_operations
from catalog.services.recovery import undrop
from catalog.services.tables import table_operations
from tests.access.protocols import KEY, give, make_requester
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.api.iceberg.test_views import creation, make_view
from tests.factories import (
    ICEBERG_SCHEMA,
    make_iceberg_table,
    make_namespace,
    make_root,
    make_table,
    unchanged,
)

HIDDEN = ("secretive", "inmost", "quiet")
"""The namespace, its table, and the directory of that."""


@pytest.fixture(autouse=True)
def requester(db, warehouse) -> Principal:
    """A principal with all privileges in ``mine``, which contains a table of each format."""
    make_root()
    requester = make_requester()
    make_namespace("secretive")
    give(requester, Privilege.ALL, make_namespace("mine"))
    make_iceberg_table("mine", "t")
    return requester


def see(requester: Principal, privilege: Privilege) -> None:
    namespace = Namespace.objects.named(("secretive",)).get()
    requester.grants.create(mask=privilege.value, namespace=namespace)


def hide(location: Path, kind: str) -> Table:
    if kind == "lance":
        return make_table("secretive", "inmost", location=str(location))
    return make_iceberg_table("secretive", "inmost", location=f"file://{location}")


def _commit(update: dict[str, Any]) -> HttpResponse:
    body = {"requirements": [], "updates": [update]}
    return Iceberg(KEY).call("POST", "namespaces/mine/tables/t", body)


def _create_iceberg(location: Path, stage: bool) -> HttpResponse:
    body = {"name": "u", "schema": ICEBERG_SCHEMA, "location": f"file://{location}"}
    return Iceberg(KEY).call("POST", "namespaces/mine/tables", body | {"stage-create": stage})


def _create_inside(_directory: Path) -> HttpResponse:
    """The location that the namespace sets for its tables."""
    body = {"name": "u", "schema": ICEBERG_SCHEMA}
    return Iceberg(KEY).call("POST", "namespaces/mine/tables", body)


AT = {
    "declare": lambda at: Lance(KEY).call(
        "POST", "/v1/table/mine$u/declare", {"location": str(at)}
    ),
    "register": lambda at: Lance(KEY).call(
        "POST", "/v1/table/mine$u/register", {"location": str(at)}
    ),
    "create": lambda at: _create_iceberg(at, False),
    "stage": lambda at: _create_iceberg(at, True),
    "move": lambda at: _commit({"action": "set-location", "location": f"file://{at}"}),
    "view": lambda at: Iceberg(KEY).call(
        "POST", "namespaces/mine/views", creation("v", location=f"file://{at}")
    ),
}
"""Requests to have a table at a location, or a view."""
INSIDE = {
    "create_inside": _create_inside,
    "path": lambda at: _commit(
        {
            "action": "set-properties",
            "updates": {"write.data.path": f"file://{at}/mine"},
        }
    ),
}
"""Requests to have files inside a location."""


def texts(response: HttpResponse) -> str:
    return response.content.decode()


@pytest.mark.parametrize("kind", ["lance", "iceberg"])
@pytest.mark.parametrize("request_", [*AT, *INSIDE])
def test_refusals_do_not_name_hidden_tables(requester, warehouse, kind, request_):
    ask = (AT | INSIDE)[request_]
    around = warehouse / "place"
    hide(around / "quiet", kind)
    path = around / "quiet" if request_ in INSIDE else around
    if request_ == "create_inside":
        Namespace.objects.filter(path=["mine"]).update(properties={"location": f"file://{path}"})
    hidden_names = ("secretive", "inmost") if request_ in INSIDE else HIDDEN
    with unchanged():
        response = ask(path)
    assert response.status_code == 409, response.content
    assert not [name for name in hidden_names if name in texts(response)]
    assert str(path) in texts(response)
    see(requester, Privilege.BROWSE)
    with unchanged():
        response = ask(path)
    assert response.status_code == 409
    assert "table 'secretive.inmost'" in texts(response)


@pytest.mark.parametrize("request_", ["declare", "register"])
def test_refusals_do_not_reveal_paths_of_hidden_tables(requester, warehouse, request_):
    path = f"file://{warehouse}/place/quiet"
    make_iceberg_table("secretive", "inmost", properties={"write.data.path": path})
    with unchanged():
        response = AT[request_](warehouse / "place")
    assert response.status_code == 409
    assert not [name for name in HIDDEN if name in texts(response)]
    see(requester, Privilege.BROWSE)
    with unchanged():
        assert "(" + path.removeprefix("file://") in texts(AT[request_](warehouse / "place"))


# --- what was dropped ------------------------------------------------------------------------------


def leave(kind: str, location: Path) -> Table:
    """A table that was deregistered: its files lie there still, and it may be brought back."""
    table = hide(location, kind)
    location.mkdir(parents=True, exist_ok=True)
    deregister = table_operations.DeregisterTable(
        table=("secretive", "inmost"), format=table.format
    )
    commit([deregister], actor=SYSTEM)
    return table


def take(location: Path) -> HttpResponse:
    [metadata] = sorted((location / "metadata").glob("*.json"))
    body = {"name": "u", "metadata-location": f"file://{metadata}"}
    return Iceberg(KEY).call("POST", "namespaces/mine/register", body)


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        *(
            (request_, kind)
            for request_ in ("declare", "register", "create", "stage", "move")
            for kind in ("lance", "iceberg")
        ),
        ("take", "iceberg"),  # by its metadata file, as no Lance table has one
    ],
)
def test_only_the_manager_registers_a_deregistered_table_again(
    requester, warehouse, kind, request_
):
    """Otherwise anyone who may create tables anywhere would own it."""
    at = warehouse / "quiet"
    leave(kind, at)
    ask = partial(take if request_ == "take" else AT[request_], at)
    with unchanged():
        hidden = ask()
    # The metadata file belongs to a table that may not be read, so it is not opened.
    assert hidden.status_code == (400 if request_ == "take" else 409), hidden.content
    assert not [name for name in ("secretive", "inmost") if name in texts(hidden)]
    see(requester, Privilege.BROWSE | Privilege.READ | Privilege.WRITE | Privilege.CREATE)
    with unchanged():
        refusal = ask()
    assert refusal.status_code == 409, refusal.content
    assert "table 'secretive.inmost'" in texts(refusal)
    assert "that may manage" in texts(refusal)
    requester.grants.filter(namespace__path=["secretive"]).delete()
    see(requester, Privilege.MANAGE | Privilege.WRITE | Privilege.READ | Privilege.BROWSE)
    assert ask().status_code == 200


@pytest.mark.parametrize("retention", [0, 7 * 86_400])
def test_only_the_manager_registers_a_dropped_view_again(requester, settings, retention):
    settings.MONODON_TRASH_SECONDS = retention
    view = make_view("secretive", "inmost")
    iceberg_views.drop_view(actor=SYSTEM, view=("secretive", "inmost"))
    body = {"name": "u", "metadata-location": view.metadata_location}
    ask = partial(Iceberg(KEY).call, "POST", "namespaces/mine/register-view", body)
    with unchanged():
        hidden = ask()
    # The metadata file belongs to a view that may not be read, so it is not opened.
    assert hidden.status_code == 400, hidden.content
    assert "does not belong to table 'mine.u'" in texts(hidden)
    assert not [name for name in ("secretive", "inmost") if f"'{name}" in texts(hidden)]
    see(requester, Privilege.BROWSE | Privilege.READ | Privilege.WRITE | Privilege.CREATE)
    with unchanged():
        refusal = ask()
    assert refusal.status_code == 409, refusal.content
    assert "view 'secretive.inmost'" in texts(refusal)
    requester.grants.filter(namespace__path=["secretive"]).delete()
    see(requester, Privilege.MANAGE | Privilege.WRITE | Privilege.READ | Privilege.BROWSE)
    assert ask().status_code == 200


def test_the_manager_of_one_table_registers_that_table(requester, warehouse):
    at = warehouse / "quiet"
    table = leave("lance", at)
    requester.grants.create(mask=Privilege.MANAGE.value, table=table)
    assert AT["register"](at).status_code == 200


def test_a_key_for_another_namespace_registers_no_former_table(requester, warehouse):
    at = warehouse / "quiet"
    leave("lance", at)
    see(requester, Privilege.ALL)
    mine = Namespace.objects.named(("mine",)).get()
    requester.keys.update(namespace=mine)
    known_keys.forget_keys()
    with unchanged():
        assert AT["register"](at).status_code == 409


def test_the_location_of_a_purged_table_is_free(requester, warehouse):
    at = warehouse / "quiet"
    table = leave("lance", at)
    Job.objects.create(kind=JobKind.PURGE_TABLE, table=table, status=JobStatus.SUCCEEDED)
    assert AT["register"](at).status_code == 200


# --- what comes back -------------------------------------------------------------------------------


def drop_mine(location: Path) -> TrashItem:
    make_table("mine", "old", location=str(location))
    commit([table_operations.DeregisterTable(table=("mine", "old"))], actor=SYSTEM)
    return TrashItem.objects.latest("pk")


def asker(requester: Principal) -> access.Principal:
    return access.of_row(requester)


def test_undrop_does_not_reveal_the_tables_now_at_its_location(requester, warehouse):
    item = drop_mine(warehouse / "quiet")
    commit(
        [
            registration_operations.DeclareTable(
                table=("secretive", "inmost"), location=str(warehouse / "quiet")
            )
        ],
        actor=SYSTEM,
    )
    with pytest.raises(LocationTaken) as refused, unchanged():
        undrop.undrop(actor=asker(requester), item=item.pk)
    assert refused.value.message == f"Location '{warehouse}/quiet' belongs to another table"
    see(requester, Privilege.BROWSE)
    with pytest.raises(LocationTaken, match=r"'secretive\.inmost'"), unchanged():
        undrop.undrop(actor=asker(requester), item=item.pk)


def test_a_dropped_table_does_not_reveal_others_dropped_with_it(requester, warehouse):
    item = drop_mine(warehouse / "quiet")
    table = hide(warehouse / "quiet", "lance")
    commit([table_operations.DropTable(table=("secretive", "inmost"))], actor=SYSTEM)
    Job.objects.filter(table=table).update(attempts=1)
    text = "its files also belonged to {} and were purged with it"
    with pytest.raises(NotRecoverable) as refused, unchanged():
        undrop.undrop(actor=asker(requester), item=item.pk)
    assert text.format("another table") in refused.value.message
    see(requester, Privilege.BROWSE)
    with pytest.raises(NotRecoverable) as refused, unchanged():
        undrop.undrop(actor=asker(requester), item=item.pk)
    assert text.format("table 'secretive.inmost'") in refused.value.message


def test_a_staged_table_at_a_former_location_is_refused(requester, warehouse):
    """A commit that creates a table at the location of a deregistered one."""
    leave("iceberg", warehouse / "quiet")
    body = {
        "requirements": [{"type": "assert-create"}],
        "updates": [
            {"action": "assign-uuid", "uuid": "0190a6b5-0000-7000-8000-000000000000"},
            {"action": "upgrade-format-version", "format-version": 2},
            {"action": "add-schema", "schema": ICEBERG_SCHEMA},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": f"file://{warehouse}/quiet"},
        ],
    }
    with unchanged():
        response = Iceberg(KEY).call("POST", "namespaces/mine/tables/u", body)
    assert response.status_code == 409, json.loads(response.content)
    assert "inmost" not in texts(response)
