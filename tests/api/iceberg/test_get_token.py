"""Token requests of PyIceberg, DuckDB and Java (RFC 6749, RFC 8693)."""

import base64
import logging
import time
from datetime import timedelta
from urllib.parse import urlencode

import pytest
from django.core import signing
from django.db import OperationalError
from django.http import HttpResponse
from django.utils import timezone

from catalog.access import SYSTEM, tokens
from catalog.models import ApiKey
from catalog.services.access import api_keys, known_keys
from tests import clocks
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.cases import shared_cases
from tests.factories import make_namespace, unchanged

pytestmark = pytest.mark.operation("getToken")
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS = "urn:ietf:params:oauth:token-type:access_token"


@pytest.fixture
def key(db) -> str:
    _, key = api_keys.create_api_key(actor=SYSTEM, name="my client")
    return key


def ask(form: dict[str, str] | bytes, **headers: str) -> HttpResponse:
    raw = form if isinstance(form, bytes) else urlencode(form).encode()
    return Iceberg().client.post(
        "/v1/oauth/tokens",
        raw,
        content_type="application/x-www-form-urlencoded",
        headers=headers,
    )


def granted(form: dict[str, str], **headers: str) -> str:
    response = ask(form, **headers)
    assert response.status_code == 200, response.content
    assert response["content-type"] == "application/json"
    assert (response["cache-control"], response["pragma"]) == ("no-store", "no-cache")
    answer = response.json()
    token = answer.pop("access_token")
    assert answer == {
        "token_type": "bearer",
        "expires_in": 3600,
        "issued_token_type": ACCESS,
        "scope": form.get("scope", "catalog"),
    }
    return token


def refused(status: int, error: str, text: str, form: dict[str, str] | bytes, **headers: str):
    with unchanged():
        response = ask(form, **headers)
    answer = response.json()
    assert (response.status_code, answer["error"]) == (status, error), answer
    assert text in answer["error_description"]
    assert set(answer) == {"error", "error_description"}
    assert response["cache-control"] == "no-store"
    if status == 401:
        assert response["www-authenticate"].startswith("Basic ")


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def credentials(secret: str, **more: str) -> dict[str, str]:
    return {"grant_type": "client_credentials", "client_secret": secret, **more}


def exchange(subject: str, **more: str) -> dict[str, str]:
    return {
        "grant_type": EXCHANGE,
        "subject_token": subject,
        "subject_token_type": ACCESS,
        **more,
    }


def age(monkeypatch, seconds: float) -> None:
    """Issue tokens of this age."""
    clocks.replace(monkeypatch, signing, time=lambda: time.time() - seconds)


# --- client credentials --------------------------------------------------------------------------


@pytest.mark.parametrize("client", ["my client", "mnd_", "", None])
def test_credentials_in_the_form(key, client):
    if client == "mnd_":
        client = ApiKey.objects.get().prefix
        assert client.startswith("mnd_")
    named = {} if client is None else {"client_id": client}
    token = granted(credentials(key, scope="catalog", **named))
    make_namespace("a")
    assert Iceberg(token).get("namespaces")["namespaces"] == [["a"]]


@pytest.mark.parametrize("client", ["my client", "my%20client", "my+client", ""])
def test_credentials_in_the_header(key, client):
    token = granted(
        {"grant_type": "client_credentials", "scope": "PRINCIPAL_ROLE:ALL"},
        authorization=basic(f"{client}:{key}"),
    )
    assert Iceberg(token).get("namespaces")["namespaces"] == []


def test_a_secret_of_odd_characters(db):
    api_keys.create_api_key(actor=SYSTEM, name="odd", key="100% a+b:c")
    granted(credentials("100% a+b:c"))
    granted({"grant_type": "client_credentials"}, authorization=basic("odd:100% a+b:c"))
    granted({"grant_type": "client_credentials"}, authorization=basic("odd:100%25+a%2Bb%3Ac"))


@shared_cases(
    ("form", "headers"),
    [
        ({"client_secret": "mnd_wrong"}, {}),
        ({"client_id": "another", "client_secret": "KEY"}, {}),
        ({"client_id": "my client", "client_secret": "TOKEN"}, {}),
        ({"client_id": "my client", "client_secret": ""}, {}),
        ({}, {}),
        ({}, {"authorization": "Bearer KEY"}),
        ({}, {"authorization": basic("my client:mnd_wrong")}),
        ({}, {"authorization": basic("my client:")}),
        ({}, {"authorization": basic("my client")}),
        ({}, {"authorization": "Basic ???"}),
        ({"client_secret": "KEY"}, {"authorization": basic("my client:mnd_wrong")}),
    ],
)
def test_wrong_credentials(key, form, headers):
    token = granted(credentials(key))
    form = {name: {"KEY": key, "TOKEN": token}.get(value, value) for name, value in form.items()}
    headers = {name: value.replace("KEY", key) for name, value in headers.items()}
    refused(401, "invalid_client", "", {"grant_type": "client_credentials", **form}, **headers)


