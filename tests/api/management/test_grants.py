"""Grants over HTTP and on the command line: set, list, explain, and preview a removal."""

from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from catalog import access
from catalog.access import SYSTEM
from catalog.models import AuditEvent, Grant, Principal, PrincipalKind, Table
from catalog.privileges import Privilege
from catalog.services.access import api_keys, grants
from catalog.services.engine import audit_records
from tests.api.management.client import Management
from tests.factories import make_root, make_table, unchanged

NOTHING_REMAINS = {
    "until": None,
    "profiles": [],
    "has_hidden_profiles": False,
    "is_complete": True,
    "text": "",
}
READ = ["browse", "read"]
PLACES = ["namespaces/ws", "tables/ws$t", "namespaces/$"]


@pytest.fixture(autouse=True)
def _catalog(db):
    make_root()
    make_table("ws", "t")
    Principal.objects.create(name="etl", kind=PrincipalKind.SERVICE)
    Principal.objects.create(name="group:team", kind=PrincipalKind.GROUP)


@pytest.mark.operation("SetNamespaceGrant")
@pytest.mark.operation("SetTableGrant")
@pytest.mark.operation("DeleteNamespaceGrant")
@pytest.mark.operation("DeleteTableGrant")
@pytest.mark.operation("ListNamespaceGrants")
@pytest.mark.operation("ListTableGrants")
@pytest.mark.parametrize("path", PLACES)
def test_a_grant_is_set_listed_and_removed(management: Management, path):
    body = {"principal": "etl", "privileges": ["read"]}
    assert management.put(f"{path}/grants", body) == {
        "principal": "etl",
        "privileges": READ,
        "expires_at": None,
        "remaining": NOTHING_REMAINS,
    }
    (grant,) = management.get(f"{path}/grants")["grants"]
    assert grant == {
        "principal": "etl",
        "kind": "service",
        "privileges": READ,
        "granted_by": "tester",
        "granted_at": grant["granted_at"],
        "expires_at": None,
    }
    everything = management.put(f"{path}/grants", {"principal": "etl", "privileges": ["all"]})
    assert len(everything["privileges"]) == 7
    management.delete(f"{path}/grants?principal=etl")
    assert management.get(f"{path}/grants") == {"grants": [], "next_page_token": None}
    actions = AuditEvent.objects.filter(action="grant.set").order_by("pk")
    assert [len(event.after["privileges"]) for event in actions] == [2, 7, 0]
    assert {event.actor for event in actions} == {"tester"}


@pytest.mark.operation("ListTableGrants")
def test_a_grant_shows_its_end(management: Management):
    Principal.objects.create(name="visitor", kind=PrincipalKind.SERVICE)
    end = datetime(2100, 1, 1, tzinfo=UTC)
    grants.set_grant(
        actor=SYSTEM,
        on=access.On.namespace(("ws",)),
        principal="visitor",
        privileges=Privilege.READ,
        expires_at=end,
    )
    (grant,) = management.get("namespaces/ws/grants?principal=visitor")["grants"]
    assert grant["expires_at"] == "2100-01-01T00:00:00Z"
    management.put("namespaces/ws/grants", {"principal": "visitor", "privileges": ["read"]})
    (grant,) = management.get("namespaces/ws/grants?principal=visitor")["grants"]
    assert grant["expires_at"] is None


@pytest.mark.operation("SetNamespaceGrant")
@pytest.mark.operation("SetTableGrant")
@pytest.mark.parametrize("path", PLACES)
def test_a_grant_is_set_with_an_end(management: Management, path):
    body = {"principal": "etl", "privileges": ["read"], "expires_at": "2100-01-01T01:00:00+01:00"}
    end = "2100-01-01T00:00:00Z"
    assert management.put(f"{path}/grants", body | {"dry_run": True})["expires_at"] == end
    assert not Grant.objects.exists()
    assert management.put(f"{path}/grants", body)["expires_at"] == end
    (grant,) = management.get(f"{path}/grants")["grants"]
    assert (grant["privileges"], grant["expires_at"]) == (READ, end)
    (holder,) = management.get(f"{path}/access?principal=etl")["principals"]
    assert [source["expires_at"] for source in holder["sources"]] == [end]
    assert management.put(f"{path}/grants", body | {"privileges": []})["expires_at"] is None
    assert not Grant.objects.exists()
    event = AuditEvent.objects.filter(action="grant.set").latest("pk")
    assert event.after == {"principal": "etl", "privileges": []}


