"""Refusals in the words that Java clients match, naming things relative to the warehouse."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from api.iceberg import wording
from catalog import errors
from catalog.access import SYSTEM
from catalog.privileges import Privilege
from catalog.services.iceberg import functions
from tests.access.iceberg_examples import DEFINITION
from tests.access.protocols import KEY, PROTOCOLS, Request, give, make_requester
from tests.access.rules import HiddenAnswer
from tests.api.iceberg.client import Iceberg
from tests.api.iceberg.test_views import creation, make_view
from tests.factories import (
    ICEBERG_SCHEMA,
    make_iceberg_table,
    make_namespace,
    make_root,
    make_table,
)

PLACE = ("outer", "in ner")
PREFIX = "outer.in~20ner"
Words = tuple[int, str, str]


@pytest.mark.parametrize("warehouse", [(), PLACE], ids=["without prefix", "with prefix"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda at: errors.NamespaceNotFound(at("ns")), "Namespace does not exist: ns"),
        (lambda at: errors.TableNotFound(at("ns", "tbl")), "Table does not exist: ns.tbl"),
        (lambda at: errors.ViewNotFound(at("ns", "v")), "View does not exist: ns.v"),
        (lambda at: errors.FunctionNotFound(at("ns", "f")), "Function does not exist: ns.f"),
        (lambda at: errors.NamespaceAlreadyExists(at("ns")), "Namespace already exists: ns"),
        (lambda at: errors.TableAlreadyExists(at("ns", "t")), "Table already exists: ns.t"),
        (lambda at: errors.ViewAlreadyExists(at("ns", "v")), "View already exists: ns.v"),
        (
            lambda at: errors.TableAlreadyExists(at("ns", "t"), requested="view"),
            "Table with same name already exists: ns.t",
        ),
        (
            lambda at: errors.ViewAlreadyExists(at("ns", "v"), requested="table"),
            "View with same name already exists: ns.v",
        ),
        (
            lambda at: errors.CannotRename(at("ns", "a"), at("other", "b"), "View"),
            "Cannot rename ns.a to other.b. View already exists",
        ),
        (
            lambda at: errors.NamespaceNotEmpty(at("ns"), tables=1, namespaces=0),
            "Namespace ns is not empty. It holds 1 table and 0 namespaces. Drop what it holds first",
        ),
        (
            lambda at: errors.LocationTaken("/w/t", at("ns", "t"), place="/w"),
            "Location '/w/t' belongs to table 'ns.t' (/w)",
        ),
        (lambda at: errors.LocationTaken("/w/t"), "Location '/w/t' belongs to another table"),
        (
            lambda at: errors.Protected([("table", at("ns", "t")), ("view", at("ns", "v"))]),
            (
                "Table 'ns.t', view 'ns.v' are protected. Remove the protection first, which requires"
                " the privilege manage."
            ),
        ),
        (
            lambda at: errors.ApprovalRequired("dropping protected namespace", at("ns")),
            "Dropping protected namespace 'ns' needs the approval of a second person",
        ),
        (
            lambda at: errors.BranchNotFound(at("ns", "t"), "{table}"),
            "Table 'ns.t' has no branch '{table}'",
        ),
    ],
)
def test_words(
    make: Callable[[Callable[..., tuple[str, ...]]], errors.CatalogError],
    words: str,
    warehouse: tuple[str, ...],
):
    error = make(lambda *names: (*warehouse, *names))
    assert wording.complete(error, wording.message(error, warehouse)) == words


def test_names_of_the_warehouse_and_of_outside_tables():
    assert wording.name(PLACE, PLACE) == "(root)"
    # 'in ner' and 'in+ner' are one name.
    assert wording.name(("outer", "in+ner", "ns"), PLACE) == "ns"
    for outside in ((), ("outer",), ("other", "t"), ("outer", "in ner2", "t")):
        assert wording.name(outside, PLACE) == "(outside this warehouse)"
    assert wording.name(("outer", "t"), ()) == "outer.t"


def test_a_missing_warehouse_is_refused(iceberg: Iceberg):
    make_namespace("outer")
    for prefix in (PREFIX, "outer.none", "none"):
        for request, words in (
            ("GET namespaces", f"Warehouse does not exist: {prefix}"),
            ("GET namespaces/ns", "Namespace does not exist: ns"),
        ):
            iceberg.at(prefix).refused(404, "NoSuchNamespaceException", words, request)


# --- by HTTP -------------------------------------------------------------------------------------


CONFLICTS: dict[str, tuple[str, dict[str, Any] | None, Words]] = {
    "namespace": (
        "POST namespaces",
        {"namespace": ["ns"]},
        (409, "AlreadyExistsException", "Namespace already exists: ns"),
    ),
    "table": (
        "POST namespaces/ns/tables",
        {"name": "t", "schema": ICEBERG_SCHEMA},
        (409, "AlreadyExistsException", "Table already exists: ns.t"),
    ),
    "table over a table of Lance": (
        "POST namespaces/ns/tables",
        {"name": "vectors", "schema": ICEBERG_SCHEMA},
        (409, "AlreadyExistsException", "Table already exists: ns.vectors"),
    ),
    "table over a view": (
        "POST namespaces/ns/tables",
        {"name": "v", "schema": ICEBERG_SCHEMA},
        (409, "AlreadyExistsException", "View with same name already exists: ns.v"),
    ),
    "view over a table": (
        "POST namespaces/ns/views",
        creation("t"),
        (409, "AlreadyExistsException", "Table with same name already exists: ns.t"),
    ),
    "rename": (
        "POST tables/rename",
        {
            "source": {"namespace": ["ns"], "name": "t"},
            "destination": {"namespace": ["ns"], "name": "v"},
        },
        (409, "AlreadyExistsException", "Cannot rename ns.t to ns.v. View already exists"),
    ),
    "rename a view": (
        "POST views/rename",
        {
            "source": {"namespace": ["ns"], "name": "v"},
            "destination": {"namespace": ["ns"], "name": "t"},
        },
        (409, "AlreadyExistsException", "Cannot rename ns.v to ns.t. Table already exists"),
    ),
    "rename nothing": (
        "POST tables/rename",
        {
            "source": {"namespace": ["ns"], "name": "none"},
            "destination": {"namespace": ["ns"], "name": "v"},
        },
        (404, "NoSuchTableException", "Table does not exist: ns.none"),
    ),
    "drop": (
        "DELETE namespaces/ns",
        None,
        (409, "NamespaceNotEmptyException", "Namespace ns is not empty. It holds 3 tables"),
    ),
    "function": (
        "GET namespaces/ns/functions/none",
        None,
        (404, "NoSuchFunctionException", "Function does not exist: ns.none"),
    ),
    "another's location": (
        "POST namespaces/ns/tables",
        {"name": "new", "schema": ICEBERG_SCHEMA, "location": "LOCATION"},
        (409, "AlreadyExistsException", "belongs to table 'ns.t' "),
    ),
    "batch": (
        "POST transactions/commit",
        {
            "table-changes": [
                {
                    "identifier": {"namespace": ["ns"], "name": name},
                    "requirements": [],
                    "updates": [{"action": "set-properties", "updates": {"a": "b"}}],
                }
                for name in ("t", "none")
            ]
        },
        (404, "NoSuchTableException", "Table does not exist: ns.none (operation 1)"),
    ),
}


@pytest.mark.parametrize("prefix", [False, True], ids=["without prefix", "with prefix"])
@pytest.mark.parametrize("conflict", CONFLICTS)
def test_conflicts(iceberg: Iceberg, warehouse, prefix, conflict):
    warehouse_path = PLACE if prefix else ()
    make_namespace(*warehouse_path)
    location = make_iceberg_table(*warehouse_path, "ns", "t").location
    make_table(*warehouse_path, "ns", "vectors")
    make_view(*warehouse_path, "ns", "v")
    request, body, (status, kind, words) = CONFLICTS[conflict]
    if body is not None and body.get("location") == "LOCATION":
        body = {**body, "location": f"file://{location}"}
    client = iceberg.at(PREFIX) if prefix else iceberg
    response = client.refused(status, kind, words, request, body)
    assert not re.search(r"outer|in ner", response.json()["error"]["message"].replace(location, ""))


# --- refusals of every operation -----------------------------------------------------------------


PROTOCOL = PROTOCOLS["iceberg"]


@pytest.mark.usefixtures("warehouse")
@pytest.mark.django_db
@pytest.mark.parametrize("operation", [name for name in PROTOCOL.requests if name != "getConfig"])
def test_no_refusal_names_the_parents_of_the_warehouse(operation):
    """For hidden, forbidden and missing objects, refusals through a prefix name only the request's
    own names."""
    make_root()
    principal = make_requester()
    namespace = make_namespace("outer", "inner")
    make_iceberg_table("outer", "inner", "ws", "t")
    make_view("outer", "inner", "ws", "v")
    functions.create_function(
        actor=SYSTEM,
        function=("outer", "inner", "ws", "f"),
        content=functions.Content(definitions=[DEFINITION], doc="adds"),
    )
    client = Iceberg(KEY, "outer.inner")
    substitutes = {
        "PLAN": "none",
        "TASK": "none",
        "TABLEFILE": "file:///x",
        "VIEWFILE": "file:///x",
    }
    request = PROTOCOL.requests[operation].with_words(substitutes)

    def refusal(request: Request) -> str:
        response = client.call(request.method, request.path, request.body)
        if response.status_code < 400 or not response.content:
            return ""
        message = str(response.json()["error"]["message"])
        return message.replace("Warehouse does not exist: outer.inner", "Warehouse does not exist")

    hidden = refusal(request)
    give(principal, Privilege.BROWSE, namespace)
    forbidden = refusal(request)
    give(principal, Privilege.ALL, namespace)
    missing = refusal(request.elsewhere(("ws", "t", "v", "f")))
    assert hidden or request.method == "HEAD" or PROTOCOL.rules[operation].when_hidden in OPEN
    for text in (hidden, forbidden, missing):
        assert not re.search(r"outer|inner", text), text


OPEN = {HiddenAnswer.EMPTY, HiddenAnswer.SAME}
