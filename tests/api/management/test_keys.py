from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from catalog.access import SYSTEM, tokens
from catalog.models import ApiKey, AuditEvent, PrincipalLevel
from catalog.services.access import api_keys, known_keys, principals
from tests.api.management.client import Management
from tests.cases import shared_cases
from tests.factories import make_namespace, unchanged


@pytest.fixture
def etl(db) -> Management:
    """A service account without grants."""
    _, key = api_keys.create_api_key(actor=SYSTEM, name="etl", level=PrincipalLevel.GRANTED)
    return Management(key)


def written() -> str:
    return str(list(AuditEvent.objects.values())) + str(list(ApiKey.objects.values()))


@pytest.mark.operation("CreateKey")
def test_a_principal_may_have_several_keys(management: Management, etl: Management):
    body = {"principal": "etl", "name": "laptop", "scopes": ["write"]}
    response = management.call("POST", "keys", body)
    assert (response.status_code, response["cache-control"]) == (201, "no-store")
    made = response.json()
    details = made["details"]
    assert details == {
        "name": "laptop",
        "principal": "etl",
        "prefix": made["key"][:8],
        "scopes": ["browse", "read", "write"],
        "namespace": None,
        "created_by": "tester",
        "created_at": details["created_at"],
        "expires_at": details["expires_at"],
        "revoked_at": None,
        "last_used_at": None,
        "replaced_by": None,
    }
    lifetime = datetime.fromisoformat(details["expires_at"]) - timezone.now()
    assert timedelta(days=89, hours=23) < lifetime <= timedelta(days=90)
    assert made["key"] not in written()
    assert Management(made["key"]).get("principals/etl")["name"] == "etl"
    etl.get("principals/etl")
    event = AuditEvent.objects.filter(action="api_key.create").latest("pk")
    assert (event.target, event.after["scopes"]) == ("laptop", ["write"])


@pytest.mark.operation("CreateKey")
@shared_cases(
    ("change", "status", "kind"),
    [
        ({"name": "etl"}, 400, "invalid-input"),
        ({"name": "a:b"}, 400, "invalid-input"),
        ({"name": "system"}, 400, "invalid-input"),
        ({"name": "x" * 101}, 400, "invalid-input"),
        ({"scopes": []}, 400, "invalid-input"),
        ({"scopes": ["rule"]}, 400, "invalid-input"),
        ({"principal": "nobody"}, 404, "principal-not-found"),
        ({"principal": "a\x00b"}, 400, "invalid-input"),
        ({"principal": "group:g"}, 400, "invalid-input"),
        ({"namespace": ["gone"]}, 404, "namespace-not-found"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, 400, "invalid-input"),
        ({"expires_at": "2099-01-01T00:00:00"}, 400, "invalid-input"),
    ],
    prepare=lambda: principals.create_principal(actor=SYSTEM, name="group:g", kind="group"),
)
def test_invalid_keys_are_refused(management: Management, etl, change, status, kind):
    body = {"principal": "etl", "name": "laptop"} | change
    management.refused(status, kind, "", "POST keys", body)


@pytest.mark.operation("CreateKey")
def test_a_new_key_has_no_more_rights_than_the_key_of_the_request(etl: Management, management):
    namespace = make_namespace("a")
    make_namespace("b")
    narrow = management.post(
        "keys",
        {
            "principal": "etl",
            "name": "narrow",
            "scopes": ["read"],
            "namespace": ["a"],
            "expires_at": "2099-01-01T00:00:00Z",
        },
        status=201,
    )
    client = Management(narrow["key"])
    wider = {"principal": "etl", "name": "wider"}
    client.refused(
        403,
        "permission-denied",
        "permits read only",
        "POST keys",
        wider | {"scopes": ["write"]},
    )
    client.refused(404, "namespace-not-found", "", "POST keys", wider | {"namespace": ["b"]})
    client.refused(
        403, "permission-denied", "of 'tester'", "POST keys", wider | {"principal": "tester"}
    )
    made = client.post("keys", wider | {"expires_at": "2100-01-01T00:00:00Z"}, status=201)[
        "details"
    ]
    assert made["scopes"] == ["browse", "read"]
    assert made["namespace"] == ["a"]
    row = ApiKey.objects.get(name="wider")
    assert (row.namespace, row.expires_at) == (namespace, datetime(2099, 1, 1, tzinfo=UTC))
    # The key may not rotate a key with more rights.
    client.refused(
        403,
        "permission-denied",
        "permits read only",
        "POST keys/etl/rotate",
        {"overlap_seconds": 60},
    )


