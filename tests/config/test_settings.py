"""Invalid settings are reported in one line with the name of the variable."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from config import settings as module
from tests.shares import nightly

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Function that returns the settings of a new process."""
    monkeypatch.setenv("MONODON_HOME", str(tmp_path))

    def settings(**environment: str) -> dict[str, Any]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return runpy.run_path(module.__file__)

    return settings


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("MONODON_ANONYMOUS", "foo", "one of none, read, admin"),
        (
            "MONODON_MANIFEST_PATHS",
            "any",
            "inside, or prefixes such as /mnt/staging/ or s3://bucket/staging/",
        ),
        ("MONODON_LOG_FORMAT", "xml", "one of text, json"),
        ("MONODON_LOG_LEVEL", "loud", "one of debug, info, warning, error"),
        ("MONODON_LOG_REQUESTS", "some", "one of failed, all"),
        ("MONODON_MAX_BODY_BYTES", "16mb", "a positive number"),
        ("MONODON_MAX_BODY_BYTES", "0", "a positive number"),
        ("MONODON_MAX_BODY_BYTES", "-1", "a positive number"),
        ("MONODON_MAX_BODY_BYTES", "1.5", "a positive number"),
        ("MONODON_MAX_BODY_BYTES", "1" * 5000, "a positive number"),
        ("MONODON_MAX_BODY_BYTES", "²", "a positive number"),
        ("MONODON_DEBUG", "ture", "true or false"),
        ("MONODON_SECURE_COOKIES", "maybe", "true or false"),
    ],
)
def test_invalid_values_are_reported_with_the_allowed_values(read, name, value, allowed):
    with pytest.raises(ImproperlyConfigured) as refused:
        read(**{name: value})
    assert str(refused.value) == f"{name} is {value!r}; it must be {allowed}"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://u:secret@h/d", "DATABASE_URL names mysql; Monodon needs postgresql://"),
        ("host=h password=secret", "DATABASE_URL names no scheme; Monodon needs postgresql://"),
        ("postgresql://u:secret@[::1/d", "DATABASE_URL cannot be read"),
        ("postgresql://u:secret@h/d?colour=red", "DATABASE_URL cannot be read"),
    ],
)
def test_errors_of_the_database_url_do_not_contain_its_password(read, url, message):
    with pytest.raises(ImproperlyConfigured, match=message) as refused:
        read(DATABASE_URL=url)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    "url",
    [
        "amqp://u:secret@h",
        "h:6379",
        "redis://:secret@h:port",
        "redis://:secret@[::1",
        "foo://secret",
    ],
)
def test_errors_of_the_broker_url_do_not_contain_its_password(read, url):
    with pytest.raises(ImproperlyConfigured, match="REDIS_URL cannot be read") as refused:
        read(REDIS_URL=url)
    assert "secret" not in str(refused.value)
    for valid in (
        "redis://h",
        "rediss://:pw@h:6380/1?ssl_cert_reqs=required",
        "unix:///run/v.sock",
    ):
        assert read(REDIS_URL=valid)["REDIS_URL"] == valid


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://u:secret@127.0.0.1:1/d", "Connection refused"),
        nightly("postgresql://u:secret@127.0.0.1:99999/d", "invalid port number"),
        nightly("postgresql://u:secret@no-such-host.invalid/d", "no-such-host.invalid"),
    ],
)
def test_a_command_without_a_database_ends_with_one_line(url, reason, tmp_path):
    completed = subprocess.run(
        [sys.executable, "manage.py", "showmigrations"],
        cwd=PROJECT,
        env=os.environ | {"DATABASE_URL": url, "MONODON_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 1
    assert completed.stdout == ""
    (line,) = completed.stderr.splitlines()
    assert line.startswith("The database cannot be used: ")
    assert reason in line
    assert line.endswith(
        "Check DATABASE_URL, or start Monodon if its database is the embedded one."
    )
    assert "secret" not in line


def test_values_may_have_whitespace_and_any_case(read):
    settings = read(
        MONODON_ANONYMOUS=" Read ", MONODON_MAX_BODY_BYTES=" 1024 ", MONODON_SECURE_COOKIES="YES"
    )
    assert settings["MONODON_ANONYMOUS"] == "read"
    assert settings["DATA_UPLOAD_MAX_MEMORY_SIZE"] == 1024
    assert settings["SESSION_COOKIE_SECURE"] is True


def test_an_empty_value_is_the_default(read):
    """Compose files pass unset variables as empty strings."""
    settings = read(MONODON_ANONYMOUS="", MONODON_MAX_BODY_BYTES="", MONODON_DEBUG="")
    assert settings["MONODON_ANONYMOUS"] == "none"
    assert settings["MONODON_MAX_BODY_BYTES"] == 16 * 1024 * 1024
    assert settings["DEBUG"] is False


_ISSUER = {"MONODON_OIDC_ISSUERS": "https://id.example.com", "MONODON_OIDC_AUDIENCES": "monodon"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"MONODON_OIDC_ISSUERS": "http://id.example.com"}, "an https:// URL"),
        ({"MONODON_OIDC_ISSUERS": "https://id.example.com?x=1"}, "an https:// URL"),
        ({"MONODON_OIDC_ISSUERS": "https://u:secret@id.example.com"}, "an https:// URL"),
        ({"MONODON_OIDC_ISSUERS": "https://[::1"}, "an https:// URL"),
        ({"MONODON_PUBLIC_URL": "catalog.example.com"}, "an https:// URL"),
        ({"MONODON_OIDC_ALGORITHMS": "RS256,HS256"}, "MONODON_OIDC_ALGORITHMS is 'RS256,HS256'"),
        ({"MONODON_OIDC_ALGORITHMS": "none"}, "MONODON_OIDC_ALGORITHMS is 'none'"),
        ({"MONODON_OIDC_AUDIENCES": ""}, "needs MONODON_OIDC_AUDIENCES"),
        ({"MONODON_OIDC_ISSUERS": "", "MONODON_OIDC_CLIENT_ID": "x"}, "needs MONODON_OIDC_ISSUERS"),
        (
            {"MONODON_OIDC_ISSUERS": "", "MONODON_OIDC_CLI_CLIENT_ID": "x"},
            "needs MONODON_OIDC_ISSUERS",
        ),
        (
            {
                "MONODON_OIDC_AUDIENCES": "",
                "MONODON_OIDC_CLIENT_ID": "admin",
                "MONODON_OIDC_CLI_CLIENT_ID": "x",
            },
            "MONODON_OIDC_CLI_CLIENT_ID needs MONODON_OIDC_ISSUERS and MONODON_OIDC_AUDIENCES",
        ),
        ({"MONODON_PROXIES": "-1"}, "MONODON_PROXIES is '-1'"),
        ({"MONODON_PROXIES": "x"}, "MONODON_PROXIES is 'x'"),
    ],
)
def test_unsafe_settings_of_issuers_are_refused(read, change, message):
    assert read(**_ISSUER)["MONODON_OIDC_ISSUERS"] == ["https://id.example.com"]
    with pytest.raises(ImproperlyConfigured, match=message):
        read(**_ISSUER | change)


