"""docker-compose.yml passes every documented setting to the server's containers."""

from pathlib import Path

import pytest
import yaml

from tests.config.test_documented import documented

PROJECT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())
SERVER = ("bootstrap", "web", "worker", "tasks", "beat", "storage")
# Directories and addresses inside of a container; the host's port is that of `ports`.
FIXED = {"MONODON_HOME", "MONODON_HOST", "MONODON_PORT", "MONODON_WAREHOUSE"}
BY_THE_HOST = {"MONODON_BIND", "MONODON_PORT"}
OF_BOOTSTRAP = {"MONODON_ADMIN_PASSWORD", "MONODON_ADMIN_API_KEY"}


def settings() -> set[str]:
    pages = ("operations.md", "sign-on.md", "maintenance.md")
    names = set().union(*(documented(page, in_table=True) for page in pages))
    assert {"MONODON_WEB_WORKERS", "MONODON_ANSWER_SECONDS", "MONODON_OIDC_ISSUERS"} <= names
    return names


@pytest.mark.parametrize("name", SERVER)
def test_every_documented_setting_reaches_the_container(name):
    service = COMPOSE["services"][name]
    assert service["env_file"] == [{"path": ".env", "required": False}]
    environment = service["environment"]
    for setting in settings() - FIXED - BY_THE_HOST - OF_BOOTSTRAP:
        # An entry of `environment` comes before that of the file.
        value = environment.get(setting)
        # Bootstrap prints passwords once, which people read.
        if value is not None and (name, setting) != ("bootstrap", "MONODON_LOG_FORMAT"):
            assert value.startswith(f"${{{setting}:-"), setting


@pytest.mark.parametrize("name", SERVER)
def test_secrets_reach_only_the_containers_that_need_them(name):
    environment = COMPOSE["services"][name]["environment"]
    for secret in OF_BOOTSTRAP:
        expected = f"${{{secret}:-}}" if name == "bootstrap" else ""
        assert environment[secret] == expected
    assert environment["POSTGRES_PASSWORD"] == environment["VALKEY_PASSWORD"] == ""
    assert bool(environment["S3_SECRET_KEY"]) is (name == "storage")


def test_the_commands_use_the_numbers_of_processes():
    services = COMPOSE["services"]
    assert services["web"]["command"][:3] == ["python", "-m", "config.web"]  # reads the environment
    assert "$${MONODON_WORKER_CONCURRENCY:+" in services["worker"]["command"][-1]
    ports = services["web"]["ports"]
    assert ports == ["${MONODON_BIND:-127.0.0.1}:${MONODON_PORT:-2333}:2333"]