@pytest.mark.operation("CreateKey")
def test_a_key_expires_with_the_token_of_its_request(etl: Management, settings):
    """Otherwise a token that is valid for an hour could be exchanged for a key without expiry."""
    settings.MONODON_OIDC_KEY_DAYS = 30  # the setting does not apply to these tokens
    token = tokens.issue_token(ApiKey.objects.get(name="etl").pk)
    client = Management(authorization=f"Bearer {token}")
    before = timezone.now()
    for name, expiry in (("one", {}), ("two", {"expires_at": "2099-01-01T00:00:00Z"})):
        client.post("keys", {"principal": "etl", "name": name, **expiry}, status=201)
        lifetime = ApiKey.objects.get(name=name).expires_at - before
        assert timedelta(minutes=59) < lifetime <= timedelta(hours=1)
    soon = (before + timedelta(minutes=5)).isoformat()
    client.post("keys", {"principal": "etl", "name": "three", "expires_at": soon}, status=201)
    assert ApiKey.objects.get(name="three").expires_at.isoformat() == soon


@pytest.mark.operation("RotateKey")
def test_a_token_may_not_rotate_a_key_that_expires_later(etl: Management):
    """The new key would expire with the token, and leave the account without a key."""
    token = tokens.issue_token(ApiKey.objects.get(name="etl").pk)
    client = Management(authorization=f"Bearer {token}")
    body = {"overlap_seconds": 60}
    text = "before the key to be replaced: set an end that is not later, or present another key"
    client.refused(403, "permission-denied", text, "POST keys/etl/rotate", body)
    client.refused(
        403,
        "permission-denied",
        text,
        "POST keys/etl/rotate",
        body | {"expires_at": "2099-01-01T00:00:00Z"},
    )
    soon = timezone.now() + timedelta(minutes=5)
    client.post("keys/etl/rotate", body | {"expires_at": soon.isoformat()}, status=201)
    assert ApiKey.objects.get(name="etl-2").expires_at == soon


@pytest.mark.operation("RotateKey")
def test_a_key_that_expires_may_not_rotate_one_that_does_not(etl: Management):
    end = timezone.now() + timedelta(days=3)
    _, key = api_keys.add_key(actor=SYSTEM, principal="etl", name="short", expires_at=end)
    Management(key).refused(
        403,
        "permission-denied",
        "before the key to be replaced",
        "POST keys/etl/rotate",
        {"overlap_seconds": 60},
    )
    Management(key).post("keys/short/rotate", {"overlap_seconds": 60}, status=201)
    assert ApiKey.objects.get(name="short-2").expires_at == end


@pytest.mark.operation("ListKeys")
@pytest.mark.operation("GetKey")
def test_principals_see_their_own_keys(management: Management, etl: Management):
    assert [row["name"] for row in etl.get("keys")["keys"]] == ["etl"]
    assert [row["name"] for row in management.get("keys")["keys"]] == ["etl", "tester"]
    assert [row["name"] for row in management.get("keys?principal=etl")["keys"]] == ["etl"]
    page = management.get("keys?limit=1")
    assert page["next_page_token"] == "etl"
    assert [r["name"] for r in management.get("keys?page_token=etl")["keys"]] == ["tester"]
    assert etl.get("keys/etl")["last_used_at"] is not None
    assert etl.get("keys?principal=tester")["keys"] == []
    for name in ("tester", "nobody"):
        etl.refused(404, "key-not-found", f"'{name}'", f"GET keys/{name}")


@pytest.mark.operation("RotateKey")
def test_a_key_is_replaced_with_an_overlap(etl: Management, monkeypatch):
    made = etl.post("keys/etl/rotate", {"overlap_seconds": 3600}, status=201)
    old, new = ApiKey.objects.get(name="etl"), ApiKey.objects.get(name="etl-2")
    assert old.replaced_by == new
    assert timedelta(minutes=59) < old.expires_at - timezone.now() <= timedelta(hours=1)
    assert (new.principal, new.scopes, new.expires_at) == (old.principal, None, None)
    Management(made["key"]).get("keys/etl")
    assert etl.get("keys/etl")["replaced_by"] == "etl-2"
    etl.refused(
        400,
        "invalid-input",
        "already replaced, by 'etl-2'",
        "POST keys/etl/rotate",
        {"overlap_seconds": 60},
    )
    again = Management(made["key"]).post("keys/etl-2/rotate", {"overlap_seconds": 60}, status=201)
    assert again["details"]["name"] == "etl-3"
    # After the overlap, the old key is expired.
    ApiKey.objects.filter(name="etl").update(expires_at=timezone.now())
    known_keys.forget_keys()
    etl.refused(401, "unauthenticated", "", "GET keys")
    assert made["key"] not in written()


