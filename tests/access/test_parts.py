"""Requests with one forbidden part change nothing, and the refusal names that part."""

import json
import uuid
from typing import Any

import pytest
from django.http import HttpResponse

from catalog.access import SYSTEM, tokens
from catalog.models import ApiKey, AuditEvent, Namespace, Principal, Table, TrashItem
from catalog.privileges import READ_ONLY, Privilege
from catalog.services.access import api_keys
from catalog.services.engine.commit import commit
from catalog.services.iceberg import views as iceberg_views
from catalog.services.tables import table_operations
from tests.access.iceberg_examples import _VERSION
from tests.access.protocols import KEY, administrator, give, make_requester
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.api.management.client import Management
from tests.factories import (
    ICEBERG_SCHEMA,
    files,
    make_iceberg_table,
    make_namespace,
    make_root,
    make_table,
    make_version,
    unchanged,
)


@pytest.fixture(autouse=True)
def _requester(db, warehouse):
    """A principal with all privileges in ``mine`` and BROWSE on ``seen``; none in ``other``."""
    make_root()
    requester = make_requester()
    give(requester, Privilege.ALL, make_namespace("mine"))
    make_namespace("seen")
    requester.grants.create(mask=Privilege.BROWSE.value, namespace=_named("seen"))


def _named(*path: str) -> Namespace:
    return Namespace.objects.named(path).get()


def words(response: HttpResponse, *names: str) -> str:
    """An answer, with the same name in place of each of these."""
    body = json.loads(response.content)
    body.pop("request_id", None)
    text = json.dumps(body)
    for name in names:
        text = text.replace(name, "NAME")
    return text


# --- batches -------------------------------------------------------------------------------------

PARTS: list[dict[str, Any]] = [
    {"declare_table": {"id": ["PLACE", "new"]}},
    {"create_table_version": {"id": ["PLACE", "t"], "version": 2, "manifest_path": "x/2.manifest"}},
    {
        "delete_table_versions": {
            "id": ["PLACE", "t"],
            "ranges": [{"start_version": 0, "end_version": 1}],
        }
    },
    {"deregister_table": {"id": ["PLACE", "t"]}},
]


def _in(operation: Any, namespace: str) -> Any:
    return json.loads(json.dumps(operation).replace('"PLACE"', json.dumps(namespace)))


def _batch(operation: Any, namespace: str, index: int) -> dict[str, Any]:
    good = [
        {"declare_table": {"id": ["mine", "fresh"]}},
        {"deregister_table": {"id": ["mine", "t"]}},
    ]
    return {"operations": [*good[:index], _in(operation, namespace), *good[index:]]}


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("operation", PARTS, ids=lambda operation: next(iter(operation)))
def test_a_batch_with_a_forbidden_operation_changes_nothing(operation, index, warehouse):
    for name in ("mine", "seen", "other"):
        make_table(name, "t")
        make_version((name, "t"), 1)
    lance = Lance(KEY)
    before = files(warehouse)

    def refused(namespace: str) -> HttpResponse:
        with unchanged():
            response = lance.call(
                "POST", "/v1/table/batch-commit", _batch(operation, namespace, index)
            )
        assert response.json()["error"].startswith(f"Operation {index}: "), response.content
        return response

    response = refused("seen")
    assert (response.status_code, response.json()["code"]) == (403, 15)
    hidden, absent = refused("other"), refused("absent")
    assert hidden.status_code == absent.status_code == 404
    assert words(hidden, "other") == words(absent, "absent")
    assert files(warehouse) == before
    # Only that part was forbidden.
    only = {"operations": [_in(operation, "mine")]}
    assert lance.call("POST", "/v1/table/batch-commit", only).status_code == 200


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_transaction_with_a_forbidden_table_changes_nothing(index, warehouse):
    for table in (("mine", "a"), ("mine", "b"), ("seen", "t"), ("other", "t")):
        make_iceberg_table(*table)
    iceberg = Iceberg(KEY)
    before = files(warehouse)

    def change(namespace: str, name: str) -> dict[str, Any]:
        updates = [{"action": "set-properties", "updates": {"key": "value"}}]
        identifier = {"namespace": [namespace], "name": name}
        return {"identifier": identifier, "requirements": [], "updates": updates}

    def send(*changes: dict[str, Any]) -> HttpResponse:
        return iceberg.call("POST", "transactions/commit", {"table-changes": list(changes)})

    def refused(namespace: str) -> HttpResponse:
        changes = [change("mine", "a"), change("mine", "b")]
        changes.insert(index, change(namespace, "t"))
        with unchanged():
            response = send(*changes)
        message = response.json()["error"]["message"]
        assert f"(operation {index})" in message, message
        return response

    assert refused("seen").status_code == 403
    hidden, absent = refused("other"), refused("absent")
    assert hidden.status_code == absent.status_code == 404
    assert words(hidden, "other") == words(absent, "absent")
    assert files(warehouse) == before
    assert send(change("mine", "a"), change("mine", "b")).status_code == 204


# --- another name --------------------------------------------------------------------------------


def _lance_table(namespace: str) -> HttpResponse:
    body = {"new_table_name": "u", "new_namespace_id": [namespace]}
    return Lance(KEY).call("POST", "/v1/table/mine$lance/rename", body)


