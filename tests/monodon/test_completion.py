"""What the shell completes."""

import httpx
import pytest
from click.shell_completion import ShellComplete

from catalog import maintenance_actions
from catalog.access import SYSTEM
from catalog.services.access import api_keys
from monodon.commands import completing, root
from monodon.commands.app import App
from monodon.profiles import Profiles, Server
from tests.factories import make_iceberg_table, make_namespace, make_table
from tests.monodon.conftest import ClientTransport

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("MONODON_CONFIG", str(tmp_path / "profiles.json"))


@pytest.fixture
def catalog(monkeypatch):
    make_namespace("prod")
    make_namespace("prod", "raw")
    make_namespace("private")
    make_table("prod", "users")
    make_table("prod", "a.b")
    make_table("prod", "with space")
    make_iceberg_table("prod", "orders")
    _, key = api_keys.create_api_key(actor=SYSTEM, name="ops")
    monkeypatch.setenv("MONODON_API_KEY", key)


def completed(*words: str, transport: httpx.BaseTransport | None = None) -> list[str]:
    *before, typed = words
    app = App(transport=transport or ClientTransport())
    shell = ShellComplete(root, {"obj": app}, "monodon", "_MONODON_COMPLETE")
    return [item.value for item in shell.get_completions(list(before), typed)]


def test_the_scripts_of_the_shells(monodon):
    for shell in ("bash", "zsh", "fish"):
        script = monodon.run("completion", shell).stdout
        assert f"_MONODON_COMPLETE={shell}_complete" in script


def test_commands_and_options():
    assert completed("ma") == ["maintain", "manage"]
    assert "--dry-run" in completed("drop", "--")


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("", ["private", "prod"]),
        ("pri", ["private"]),
        ("prod", ["prod", "prod.orders", "prod.raw", "prod.users"]),
        ("prod.", ["prod.orders", "prod.raw", "prod.users"]),
        ("prod.u", ["prod.users"]),
        ("prod.raw.", []),
        ("no.such.", []),
        ('prod."a', []),
    ],
)
def test_names_of_objects(catalog, typed, names):
    assert completed("describe", typed) == names
    assert completed("grant", "ada", "read", typed) == names


def test_names_are_those_that_the_caller_may_browse(catalog, monkeypatch):
    _, key = api_keys.create_api_key(actor=SYSTEM, name="etl", level="granted")
    monkeypatch.setenv("MONODON_API_KEY", key)
    assert completed("describe", "") == []
    assert completed("describe", "prod.") == []


@pytest.mark.parametrize("failure", [httpx.ConnectError, httpx.ReadTimeout])
def test_without_an_answer_there_are_no_values_and_no_error(catalog, capfd, failure):
    timeouts = []

    def fail(request: httpx.Request) -> httpx.Response:
        timeouts.append(request.extensions["timeout"]["read"])
        raise failure("none", request=request)

    assert completed("describe", "p", transport=httpx.MockTransport(fail)) == []
    assert timeouts == [completing.SECONDS]
    assert capfd.readouterr() == ("", "")


def test_an_unknown_profile_or_a_wrong_key_has_no_names(catalog, monkeypatch):
    assert completed("--profile", "nope", "describe", "p") == []
    monkeypatch.setenv("MONODON_API_KEY", "mnd_wrong")
    assert completed("describe", "p") == []


def test_profiles():
    with Profiles.locked() as stored:
        stored.servers = {
            "prod": Server("https://a.example.com", "mnd_a"),
            "staging": Server("https://b.example.com", "mnd_b"),
        }
        stored.save()
    assert completed("--profile", "") == ["prod", "staging"]
    assert completed("profiles", "--use", "st") == ["staging"]
    assert completed("logout", "p") == ["prod"]
    stored.path.chmod(0o644)
    assert completed("logout", "") == []


def test_kinds_of_maintenance():
    assert set(completing.KINDS) == set(maintenance_actions.keys())
    assert completed("maintain", "run", "prod.users", "comp") == ["compact", "compute_statistics"]
