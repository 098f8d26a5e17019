"""Single sign-on with the command line, at an imitated issuer."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from django.conf import settings

from catalog.access import SYSTEM
from catalog.models import PrincipalKind
from catalog.services.access import oidc, principals
from monodon.commands import root, session
from monodon.commands.app import App
from monodon.profiles import ProfileError, Profiles
from monodon.sign_on import device
from monodon.sign_on.tokens import TokenSource
from tests import issuer as issuers
from tests.issuer import AUDIENCE, CLI, Issuer
from tests.monodon.conftest import ClientTransport


@dataclass
class Clock:
    """The time that a sign-in waits, and what a person does meanwhile."""

    now: float = 0.0
    pauses: list[float] = field(default_factory=list)
    during: Callable[[int], None] = lambda _: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)
        self.during(len(self.pauses))


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    module = SimpleNamespace(monotonic=clock.monotonic, sleep=clock.sleep)
    monkeypatch.setattr(device, "time", module)
    return clock


class Network(httpx.BaseTransport):
    """Sends requests for the issuer to it, and others to the application. Records them."""

    def __init__(self, issuer: str) -> None:
        self.issuer, self.requests = issuer, []
        self._application, self._http = ClientTransport(), httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        is_for_issuer = str(request.url).startswith(self.issuer)
        return (self._http if is_for_issuer else self._application).handle_request(request)


@dataclass
class Terminal:
    """Runs commands without a key. ``output`` is everything that they printed."""

    network: Network
    profiles: Path
    output: str = ""

    def run(self, *arguments: str, status: int = 0) -> Result:
        app = App(transport=self.network)
        result = CliRunner(env={"MONODON_API_KEY": ""}).invoke(root, arguments, obj=app)
        self.output += result.output
        assert result.exit_code == status, (result.output, result.exception)
        return result

    def entry(self) -> dict[str, Any]:
        return json.loads(self.profiles.read_text())["profiles"]["default"]

    def make_stale(self, **times: float) -> None:
        """Let the access token be due for renewal."""
        with Profiles.locked() as profiles:
            server = profiles.servers["default"]
            document = server.write()
            document["sign_on"] |= {"refresh_at": 0, **times}
            profiles.servers["default"] = type(server).read(document)
            profiles.save()


@pytest.fixture
def provider(db, settings) -> Iterator[Issuer]:
    oidc.forget()
    with issuers.running() as provider:
        settings.ALLOWED_HOSTS = ["*"]
        settings.MONODON_OIDC_ISSUERS = [provider.url]
        settings.MONODON_OIDC_AUDIENCES = [AUDIENCE]
        settings.MONODON_OIDC_CLI_CLIENT_ID = CLI
        yield provider
    oidc.forget()


@pytest.fixture
def person(provider: Issuer) -> None:
    principals.create_principal(
        actor=SYSTEM,
        name="user:ada",
        kind=PrincipalKind.USER,
        issuer=provider.url,
        subject="ada-1",
    )


@pytest.fixture
def terminal(monodon, provider: Issuer, tmp_path) -> Iterator[Terminal]:
    """A terminal in which no command prints a secret of the issuer."""
    terminal = Terminal(Network(provider.url), tmp_path / "profiles.json")
    yield terminal
    for secret in provider.issued_secrets:
        assert secret not in terminal.output
    for request in terminal.network.requests:
        assert not any(secret in str(request.url) for secret in provider.issued_secrets)


LOCAL = "http://127.0.0.1:2333"


@pytest.fixture
def signed_in(terminal: Terminal, provider: Issuer, person, clock: Clock) -> Terminal:
    clock.during = lambda _: provider.sign_in()
    terminal.run("login", LOCAL, "--sign-on")
    terminal.network.requests.clear()
    provider.requests.clear()
    return terminal


def test_a_person_signs_in(terminal: Terminal, provider: Issuer, person, clock: Clock):
    def act(pause: int) -> None:
        if pause == 2:
            provider.refuse("slow_down")
        if pause == 3:
            provider.sign_in()

    clock.during = act
    result = terminal.run("login", LOCAL, "--sign-on", "--json")
    assert json.loads(result.stdout) == {
        "profile": "default",
        "url": LOCAL,
        "credentials": "sign-on",
    }
    assert result.stderr.splitlines()[1:3] == [
        f"Open    {provider.url}/activate",
        "Enter   WDJB-MJHT",
    ]
    assert clock.pauses == [5, 5, 10]  # slow_down adds five seconds
    assert terminal.profiles.stat().st_mode & 0o777 == 0o600
    entry = terminal.entry()
    assert set(entry) == {"url", "sign_on"}
    assert [*provider.refresh_tokens] == [entry["sign_on"]["refresh_token"]]
    assert terminal.run("profiles").stdout == f"default\t{LOCAL}\tsign-on\t*\n"
    # Commands send the token to the server, and only there.
    terminal.network.requests.clear()
    terminal.run("keys", "ls")
    [request] = terminal.network.requests
    assert request.url.port == 2333
    assert request.headers["authorization"] == f"Bearer {entry['sign_on']['access_token']}"
    assert "x-api-key" not in request.headers


def test_tokens_are_not_sent_to_another_server(signed_in: Terminal):
    signed_in.run("--url", "http://localhost:2333", "keys", "ls", status=3)
    [request] = signed_in.network.requests
    assert "authorization" not in request.headers


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("access_denied", "The sign-in was refused"),
        ("authorization_declined", "The sign-in was refused"),
        ("expired_token", "The code expired"),
    ],
)
def test_a_sign_in_that_is_refused(terminal, provider, clock, error, message):
    clock.during = lambda _: provider.refuse(error)
    result = terminal.run("login", LOCAL, "--sign-on", status=3)
    assert message in result.stderr
    assert not terminal.profiles.exists()


def test_the_browser_opens_if_requested(terminal, provider, person, clock, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(session.click, "launch", opened.append)
    clock.during = lambda _: provider.sign_in()
    terminal.run("login", LOCAL, "--sign-on")
    assert opened == []
    terminal.run("login", LOCAL, "--sign-on", "--browser")
    assert opened == [f"{provider.url}/activate?user_code=WDJB-MJHT"]


def test_a_server_without_single_sign_on(terminal, provider, settings):
    settings.MONODON_OIDC_CLI_CLIENT_ID = ""
    result = terminal.run("login", LOCAL, "--sign-on", status=1)
    assert "offers no single sign-on" in result.stderr
    assert "--ask-key" in result.stderr
    assert provider.requests == {}
    assert not terminal.profiles.exists()


def test_an_issuer_without_device_sign_in(terminal, provider):
    provider.document["device_authorization_endpoint"] = None
    result = terminal.run("login", LOCAL, "--sign-on", status=1)
    assert "offers no device sign-in; use a key" in result.stderr
    assert not terminal.profiles.exists()


def test_a_client_that_the_issuer_does_not_know(terminal, provider, settings):
    settings.MONODON_OIDC_CLI_CLIENT_ID = "another"
    result = terminal.run("login", LOCAL, "--sign-on", status=1)
    assert "refused to start a sign-in: invalid_client" in result.stderr


def test_a_person_whom_the_server_does_not_know(terminal, provider, clock):
    clock.during = lambda _: provider.sign_in()
    result = terminal.run("login", LOCAL, "--sign-on", status=3)
    assert "does not accept the sign-on: The token's subject is not known here" in result.stderr
    assert provider.refresh_tokens == {}  # revoked
    assert not terminal.profiles.exists()


def test_tokens_that_cannot_be_stored_are_revoked(terminal, provider, person, clock, monkeypatch):
    def fail(_profiles: Profiles) -> None:
        raise ProfileError("The disk is full")

    monkeypatch.setattr(Profiles, "save", fail)
    clock.during = lambda _: provider.sign_in()
    result = terminal.run("login", LOCAL, "--sign-on", status=1)
    assert "The disk is full" in result.stderr
    assert provider.refresh_tokens == {}
    assert not terminal.profiles.exists()


def test_a_terminal_gets_single_sign_on_if_it_is_offered(
    terminal, provider, person, clock, monkeypatch
):
    """Without it, and on a connection that is not encrypted, the command asks for a key."""
    monkeypatch.setattr(session, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(session.click, "prompt", lambda *_, **__: "mnd_wrong")
    clock.during = lambda _: provider.sign_in()
    terminal.run("login", LOCAL)
    assert "sign_on" in terminal.entry()
    before = terminal.profiles.read_bytes()
    terminal.run("login", LOCAL, "--ask-key", status=3)
    terminal.run("login", "http://catalog.example.com", status=3)
    monkeypatch.setattr(settings, "MONODON_OIDC_CLI_CLIENT_ID", "")
    terminal.run("login", LOCAL, status=3)
    assert terminal.profiles.read_bytes() == before


# --- renewal -------------------------------------------------------------------------------------


def test_a_token_is_renewed_once_when_it_is_due(signed_in: Terminal, provider: Issuer):
    before = signed_in.entry()["sign_on"]
    signed_in.run("keys", "ls")
    assert "/token" not in provider.requests
    signed_in.make_stale()
    signed_in.run("keys", "ls")
    signed_in.run("keys", "ls")
    assert provider.requests["/token"] == 1
    after = signed_in.entry()["sign_on"]
    assert after["access_token"] != before["access_token"]
    assert [*provider.refresh_tokens] == [after["refresh_token"]] != [before["refresh_token"]]
    assert after["refresh_at"] > before["refresh_at"]
    assert after["expires_at"] - after["refresh_at"] == pytest.approx(30)
    assert signed_in.profiles.stat().st_mode & 0o777 == 0o600


def test_a_short_token_is_used_for_half_of_its_time(signed_in: Terminal, provider: Issuer):
    provider.lifetime = 20
    signed_in.make_stale()
    signed_in.run("keys", "ls")
    sign_on = signed_in.entry()["sign_on"]
    assert sign_on["expires_at"] - sign_on["refresh_at"] == pytest.approx(10)


def test_concurrent_processes_renew_a_token_once(signed_in: Terminal, provider: Issuer):
    """The issuer accepts a refresh token once."""
    signed_in.make_stale()
    stale = Profiles.load().servers["default"].sign_on
    barrier, renewed = threading.Barrier(4), []

    def use() -> None:
        source = TokenSource("default", LOCAL, stale)
        barrier.wait()
        renewed.append(source())

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert renewed == [signed_in.entry()["sign_on"]["access_token"]] * 4
    assert provider.requests["/token"] == 1


def test_a_sign_on_that_the_issuer_ended(signed_in: Terminal, provider: Issuer):
    provider.refresh_tokens.clear()
    signed_in.make_stale(expires_at=0)
    for _ in range(2):
        result = signed_in.run("keys", "ls", status=3)
        assert f"has ended: monodon --profile default login {LOCAL}" in result.stderr
    assert provider.requests["/token"] == 1  # a refused token is not sent again
    assert signed_in.entry()["sign_on"]["refresh_token"] == ""


def test_a_valid_token_is_used_while_the_issuer_is_unavailable(
    signed_in: Terminal, provider: Issuer
):
    before = signed_in.profiles.read_bytes()
    provider.status = 503
    signed_in.make_stale()
    signed_in.run("keys", "ls")
    signed_in.make_stale(expires_at=0)
    result = signed_in.run("keys", "ls", status=6)
    assert "answers with 503" in result.stderr
    provider.status = 200
    signed_in.run("keys", "ls")
    assert signed_in.profiles.read_bytes() != before


def test_a_profile_that_was_removed_meanwhile(signed_in: Terminal):
    signed_in.make_stale()
    stale = Profiles.load().servers["default"].sign_on
    signed_in.run("logout")
    before = signed_in.profiles.read_bytes()
    with pytest.raises(device.SignOnRefused, match="has ended"):
        TokenSource("default", LOCAL, stale)()
    assert signed_in.profiles.read_bytes() == before


# --- log-out -------------------------------------------------------------------------------------


def test_logout_revokes_the_tokens(signed_in: Terminal, provider: Issuer):
    first, second = signed_in.run("logout").output.splitlines()
    assert re.fullmatch(r"Monodon accepts the last access token until \S+ \S+ UTC\.", first)
    assert second == "Removed profile 'default'."
    assert provider.refresh_tokens == {}
    assert json.loads(signed_in.profiles.read_text()) == {"current": "", "profiles": {}}


@pytest.mark.parametrize(
    ("document", "status", "message"),
    [
        ({"revocation_endpoint": None}, 200, "offers no revocation"),
        ({"revocation_endpoint": "https://elsewhere.example.com/revoke"}, 200, "another address"),
        ({}, 503, "answers with 503"),
    ],
)
def test_logout_removes_the_profile_even_if_nothing_is_revoked(
    signed_in: Terminal, provider: Issuer, document, status, message
):
    provider.document, provider.status = document, status
    result = signed_in.run("logout")
    assert "The tokens stay valid until they expire" in result.stderr
    assert message in result.stderr
    assert "/revoke" not in provider.requests
    assert json.loads(signed_in.profiles.read_text()) == {"current": "", "profiles": {}}
