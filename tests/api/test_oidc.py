"""Bearer tokens of an OpenID Connect issuer, in all protocols."""

import base64
import contextlib
import hmac
import itertools
import json
import logging
import socket
import sys
import threading
import time
from datetime import timedelta

import pytest
import requests
from django.contrib.auth import get_user_model
from django.utils import timezone
from joserfc import jwt
from joserfc.jwk import RSAKey

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import Unauthenticated
from catalog.models import ApiKey, AuditEvent, Namespace, Principal, PrincipalKind, PrincipalLevel
from catalog.services.access import (
    api_keys,
    key_rules,
    known_keys,
    oidc,
    principals,
    timed_calls,
    users,
)
from catalog.services.engine import locks
from tests import clocks
from tests import issuer as issuers
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.api.management.client import Management
from tests.cases import shared_cases
from tests.factories import make_namespace, unchanged
from tests.issuer import AUDIENCE, Issuer

YEAR_2100 = 4_102_444_800


@pytest.fixture
def issuer(db, settings):
    oidc.forget()
    with issuers.running() as issuer:
        settings.MONODON_OIDC_ISSUERS = [issuer.url]
        settings.MONODON_OIDC_AUDIENCES = [AUDIENCE, "other"]
        settings.MONODON_OIDC_AUTO_CREATE = False
        yield issuer
    oidc.forget()


@pytest.fixture
def ada(issuer: Issuer) -> Principal:
    return principals.create_principal(
        actor=SYSTEM,
        name="user:ada",
        kind=PrincipalKind.USER,
        level=PrincipalLevel.ADMIN,
        issuer=issuer.url,
        subject="ada-1",
    )


def bearer(token: str) -> Management:
    return Management(authorization=f"Bearer {token}")


def refused(token: str, text: str = "", status: int = 401, kind: str = "unauthenticated") -> None:
    """Expect a refusal with this detail; without one, of any."""
    answer = bearer(token).refused(status, kind, text, "GET jobs")
    assert text in {"", answer.json()["detail"]}


def taken(name: str) -> str:
    return (
        f"The token's subject is not known here, and another principal has the name '{name}': an"
        " administrator has to enter issuer and subject there"
    )


@pytest.fixture
def clock(monkeypatch):
    """Function that advances the clock of the caches of keys and tokens, not the wall clock."""
    moved = [0.0]
    for module in (oidc, known_keys):
        clocks.replace(monkeypatch, module, monotonic=lambda: time.monotonic() + moved[0])

    def move(seconds: float) -> None:
        moved[0] += seconds

    return move


def test_every_protocol_accepts_a_token(issuer: Issuer, ada):
    token = issuer.token(azp="notebook")
    assert bearer(token).get("principals/user:ada")["subject"] == "ada-1"
    assert Lance(authorization=f"Bearer {token}").get("/v1/table") == {"tables": []}
    assert Lance(token).get("/v1/table") == {"tables": []}
    Iceberg(token).post("namespaces", {"namespace": ["a"]})
    event = AuditEvent.objects.get(action="namespace.create")
    assert (event.actor, event.key) == ("user:ada", "notebook")
    assert issuer.requests == {"/.well-known/openid-configuration": 1, "/jwks": 1}


@shared_cases(
    "claims, message",
    [
        ({"aud": "another"}, "The token is not valid (InvalidClaimError)"),
        ({"aud": None}, "The token is not valid (MissingClaimError)"),
        ({"aud": []}, ""),
        ({"sub": None}, "The token is not valid (MissingClaimError)"),
        ({"sub": ""}, ""),
        ({"sub": 5}, "The token is not valid (InvalidClaimError)"),
        ({"sub": "a\nb"}, "The token's subject is not printable, or too long"),
        ({"sub": "x" * 501}, "The token's subject is not printable, or too long"),
        ({"sub": "x" * 500}, "The token's subject is not known here"),
        ({"sub": "somebody"}, "The token's subject is not known here"),
        ({"iss": "https://elsewhere.example.com"}, "The token's issuer is not known here"),
        ({"iss": None}, "The token is malformed"),
        ({"iss": ["x"]}, "The token's issuer is not known here"),
        ({"exp": None}, "The token is not valid (MissingClaimError)"),
        ({"exp": "tomorrow"}, "The token is not valid (InvalidClaimError)"),
        ({"nbf": YEAR_2100}, ""),
        ({"iat": YEAR_2100}, ""),
    ],
)
def test_invalid_claims_are_refused(issuer: Issuer, ada, claims, message):
    bearer(issuer.token()).get("jobs")
    refused(issuer.token(**claims), message)


