import pytest

from catalog.access import SYSTEM
from catalog.models import AuditEvent, Principal, PrincipalKind, PrincipalLevel
from catalog.services.access import api_keys, principals
from tests.api.management.client import Management
from tests.cases import shared_cases


def key_of(name: str, level: PrincipalLevel) -> Management:
    _, key = api_keys.create_api_key(actor=SYSTEM, name=name, level=level)
    return Management(key)


@pytest.mark.operation("CreatePrincipal")
def test_principals_are_created(management: Management):
    made = management.post(
        "principals",
        {"name": "etl", "kind": "service", "level": "read", "description": "nightly"},
        status=201,
    )
    row = Principal.objects.get(name="etl")
    assert made == {
        "name": "etl",
        "kind": "service",
        "level": "read",
        "description": "nightly",
        "is_active": True,
        "issuer": "",
        "subject": "",
        "groups": [],
        "created_by": "tester",
        "created_at": row.created_at.isoformat().replace("+00:00", "Z"),
    }
    event = AuditEvent.objects.get(action="principal.create", target="etl")
    assert (event.actor, event.after["level"], event.interface) == ("tester", "read", "management")
    management.refused(
        409,
        "principal-already-exists",
        "'etl' exists already",
        "POST principals",
        {"name": "etl", "kind": "service"},
    )


@pytest.mark.operation("CreatePrincipal")
@shared_cases(
    ("name", "kind"),
    [
        ("", "service"),
        ("user:ada", "service"),
        ("a/b", "service"),
        (" a", "service"),
        ("a\nb", "service"),
        ("system", "service"),
        ("anonymous", "service"),
        ("x" * 201, "service"),
        ("ada", "user"),
        ("user:", "user"),
        ("user:a:b", "user"),
        ("data", "group"),
        ("user:data", "group"),
    ],
)
def test_invalid_principals_are_refused(management: Management, name, kind):
    body = {"name": name, "kind": kind}
    management.refused(400, "invalid-input", "", "POST principals", body)


@pytest.mark.operation("CreatePrincipal")
def test_an_issuer_requires_a_unique_subject(management: Management):
    body = {"name": "user:ada", "kind": "user", "issuer": "https://id.example.com"}
    management.refused(400, "invalid-input", "belong together", "POST principals", body)
    management.post("principals", {**body, "subject": "1"}, status=201)
    body = {**body, "name": "user:bob", "subject": "1"}
    management.refused(
        409, "principal-already-exists", "another has its subject", "POST principals", body
    )


@pytest.mark.operation("ListPrincipals")
def test_principals_are_listed_by_page_and_kind(management: Management):
    for name in ("b", "a"):
        principals.create_principal(actor=SYSTEM, name=name, kind=PrincipalKind.SERVICE)
    principals.create_principal(actor=SYSTEM, name="group:g", kind=PrincipalKind.GROUP)
    principals.add_member(actor=SYSTEM, group="group:g", member="a")
    first = management.get("principals?kind=service&limit=2")
    assert [row["name"] for row in first["principals"]] == ["a", "b"]
    assert first["principals"][0]["groups"] == ["group:g"]
    second = management.get(
        f"principals?kind=service&limit=2&page_token={first['next_page_token']}"
    )
    assert [row["name"] for row in second["principals"]] == ["tester"]
    assert second["next_page_token"] is None
    assert [r["name"] for r in management.get("principals?kind=group")["principals"]] == ["group:g"]


@pytest.mark.operation("GetPrincipal")
def test_principals_see_themselves_and_administrators_see_all(management: Management, reader):
    assert reader.get("principals/reader")["level"] == "read"
    assert management.get("principals/reader")["name"] == "reader"
    # The answer does not reveal whether the other principal exists.
    for name in ("tester", "nobody"):
        reader.refused(403, "permission-denied", "'reader' may not", f"GET principals/{name}")
    management.refused(404, "principal-not-found", "'nobody'", "GET principals/nobody")
    management.refused(404, "principal-not-found", "", "GET principals/a%00b")


@pytest.mark.operation("UpdatePrincipal")
def test_a_deactivated_principal_loses_all_rights_immediately(management: Management, reader):
    reader.get("jobs")
    changed = management.send("PATCH", "principals/reader", {"is_active": False})
    assert changed["is_active"] is False
    reader.refused(401, "unauthenticated", "unknown, expired or revoked", "GET jobs")
    event = AuditEvent.objects.get(action="principal.update")
    assert (event.before, event.after) == ({"is_active": True}, {"is_active": False})
    management.send("PATCH", "principals/reader", {"is_active": True})
    reader.get("jobs")


@pytest.mark.operation("UpdatePrincipal")
def test_an_update_without_change_leaves_no_event(management: Management):
    before = AuditEvent.objects.count()
    management.send("PATCH", "principals/tester", {"is_active": True, "level": "admin"})
    assert AuditEvent.objects.count() == before