@pytest.mark.operation("SetTableGrant")
def test_a_temporary_holder_grants_until_its_own_end(management: Management):
    end = "2100-01-01T00:00:00Z"
    temporary = {"privileges": ["read", "grant"], "expires_at": end}
    management.put("tables/ws$t/grants", {"principal": "etl"} | temporary)
    _, key = api_keys.create_for(actor=SYSTEM, principal="etl", name="etl-key")
    etl, request = Management(key), "PUT tables/ws$t/grants"
    body = {"principal": "group:team", "privileges": ["read"]}
    for too_late in ({}, {"expires_at": None}, {"expires_at": "2100-01-01T00:00:01Z"}):
        with unchanged():
            etl.refused(403, "permission-denied", "for a limited time", request, body | too_late)
    assert etl.put("tables/ws$t/grants", body | {"expires_at": end})["expires_at"] == end
    (own,) = etl.get("tables/ws$t/access?principal=etl")["principals"]
    assert [source["expires_at"] for source in own["sources"]] == [end]


def test_the_list_has_pages(management: Management):
    for name in ("etl", "group:team"):
        management.put("tables/ws$t/grants", {"principal": name, "privileges": ["write"]})
    first = management.get("tables/ws$t/grants?limit=1")
    assert (first["grants"][0]["principal"], first["next_page_token"]) == ("etl", "etl")
    second = management.get("tables/ws$t/grants?limit=1&page_token=etl")
    assert (second["grants"][0]["principal"], second["next_page_token"]) == ("group:team", None)
    single = management.get("tables/ws$t/grants?principal=group:team")
    assert single == {"grants": second["grants"], "next_page_token": None}
    assert management.get("tables/ws$t/grants?principal=tester")["grants"] == []


@pytest.mark.operation("SetTableGrant")
@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ({"principal": "etl"}, "invalid-input", "privileges: This field is required."),
        ({"principal": "etl", "privileges": ["reed"]}, "invalid-input", "'reed' is no privilege"),
        ({"principal": "etl", "privilege": []}, "invalid-input", "privilege"),
        ({"principal": "no", "privileges": []}, "principal-not-found", "'no' does not exist"),
        (
            {"principal": "etl", "privileges": ["read"], "expires_at": "2020-01-01T00:00:00Z"},
            "invalid-input",
            "is in the past",
        ),
        (
            {"principal": "etl", "privileges": ["read"], "expires_at": "2100-01-01T00:00:00"},
            "invalid-input",
            "expires_at: Use a time with a zone",
        ),
        (
            {"principal": "etl", "privileges": ["read"], "expires_at": 4102444800},
            "invalid-input",
            "expires_at: Use a time with a zone",
        ),
    ],
)
def test_invalid_grants_are_refused(management: Management, body, kind, text):
    status = 404 if kind == "principal-not-found" else 400
    with unchanged():
        management.refused(status, kind, text, "PUT tables/ws$t/grants", body)


@pytest.mark.operation("DeleteTableGrant")
def test_a_removal_requires_a_principal(management: Management):
    request = "DELETE tables/ws$t/grants"
    management.refused(400, "invalid-input", "names the principal whose grant is removed", request)
    management.refused(404, "principal-not-found", "'x'", f"{request}?principal=x")


@pytest.mark.operation("ExplainTableAccess")
@pytest.mark.operation("ExplainNamespaceAccess")
def test_access_is_explained(management: Management):
    Principal.objects.get(name="group:team").members.set([Principal.objects.get(name="etl")])
    management.put("namespaces/ws/grants", {"principal": "group:team", "privileges": ["read"]})
    _, key = api_keys.create_for(actor=SYSTEM, principal="etl", name="etl-key")
    (explanation,) = management.get("tables/ws$t/access?principal=etl")["principals"]
    assert explanation == {
        "principal": "etl",
        "kind": "service",
        "is_active": True,
        "privileges": READ,
        "sources": [
            {
                "because": "grant",
                "privileges": READ,
                "on": "ws",
                "is_here": False,
                "through": "group:team",
                "expires_at": None,
            }
        ],
        "keys": [
            {
                "name": "etl-key",
                "privileges": READ,
                "scopes": ["browse", "read", "write", "create", "manage", "maintain", "grant"],
                "within": None,
            }
        ],
    }
    names = [row["principal"] for row in management.get("namespaces/ws/access")["principals"]]
    assert names == ["etl", "group:team", "tester"]
    own = Management(key)
    assert own.get("tables/ws$t/access?principal=etl")["principals"] == [explanation]
    own.refused(403, "permission-denied", "may not see the privileges on", "GET tables/ws$t/access")


