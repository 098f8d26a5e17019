"""The command line against the application in this process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from django.conf import settings
from django.test import Client

from catalog.access import SYSTEM
from catalog.models import PrincipalLevel
from catalog.services.access import api_keys
from monodon.commands import root
from monodon.commands.app import App


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch) -> Path:
    directory = tmp_path / "warehouse"
    directory.mkdir()
    monkeypatch.setattr(settings, "MONODON_WAREHOUSE", str(directory))
    monkeypatch.setattr(settings, "MONODON_TRASH_SECONDS", 3600)
    return directory


class ClientTransport(httpx.BaseTransport):
    """Sends requests to the application through Django's test client, in the transaction of the test."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        headers = {name: value for name, value in request.headers.items() if name != "host"}
        response = Client(raise_request_exception=False).generic(
            request.method,
            request.url.raw_path.decode(),
            request.read(),
            content_type=headers.pop("content-type", ""),
            headers=headers,
        )
        content = b"".join(response) if response.streaming else response.content
        return httpx.Response(response.status_code, headers=dict(response.items()), content=content)


@dataclass
class CommandLine:
    """Runs commands with a key."""

    key: str

    def run(self, *arguments: str, status: int = 0, text: str | None = None) -> Result:
        result = CliRunner(env={"MONODON_API_KEY": self.key}).invoke(
            root, arguments, input=text, obj=App(transport=ClientTransport())
        )
        assert result.exit_code == status, (result.output, result.exception)
        return result

    def lines(self, *arguments: str) -> list[list[str]]:
        """The cells of the printed rows."""
        return [line.split("\t") for line in self.run(*arguments).stdout.splitlines()]

    def json(self, *arguments: str, **options: Any) -> Any:
        return json.loads(self.run(*arguments, "--json", **options).stdout)

    def refused(self, status: int, message: str, *arguments: str) -> None:
        """Expect one line on standard error, and nothing on standard output."""
        result = self.run(*arguments, status=status)
        assert result.stdout == ""
        assert result.stderr.startswith("monodon: ")
        assert message in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.fixture
def monodon(db, warehouse, monkeypatch, tmp_path) -> CommandLine:
    """The command line of an administrator."""
    Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)  # WhiteNoise warns without it
    monkeypatch.setenv("MONODON_CONFIG", str(tmp_path / "profiles.json"))
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    _, key = api_keys.create_api_key(actor=SYSTEM, name="tester")
    return CommandLine(key)


@pytest.fixture
def make_key(db) -> Callable[[str], str]:
    """A key of a principal without grants."""

    def make(name: str) -> str:
        level = PrincipalLevel.GRANTED
        return api_keys.create_api_key(actor=SYSTEM, name=name, level=level)[1]

    return make