@pytest.mark.operation("RotateKey")
def test_a_rotation_without_overlap_expires_the_old_key_immediately(etl: Management):
    made = etl.post("keys/etl/rotate", {"overlap_seconds": 0, "name": "fresh"}, status=201)
    etl.refused(401, "unauthenticated", "", "GET keys")
    assert Management(made["key"]).get("keys/fresh")["principal"] == "etl"


@pytest.mark.operation("RotateKey")
@pytest.mark.parametrize(
    "body",
    [
        {"overlap_seconds": -1},
        {"overlap_seconds": 31 * 86_400},
        {"name": "tester"},
        {"name": "a:b"},
        {"expires_at": "2020-01-01T00:00:00Z"},
    ],
)
def test_invalid_rotations_are_refused(management: Management, etl, body):
    body = {"overlap_seconds": 60} | body
    management.refused(400, "invalid-input", "", "POST keys/etl/rotate", body)
    management.refused(404, "key-not-found", "", "POST keys/nobody/rotate", {"overlap_seconds": 60})


@pytest.mark.operation("RotateKey")
def test_only_administrators_change_the_expiry_in_a_rotation(
    management: Management, etl: Management
):
    end = timezone.now() + timedelta(days=3)
    api_keys.add_key(actor=SYSTEM, principal="etl", name="short", expires_at=end)
    later = {"overlap_seconds": 60, "expires_at": "2099-01-01T00:00:00Z"}
    etl.post("keys/short/rotate", later, status=201)
    assert ApiKey.objects.get(name="short-2").expires_at == end
    management.post("keys/short-2/rotate", later, status=201)
    assert ApiKey.objects.get(name="short-3").expires_at == datetime(2099, 1, 1, tzinfo=UTC)
    api_keys.revoke_api_key(actor=SYSTEM, key=ApiKey.objects.get(name="short-3"))
    management.refused(
        400, "invalid-input", "has ended", "POST keys/short-3/rotate", {"overlap_seconds": 60}
    )


@pytest.mark.operation("RevokeKey")
def test_a_key_is_revoked(management: Management, etl: Management):
    assert management.post("keys/etl/revoke")["revoked_at"] is not None
    etl.refused(401, "unauthenticated", "", "GET keys")
    with unchanged():
        management.post("keys/etl/revoke")


@pytest.mark.operation("RevokeKey")
def test_keys_of_other_principals_get_404(etl: Management, management):
    etl.refused(404, "key-not-found", "", "POST keys/tester/revoke")
    assert management.get("keys/tester")["revoked_at"] is None


def test_a_key_limited_to_a_namespace_may_not_administer(management: Management):
    make_namespace("a")
    body = {"principal": "tester", "name": "inside", "namespace": ["a"]}
    inside = Management(management.post("keys", body, status=201)["key"])
    inside.refused(403, "permission-denied", "", "GET principals")
    inside.refused(403, "permission-denied", "", "POST keys", {"principal": "reader", "name": "x"})


@pytest.mark.operation("CreateKey")
def test_only_administrators_create_keys_that_never_expire(management: Management, etl: Management):
    body = {"principal": "etl", "name": "endless", "expires_at": None}
    text = "Only an administrator may create an API key that never expires"
    with unchanged():
        etl.refused(403, "permission-denied", text, "POST keys", body)
    assert management.post("keys", body, status=201)["details"]["expires_at"] is None


@pytest.mark.operation("CreateKey")
def test_keys_created_by_their_principal_expire_after_90_days(etl: Management):
    etl.post("keys", {"principal": "etl", "name": "laptop"}, status=201)
    lifetime = ApiKey.objects.get(name="laptop").expires_at - timezone.now()
    assert timedelta(days=89, hours=23) < lifetime <= timedelta(days=90)