@pytest.mark.operation("WhatIfNamespaceGrant")
@pytest.mark.operation("WhatIfTableGrant")
def test_a_preview_shows_the_access_after_the_change(management: Management):
    management.put("namespaces/ws/grants", {"principal": "etl", "privileges": ["write"]})
    with unchanged():
        before = management.post("namespaces/ws/access/what-if", {"principal": "etl"})
        less = management.post(
            "namespaces/ws/access/what-if", {"principal": "etl", "privileges": ["read"]}
        )
        nothing = management.post("tables/ws$t/access/what-if", {"principal": "etl"})
    write = [*READ, "write"]
    assert before["principals"] == [
        {
            "principal": "etl",
            "before": write,
            "after": [],
            "lost": write,
            "namespaces": 1,
            "tables": 1,
        }
    ]
    assert less["principals"][0]["lost"] == ["write"]
    assert nothing["principals"][0]["lost"] == []


# --- command line ----------------------------------------------------------------------------------


def shell(*words: str) -> str:
    out = StringIO()
    call_command("grant", *words, stdout=out)
    return out.getvalue()


def test_the_command_sets_lists_and_explains_grants():
    assert shell("set", "etl", "write,maintain", "--namespace", "ws") == (
        "etl is granted write, maintain on ws\n"
    )
    assert shell("list", "--namespace", "ws").split() == [
        "etl",
        "write,",
        "maintain",
        "by",
        "system",
    ]
    output = shell("explain", "--table", "ws$t")
    assert "etl                      write, maintain\n    grant on ws: write, maintain" in output
    lost = shell("what-if", "etl", "--namespace", "ws")
    assert "loses write, maintain; no longer sees 1 namespaces and 1 tables" in lost
    assert shell("remove", "etl", "--namespace", "ws") == "etl is granted nothing on ws\n"
    assert not Grant.objects.exists()
    assert shell("set", "etl", "all", "--namespace", "$") == "etl is granted all on (root)\n"


def test_the_command_sets_and_shows_an_end():
    until = ("--until", "2100-01-01T00:00:00Z")
    assert shell("set", "etl", "read", "--namespace", "ws", *until) == (
        "etl is granted read on ws until 2100-01-01 00:00 UTC\n"
    )
    assert "read  by system  until 2100-01-01 00:00 UTC" in shell("list", "--namespace", "ws")
    assert shell("set", "etl", "read", "--namespace", "ws") == "etl is granted read on ws\n"
    assert Grant.objects.get().expires_at is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("set", "etl", "read", "--table", "ws$t", "--until", "2020-01-01T00:00:00Z"),
            "is in the past",
        ),
        (("set", "etl", "read", "--table", "ws$t", "--until", "tomorrow"), "a time with a zone"),
        (("set", "etl", "read", "--table", "ws$t", "--until", "2100-01-01"), "a time with a zone"),
        (("set", "etl", "reed", "--table", "ws$t"), "'reed' is no privilege"),
        (("set", "no", "read", "--table", "ws$t"), "'no' does not exist"),
        (("set", "etl", "read", "--table", "ws$no"), "'ws.no' does not exist"),
        (("explain", "no", "--namespace", "ws"), "'no' does not exist"),
    ],
)
def test_the_command_refuses_invalid_arguments(words, text):
    with unchanged(), pytest.raises(CommandError, match=text):
        shell(*words)


def test_whoever_withdraws_access_is_told_what_remains(management: Management):
    management.put("tables/ws$t/grants", {"principal": "etl", "privileges": ["read"]})
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=50)
    audit_records.record(
        access.Principal("etl"),
        "credentials.issue",
        "ws.t",
        table=Table.objects.get(name="t"),
        after={"client_access": "sts", "until": until.isoformat(timespec="seconds")},
    )
    remaining = {
        "until": f"{until:%Y-%m-%dT%H:%M:%SZ}",
        "profiles": [],
        "has_hidden_profiles": False,
        "is_complete": True,
        "text": "Clients that hold credentials for files keep access until"
        f" {until:%Y-%m-%d %H:%M:%S} UTC.",
    }
    body = {"principal": "etl", "privileges": []}
    assert management.put("tables/ws$t/grants", body)["remaining"] == remaining
    assert management.put("tables/ws$t/grants", body)["remaining"] == NOTHING_REMAINS
    management.put("namespaces/ws/grants", {"principal": "etl", "privileges": ["write"]})
    reduced = {"principal": "etl", "privileges": ["browse"]}
    assert management.put("namespaces/ws/grants", reduced)["remaining"] == remaining
    api_keys.create_for(actor=SYSTEM, name="etl-key", principal="etl")
    assert management.post("keys/etl-key/revoke")["remaining"] == remaining
