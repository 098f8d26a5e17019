"""Every operation of every protocol with every privilege.

Sufficient privileges are accepted, insufficient ones are refused, and a request for a hidden object
has the same answer as a request for a missing object. No refusal changes a row.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import OperationalError
from django.http import HttpResponse

from catalog import access
from catalog.identifiers import digest
from catalog.models import ApprovalRequest, Grant, Namespace, Principal, Table
from catalog.privileges import SINGLE, Privilege
from catalog.services.engine.prepared import selects
from tests.access import rules
from tests.access.protocols import (
    ABSENT,
    EVERY,
    NUMBERED,
    PROTOCOLS,
    Protocol,
    Request,
    give,
    namespace_of,
    table_of,
)
from tests.access.rules import HiddenAnswer, Rule, Target
from tests.cases import shared_cases
from tests.factories import make_namespace, make_table, unchanged
from tests.undo import undone

pytestmark = pytest.mark.usefixtures("warehouse")
every_operation = pytest.mark.parametrize(("interface", "operation"), EVERY)


def set_up(interface: Protocol, operation: str) -> tuple[Principal, Request, Rule]:
    substitutes = interface.make_catalog(operation)
    return (
        Principal.objects.get(name="who"),
        interface.requests[operation].with_words(substitutes),
        interface.rules[operation],
    )


def error_of(response: HttpResponse) -> Any:
    """Content of an answer, without the request id."""
    if not response.content or "json" not in response.get("content-type", ""):
        return response.content
    body = json.loads(response.content)
    if isinstance(body, dict):
        body.pop("request_id", None)
    return body


HIDDEN = {"ws", "guarded", "known"}


def words(response: HttpResponse) -> set[str]:
    return set(re.findall(r"[^\W_]+", response.content.decode()))


def forbidden(response: HttpResponse) -> bool:
    return response.status_code == 403


@pytest.mark.parametrize("interface", PROTOCOLS)
def test_every_operation_has_a_rule_and_an_example(interface):
    protocol = PROTOCOLS[interface]
    assert set(protocol.rules) == set(protocol.operations), "add a rule to tests/access/rules.py"
    assert set(protocol.requests) == set(protocol.operations)


@every_operation
def test_insufficient_privileges_are_refused(interface, operation):
    protocol = PROTOCOLS[interface]
    requester, request, rule = set_up(protocol, operation)
    refused = 404 if rule == rules.OWN else 403
    targets: list[Any] = [namespace_of(rule)]
    if rule.target is Target.TABLE:
        targets.append(table_of(request))
    for target in targets:
        for privilege in SINGLE:
            if not rule.suffices(privilege):
                give(requester, privilege, target)
                with unchanged():
                    response = protocol.send(request)
                assert response.status_code == refused, (privilege, target, response.content)


def _headers(response: HttpResponse) -> dict[str, str]:
    """The headers of an answer, without those that depend on the names and on the request."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return {name: headers[name] for name in headers.keys() - {"content-length", "x-request-id"}}


def _answers(protocol: Protocol, request: Request, names: tuple[str, ...]) -> tuple[Any, Any]:
    """The answer, and the answer about a missing object with the same names."""
    with unchanged():
        response = protocol.send(request)
        other = request.elsewhere(names)
        absent = protocol.send(other)
    assert response.status_code == absent.status_code, (response.content, absent.content)
    assert _headers(response) == _headers(absent)
    text = json.dumps(error_of(absent), default=repr)
    for name in names:
        text = re.sub(rf"\b{'zz' * len(name)}\b", name, text)
    if (numbered := re.match(NUMBERED, request.path)) is not None:
        text = text.replace(ABSENT, numbered[2])
    return json.dumps(error_of(response), default=repr), text


@contextmanager
def _others_lock_what_is_hidden(actor: access.Principal) -> Iterator[list[str]]:
    """Let the locks of objects that the actor may not see time out, as if a transaction of others held them.

    Yields the names of these objects, each time that a request waits for one.
    """
    waited: list[str] = []

    def limited(select: Callable[..., Any]) -> Callable[..., Any]:
        def rows_unless_locked(digests: Collection[Any]) -> Any:
            rows = select(digests)
            hidden = [str(row) for row in rows if not access.is_visible(actor, row)]
            waited.extend(hidden)
            if hidden:
                raise OperationalError from psycopg.errors.LockNotAvailable()
            return rows

        return rows_unless_locked

    with pytest.MonkeyPatch.context() as patch:
        for name in ("select_namespaces_for_update", "select_tables_for_update"):
            patch.setattr(selects, name, limited(getattr(selects, name)))
        yield waited


@every_operation
def test_hidden_and_missing_objects_have_the_same_answer(interface, operation):
    protocol = PROTOCOLS[interface]
    requester, request, rule = set_up(protocol, operation)
    assert not Grant.objects.filter(principal=requester).exists()
    other = Namespace.objects.named(("other",)).get()
    for has_other_grant in (False, True):
        if has_other_grant:
            give(requester, Privilege.ALL, other)
        if rule.when_hidden in {HiddenAnswer.EMPTY, HiddenAnswer.SAME}:
            with unchanged():
                response = protocol.send(request)
            assert response.status_code == 200, response.content
            if rule.when_hidden is HiddenAnswer.EMPTY:
                assert not HIDDEN & words(response)
            continue
        if rule.when_hidden is HiddenAnswer.REFUSED:
            with unchanged():
                assert forbidden(protocol.send(request))
            continue
        names = ("known",) if rule == rules.OWN else ("ws",)
        existing, absent = _answers(protocol, request, names)
        assert existing == absent
        with _others_lock_what_is_hidden(access.of_row(requester)):
            assert _answers(protocol, request, names) == (existing, absent)
        with unchanged():
            assert protocol.send(request).status_code == 404


