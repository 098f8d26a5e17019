"""The commands of the pages of stores in docs/, docker-compose.yml and `make stores` create profiles."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from django.core.management import call_command

from catalog.models import Namespace, StorageProfile
from server.options import PROJECT
from tests.stores import __main__ as stand
from tests.stores.emulators import Azurite

_PLACEHOLDERS = {"ACCOUNT": "account", "ACCOUNT_ID": "account", "$KEY": "key-id"}
_SECRETS = {
    "gcs": json.dumps(
        {"type": "service_account", "client_email": "m@example.com", "private_key": "key"}
    )
}


def _commands(text: str) -> list[list[str]]:
    """The arguments of each `manage.py storage` in shell commands."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [
        shlex.split(line.partition("manage.py storage ")[2], comments=True)
        for line in lines
        if "manage.py storage " in line and not line.lstrip().startswith(("if ", "#"))
    ]


def _guide() -> list[list[str]]:
    overview = (PROJECT / "docs" / "object-stores.md").read_text()
    pages = re.findall(r"^\| \[.*?\]\((.*?\.md)\)", overview, re.MULTILINE)
    text = "\n".join((PROJECT / "docs" / page).read_text() for page in pages)
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    commands = _commands("\n".join(blocks))
    return [command for command in commands if command[0] == "create"]


def _run(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StorageProfile:
    """Run the command with values for its placeholders, and a file instead of the source of its secret."""
    for placeholder, value in _PLACEHOLDERS.items():
        arguments = [re.sub(rf"(?<!\w){re.escape(placeholder)}\b", value, a) for a in arguments]
    if "--secret-from" in arguments:
        file = tmp_path / "secret"
        file.write_text(_SECRETS.get(arguments[arguments.index("--preset") + 1], "secret")
            if "--preset" in arguments else "secret")  # fmt: skip
        arguments[arguments.index("--secret-from") + 1] = f"file:{file}"
    call_command("storage", *arguments)
    return StorageProfile.objects.get(name=arguments[1])


def test_guide_has_a_command_for_every_store():
    presets = {a[a.index("--preset") + 1] for a in _guide() if "--preset" in a}
    assert presets == {"aws", "seaweedfs", "ceph", "minio", "r2", "gcs", "azure"}


@pytest.mark.parametrize("arguments", _guide(), ids=lambda a: " ".join(a[2:4]))
def test_commands_of_the_guide_create_profiles(db, tmp_path, monkeypatch, arguments):
    profile = _run(arguments, tmp_path, monkeypatch)
    assert profile.name == "lake"
    assert profile.roots[0].endswith(("://lake/tables", "lake@account.dfs.core.windows.net/tables"))


def test_policy_of_the_guide_ends_in_a_slash():
    text = (PROJECT / "docs" / "amazon-s3.md").read_text()
    blocks = re.findall(r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    documents = [json.loads(block) for block in blocks]
    files = next(d for d in documents if "s3:PutObject" in str(d))["Statement"]
    assert files[0]["Resource"] == "arn:aws:s3:::lake/tables/*"
    assert files[1]["Condition"] == {"StringLike": {"s3:prefix": ["tables/*"]}}


def test_compose_creates_a_profile_and_places_new_tables_there(db, tmp_path, monkeypatch):
    services = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"]
    defaults = {
        f"$${name}": re.sub(r"\$\{\w+:-(.*)\}", r"\1", value)
        for name, value in services["storage"]["environment"].items()
        if name.startswith("S3_")
    }
    create, bind = _commands(services["storage"]["command"][-1])
    profile = _run([defaults.get(word, word) for word in create], tmp_path, monkeypatch)
    assert (profile.endpoint, profile.client_access) == ("http://s3:7070", "static")
    assert profile.key_id == services["s3"]["environment"]["ROOT_ACCESS_KEY"][2:-1].split(":-")[1]
    call_command("storage", *[word.replace("$$", "$") for word in bind])
    assert Namespace.objects.get(storage_profile=profile).parent is None


def test_make_stores_prints_commands_that_create_profiles(db, tmp_path, monkeypatch, moto_s3):
    azurite = Azurite()
    azurite.endpoint = "http://127.0.0.1:10000/devstoreaccount1"
    for name, fields, root in (
        ("moto", moto_s3.profile_fields() | {"role": moto_s3.role}, "s3://lake/tables"),
        (
            "azurite",
            azurite.profile_fields(),
            "abfss://lake@devstoreaccount1.dfs.core.windows.net/t",
        ),
    ):
        (arguments,) = _commands(stand._command(name, fields, root))
        profile = _run(arguments, tmp_path, monkeypatch)
        assert (profile.endpoint, profile.roots) == (fields["endpoint"], [root])
