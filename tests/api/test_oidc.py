"""Bearer tokens of an OpenID Connect issuer, through the protocols."""

import base64
import hmac
import json
import logging
import socket
import threading
import time
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone
from joserfc.jwk import RSAKey

from catalog.access import SYSTEM
from catalog.models import ApiKey, AuditEvent, Namespace, Principal, PrincipalKind, PrincipalLevel
from catalog.services.access import api_keys, key_rules, known_keys, oidc, principals, users
from tests import issuer as issuers
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.api.management.client import Management
from tests.factories import make_namespace, unchanged
from tests.issuer import AUDIENCE, Issuer


@pytest.fixture
def issuer(db, settings):
    oidc.forget()
    with issuers.running() as found:
        settings.MONODON_OIDC_ISSUERS = [found.url]
        settings.MONODON_OIDC_AUDIENCES = [AUDIENCE, "other"]
        settings.MONODON_OIDC_AUTO_CREATE = False
        yield found
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
    bearer(token).refused(status, kind, text, "GET jobs")


@pytest.fixture
def clock(monkeypatch):
    """Moves the clock by which keys and tokens are kept, not the wall's."""
    moved = [0.0]
    real = time.monotonic
    monkeypatch.setattr(oidc.time, "monotonic", lambda: real() + moved[0])

    def move(seconds: float) -> None:
        moved[0] += seconds

    return move


def test_every_protocol_takes_a_token(issuer: Issuer, ada):
    token = issuer.token(azp="notebook")
    assert bearer(token).get("principals/user:ada")["subject"] == "ada-1"
    assert Lance(authorization=f"Bearer {token}").get("/v1/table") == {"tables": []}
    assert Lance(token).get("/v1/table") == {"tables": []}
    Iceberg(token).post("namespaces", {"namespace": ["a"]})
    event = AuditEvent.objects.get(action="namespace.create")
    assert (event.actor, event.key) == ("user:ada", "notebook")
    assert issuer.asked == {"/.well-known/openid-configuration": 1, "/jwks": 1}


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another"},
        {"aud": None},
        {"aud": []},
        {"sub": None},
        {"sub": ""},
        {"sub": 5},
        {"sub": "a\nb"},
        {"sub": "x" * 501},
        {"sub": "somebody"},
        {"iss": "https://elsewhere.example.com"},
        {"iss": None},
        {"iss": ["x"]},
        {"exp": None},
        {"exp": "tomorrow"},
        {"nbf": time.time() + 600},
        {"iat": time.time() + 600},
    ],
)
def test_claims_that_do_not_hold(issuer: Issuer, ada, claims):
    bearer(issuer.token()).get("jobs")
    refused(issuer.token(**claims))


def test_times_may_be_a_minute_off(issuer: Issuer, ada):
    now = time.time()
    bearer(issuer.token(exp=now - 30, nbf=now + 30, iat=now + 30)).get("jobs")
    refused(issuer.token(exp=now - 90), "has expired", 401, "token-expired")
    bearer(issuer.token(aud=["x", "other"])).get("jobs")


def test_only_the_issuers_keys_and_allowed_algorithms(issuer: Issuer, ada, settings):
    token = issuer.token()
    head, body, signature = token.split(".")
    stranger = RSAKey.generate_key(2048, {"kid": "one"})
    others = issuers.other_keys()
    public = issuer.keys[0].as_pem(private=False)

    def spelled(header: dict[str, str]) -> str:
        return base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()

    # The public key as if it were a shared secret.
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
        f"{head}.e30.{signature}",
        "eyJ..",
        "eyJhbGciOiJub25lIn0.eyJpc3MiOlsi.x",
        "eyJ" + "x" * 20_000 + ".e30.x",
    ):
        refused(forged)
    settings.MONODON_OIDC_ALGORITHMS = ["ES256"]
    known_keys.forget_keys()
    refused(token)