def test_times_have_a_leeway_of_a_minute(issuer: Issuer, ada):
    now = time.time()
    bearer(issuer.token(exp=now - 30, nbf=now + 30, iat=now + 30)).get("jobs")
    refused(issuer.token(exp=now - 90), "The access token has expired", 401, "token-expired")
    bearer(issuer.token(aud=["x", "other"])).get("jobs")


def test_only_the_issuers_keys_and_allowed_algorithms_are_accepted(issuer: Issuer, ada, settings):
    token = issuer.token()
    head, body, signature = token.split(".")
    stranger = RSAKey.generate_key(2048, {"kid": "one"})
    others = issuers.other_keys()
    public = issuer.keys[0].as_pem(private=False)

    def spelled(header: dict[str, str]) -> str:
        return base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()

    # The public key, used as a shared secret.
    confused = f"{spelled({'alg': 'HS256', 'kid': 'one'})}.{body}"
    mark = hmac.new(public, confused.encode(), "sha256").digest()
    confused += "." + base64.urlsafe_b64encode(mark).rstrip(b"=").decode()
    for forged in (
        issuer.token(key=stranger),
        issuer.token(key=others["EC"]),
        issuer.token(key=others["oct"], header={"kid": "one"}),
        confused,
        f"{head}.{body}.{signature[:-4]}AAAA",
        f"{head}.{body}.",
        f"{spelled({'alg': 'none', 'kid': 'one'})}.{body}.",
        f"{spelled({'alg': 'RS256', 'kid': 'two'})}.{body}.{signature}",
        f"{spelled({'kid': 'one'})}.{body}.{signature}",
        f"{spelled({'alg': 'RS256', 'kid': ['one']})}.{body}.{signature}",
        f"{head}.{body[:-3]}.{signature}",
    ):
        refused(forged)
    for malformed in (
        f"{head}.e30.{signature}",
        "eyJ..",
        "eyJhbGciOiJub25lIn0.eyJpc3MiOlsi.x",
        "eyJ" + "x" * 20_000 + ".e30.x",
    ):
        refused(malformed, "The token is malformed")
    settings.MONODON_OIDC_ALGORITHMS = ["ES256"]
    known_keys.forget_keys()
    refused(token)


def test_unsupported_keys_of_the_issuer_are_ignored(issuer: Issuer, ada):
    key = issuers.other_keys()["EC"]
    issuer.keys.append(key)
    real = issuer.answer

    def answer(path: str, form: dict[str, str], header: str):
        status, document = real(path, form, header)
        if path == "/jwks":
            document["keys"] += [
                {"kty": "new"},
                {"kty": "RSA"},
                "x",
                {"kty": "oct", "k": "YQ"},
                {"kty": ["RSA"]},
            ]
        return status, document

    issuer.answer = answer
    bearer(issuer.token(key=key)).get("jobs")
    bearer(issuer.token(key=issuer.keys[0])).get("jobs")


def test_a_token_without_kid_requires_a_single_key(issuer: Issuer, ada):
    named = issuer.keys[0].as_dict(private=True)
    plain = RSAKey.import_key({name: value for name, value in named.items() if name != "kid"})
    token = issuer.token(key=plain)
    bearer(token).get("jobs")
    issuer.keys.append(RSAKey.generate_key(2048, {"kid": "two"}))
    oidc.forget()
    known_keys.forget_keys()
    refused(token, "The token's key is not one of its issuer's")


def test_without_an_audience_tokens_are_refused(issuer: Issuer, ada, settings):
    settings.MONODON_OIDC_AUDIENCES = []
    refused(issuer.token(), "No audience is configured for bearer tokens")


def test_without_an_issuer_tokens_are_refused(issuer: Issuer, ada, settings):
    settings.MONODON_OIDC_ISSUERS = []
    refused(issuer.token(), "The API key is unknown, expired or revoked")
    assert issuer.requests == {}


def test_the_verified_claims_name_the_issuer_of_the_keys(issuer: Issuer, monkeypatch):
    """Also if the two readers of the token should disagree about it."""
    monkeypatch.setattr(oidc, "_issuer_of", lambda _: issuer.url)
    assert oidc.verify(issuer.token(), [AUDIENCE])[0] == issuer.url
    for claims in ({"iss": "https://elsewhere.example.com"}, {"iss": None}):
        with pytest.raises(Unauthenticated, match=r"^The token is not valid"):
            oidc.verify(issuer.token(**claims), [AUDIENCE])


