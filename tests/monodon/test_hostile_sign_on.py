"""Servers and issuers that deceive the client, exhaust it, or answer against the rules."""

import gzip
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from monodon.commands import root
from monodon.commands.app import App
from monodon.profiles import ProfileError, Profiles, Server, SignOn
from monodon.sign_on import device
from monodon.sign_on.errors import SignOnFailed, SignOnRefused, SignOnUnavailable
from monodon.sign_on.issuer import DeviceClient, Issuer, client_of
from monodon.sign_on.tokens import TokenSource, revoke

SERVER, ISSUER = "https://catalog.example.com", "https://id.example.com/realms/data"
CLIENT = DeviceClient(ISSUER, "monodon-cli", "openid offline_access")
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl"
DOCUMENT = {
    "issuer": ISSUER,
    "device_authorization_endpoint": f"{ISSUER}/device",
    "token_endpoint": f"{ISSUER}/token",
    "revocation_endpoint": f"{ISSUER}/revoke",
}
STARTED = {
    "device_code": "device-secret",
    "user_code": "WDJB-MJHT",
    "verification_uri": "https://id.example.com/activate",
    "expires_in": 600,
    "interval": 5,
}
GRANTED = {
    "access_token": JWT,
    "refresh_token": "refresh-secret",
    "token_type": "Bearer",
    "expires_in": 300,
}
Answer = dict[str, Any] | httpx.Response


class Network(httpx.MockTransport):
    """Answers by the last segment of the path. ``requests`` are the URLs, ``forms`` the bodies."""

    def __init__(self, **answers: Answer | Callable[[], Answer]) -> None:
        super().__init__(self._answer)
        self.answers: dict[str, Any] = {
            "sign-on": {"device": vars(CLIENT)},
            "openid-configuration": DOCUMENT,
            "device": STARTED,
            "token": GRANTED,
            "revoke": {},
            "summary": {},
            **{name.replace("_", "-"): answer for name, answer in answers.items()},
        }
        self.requests: list[str] = []
        self.forms: list[str] = []

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(str(request.url))
        if request.content:
            self.forms.append(request.content.decode())
        answer = self.answers[request.url.path.rpartition("/")[2]]
        answer = answer() if callable(answer) else answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(device, "time", clock)
    return clock


# --- the server ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"issuer": "http://id.example.com"}, "does not begin with https://"),
        ({"issuer": "ftp://id.example.com"}, "does not begin with https://"),
        ({"issuer": "https://user:pw@id.example.com"}, "is not a URL"),
        ({"issuer": "https://id.example.com:99999"}, "is not a URL"),
        ({"issuer": "https://id.example.com/\x1b[2J"}, "is not a URL"),
        ({"issuer": "https://\u0456d.example.com"}, "is not a URL"),
        ({"issuer": "https://id.example.com?x=1"}, "query or a fragment"),
        ({"issuer": "https://id.example.com#x"}, "query or a fragment"),
        ({"issuer": "https:///x"}, "is not a URL"),
        ({"issuer": None}, "is not a URL"),
        ({"issuer": ["https://id.example.com"]}, "is not a URL"),
        ({"issuer": "http://127.0.0.1:631"}, "an issuer on this machine"),
        ({"issuer": "https://localhost:8443"}, "an issuer on this machine"),
        ({"issuer": "http://[::1]:631"}, "an issuer on this machine"),
        ({"client_id": "\x1b]0;title\x07"}, "invalid client"),
        ({"client_id": ""}, "invalid client"),
        ({"scope": 5}, "invalid client"),
    ],
)
def test_issuers_that_a_server_must_not_name(change, message):
    network = Network(sign_on={"device": {**vars(CLIENT), **change}})
    with pytest.raises(SignOnFailed, match=message):
        client_of(SERVER, network)
    assert network.requests == [f"{SERVER}/management/v1/sign-on"]


def test_a_server_on_this_machine_may_name_an_issuer_there():
    network = Network(sign_on={"device": {**vars(CLIENT), "issuer": "http://127.0.0.1:8080"}})
    client = client_of("http://localhost:2333", network)
    assert client == DeviceClient("http://127.0.0.1:8080", CLIENT.client_id, CLIENT.scope)


@pytest.mark.parametrize("status", [401, 404, 405])
def test_an_older_server_offers_no_sign_on(status):
    assert client_of(SERVER, Network(sign_on=httpx.Response(status, json={}))) is None