def test_other_key_types_and_keys_that_are_not_understood(issuer: Issuer, ada):
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


def test_without_a_kid_there_must_be_one_key(issuer: Issuer, ada):
    named = issuer.keys[0].as_dict(private=True)
    plain = RSAKey.import_key({name: value for name, value in named.items() if name != "kid"})
    token = issuer.token(key=plain)
    bearer(token).get("jobs")
    issuer.keys.append(RSAKey.generate_key(2048, {"kid": "two"}))
    oidc.forget()
    known_keys.forget_keys()
    refused(token, "not one of its issuer's")


def test_without_an_audience_no_token_is_taken(issuer: Issuer, ada, settings):
    settings.MONODON_OIDC_AUDIENCES = []
    refused(issuer.token(), "No audience")


def test_without_an_issuer_no_token_is_taken(issuer: Issuer, ada, settings):
    settings.MONODON_OIDC_ISSUERS = []
    refused(issuer.token(), "unknown, expired or revoked")
    assert issuer.asked == {}


# --- trust ---------------------------------------------------------------------------------------


def test_a_token_is_trusted_no_longer_than_it_holds(issuer: Issuer, ada, monkeypatch):
    real = time.time()
    # It ends, with the leeway, in a second.
    token = issuer.token(exp=int(real) - oidc.LEEWAY_SECONDS + 2)
    bearer(token).get("jobs")
    monotonic = time.monotonic
    monkeypatch.setattr(known_keys.time, "monotonic", lambda: monotonic() + 2.5)
    monkeypatch.setattr(oidc.time, "time", lambda: real + 2.5)
    refused(token, "has expired", 401, "token-expired")


def test_who_is_deactivated_is_refused(issuer: Issuer, ada):
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
    refused(token, "was deactivated")


# --- keys ----------------------------------------------------------------------------------------


def test_new_keys_are_fetched_when_a_token_names_one(issuer: Issuer, ada, clock):
    bearer(issuer.token()).get("jobs")
    issuer.rotate()
    token = issuer.token()
    refused(token, "not one of its issuer's")  # it was asked a moment ago
    assert issuer.asked["/jwks"] == 1
    clock(31)
    bearer(token).get("jobs")
    assert issuer.asked["/jwks"] == 2


def test_a_flood_of_unknown_keys_does_not_flood_the_issuer(issuer: Issuer, ada, clock):
    bearer(issuer.token()).get("jobs")
    clock(31)
    for i in range(20):
        key = RSAKey.import_key(issuer.keys[0].as_dict(private=True) | {"kid": f"k{i}"})
        refused(issuer.token(key=key))
    assert issuer.asked["/jwks"] == 2


def test_a_key_that_the_issuer_took_back_ends(issuer: Issuer, ada, clock):
    token = issuer.token()
    bearer(token).get("jobs")
    issuer.rotate()
    known_keys.forget_keys()
    bearer(token).get("jobs")
    clock(901)
    known_keys.forget_keys()
    refused(token, "not one of its issuer's")


@pytest.mark.parametrize("status", [302, 404, 500])
def test_an_issuer_that_is_away_lets_nobody_in(issuer: Issuer, ada, clock, status):
    issuer.status = status
    token = issuer.token()
    for _ in range(3):
        response = bearer(token).refused(503, "service-unavailable", "cannot be had", "GET jobs")
        assert response["retry-after"] == "1"
    # Asked once, not by each request.
    assert issuer.asked == {"/.well-known/openid-configuration": 1}
    issuer.status = 200
    clock(11)
    bearer(token).get("jobs")


def test_known_keys_are_good_for_an_hour_while_the_issuer_is_away(issuer: Issuer, ada, clock):
    token = issuer.token()
    bearer(token).get("jobs")
    issuer.status = 500
    clock(1800)
    known_keys.forget_keys()
    bearer(token).get("jobs")
    clock(1801)
    known_keys.forget_keys()
    bearer(token).refused(503, "service-unavailable", "cannot be had", "GET jobs")