def test_an_id_token_belongs_to_one_log_in(issuer: Issuer):
    token = issuer.token(nonce="a")
    assert oidc.verify(token, [AUDIENCE], nonce="a")[0] == issuer.url
    with pytest.raises(Unauthenticated, match=r"^The ID token is of another log-in$"):
        oidc.verify(token, [AUDIENCE], nonce="b")


@shared_cases(
    ("claims", "key"),
    [
        ({"client_id": "cli"}, "cli"),
        ({"azp": "notebook", "client_id": "cli"}, "notebook"),
        ({"azp": "a\nb"}, ""),
        ({"azp": 5}, ""),
        ({"azp": "x" * 101}, "x" * 100),
        ({}, ""),
    ],
)
def test_the_client_of_a_token_is_the_key(issuer: Issuer, ada, claims, key):
    end = int(time.time()) + 300
    principal, seconds = oidc.authenticate(issuer.token(exp=end, **claims))
    assert (principal.key, principal.is_vouched_for) == (key, True)
    assert principal.ends_at.timestamp() == end
    assert 350 < seconds <= 360  # with the leeway


# --- trust ---------------------------------------------------------------------------------------


def test_a_cached_token_is_refused_after_its_expiry(issuer: Issuer, ada, monkeypatch):
    now, start = int(time.time()), time.monotonic()

    def advance(seconds: float) -> None:
        clocks.replace(monkeypatch, known_keys, monotonic=lambda: start + seconds)
        for module in (oidc, sys.modules[jwt.JWTClaimsRegistry.__module__]):
            clocks.replace(monkeypatch, module, time=lambda: now + seconds)

    advance(0)
    # With the leeway, the token expires before the cache looks for revoked keys again.
    token = issuer.token(exp=now - oidc.LEEWAY_SECONDS + 2)
    bearer(token).get("jobs")
    advance(2.5)
    refused(token, "The access token has expired", 401, "token-expired")


def test_deactivated_principals_are_refused(issuer: Issuer, ada):
    token = issuer.token()
    bearer(token).get("jobs")
    principals.create_principal(
        actor=SYSTEM,
        name="user:bob",
        kind=PrincipalKind.USER,
        level=PrincipalLevel.ADMIN,
        issuer=issuer.url,
        subject="bob",
    )
    principals.update_principal(actor=SYSTEM, name="user:ada", is_active=False)
    refused(token, "The token's subject was deactivated here")


# --- keys ----------------------------------------------------------------------------------------


def test_new_keys_are_fetched_if_a_token_names_an_unknown_key(issuer: Issuer, ada, clock):
    bearer(issuer.token()).get("jobs")
    issuer.rotate()
    token = issuer.token()
    refused(
        token, "The token's key is not one of its issuer's"
    )  # the keys were fetched a moment ago
    assert issuer.requests["/jwks"] == 1
    clock(31)
    bearer(token).get("jobs")
    assert issuer.requests["/jwks"] == 2


def test_many_unknown_keys_cause_one_request_to_the_issuer(issuer: Issuer, ada, clock):
    bearer(issuer.token()).get("jobs")
    clock(31)
    for i in range(20):
        key = RSAKey.import_key(issuer.keys[0].as_dict(private=True) | {"kid": f"k{i}"})
        refused(issuer.token(key=key))
    assert issuer.requests["/jwks"] == 2


def test_keys_that_the_issuer_removed_expire(issuer: Issuer, ada, clock):
    token = issuer.token()
    bearer(token).get("jobs")
    issuer.rotate()
    known_keys.forget_keys()
    bearer(token).get("jobs")
    clock(901)
    known_keys.forget_keys()
    refused(token, "The token's key is not one of its issuer's")


@pytest.mark.parametrize("status", [302, 404, 500])
def test_tokens_are_refused_while_the_issuer_is_unreachable(
    issuer: Issuer, ada, clock, caplog, status
):
    issuer.status = status
    token = issuer.token()
    for _ in range(3):
        response = bearer(token).refused(
            503, "service-unavailable", "are not available", "GET jobs"
        )
        assert response["retry-after"] == "1"
        text = "The keys of the token's issuer are not available at the moment"
        assert response.json()["detail"] == text
    # The issuer was asked once, not for each request.
    assert issuer.requests == {"/.well-known/openid-configuration": 1}
    warnings = [row.getMessage() for row in caplog.records if row.name == oidc.__name__]
    assert warnings == [f"Cannot fetch the keys of {issuer.url}: ValueError"]
    issuer.status = 200
    clock(11)
    bearer(token).get("jobs")