BAD_ANSWERS = [
    (httpx.Response(302, headers={"location": "https://evil.example.com/"}), "redirects to"),
    (httpx.Response(200, content=b"{" + b" " * 600_000), "more than 512 KiB"),
    (
        httpx.Response(
            200,
            stream=httpx.ByteStream(gzip.compress(b" " * 10_000_000)),
            headers={"content-encoding": "gzip"},
        ),
        "compressed",
    ),
    (httpx.Response(200, content=b"[" * 100_000), "answer|another issuer"),
    (httpx.Response(200, content=b"[]"), "answer|another issuer"),
    (httpx.Response(200, content=b"\xff"), "answer|another issuer"),
    (httpx.Response(500, json={}), "500"),
]


@pytest.mark.parametrize(("answer", "message"), BAD_ANSWERS)
def test_invalid_answers_of_the_server(answer, message):
    network = Network(sign_on=answer)
    with pytest.raises(SignOnFailed, match=message):
        client_of(SERVER, network)
    assert len(network.requests) == 1


@pytest.mark.parametrize(
    ("url", "exit_code", "message"),
    [
        ("http://catalog.example.com", 1, "The URL of the server"),
        ("https://u:p@x", 1, "The URL of the server"),
        ("x://y", 2, "'x://y' is not a URL such as https://"),
    ],
)
def test_sign_on_needs_a_safe_connection_to_the_server(
    url, exit_code, message, monkeypatch, tmp_path
):
    monkeypatch.setenv("MONODON_CONFIG", str(tmp_path / "profiles.json"))
    network = Network()
    result = CliRunner().invoke(root, ["login", url, "--sign-on"], obj=App(transport=network))
    assert (result.exit_code, network.requests) == (exit_code, [])
    assert message in result.stderr


# --- the issuer's document -------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "message"), BAD_ANSWERS)
def test_invalid_documents_of_the_issuer(answer, message):
    network = Network(openid_configuration=answer)
    with Issuer(ISSUER, network) as issuer, pytest.raises(SignOnFailed, match=message):
        device.start(issuer, CLIENT)
    assert network.requests == [f"{ISSUER}/.well-known/openid-configuration"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"issuer": "https://id.example.com/realms/other"}, "describes another issuer"),
        ({"issuer": f"{ISSUER}/"}, "describes another issuer"),
        ({"issuer": None}, "describes another issuer"),
        ({"device_authorization_endpoint": "http://id.example.com/device"}, "begin with https://"),
        ({"device_authorization_endpoint": "https://evil.example.com/device"}, "another address"),
        ({"device_authorization_endpoint": "https://id.example.com:444/device"}, "another address"),
        ({"device_authorization_endpoint": "https://id.example.com@evil.com/"}, "is not a URL"),
        ({"device_authorization_endpoint": "file:///etc/passwd"}, "is not a URL"),
        ({"device_authorization_endpoint": {"a": 1}}, "is not a URL"),
        ({"device_authorization_endpoint": None}, "offers no device sign-in; use a key"),
    ],
)
def test_documents_that_lead_elsewhere(change, message):
    network = Network(openid_configuration=DOCUMENT | change)
    with Issuer(ISSUER, network) as issuer, pytest.raises(SignOnFailed, match=message):
        device.start(issuer, CLIENT)
    assert (len(network.requests), network.forms) == (1, [])


def test_the_default_port_is_the_same_origin():
    document = DOCUMENT | {"device_authorization_endpoint": "https://ID.example.com:443/device"}
    with Issuer(ISSUER, Network(openid_configuration=document)) as issuer:
        assert device.start(issuer, CLIENT).user_code == "WDJB-MJHT"


@pytest.mark.parametrize("name", ["token_endpoint", "revocation_endpoint"])
def test_tokens_are_sent_to_the_issuers_own_origin(name, clock, tmp_path):
    network = Network(openid_configuration=DOCUMENT | {name: "https://evil.example.com/token"})
    environment, sign_on = make_profile(tmp_path)
    source = TokenSource("prod", SERVER, sign_on, environment=environment, transport=network)
    with pytest.raises(SignOnFailed, match=f"The {name} of {ISSUER} is at another address"):
        source() if name == "token_endpoint" else revoke(sign_on, network)
    assert network.forms == []