def test_nobody_listens_there(issuer: Issuer, ada, settings):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    settings.MONODON_OIDC_ISSUERS = [f"http://127.0.0.1:{port}"]
    token = issuer.token(iss=f"http://127.0.0.1:{port}")
    bearer(token).refused(503, "service-unavailable", "cannot be had", "GET jobs")


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
def test_documents_that_are_not_believed(issuer: Issuer, ada, document):
    issuer.document = document
    bearer(issuer.token()).refused(503, "service-unavailable", "cannot be had", "GET jobs")


def test_many_at_once_ask_the_issuer_once(issuer: Issuer, ada):
    """Of the first tokens of a process only one fetches; the others wait for it."""
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
    assert issuer.asked == {"/.well-known/openid-configuration": 1, "/jwks": 1}


# --- principals and groups -----------------------------------------------------------------------


def test_an_unknown_subject_is_refused_unless_it_may_be_made(issuer: Issuer, settings):
    token = issuer.token("new-1", preferred_username="grace")
    refused(token, "not known here")
    settings.MONODON_OIDC_AUTO_CREATE = True
    assert bearer(token).get("principals/user:grace")["level"] == "granted"
    row = Principal.objects.get()
    assert (row.name, row.issuer, row.subject) == ("user:grace", issuer.url, "new-1")
    event = AuditEvent.objects.get(action="principal.create")
    assert (event.actor, event.target) == ("system", "user:grace")
    # The subject decides, whatever it calls itself later.
    known_keys.forget_keys()
    bearer(issuer.token("new-1", preferred_username="admin")).get("principals/user:grace")
    assert Principal.objects.count() == 1


@pytest.mark.parametrize("name", ["ada", "a:b", "a/b", "a\nb", " a", "x" * 300])
def test_nobody_takes_anothers_name(issuer: Issuer, ada, settings, name):
    settings.MONODON_OIDC_AUTO_CREATE = True
    refused(issuer.token("evil", preferred_username=name))
    assert Principal.objects.count() == 1


def test_a_person_of_the_admin_keeps_the_name(issuer: Issuer, settings, django_user_model):
    settings.MONODON_OIDC_AUTO_CREATE = True
    django_user_model.objects.create_superuser("root", password="x")
    refused(issuer.token("evil", preferred_username="root"), "'user:root' is another's")


def test_nobody_gets_the_name_of_who_is_gone(issuer: Issuer, settings, django_user_model):
    """And with it what that one owns."""
    settings.MONODON_OIDC_AUTO_CREATE = True
    Namespace.objects.filter(pk=make_namespace("his").pk).update(owner="user:bob")
    token = issuer.token("bob-1", preferred_username="bob")
    with unchanged():
        refused(token, "still owns something")
    django_user_model.objects.create_user("carl").delete()
    with unchanged():
        refused(issuer.token("carl-1", preferred_username="carl"), "'user:carl' is another's")


def test_a_subject_whose_user_was_deleted_stays_out(issuer: Issuer, ada, settings):
    settings.MONODON_OIDC_AUTO_CREATE = True
    api_keys.create_api_key(actor=SYSTEM, name="another")  # who administers
    with users.joining(ada):
        user = get_user_model().objects.create_user("ada")
    bearer(issuer.token()).get("jobs")
    user.delete()
    with unchanged():
        refused(issuer.token(), "deactivated")