def test_cached_keys_are_valid_for_an_hour_while_the_issuer_is_unreachable(
    issuer: Issuer, ada, clock
):
    token = issuer.token()
    bearer(token).get("jobs")
    issuer.status = 500
    clock(1800)
    known_keys.forget_keys()
    bearer(token).get("jobs")
    clock(1801)
    known_keys.forget_keys()
    bearer(token).refused(503, "service-unavailable", "are not available", "GET jobs")


def test_a_closed_port_of_the_issuer_is_reported(issuer: Issuer, ada, settings):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    settings.MONODON_OIDC_ISSUERS = [f"http://127.0.0.1:{port}"]
    token = issuer.token(iss=f"http://127.0.0.1:{port}")
    bearer(token).refused(503, "service-unavailable", "are not available", "GET jobs")


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://elsewhere.example.com"},
        {"jwks_uri": "http://keys.example.com/jwks"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": None},
        {"jwks_uri": "x" * 600_000},
    ],
)
def test_invalid_documents_of_the_issuer_are_refused(issuer: Issuer, ada, document):
    issuer.document = document
    bearer(issuer.token()).refused(503, "service-unavailable", "are not available", "GET jobs")


def test_a_deeply_nested_document_of_the_issuer_is_refused(issuer: Issuer, ada, monkeypatch):
    content = b'{"issuer":' + b"[" * 200_000
    monkeypatch.setattr(requests.Response, "iter_content", lambda *_: iter([content]))
    for _ in range(2):
        bearer(issuer.token()).refused(503, "service-unavailable", "are not available", "GET jobs")
    assert issuer.requests == {"/.well-known/openid-configuration": 1}


