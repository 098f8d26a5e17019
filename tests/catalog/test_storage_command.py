"""The command ``storage``: profiles in a shell, without a secret in an argument or in the output."""

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from catalog.models import AuditEvent, Namespace, StorageProfile
from catalog.services.storage import profiles
from catalog.services.storage.profile_presets import PRESETS
from catalog.storage.configuration import Key
from tests.cases import shared_cases
from tests.factories import make_namespace, make_root, make_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
SECRET, NEW_SECRET = "the-first-secret", "the-second-secret"
CREATE = (
    "create",
    "lake",
    "--kind",
    "s3",
    "--root",
    "s3://lake/tables",
    "--region",
    "eu-central-1",
)
WITH_KEY = ("--identity", "key", "--key-id", "AKIAFIRST", "--secret-from", "env:LAKE_SECRET")


@pytest.fixture(autouse=True)
def _root(monkeypatch):
    make_root()
    monkeypatch.setenv("LAKE_SECRET", SECRET)


def storage(*words: str) -> str:
    out = io.StringIO()
    call_command("storage", *words, stdout=out, stderr=out)
    assert SECRET not in out.getvalue()
    assert NEW_SECRET not in out.getvalue()
    return out.getvalue()


def refused(message: str, *words: str) -> None:
    with unchanged(), pytest.raises(CommandError, match=message) as error:
        storage(*words)
    assert SECRET not in str(error.value)


def test_the_life_of_a_profile(monkeypatch, tmp_path):
    shown = storage(*CREATE, *WITH_KEY, "--path-style")
    assert "AKIAFIRST" in shown
    assert "set, and not shown" in shown
    row = StorageProfile.objects.get()
    assert (row.roots, row.path_style, row.created_by) == (["s3://lake/tables"], True, "system")
    assert profiles.key_of(row) == Key("AKIAFIRST", SECRET)
    assert storage("list").split() == ["lake", "s3", "s3://lake/tables"]
    storage("update", "lake", "--no-path-style", "--root", "s3://lake/tables", "--root", "s3://two")
    row.refresh_from_db()
    assert (row.path_style, row.roots) == (False, ["s3://lake/tables", "s3://two"])
    file = tmp_path / "secret"
    file.write_text(NEW_SECRET + "\n")
    storage("rotate-key", "lake", "--key-id", "AKIASECOND", "--secret-from", f"file:{file}")
    assert profiles.key_of(StorageProfile.objects.get()) == Key("AKIASECOND", NEW_SECRET)
    monkeypatch.setattr("sys.stdin", io.StringIO(SECRET + "\n"))
    storage("update", "lake", "--secret-from", "-")
    assert profiles.key_of(StorageProfile.objects.get()) == Key("AKIASECOND", SECRET)
    make_namespace("ns")
    assert "s3://lake/tables/ns-" in storage("bind", "ns", "lake")
    assert Namespace.objects.get(name="ns").storage_profile == row
    assert "namespace            ns" in storage("show", "lake")
    assert "file:///" in storage("unbind", "ns")
    assert "store is unchanged" in storage("delete", "lake")
    assert not StorageProfile.objects.exists()
    trail = json.dumps(list(AuditEvent.objects.values_list("before", "after")))
    assert SECRET not in trail
    assert NEW_SECRET not in trail


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fills_in_the_fields(preset, monkeypatch):
    account = {"type": "service_account", "client_email": "a@b", "private_key": "x"}
    monkeypatch.setenv("GCS_SECRET", json.dumps(account))
    words: dict[str, tuple[str, ...]] = {
        "aws": ("--region", "eu-central-1", "--role", "arn:aws:iam::123456789012:role/lake"),
        "ceph": ("--endpoint", "https://ceph.example.com", "--role", "arn:aws:iam:::role/lake"),
        "gcs": ("--secret-from", "env:GCS_SECRET"),
        "azure": ("--key-id", "lake", "--secret-from", "env:LAKE_SECRET"),
    }
    root = {
        "gcs": "gs://lake/tables",
        "azure": "abfss://files@lake.dfs.core.windows.net/tables",
    }.get(preset, "s3://lake/tables")
    given = list(words.get(preset, ("--endpoint", "https://s3.example.com")))
    if preset in {"r2", "ceph", "seaweedfs", "minio"}:
        given += WITH_KEY[2:]
    storage("create", "lake", "--preset", preset, "--root", root, *given)
    row = StorageProfile.objects.get()
    assert row.kind == PRESETS[preset].kind
    for name, value in PRESETS[preset].fields.items():
        if name not in {"role", "region"}:
            assert getattr(row, name) == value


def test_a_dry_run_shows_what_would_break():
    storage(*CREATE, *WITH_KEY)
    make_namespace("ns")
    storage("bind", "ns", "lake")
    make_table("ns", "t")
    with unchanged():
        shown = storage("update", "lake", "--root", "s3://other", "--dry-run")
        assert "refused: tables would be outside its roots: 1 (ns.t)" in shown
        shown = storage("update", "lake", "--endpoint", "https://s3.example.com", "--dry-run")
        assert "needs --confirm: endpoint decide" in shown
        shown = storage("delete", "lake", "--dry-run")
        assert "refused: namespaces are bound to it: 1 (ns)" in shown
    refused("is in use", "update", "lake", "--root", "s3://other", "--confirm")
    refused("is in use", "delete", "lake")
    refused("Repeat the request with confirm", "update", "lake", "--region", "eu-west-1")
    storage("update", "lake", "--region", "eu-west-1", "--confirm")


@shared_cases(
    ("message", "words"),
    [
        ("kind: it is not set", ("create", "lake", "--root", "s3://lake")),
        ("roots: .* is empty", ("create", "lake", "--kind", "s3")),
        ("needs a key", (*CREATE, "--identity", "key")),
        ("secret-from: it is not set", (*CREATE, "--identity", "key", "--key-id", "AKIA")),
        ("never an argument", (*CREATE, *WITH_KEY[:-1], SECRET)),
        ("MISSING is not set", (*CREATE, *WITH_KEY[:-1], "env:MISSING")),
        ("cannot be read", (*CREATE, *WITH_KEY[:-1], "file:/nowhere/at/all")),
        ("'nope' does not exist", ("show", "nope")),
        ("'nope' does not exist", ("delete", "nope")),
        ("'nope' does not exist", ("update", "nope", "--region", "x")),
        ("does not exist", ("bind", "nowhere", "lake")),
    ],
)
def test_refusals(message, words: tuple[Any, ...]):
    refused(message, *words)