def test_expired_and_revoked_keys_are_refused(db):
    row, revoked = api_keys.create_api_key(actor=SYSTEM, name="revoked")
    api_keys.revoke_api_key(actor=SYSTEM, key=row)
    refused(401, "invalid_client", "revoked", credentials(revoked))
    _, old = api_keys.create_api_key(
        actor=SYSTEM, name="old", expires_at=timezone.now() - timedelta(seconds=1)
    )
    refused(401, "invalid_client", "expired", credentials(old))


@pytest.mark.parametrize(
    "form", [b"", b"grant_type=refresh_token&refresh_token=x", b"grant_type=password", b"{}"]
)
def test_other_grants(db, form):
    refused(400, "unsupported_grant_type", "grant_type is", form)


@pytest.mark.parametrize("form", [b"\xff", b"&".join([b"a=b"] * 101)])
def test_invalid_forms_are_refused(db, form):
    refused(400, "invalid_request", "not form-encoded", form)


def test_a_form_that_is_too_large(db, settings):
    settings.MONODON_MAX_BODY_BYTES = settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    refused(413, "invalid_request", "larger than 100 bytes", b"a=" + b"x" * 100)


# --- token exchange ------------------------------------------------------------------------------


def test_a_token_is_renewed(key):
    first = granted(credentials(key))
    second = granted(exchange(first, scope="catalog"), authorization=f"Bearer {first}")
    Iceberg(second).get("namespaces")
    Iceberg(first).get("namespaces")  # the old token remains valid until it expires


def test_a_key_is_exchanged(key):
    """Java does this if the key is configured as a token."""
    granted(exchange(key), authorization=f"Bearer {key}")


def test_an_expired_token(key, monkeypatch):
    with monkeypatch.context() as patch:
        age(patch, 3602)
        expired = granted(credentials(key))
    refused(400, "invalid_grant", "expired", exchange(expired))
    # Java then authenticates again.
    granted(exchange(expired), authorization=basic(f"my client:{key}"))
    granted(exchange(expired, client_secret=key))


def test_a_token_of_another_principal_is_refused(key):
    _, other = api_keys.create_api_key(actor=SYSTEM, name="other")
    form = exchange(granted(credentials(other)))
    refused(400, "invalid_grant", "another client", form, authorization=basic(f":{key}"))
    refused(401, "invalid_client", "", form, authorization=basic(":mnd_wrong"))


@pytest.mark.parametrize("subject", ["", "mnt_", "mnt_x.y.z", "eyJhbGciOiJub25lIn0.e30.", "x"])
def test_invalid_tokens_are_refused(key, subject):
    if subject:
        refused(400, "invalid_grant", "unknown", exchange(subject))
    else:
        refused(400, "invalid_request", "subject_token is missing", exchange(subject))


# --- the token -----------------------------------------------------------------------------------


def test_a_token_has_the_rights_of_its_key(db, reader: Iceberg):
    token = granted(credentials(reader.token))
    Iceberg(token).refused(
        403,
        "NotAuthorizedException",
        "'reader' may not create anything",
        "POST namespaces",
        {"namespace": ["a"]},
    )


def test_a_token_ends_with_its_key(key):
    client = Iceberg(granted(credentials(key)))
    client.get("namespaces")
    api_keys.revoke_api_key(actor=SYSTEM, key=ApiKey.objects.get())
    client.refused(401, "NotAuthorizedException", "revoked", "GET namespaces")


def test_other_processes_notice_a_revoked_key(key, monkeypatch):
    client = Iceberg(granted(credentials(key)))
    client.get("namespaces")
    ApiKey.objects.update(revoked_at=timezone.now())
    client.get("namespaces")
    clocks.replace(monkeypatch, known_keys, monotonic=lambda: time.monotonic() + 5)
    client.refused(401, "NotAuthorizedException", "revoked", "GET namespaces")


def test_a_token_ends_in_an_hour(key, monkeypatch):
    with monkeypatch.context() as patch:
        age(patch, 3590)
        last = granted(credentials(key))
    Iceberg(last).get("namespaces")
    with monkeypatch.context() as patch:
        age(patch, 3602)
        expired = granted(credentials(key))
    response = Iceberg(expired).refused(
        419, "AuthenticationTimeoutException", "has expired", "GET namespaces"
    )
    assert response["www-authenticate"] == 'Bearer error="invalid_token"'
    Lance(expired).refused(401, 16, "has expired", "/v1/table", method="GET")


