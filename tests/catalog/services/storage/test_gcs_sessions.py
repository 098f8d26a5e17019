"""Tokens of Google with a Credential Access Boundary: what they open, and how failures are reported."""

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import unquote

import pytest

from api.lance import storage_options
from catalog.errors import ServiceUnavailable
from catalog.services.storage.client_sessions import gcs, token_services
from catalog.services.storage.credentials import Credentials
from catalog.storage.configuration import (
    ClientAccess,
    Key,
    ServerIdentity,
    StoreConfiguration,
    StoreKind,
)
from tests.stores.google_tokens import GoogleTokens

ROOT = "gs://lake/root"
_versions = itertools.count(1)


@pytest.fixture(scope="module")
def started() -> Iterator[GoogleTokens]:
    with GoogleTokens() as tokens:
        yield tokens


@pytest.fixture
def google(started: GoogleTokens) -> GoogleTokens:
    started.boundaries.clear()
    started.requests.clear()
    started.answer, started.expires_in = None, 3599
    return started


@pytest.fixture
def lake(google: GoogleTokens) -> StoreConfiguration:
    return StoreConfiguration(
        profile="lake",
        version=next(_versions),
        kind=StoreKind.GCS,
        roots=(ROOT,),
        sts_endpoint=f"{google.url}/exchange",
        identity=ServerIdentity.KEY,
        key=Key(secret=google.service_account()),
        client_access=ClientAccess.STS,
    )


def token(lake: StoreConfiguration, *directories: str, write: bool) -> str:
    session = token_services.open_session(lake, directories, write=write, principal="user:ada")
    return session.key.token


@pytest.mark.parametrize("write", [False, True])
def test_a_token_opens_its_directory_alone(google, lake, write):
    narrow = token(lake, f"{ROOT}/a", write=write)
    actions = {"get": True, "create": write, "delete": write}
    for action, is_permitted in actions.items():
        assert google.permits(narrow, action, "lake", "root/a/data/x") is is_permitted
        for foreign in ("root/b/x", "root/a2/x", "root/beside", "root/a", "x", "root/"):
            assert not google.permits(narrow, action, "lake", foreign)
        assert not google.permits(narrow, action, "other", "root/a/data/x")
    assert google.permits(narrow, "list", "lake", "root/a/")
    for prefix in ("", "root/", "root/a", "root/a2/", "root/b/"):
        assert not google.permits(narrow, "list", "lake", prefix)


def test_names_cannot_leave_the_condition(google, lake):
    directory = ROOT + "/q\"') || true || (\"\\' größe 🗻"
    narrow = token(lake, directory, write=True)
    key = directory.removeprefix("gs://lake/")
    assert google.permits(narrow, "get", "lake", f"{key}/x")
    assert not google.permits(narrow, "get", "lake", "root/b/x")


def test_several_directories(google, lake):
    directories = [f"{ROOT}/a", "gs://other/b"]
    narrow = token(lake, *directories, write=False)
    assert google.permits(narrow, "get", "lake", "root/a/x")
    assert google.permits(narrow, "get", "other", "b/x")
    assert not google.permits(narrow, "get", "lake", "b/x")
    many = [f"{ROOT}/{number}" for number in range(11)]  # a boundary has ten rules at most
    session = token_services.open_session(lake, many, write=False, principal="user:ada")
    assert session.directories == (many[0],)
    assert not google.permits(session.key.token, "get", "lake", "root/1/x")


def test_the_token_of_the_server_is_shared_and_stays_in_the_server(google, lake):
    session = token_services.open_session(lake, [f"{ROOT}/a"], write=False, principal="user:ada")
    token(lake, f"{ROOT}/b", write=False)
    assert 3500 < session.expires_at - time.time() < 3600
    assert [("assertion" in request) for request in google.requests] == [True, False, False]
    exchange = google.requests[1]
    assert exchange["subject_token"] == google.server_tokens[-1]
    options = storage_options.render(
        Credentials(lake, f"{ROOT}/a", session.key, expires_at=session.expires_at)
    )
    assert storage_options.has_secrets(options)
    assert options["google_storage_token"] == session.key.token
    assert google.server_tokens[-1] not in json.dumps(options)
    assert "private_key" not in json.dumps(options)


def test_a_token_without_expiry_ends_with_that_of_the_server(google, lake):
    google.expires_in = None
    session = token_services.open_session(lake, [f"{ROOT}/a"], write=False, principal="user:ada")
    assert 3500 < session.expires_at - time.time() <= 3600


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ((400, {"error": "invalid_grant", "error_description": "Secret text"}), "invalid_grant"),
        ((200, {"token": "narrow"}), "does not answer as expected"),
        ((307, {"location": "/elsewhere"}), "does not answer as expected"),
        ((500, {}), "does not answer as expected"),
    ],
)
def test_a_failing_exchange(google, lake, answer, cause, caplog):
    google.answer = answer
    with pytest.raises(ServiceUnavailable, match=cause) as raised:
        token(lake, f"{ROOT}/a", write=False)
    assert "Storage profile 'lake' cannot issue credentials" in raised.value.message
    assert "ecret text" not in unquote(raised.value.message + caplog.text)
    count = len(google.requests)
    google.answer = None
    with pytest.raises(ServiceUnavailable, match=cause):  # at once, without a request
        token(lake, f"{ROOT}/b", write=False)
    assert len(google.requests) == count
    token_services.forget()
    assert google.permits(token(lake, f"{ROOT}/b", write=False), "get", "lake", "root/b/x")


def test_a_refused_boundary_does_not_stop_other_tables(google, lake):
    """Google limits boundaries. A tenant could otherwise stop others with a long location."""
    google.answer = (400, {"error": "invalid_request", "error_description": "too long"})
    with pytest.raises(ServiceUnavailable, match="invalid_request"):
        token(lake, f"{ROOT}/long", write=False)
    google.answer = None
    assert google.permits(token(lake, f"{ROOT}/b", write=False), "get", "lake", "root/b/x")


def test_a_wrong_key(lake):
    lake = replace(lake, key=Key(secret='{"type": "service_account", "client_email": "x"}'))
    with pytest.raises(ServiceUnavailable, match="cannot issue credentials"):
        token(lake, f"{ROOT}/a", write=False)


def test_the_default_token_service():
    assert gcs.TOKEN_SERVICE == "https://sts.googleapis.com/v1/token"