def _iceberg(kind: str, name: str) -> Any:
    def rename(namespace: str) -> HttpResponse:
        body = {
            "source": {"namespace": ["mine"], "name": name},
            "destination": {"namespace": [namespace], "name": "u"},
        }
        return Iceberg(KEY).call("POST", f"{kind}/rename", body)

    return rename


def _undrop(namespace: str) -> HttpResponse:
    item = TrashItem.objects.get().pk
    return Management(KEY).call("POST", f"trash/{item}/undrop", {"new": [namespace, "u"]})


@pytest.mark.parametrize(
    "rename",
    [_lance_table, _iceberg("tables", "iceberg"), _iceberg("views", "view"), _undrop],
    ids=["lance", "iceberg", "view", "undrop"],
)
def test_moves_require_the_create_privilege_on_the_target(rename):
    make_table("mine", "lance")
    make_iceberg_table("mine", "iceberg")
    iceberg_views.create_view(
        actor=SYSTEM, view=("mine", "view"), schema=ICEBERG_SCHEMA, view_version=_VERSION
    )
    make_table("mine", "gone")
    commit([table_operations.DeregisterTable(table=("mine", "gone"))], actor=SYSTEM)
    make_table("other", "u")  # The refusal does not reveal either that the name is taken there.
    with unchanged():
        visible, hidden, absent = rename("seen"), rename("other"), rename("absent")
    assert visible.status_code == 403
    assert "create" in visible.content.decode()
    assert hidden.status_code == absent.status_code == 404
    assert words(hidden, "other") == words(absent, "absent")
    requester = Principal.objects.get(name="who")
    give(requester, Privilege.ALL, _named("mine"))
    requester.grants.create(
        mask=(Privilege.CREATE | Privilege.BROWSE).value, namespace=_named("seen")
    )
    assert rename("seen").status_code in {200, 204}
    assert Table.objects.named(("seen", "u")).exists()


# --- the same key of another ---------------------------------------------------------------------


def new_idempotency_key() -> str:
    return str(uuid.UUID(int=(uuid.uuid4().int & ~(0xF << 76)) | (7 << 76)))


def test_an_idempotency_key_is_bound_to_its_principal():
    """Another principal with the same key learns nothing of the first request, and its own request
    is executed."""

    def send(token: str, namespace: str, key: str) -> HttpResponse:
        body = {"updates": {"k": "v"}, "removals": []}
        once = {"headers": {"idempotency-key": key}}
        return Iceberg(token).call("POST", f"namespaces/{namespace}/properties", body, **once)

    make_namespace("other")
    keys = {name: new_idempotency_key() for name in ("other", "seen", "mine")}
    firsts = {name: send(administrator(), name, key) for name, key in keys.items()}
    assert {answer.status_code for answer in firsts.values()} == {200}
    commits = AuditEvent.objects.filter(action="namespace.update").count()
    responses = {name: send(KEY, name, key) for name, key in keys.items()}
    assert {name: response.status_code for name, response in responses.items()} == {
        "other": 404,
        "seen": 403,
        "mine": 200,
    }
    for name in ("other", "seen"):
        assert "updated" not in responses[name].json()
    assert AuditEvent.objects.filter(action="namespace.update").count() == commits
    with unchanged():
        for name, key in keys.items():
            assert send(administrator(), name, key).content == firsts[name].content
            assert send(KEY, name, key).content == responses[name].content


def narrow_key(name: str, **limits: Any) -> str:
    """A key of the administrator's own that does less than the first."""
    return api_keys.add_key(actor=SYSTEM, principal="administrator", name=name, **limits)[1]


def test_a_stored_answer_requires_the_same_credentials():
    """The same principal, idempotency key and request."""
    administrator()
    make_namespace("other")
    wide = administrator()
    reading = narrow_key("reading", scopes=["read"])
    again = narrow_key("reading-too", scopes=["read"])
    elsewhere = narrow_key("elsewhere", namespace=("other",))
    token = tokens.issue_token(ApiKey.objects.get(name="administrator").pk, READ_ONLY)
    once = {"headers": {"idempotency-key": new_idempotency_key()}}

    def send(key: str) -> HttpResponse:
        body = {"updates": {"k": "v"}, "removals": []}
        return Iceberg(key).call("POST", "namespaces/seen/properties", body, **once)

    first = send(wide)
    assert (first.status_code, first.json()["updated"]) == (200, ["k"])
    commits = AuditEvent.objects.filter(action="namespace.update").count()
    responses = {name: send(key) for name, key in (("r", reading), ("t", token), ("e", elsewhere))}
    assert {name: response.status_code for name, response in responses.items()} == {
        "r": 403,
        "t": 403,
        "e": 404,
    }
    assert AuditEvent.objects.filter(action="namespace.update").count() == commits
    with unchanged():
        assert send(wide).content == first.content
        # Credentials with the same rights are equal: a replaced key, and a token of the key.
        refused = [send(key) for key in (reading, again, token)]
        assert len({response.content for response in refused}) == 1
        assert refused[0].content == responses["r"].content