@pytest.mark.parametrize(
    ("interface", "operation"),
    [(d, o) for d, o in EVERY if PROTOCOLS[d].rules.get(o, rules.ADMIN).target is Target.TABLE],
)
def test_hidden_and_missing_tables_have_the_same_answer(interface, operation):
    """Even if the principal may browse another object in the namespace."""
    protocol = PROTOCOLS[interface]
    requester, request, _ = set_up(protocol, operation)
    give(requester, Privilege.ALL, make_table("ws", "mine"))
    table = table_of(request)
    if request.path.startswith("jobs/"):
        with unchanged():
            assert protocol.send(request).status_code == 404
        return
    existing, absent = _answers(protocol, request, (table.name,))
    assert existing == absent
    with unchanged():
        assert protocol.send(request).status_code == 404


def _rename_ws() -> None:
    """Rename namespace ``ws`` to ``w s``, which is also spelled ``w+s``."""
    Namespace.objects.filter(path=["ws"]).update(path=["w s"], name="w s", digest=digest(("w s",)))
    for table in Table.objects.filter(namespace__path=["w s"]).select_related("namespace"):
        Table.objects.filter(pk=table.pk).update(digest=digest(table.identifier))


@pytest.mark.parametrize(
    ("interface", "operation"),
    [
        (d, o)
        for d, o in EVERY
        if PROTOCOLS[d].rules.get(o, rules.ADMIN).target in {Target.NAMESPACE, Target.TABLE}
        and not re.match(NUMBERED, PROTOCOLS[d].requests[o].path)
        and "WAITS" not in PROTOCOLS[d].requests[o].path
    ],
)
def test_spellings_do_not_reveal_hidden_objects(interface, operation):
    protocol = PROTOCOLS[interface]
    _, request, _ = set_up(protocol, operation)
    _rename_ws()
    with unchanged():
        hidden = protocol.send(request.spelled("ws", "w+s"))
        absent = protocol.send(request.spelled("ws", "z+z"))
    assert hidden.status_code == absent.status_code == 404
    text = json.dumps(error_of(absent), default=repr)
    assert json.dumps(error_of(hidden), default=repr) == text.replace("z+z", "w+s")


@every_operation
def test_sufficient_privileges_are_accepted(interface, operation, warehouse):
    protocol = PROTOCOLS[interface]
    requester, request, rule = set_up(protocol, operation)
    targets: list[Any] = [namespace_of(rule)]
    if rule.target is Target.TABLE:
        targets.append(table_of(request))
    for target in targets:
        for privilege in rule.sufficing:
            with undone(warehouse):
                give(requester, privilege, target)
                response = protocol.send(request)
                assert response.status_code == request.status, (privilege, target, response.content)


@pytest.fixture
def prepared(request: pytest.FixtureRequest) -> tuple[Protocol, tuple[Principal, Request, Rule]]:
    """A protocol, and what ``set_up`` returns for its operation, which the parameter names."""
    interface, operation = request.param
    return PROTOCOLS[interface], set_up(PROTOCOLS[interface], operation)


@shared_cases("privilege", SINGLE)
@pytest.mark.parametrize(
    "prepared",
    # In a database, names do not contain that of the database.
    [(o, name) for o, name in EVERY if name in rules.LISTS_OF_WS and o != "lancedb"],
    ids="-".join,
    indirect=True,
)
def test_lists_contain_only_objects_that_may_be_browsed(prepared, privilege):
    protocol, (requester, request, _) = prepared
    give(requester, privilege, Namespace.objects.named(("ws",)).get())
    with unchanged():
        assert words(protocol.send(request)) & HIDDEN == {"ws"}


def test_counts_include_only_objects_that_may_be_browsed():
    management = PROTOCOLS["management"]
    requester, request, _ = set_up(management, "CountChanges")
    empty = management.send(request).json()
    assert {key: n for key, n in empty.items() if isinstance(n, int) and n} == {}
    give(requester, Privilege.BROWSE, Namespace.objects.named(("guarded",)).get())
    counts = management.send(request).json()
    assert {key: n for key, n in counts.items() if isinstance(n, int) and n} == {
        "namespaces_added": 1
    }


def test_requesters_see_and_withdraw_their_request_without_privileges():
    management = PROTOCOLS["management"]
    _, request, _ = set_up(management, "WithdrawRequest")
    ApprovalRequest.objects.filter(pk=re.match(NUMBERED, request.path)[2]).update(requester="who")
    listed = management.send(Request("GET", "approvals")).json()
    assert [row["requester"] for row in listed["approvals"]] == ["who"]
    response = management.send(request)
    assert (response.status_code, response.json()["status"]) == (200, "withdrawn")


@pytest.mark.parametrize("operation", ["GetApproval", "ApproveRequest", "RefuseRequest"])
def test_parent_namespaces_reveal_only_their_names(operation):
    """A parent of an object that may be browsed reveals only its name."""
    management = PROTOCOLS["management"]
    requester, request, _ = set_up(management, operation)
    give(requester, Privilege.ALL, make_namespace("guarded", "inner"))
    existing, absent = _answers(management, request, ("guarded",))
    assert existing == absent
    assert management.send(request).status_code == 404
    assert management.send(Request("GET", "approvals")).json()["approvals"] == []
