"""docs/operations.md lists every setting and nothing else; docs/sign-on.md lists those of an issuer."""

import os
import re
import runpy
from pathlib import Path

from config import settings
from server.options import PROJECT, Options

# Read by docker-compose.yml: the address at which the host publishes the port.
COMPOSE = {"MONODON_BIND"}


class Recorder(dict[str, str]):
    """An environment that records the names that are looked up."""

    def __init__(self, content: dict[str, str]) -> None:
        super().__init__(content)
        self.names: set[str] = set()

    def get(self, name: str, default: object = None) -> object:
        self.names.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return super().__getitem__(name)


def read_settings(monkeypatch, tmp_path: Path) -> set[str]:
    environment = Recorder({"MONODON_HOME": str(tmp_path)})
    Options.from_environment(environment)
    with monkeypatch.context() as patched:
        patched.setattr(os, "environ", environment)
        runpy.run_path(settings.__file__)
    return environment.names


def documented(page: str, *, in_table: bool = False) -> set[str]:
    lines = (PROJECT / "docs" / page).read_text().splitlines()
    text = [
        line.split("|")[1] if in_table else line for line in lines if not in_table or "|" in line
    ]
    return set(re.findall(r"`((?:MONODON_\w*[A-Z]|[A-Z]+_URL|SPARK_MASTER))`", "\n".join(text)))


def test_every_setting_is_documented(monkeypatch, tmp_path):
    names = read_settings(monkeypatch, tmp_path)
    assert {"MONODON_DEBUG", "MONODON_WEB_WORKERS", "MONODON_OIDC_ISSUERS"} <= names
    assert names - documented("operations.md") - documented("sign-on.md") == set()


def test_every_documented_setting_exists(monkeypatch, tmp_path):
    rows = documented("operations.md", in_table=True) | documented("sign-on.md", in_table=True)
    assert rows - read_settings(monkeypatch, tmp_path) - COMPOSE == set()