@pytest.mark.parametrize(
    ("url", "secure"),
    [("", False), ("http://127.0.0.1:2333", False), ("https://c.example.com", True)],
)
def test_cookies_are_secure_if_the_public_url_is_https(read, url, secure):
    settings = read(MONODON_PUBLIC_URL=url)
    for cookie in ("SESSION_COOKIE", "CSRF_COOKIE"):
        assert settings[f"{cookie}_SECURE"] is secure
        assert settings[f"{cookie}_HTTPONLY"] is True
        assert settings[f"{cookie}_SAMESITE"] == "Lax"
    assert "SECURE_PROXY_SSL_HEADER" not in settings
    assert "SECURE_PROXY_SSL_HEADER" in read(MONODON_PROXIES="1")


def test_commands_find_the_embedded_database_and_broker(read, monkeypatch, tmp_path):
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    settings = read()
    assert settings["DATABASES"]["default"]["HOST"] == ""
    assert settings["CELERY_BROKER_URL"] == "redis://localhost:6379/0"
    sockets = tmp_path / "run"
    (sockets / "postgres").mkdir(parents=True)
    (sockets / "postgres" / ".s.PGSQL.5432").touch()
    (sockets / "valkey.sock").touch()
    settings = read()
    assert settings["DATABASES"]["default"]["HOST"] == str(sockets / "postgres")
    assert settings["CELERY_BROKER_URL"] == f"redis+socket://{sockets / 'valkey.sock'}"
    assert read(REDIS_URL="redis://h:1/2")["CELERY_BROKER_URL"] == "redis://h:1/2"


LOOPBACK = ["localhost", "127.0.0.1", "[::1]"]


@pytest.mark.parametrize(
    ("environment", "hosts"),
    [
        ({}, []),
        ({"MONODON_HOST": "0.0.0.0"}, []),
        ({"MONODON_HOST": "::"}, []),
        ({"MONODON_HOST": "192.168.1.5"}, ["192.168.1.5"]),
        ({"MONODON_HOST": "fd00::5"}, ["[fd00::5]"]),
        ({"MONODON_PUBLIC_URL": "https://Catalog.example.com:8443/x"}, ["catalog.example.com"]),
        ({"MONODON_URL": "http://web:2333"}, ["web"]),
        (
            {"MONODON_PUBLIC_URL": "https://a.example.com", "MONODON_ALLOWED_HOSTS": "b, .c.d"},
            ["a.example.com", "b", ".c.d"],
        ),
    ],
)
def test_allowed_hosts_are_derived_from_the_settings(read, monkeypatch, environment, hosts):
    for name in ("MONODON_HOST", "MONODON_URL", "MONODON_PUBLIC_URL", "MONODON_ALLOWED_HOSTS"):
        monkeypatch.delenv(name, raising=False)
    assert read(**environment)["ALLOWED_HOSTS"] == LOOPBACK + hosts