def make_profile(tmp_path) -> tuple[dict[str, str], SignOn]:
    """A profile with tokens that have expired."""
    environment = {"MONODON_CONFIG": str(tmp_path / "profiles.json")}
    sign_on = SignOn(ISSUER, "monodon-cli", JWT, "refresh-secret", 1.0, 2.0)
    with Profiles.locked(environment) as profiles:
        profiles.servers["prod"] = Server(SERVER, sign_on=sign_on)
        profiles.save()
    return environment, sign_on


# --- the code ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"user_code": "\x1b[31mAAAA"},
        {"user_code": "A\nB"},
        {"user_code": "AB\u202eCD"},
        {"user_code": "x" * 200},
        {"user_code": None},
        {"device_code": 5},
        {"device_code": ""},
        {"verification_uri": "http://id.example.com/activate"},
        {"verification_uri": "javascript:alert(1)"},
        {"verification_uri": "https://id.example.com/\x1b[2K\rhttps://evil.example.com"},
        {"verification_uri": "https://id.example.com/ x"},
        {"verification_uri": None},
        {"verification_uri_complete": "file:///etc/passwd"},
        {"verification_uri_complete": "--help"},
        {"expires_in": None},
        {"expires_in": -1},
        {"expires_in": 0},
        {"expires_in": True},
        {"expires_in": "600"},
        {"expires_in": 10**400},
    ],
)
def test_invalid_codes_are_refused(change):
    network = Network(device=STARTED | change)
    with Issuer(ISSUER, network) as issuer, pytest.raises(SignOnFailed):
        device.start(issuer, CLIENT)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e400"])
def test_numbers_without_an_end_are_refused(number):
    text = json.dumps(STARTED | {"expires_in": 600}).encode().replace(b"600", number)
    network = Network(device=httpx.Response(200, content=text))
    with Issuer(ISSUER, network) as issuer, pytest.raises(SignOnFailed, match="valid code"):
        device.start(issuer, CLIENT)


@pytest.mark.parametrize(
    ("interval", "error", "expires_in", "polls"),
    [
        (None, "authorization_pending", 1e8, 360),
        (0, "authorization_pending", 1e8, 360),
        ("x", "slow_down", 1e8, 36),
        (1e8, "authorization_pending", 1e8, 30),
        (1e-9, "authorization_pending", 20, 20),
        (1e8, "slow_down", 20, 1),
    ],
)
def test_polling_ends(clock, interval, error, expires_in, polls):
    network = Network(
        device=STARTED | {"expires_in": expires_in, "interval": interval},
        token=lambda: httpx.Response(400, json={"error": error}),
    )
    with Issuer(ISSUER, network) as issuer, pytest.raises(SignOnRefused, match="code expired"):
        device.wait(issuer, CLIENT, device.start(issuer, CLIENT))
    assert clock.now == min(expires_in, 1800)
    assert len(network.forms) == 1 + polls


def test_polling_continues_when_the_issuer_is_away(clock):
    """Less often (RFC 8628, section 3.5)."""

    def fail() -> httpx.Response:
        raise httpx.ConnectTimeout("device-secret")

    answers = iter([fail, lambda: httpx.Response(503, json={}), lambda: GRANTED])

    def answer() -> Answer:
        return next(answers)()

    network = Network(token=answer)
    with Issuer(ISSUER, network) as issuer:
        tokens = device.wait(issuer, CLIENT, device.start(issuer, CLIENT))
    assert tokens.access_token == JWT
    assert clock.now == 5 + 10 + 20


# --- tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"access_token": "opaque"}, "are not JWTs"),
        ({"access_token": f"{JWT}\r\nx-api-key: x"}, "are not JWTs"),
        ({"access_token": JWT + "x" * 20_000}, "more than 16 KiB"),
        ({"refresh_token": "x" * 20_000}, "more than 16 KiB"),
        ({"access_token": None}, "without a token"),
        ({"refresh_token": {"a": 1}}, "without a token"),
        ({"token_type": "mac"}, "another type"),
        ({"token_type": None}, "another type"),
    ],
)
def test_invalid_tokens_are_refused(clock, tmp_path, change, message):
    network = Network(token=GRANTED | change)
    with Issuer(ISSUER, network) as issuer, pytest.raises(SignOnFailed, match=message):
        device.wait(issuer, CLIENT, device.start(issuer, CLIENT))
    environment, sign_on = make_profile(tmp_path)
    before = (tmp_path / "profiles.json").read_bytes()
    source = TokenSource("prod", SERVER, sign_on, environment=environment, transport=network)
    with pytest.raises(SignOnFailed, match=message):
        source()
    assert (tmp_path / "profiles.json").read_bytes() == before