def test_a_tampered_token_is_refused(key):
    token = granted(credentials(key))
    payload, moment, signature = token.removeprefix("mnt_").split(".")
    other = tokens.issue_token(ApiKey.objects.get().pk + 1).removeprefix("mnt_").split(".")[0]
    for forged in (
        f"mnt_{other}.{moment}.{signature}",
        f"mnt_{payload}.zzzzzz.{signature}",
        f"mnt_{payload}.{moment}.{signature[:-1]}",
        f"{payload}.{moment}.{signature}",
    ):
        Iceberg(forged).refused(401, "NotAuthorizedException", "unknown", "GET namespaces")


def test_both_protocols_take_a_token(key):
    token = granted(credentials(key))
    assert Lance(authorization=f"Bearer {token}").get("/v1/table") == {"tables": []}
    assert Lance(token).get("/v1/table") == {"tables": []}


def test_no_secret_is_returned_or_logged(key, caplog):
    caplog.set_level(logging.DEBUG)
    token = granted(credentials(key))
    Iceberg(token).get("namespaces")
    answer = ask(credentials(key, client_id="another")).content.decode()
    answer += ask(exchange(token, client_secret=key, client_id="x")).content.decode()
    answer += caplog.text + "".join(str(record.__dict__) for record in caplog.records)
    assert key not in answer
    assert token not in answer


def test_an_unreachable_database_is_reported(key, monkeypatch):
    def unreachable(*_: object, **__: object) -> None:
        raise OperationalError("connection refused: host=secret")

    monkeypatch.setattr(known_keys, "find_key", unreachable)
    refused(503, "temporarily_unavailable", "not available", credentials(key))


def test_a_bug(key, monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret of the inside")

    monkeypatch.setattr(tokens, "issue_token", broken)
    refused(500, "server_error", "unexpected server error", credentials(key))


# --- scopes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/oauth/token", "/v1/oauth/tokens"])
def test_a_scope_narrows_the_token(key, path):
    raw = urlencode(credentials(key, scope="read")).encode()
    answer = Iceberg().client.post(path, raw, content_type="application/x-www-form-urlencoded")
    assert answer.json()["scope"] == "read"
    client = Iceberg(answer.json()["access_token"])
    client.get("namespaces")
    client.refused(
        403, "NotAuthorizedException", "may not create", "POST namespaces", {"namespace": ["a"]}
    )


def test_an_exchange_does_not_widen_the_scope(key):
    narrow = granted(credentials(key, scope="write"))
    form = exchange(narrow)
    assert ask(form).json()["scope"] == "write"
    assert ask(form | {"scope": "catalog"}).json()["scope"] == "write"
    assert ask(form | {"scope": "read browse"}).json()["scope"] == "read browse"
    refused(400, "invalid_scope", "Beyond what was presented: grant", form | {"scope": "grant"})
    again = ask(form).json()["access_token"]
    Iceberg(again).get("namespaces")
    Iceberg(again).refused(
        403, "NotAuthorizedException", "may not", "POST namespaces", {"namespace": ["a"]}
    )


@pytest.mark.parametrize("scope", ["rule", "PRINCIPAL_ROLE:boss", "read rule", 'a"b', "ä"])
def test_unknown_scopes_are_refused(key, scope):
    refused(400, "invalid_scope", "no privilege", credentials(key, scope=scope))
    refused(400, "invalid_scope", "no privilege", exchange(key, scope=scope))


def test_a_restricted_key_gives_no_wider_token(db):
    api_keys.create_api_key(actor=SYSTEM, name="etl")
    _, key = api_keys.add_key(
        actor=SYSTEM,
        principal="etl",
        name="narrow",
        scopes=["read"],
        expires_at=timezone.now() + timedelta(minutes=10),
    )
    answer = ask(credentials(key)).json()
    assert answer["scope"] == "read"
    assert 590 <= answer["expires_in"] <= 600
    refused(400, "invalid_scope", "Beyond", credentials(key, scope="write"))


def test_a_repeated_parameter_is_refused(key):
    form = urlencode(credentials(key)).encode()
    refused(400, "invalid_request", "more than once", form + b"&client_secret=x")
    refused(400, "invalid_request", "more than once", form + b"&scope=read&scope=read")


def test_other_types_of_tokens(key):
    kind = "urn:ietf:params:oauth:token-type:id_token"
    form = exchange(key) | {"subject_token_type": kind}
    refused(400, "invalid_request", "subject_token_type must be", form)