def test_a_private_key_of_the_issuer_is_not_computed(issuer: Issuer, ada):
    """Its primes would be derived from the exponent, for hours and with the interpreter locked."""
    hostile = {"kty": "RSA", "kid": "slow", "n": "h" * 10_000 + "Q", "e": "AQAB", "d": "h" * 10_000}
    private = issuer.keys[0].as_dict(private=True)
    answer = issuer.answer
    issuer.answer = lambda path, *rest: (
        (200, {"keys": [hostile, private]}) if path == "/jwks" else answer(path, *rest)
    )
    bearer(issuer.token()).get("jobs")


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nX: "])
@pytest.mark.usefixtures("ada")
def test_an_issuer_that_never_ends_its_answer_is_waited_for_once(
    issuer: Issuer, settings, clock, monkeypatch, sent
):
    monkeypatch.setattr(timed_calls, "WHOLE_SECONDS", 0.5)
    has_ended = threading.Event()
    connections = []

    def drip(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connections.append(server.accept()[0])
                threading.Thread(target=send, args=[connections[-1]], daemon=True).start()

    def send(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.sendall(sent)
            while not has_ended.wait(0.05):
                if sent:
                    connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=drip, args=[server], daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        settings.MONODON_OIDC_ISSUERS = [url]
        token = issuer.token(iss=url)
        began = time.perf_counter()
        for _ in range(3):
            bearer(token).refused(503, "service-unavailable", "are not available", "GET jobs")
            clock(11)
        assert time.perf_counter() - began < 4
        assert len(connections) == 1
        has_ended.set()


def test_keys_are_fetched_over_https_if_the_document_is(monkeypatch):
    url = "https://issuer.example.com"
    for address, is_valid in [(f"{url}/jwks", True), ("http://127.0.0.1:9/jwks", False)]:
        answers = {url + "/.well-known/openid-configuration": {"issuer": url, "jwks_uri": address}}
        monkeypatch.setattr(oidc, "fetch_json", lambda at, a=answers: a.get(at, {"keys": []}))
        with contextlib.nullcontext() if is_valid else pytest.raises(ValueError, match="https"):
            assert oidc._fetch(url)[1] == []


def test_concurrent_requests_ask_the_issuer_once(issuer: Issuer, ada):
    """The first request of a process fetches the keys; concurrent requests wait for it."""
    token, callers = issuer.token(), []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        callers.append(oidc.verify(token, [AUDIENCE])[1]["sub"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert callers == ["ada-1"] * 8
    assert issuer.requests == {"/.well-known/openid-configuration": 1, "/jwks": 1}


# --- principals and groups -----------------------------------------------------------------------


def test_an_unknown_subject_is_refused_unless_principals_are_created_automatically(
    issuer: Issuer, settings
):
    token = issuer.token("new-1", preferred_username="grace")
    refused(token, "The token's subject is not known here")
    settings.MONODON_OIDC_AUTO_CREATE = True
    assert bearer(token).get("principals/user:grace")["level"] == "granted"
    row = Principal.objects.get()
    assert (row.name, row.issuer, row.subject) == ("user:grace", issuer.url, "new-1")
    event = AuditEvent.objects.get(action="principal.create")
    assert (event.actor, event.target) == ("system", "user:grace")
    # The subject identifies the principal, whatever its name is later.
    known_keys.forget_keys()
    bearer(issuer.token("new-1", preferred_username="admin")).get("principals/user:grace")
    assert Principal.objects.count() == 1


@pytest.mark.parametrize("name", ["ada", "a:b", "a/b", "a\nb", " a", "x" * 300, "\u0430da"])
def test_names_of_other_principals_are_refused(issuer: Issuer, ada, settings, name):
    settings.MONODON_OIDC_AUTO_CREATE = True
    refused(issuer.token("evil", preferred_username=name))
    assert Principal.objects.count() == 1


def test_names_of_users_of_the_admin_are_refused(issuer: Issuer, settings, django_user_model):
    settings.MONODON_OIDC_AUTO_CREATE = True
    django_user_model.objects.create_superuser("root", password="x")
    refused(
        issuer.token("evil", preferred_username="root"),
        taken("user:root"),
    )


def test_names_of_deleted_principals_are_refused(issuer: Issuer, settings, django_user_model):
    """Otherwise the new principal would get the objects of the deleted one."""
    settings.MONODON_OIDC_AUTO_CREATE = True
    Namespace.objects.filter(pk=make_namespace("his").pk).update(owner="user:bob")
    token = issuer.token("bob-1", preferred_username="bob")
    with unchanged():
        refused(
            token,
            "The token's subject is not known here, and a former principal 'user:bob' still owns"
            " objects: an administrator has to create the principal",
        )
    django_user_model.objects.create_user("carl").delete()
    with unchanged():
        refused(
            issuer.token("carl-1", preferred_username="carl"),
            taken("user:carl"),
        )


def test_a_subject_whose_user_was_deleted_is_refused(issuer: Issuer, ada, settings):
    settings.MONODON_OIDC_AUTO_CREATE = True
    api_keys.create_api_key(actor=SYSTEM, name="another")  # an administrator
    with users.joining(ada):
        user = get_user_model().objects.create_user("ada")
    bearer(issuer.token()).get("jobs")
    user.delete()
    with unchanged():
        refused(issuer.token(), "The token's subject was deactivated here")


def test_the_groups_claim_sets_membership_in_the_issuers_groups(issuer: Issuer, settings):
    settings.MONODON_OIDC_AUTO_CREATE = True
    for name, subject in (("group:ops", "Operations"), ("group:data", "data")):
        principals.create_principal(
            actor=SYSTEM,
            name=name,
            kind=PrincipalKind.GROUP,
            level=PrincipalLevel.ADMIN if name == "group:ops" else PrincipalLevel.GRANTED,
            issuer=issuer.url,
            subject=subject,
        )
    principals.create_principal(
        actor=SYSTEM, name="group:admins", kind=PrincipalKind.GROUP, level=PrincipalLevel.ADMIN
    )

    start = int(time.time()) - 60
    seconds = itertools.count(start)

    def of(**claims: object) -> list[str]:
        known_keys.forget_keys()
        token = issuer.token("g", iat=next(seconds), **claims)
        return bearer(token).get("principals/user:g")["groups"]

    # The claim does not add members to groups without an issuer.
    assert of(groups=["data", "admins", "group:admins", "x"]) == ["group:data"]
    refused_ = bearer(issuer.token("g", groups=["data"], iat=start, jti="2"))
    refused_.refused(403, "permission-denied", "", "GET principals")
    assert of(groups=["data", "Operations"]) == ["group:data", "group:ops"]
    bearer(issuer.token("g", groups=["data", "Operations"], iat=next(seconds))).get("principals")
    assert of() == ["group:data", "group:ops"]  # the claim is absent
    assert of(groups=5) == ["group:data", "group:ops"]
    principals.add_member(actor=SYSTEM, group="group:admins", member="user:g")
    assert of(groups="data") == ["group:admins", "group:data"]
    assert of(groups=[]) == ["group:admins"]
    joined = AuditEvent.objects.filter(action="principal.leave").order_by("pk")
    assert [row.target for row in joined] == ["group:ops", "group:data"]


@pytest.fixture
def now() -> int:
    return int(time.time())


@pytest.fixture
def grace(issuer: Issuer, settings, now) -> Principal:
    """A person at the issuer, which has the groups ops and data."""
    settings.MONODON_OIDC_AUTO_CREATE = True
    for name in ("ops", "data"):
        principals.create_principal(
            actor=SYSTEM,
            name=f"group:{name}",
            kind=PrincipalKind.GROUP,
            issuer=issuer.url,
            subject=name,
        )
    oidc.authenticate(issuer.token("grace", iat=now - 50, groups=["ops"]))
    return Principal.objects.get(name="user:grace")


def groups_of(row: Principal) -> list[str]:
    return sorted(row.groups.values_list("subject", flat=True))


@pytest.mark.parametrize("issued_at", [-60, -50.5, "before 1970", None])
def test_a_token_that_is_not_newer_changes_no_membership(issuer: Issuer, grace, now, issued_at):
    iat = -1 if issued_at == "before 1970" else issued_at and now + issued_at
    with unchanged():
        for groups in (["data"], []):
            oidc.authenticate(issuer.token("grace", iat=iat, groups=groups))
    assert groups_of(grace) == ["ops"]


def test_a_newer_token_changes_memberships_and_an_older_one_does_not_restore_them(
    issuer: Issuer, grace, now
):
    oidc.authenticate(issuer.token("grace", iat=now - 40, groups=["data"]))
    assert groups_of(grace) == ["data"]
    oidc.authenticate(issuer.token("grace", iat=now - 30))  # without the claim
    with unchanged():
        oidc.authenticate(issuer.token("grace", iat=now - 50, groups=["ops"]))
    oidc.authenticate(issuer.token("grace", iat=now - 39, groups=["ops", "data"]))
    assert groups_of(grace) == ["data", "ops"]


def test_another_token_of_the_same_second_only_ends_memberships(issuer: Issuer, grace, now):
    with unchanged():
        oidc.authenticate(issuer.token("grace", iat=now - 50, groups=["ops", "data"]))
    oidc.authenticate(issuer.token("grace", iat=now - 50, groups=["data"]))
    assert groups_of(grace) == []
    with unchanged():
        oidc.authenticate(issuer.token("grace", iat=now - 50, groups=["ops"]))


def test_a_newer_token_that_is_applied_meanwhile_wins(issuer: Issuer, grace, now, monkeypatch):
    """The older token is compared again under the lock."""
    lock = locks.lock_memberships

    def lock_late(pk: int) -> Principal | None:
        monkeypatch.setattr(locks, "lock_memberships", lock)
        oidc.authenticate(issuer.token("grace", iat=now - 10, groups=[]))
        return lock(pk)

    monkeypatch.setattr(locks, "lock_memberships", lock_late)
    oidc.authenticate(issuer.token("grace", iat=now - 20, groups=["ops", "data"]))
    assert groups_of(grace) == []
    grace.refresh_from_db()
    assert grace.groups_issued_at.timestamp() == now - 10


def test_a_key_of_a_person_has_the_groups_of_the_newest_token(issuer: Issuer, grace, now):
    token = issuer.token("grace", iat=now - 50, groups=["ops"])
    made = bearer(token).post(
        "keys", {"name": "grace-laptop", "principal": "user:grace"}, status=201
    )
    oidc.authenticate(issuer.token("grace", iat=now - 40, groups=[]))
    oidc.authenticate(token)
    key = ApiKey.objects.get(name="grace-laptop")
    assert made["key"]
    assert list(access.of_row(key.principal).ids) == [grace.pk]


def test_the_tokens_of_another_issuer_are_ordered_anew(issuer: Issuer, grace, now):
    principals.update_principal(actor=SYSTEM, name="user:grace", subject="grace-2")
    oidc.authenticate(issuer.token("grace-2", iat=now - 60, groups=["data"]))
    assert groups_of(grace) == ["data"]


def test_a_token_does_not_authenticate_a_group(issuer: Issuer):
    principals.create_principal(
        actor=SYSTEM,
        name="group:ops",
        kind=PrincipalKind.GROUP,
        issuer=issuer.url,
        subject="ada-1",
    )
    refused(issuer.token(), "The token's subject is not known here")


# --- secrets -------------------------------------------------------------------------------------


def test_tokens_are_neither_returned_nor_logged(issuer: Issuer, ada, caplog, capsys):
    caplog.set_level(logging.DEBUG)
    good, bad = issuer.token(), issuer.token(aud="another")
    answers = [bearer(good).call("GET", "jobs"), bearer(bad).call("GET", "jobs")]
    issuer.status = 500
    oidc.forget()
    known_keys.forget_keys()
    answers.append(bearer(good).call("GET", "jobs"))
    assert [answer.status_code for answer in answers] == [200, 401, 503]
    output = "".join(answer.content.decode() + str(answer.headers) for answer in answers)
    output += caplog.text + "".join(str(record.__dict__) for record in caplog.records)
    output += str(list(AuditEvent.objects.values())) + str(list(Principal.objects.values()))
    output += str(list(ApiKey.objects.values())) + "".join(capsys.readouterr())
    for token in (good, bad):
        for segment in token.split(".")[1:]:
            assert segment not in output


# --- API keys created with a token ---------------------------------------------------------------


def create_own_key(token: str, name: str, **body: object) -> ApiKey:
    bearer(token).post("keys", {"principal": "user:ada", "name": name, **body}, status=201)
    return ApiKey.objects.get(name=name)


@pytest.fixture
def person(issuer: Issuer) -> Principal:
    return principals.create_principal(
        actor=SYSTEM,
        name="user:ada",
        kind=PrincipalKind.USER,
        issuer=issuer.url,
        subject="ada-1",
    )


def test_an_own_key_expires_some_days_after_the_token(issuer: Issuer, person, settings):
    settings.MONODON_OIDC_KEY_DAYS = 30
    before = timezone.now()
    made = create_own_key(issuer.token(), "laptop")
    later = create_own_key(issuer.token(), "later", expires_at="2099-01-01T00:00:00Z")
    for key in (made, later):
        days = key.expires_at - before
        assert timedelta(days=30) <= days < timedelta(days=30, minutes=5)
    soon = before + timedelta(days=1)
    sooner = create_own_key(issuer.token(), "sooner", expires_at=soon.isoformat())
    assert sooner.expires_at == soon


def test_an_own_key_expires_with_the_token(issuer: Issuer, person, settings):
    """Even if there is a key with the name of the client."""
    settings.MONODON_OIDC_KEY_DAYS = 0
    api_keys.add_key(actor=SYSTEM, principal=person.name, name="notebook")
    end = int(time.time()) + 400
    key = create_own_key(issuer.token(exp=end, azp="notebook"), "laptop")
    assert key.expires_at.timestamp() == end
    assert create_own_key(issuer.token(exp=end + 0.5), "two").expires_at.timestamp() == end + 0.5


def test_a_key_is_not_replaced_by_one_that_expires_sooner(issuer: Issuer, person, settings):
    settings.MONODON_OIDC_KEY_DAYS = 30
    api_keys.add_key(actor=SYSTEM, principal=person.name, name="endless", never_expires=True)
    body = {"overlap_seconds": 60}
    text = "before the key to be replaced"
    path = "POST keys/endless/rotate"
    bearer(issuer.token()).refused(403, "permission-denied", text, path, body)
    replaced = create_own_key(issuer.token(), "kept")
    bearer(issuer.token()).post("keys/kept/rotate", body, status=201)
    assert ApiKey.objects.get(name="kept-2").expires_at == replaced.expires_at


def test_a_token_with_an_invalid_expiry_gives_a_key_of_the_default_lifetime(
    issuer: Issuer, person, settings
):
    settings.MONODON_OIDC_KEY_DAYS = 0
    made = create_own_key(issuer.token(exp=10**15), "laptop")
    assert made.expires_at - timezone.now() <= key_rules.DEFAULT_LIFETIME


def test_administrators_create_keys_without_expiry(issuer: Issuer, ada, settings):
    """They could create them for other principals too."""
    settings.MONODON_OIDC_KEY_DAYS = 0
    assert create_own_key(issuer.token(), "laptop", expires_at=None).expires_at is None