def test_a_sign_on_without_a_refresh_token_ends_with_the_access_token(clock, tmp_path):
    network = Network(token={name: GRANTED[name] for name in ("access_token", "token_type")})
    with Issuer(ISSUER, network) as issuer:
        tokens = device.wait(issuer, CLIENT, device.start(issuer, CLIENT))
    assert tokens.refresh_token == ""
    environment, sign_on = make_profile(tmp_path)
    with Profiles.locked(environment) as profiles:
        sign_on = SignOn(ISSUER, "monodon-cli", JWT, "", 1.0, 2.0)
        profiles.servers["prod"].sign_on = sign_on
        profiles.save()
    requests = len(network.requests)
    with pytest.raises(SignOnRefused, match="has ended"):
        TokenSource("prod", SERVER, sign_on, environment=environment, transport=network)()
    assert len(network.requests) == requests


def test_an_issuer_that_keeps_its_refresh_token(tmp_path):
    network = Network(token={**GRANTED, "refresh_token": ""})
    environment, sign_on = make_profile(tmp_path)
    TokenSource("prod", SERVER, sign_on, environment=environment, transport=network)()
    stored = Profiles.load(environment).servers["prod"].sign_on
    assert stored.refresh_token == "refresh-secret"


def test_an_issuer_that_is_away(tmp_path):
    def fail() -> httpx.Response:
        raise httpx.ReadTimeout("refresh-secret")

    environment, sign_on = make_profile(tmp_path)
    network = Network(token=fail)
    source = TokenSource("prod", SERVER, sign_on, environment=environment, transport=network)
    with pytest.raises(SignOnUnavailable, match="does not answer") as caught:
        source()
    assert "secret" not in str(caught.value)


def test_tokens_are_not_in_representations(tmp_path):
    environment, sign_on = make_profile(tmp_path)
    profiles = Profiles.load(environment)
    connection = profiles.connection(profile="prod", environment=environment)
    for value in (sign_on, profiles, connection):
        assert ISSUER in repr(value)
        assert JWT not in repr(value)
        assert "secret" not in repr(value)


# --- the terminal --------------------------------------------------------------------------------


def test_texts_of_the_issuer_do_not_control_the_terminal(clock, monkeypatch, tmp_path):
    monkeypatch.setenv("MONODON_CONFIG", str(tmp_path / "profiles.json"))
    description = "\x1b[2J\x1b]0;owned\x07\u202e" + "x" * 5000
    error = {"error": "invalid_scope\x1b[31m", "error_description": description}
    for name in ("device", "token"):
        network = Network(**{name: httpx.Response(400, json=error)})
        result = CliRunner().invoke(
            root, ["login", SERVER, "--sign-on"], obj=App(transport=network)
        )
        assert result.exit_code == 1
        lines = result.output.splitlines()
        assert "invalid_scope [31m" in lines[-1]
        assert all(line.isprintable() for line in lines)
        assert len(lines[-1]) < 1500
        assert not (tmp_path / "profiles.json").exists()


# --- the file of profiles --------------------------------------------------------------------------


def test_a_locked_file_is_an_error_after_a_while(tmp_path, monkeypatch):
    environment, _ = make_profile(tmp_path)
    monkeypatch.setattr("monodon.profiles._LOCK_SECONDS", 0.0)
    with (
        Profiles.locked(environment),
        pytest.raises(ProfileError, match="locked by another process"),
        Profiles.locked(environment),
    ):
        pass
    with Profiles.locked(environment) as profiles:  # the lock ends with its holder
        assert set(profiles.servers) == {"prod"}
    assert (tmp_path / "profiles.json.lock").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "entry", [{"sign_on": 5}, {"sign_on": {}}, {"sign_on": {"issuer": ISSUER, "refresh_at": "x"}}]
)
def test_broken_tokens_are_refused(tmp_path, entry):
    environment, _ = make_profile(tmp_path)
    document = {"current": "a", "profiles": {"a": {"url": SERVER, **entry}}}
    (tmp_path / "profiles.json").write_text(json.dumps(document))
    with pytest.raises(ProfileError, match="log in"):
        Profiles.load(environment)