def test_the_groups_claim_says_who_is_in_the_issuers_groups(issuer: Issuer, settings):
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

    def of(**claims: object) -> list[str]:
        known_keys.forget_keys()
        return bearer(issuer.token("g", **claims)).get("principals/user:g")["groups"]

    # A group that belongs to no issuer is not given by a name.
    assert of(groups=["data", "admins", "group:admins", "x"]) == ["group:data"]
    refused_ = bearer(issuer.token("g", groups=["data"], jti="2"))
    refused_.refused(403, "permission-denied", "", "GET principals")
    assert of(groups=["data", "Operations"]) == ["group:data", "group:ops"]
    bearer(issuer.token("g", groups=["data", "Operations"])).get("principals")
    assert of() == ["group:data", "group:ops"]  # nothing is said of groups
    assert of(groups=5) == ["group:data", "group:ops"]
    principals.add_member(actor=SYSTEM, group="group:admins", member="user:g")
    assert of(groups="data") == ["group:admins", "group:data"]
    assert of(groups=[]) == ["group:admins"]
    joined = AuditEvent.objects.filter(action="principal.leave").order_by("pk")
    assert [row.target for row in joined] == ["group:ops", "group:data"]


def test_a_group_is_nobody(issuer: Issuer):
    principals.create_principal(
        actor=SYSTEM,
        name="group:ops",
        kind=PrincipalKind.GROUP,
        issuer=issuer.url,
        subject="ada-1",
    )
    refused(issuer.token(), "not known here")


# --- secrets -------------------------------------------------------------------------------------


def test_no_token_is_told_or_logged(issuer: Issuer, ada, caplog, capsys):
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


# --- keys of those who came with a token --------------------------------------------------------


def key_of_ones_own(token: str, name: str, **body: object) -> ApiKey:
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


def test_a_key_of_ones_own_ends_some_days_after_the_token(issuer: Issuer, person, settings):
    settings.MONODON_OIDC_KEY_DAYS = 30
    before = timezone.now()
    made = key_of_ones_own(issuer.token(), "laptop")
    later = key_of_ones_own(issuer.token(), "later", expires_at="2099-01-01T00:00:00Z")
    for key in (made, later):
        days = key.expires_at - before
        assert timedelta(days=30) <= days < timedelta(days=30, minutes=5)
    soon = before + timedelta(days=1)
    sooner = key_of_ones_own(issuer.token(), "sooner", expires_at=soon.isoformat())
    assert sooner.expires_at == soon


def test_a_key_of_ones_own_holds_no_longer_than_the_token(issuer: Issuer, person, settings):
    """Though there is a key with the name that the issuer calls the client."""
    settings.MONODON_OIDC_KEY_DAYS = 0
    api_keys.add_key(actor=SYSTEM, principal=person.name, name="notebook")
    end = int(time.time()) + 400
    key = key_of_ones_own(issuer.token(exp=end, azp="notebook"), "laptop")
    assert key.expires_at.timestamp() == end
    assert key_of_ones_own(issuer.token(exp=end + 0.5), "two").expires_at.timestamp() == end + 0.5


def test_a_key_is_not_replaced_by_one_that_ends_sooner(issuer: Issuer, person, settings):
    settings.MONODON_OIDC_KEY_DAYS = 30
    api_keys.add_key(actor=SYSTEM, principal=person.name, name="endless", never_expires=True)
    body = {"overlap_seconds": 60}
    text = "before the key to be replaced"
    path = "POST keys/endless/rotate"
    bearer(issuer.token()).refused(403, "permission-denied", text, path, body)
    replaced = key_of_ones_own(issuer.token(), "kept")
    bearer(issuer.token()).post("keys/kept/rotate", body, status=201)
    assert ApiKey.objects.get(name="kept-2").expires_at == replaced.expires_at


def test_a_token_without_a_sensible_end_gives_a_key_of_the_default_lifetime(
    issuer: Issuer, person, settings
):
    settings.MONODON_OIDC_KEY_DAYS = 0
    made = key_of_ones_own(issuer.token(exp=10**15), "laptop")
    assert made.expires_at - timezone.now() <= key_rules.DEFAULT_LIFETIME


def test_who_administers_makes_keys_without_an_end(issuer: Issuer, ada, settings):
    """They could have others make them."""
    settings.MONODON_OIDC_KEY_DAYS = 0
    assert key_of_ones_own(issuer.token(), "laptop", expires_at=None).expires_at is None