@pytest.mark.operation("UpdatePrincipal")
@pytest.mark.parametrize("change", [{"is_active": False}, {"level": "read"}])
def test_the_last_administrator_is_not_removed(management: Management, change):
    management.refused(
        409, "last-administrator", "'tester' is the last", "PATCH principals/tester", change
    )
    other = key_of("other", PrincipalLevel.ADMIN)
    management.send("PATCH", "principals/tester", change)
    other.refused(409, "last-administrator", "'other'", "PATCH principals/other", change)


@pytest.mark.operation("UpdatePrincipal")
def test_an_administrator_without_a_valid_key_does_not_count(management: Management):
    row, _ = api_keys.create_api_key(actor=SYSTEM, name="other")
    api_keys.revoke_api_key(actor=SYSTEM, key=row)
    management.refused(
        409, "last-administrator", "", "PATCH principals/tester", {"is_active": False}
    )


@pytest.mark.operation("AddMember")
@pytest.mark.operation("RemoveMember")
def test_members_have_the_privileges_of_their_groups(management: Management):
    member = key_of("etl", PrincipalLevel.GRANTED)
    management.post(
        "principals", {"name": "group:ops", "kind": "group", "level": "admin"}, status=201
    )
    member.refused(403, "permission-denied", "", "GET principals")
    for _ in range(2):
        assert management.send("PUT", "principals/group:ops/members/etl", status=204) is None
    assert member.get("principals")["next_page_token"] is None
    for _ in range(2):
        management.delete("principals/group:ops/members/etl")
    member.refused(403, "permission-denied", "", "GET principals")
    actions = AuditEvent.objects.filter(target="group:ops").order_by("pk")
    assert [row.action for row in actions] == [
        "principal.create",
        "principal.join",
        "principal.leave",
    ]


@pytest.mark.operation("ListMembers")
def test_members_are_listed_by_page_and_name(management: Management):
    for name in ("group:a", "group:b"):
        management.post("principals", {"name": name, "kind": "group"}, status=201)
    for name in ("y", "x", "z"):
        key_of(name, PrincipalLevel.GRANTED)
        management.send("PUT", f"principals/group:a/members/{name}", status=204)
    management.send("PUT", "principals/group:b/members/x", status=204)

    def names(query: str = "") -> list[str]:
        return [
            row["name"]
            for row in management.get(f"principals/group:a/members{query}")["principals"]
        ]

    page = management.get("principals/group:a/members?limit=2")
    assert page["principals"][0] == management.get("principals/x")
    assert page["next_page_token"] == "y"
    assert names("?limit=2&page_token=y") == ["z"]
    assert names("?member=y") == ["y"]
    assert names("?member=tester") == []
    management.refused(400, "invalid-input", "'x' is not a group", "GET principals/x/members")
    management.refused(404, "principal-not-found", "'group:c'", "GET principals/group:c/members")


@pytest.mark.operation("AddMember")
def test_invalid_members_are_refused(management: Management):
    for name in ("group:a", "group:b"):
        management.post("principals", {"name": name, "kind": "group"}, status=201)
    management.refused(
        400,
        "invalid-input",
        "cannot be a member of a group",
        "PUT principals/group:a/members/group:b",
    )
    management.refused(
        400, "invalid-input", "'tester' is not a group", "PUT principals/tester/members/tester"
    )
    management.refused(404, "principal-not-found", "'x'", "PUT principals/group:a/members/x")


@pytest.mark.operation("RemoveMember")
def test_a_group_keeps_its_last_administrator(management: Management):
    management.post(
        "principals", {"name": "group:ops", "kind": "group", "level": "admin"}, status=201
    )
    key_of("etl", PrincipalLevel.GRANTED)
    management.send("PUT", "principals/group:ops/members/etl", status=204)
    management.send("PATCH", "principals/tester", {"level": "granted"})
    member = Management(api_keys.add_key(actor=SYSTEM, principal="etl", name="etl-2")[1])
    member.refused(409, "last-administrator", "", "DELETE principals/group:ops/members/etl")
    change = {"is_active": False}
    member.refused(409, "last-administrator", "", "PATCH principals/group:ops", change)


@pytest.mark.parametrize(
    ("request_", "body"),
    [
        ("GET principals", None),
        ("POST principals", {"name": "x", "kind": "service"}),
        ("PATCH principals/reader", {"level": "admin"}),
        ("PUT principals/group:g/members/reader", None),
        ("DELETE principals/group:g/members/reader", None),
    ],
)
def test_only_administrators_change_principals(reader: Management, request_, body):
    principals.create_principal(
        actor=SYSTEM, name="group:g", kind=PrincipalKind.GROUP, level=PrincipalLevel.ADMIN
    )
    reader.refused(403, "permission-denied", "'reader' may not administer", request_, body)
