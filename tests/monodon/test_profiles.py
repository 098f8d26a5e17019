"""Profiles: which server a command uses, and which key it sends."""

import json

import pytest

from monodon.profiles import DEFAULT_URL, ProfileError, Profiles, Server


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    return {"MONODON_CONFIG": str(tmp_path / "config" / "profiles.json")}


@pytest.fixture
def profiles(environment) -> Profiles:
    stored = Profiles.load(environment)
    stored.servers = {
        "dev": Server("http://dev:2333", "dev-key"),
        "prod": Server("https://prod", "prod-key"),
    }
    stored.current = "dev"
    stored.save()
    return Profiles.load(environment)


def test_the_file_is_private_and_is_read_back(profiles, environment):
    assert profiles.path.stat().st_mode & 0o777 == 0o600
    assert json.loads(profiles.path.read_text())["profiles"]["prod"]["api_key"] == "prod-key"
    assert profiles.current == "dev"
    assert [entry.name for entry in profiles.path.parent.iterdir()] == ["profiles.json"]


def test_a_file_that_others_can_read_is_refused(profiles, environment):
    profiles.path.chmod(0o640)
    with pytest.raises(ProfileError, match="chmod 600"):
        Profiles.load(environment)


def test_a_broken_file_is_refused(profiles, environment):
    for content in (
        b"no JSON",
        b"\xff",
        b"[]",
        b"{}",
        b'{"current": "a", "profiles": []}',
        b'{"current": "a", "profiles": {"a": "x"}}',
        b'{"current": "a", "profiles": {"a": {"url": "x"}}}',
    ):
        profiles.path.write_bytes(content)
        with pytest.raises(ProfileError, match="log in"):
            Profiles.load(environment)


def test_without_a_profile_the_local_server_is_used_without_a_key(environment):
    connection = Profiles.load(environment).connection(environment=environment)
    assert (connection.url, connection.api_key) == (DEFAULT_URL, None)


@pytest.mark.parametrize(
    ("options", "variables", "expected"),
    [
        ({}, {}, ("http://dev:2333", "dev-key")),
        ({}, {"MONODON_PROFILE": "prod"}, ("https://prod", "prod-key")),
        ({"profile": "prod"}, {"MONODON_PROFILE": "dev"}, ("https://prod", "prod-key")),
        ({}, {"MONODON_URL": "https://other/"}, ("https://other", None)),
        ({}, {"MONODON_API_KEY": "k"}, ("http://dev:2333", "k")),
        ({}, {"MONODON_URL": "https://other", "MONODON_API_KEY": "k"}, ("https://other", "k")),
        # An explicit profile comes before the environment.
        (
            {"profile": "prod"},
            {"MONODON_URL": "https://other", "MONODON_API_KEY": "k"},
            ("https://prod", "prod-key"),
        ),
        # The key of a profile goes to the server of the profile only.
        ({"url": "https://prod"}, {}, ("https://prod", None)),
        ({"url": "http://dev:2333/"}, {}, ("http://dev:2333", "dev-key")),
        ({"profile": "prod", "url": "http://dev:2333"}, {}, ("http://dev:2333", None)),
    ],
)
def test_the_connection(profiles, environment, options, variables, expected):
    connection = profiles.connection(**options, environment=environment | variables)
    assert (connection.url, connection.api_key) == expected


def test_an_unknown_profile_is_refused(profiles, environment):
    with pytest.raises(ProfileError, match="monodon --profile no login"):
        profiles.connection(profile="no", environment=environment)
