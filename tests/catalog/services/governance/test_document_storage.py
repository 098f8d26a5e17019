"""Storage profiles and bindings in governance documents: no secret in, and none out."""

import json

import pytest

from catalog.access import SYSTEM
from catalog.errors import CatalogError, InvalidInput
from catalog.models import AuditEvent, Namespace, StorageProfile
from catalog.services.governance import document_export, document_format, yaml_files
from catalog.services.governance import documents as governance_documents
from catalog.services.storage import profiles
from catalog.storage.configuration import Key
from tests.cases import shared_cases
from tests.factories import make_namespace, make_root, make_table, unchanged

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("warehouse")]
SECRET, NEW_SECRET = "the-first-secret", "the-second-secret"
FILE = """
version: 1
storage_profiles:
- name: lake
  kind: s3
  roots: ["s3://lake/tables"]
  region: eu-central-1
  identity: key
  key_id: AKIAFIRST
  secret_from: env:MONODON_STORAGE_LAKE
namespaces:
- {name: [prod], storage_profile: lake}
"""


@pytest.fixture(autouse=True)
def _catalog(monkeypatch):
    make_root()
    make_namespace("prod")
    monkeypatch.setenv("MONODON_STORAGE_LAKE", SECRET)
    monkeypatch.setenv("MONODON_SECRET_KEY", "the-key-of-the-server")


def document(text: str = FILE) -> document_format.Document:
    return document_format.read(yaml_files.parse(text))


def apply(text: str = FILE) -> list[str]:
    changes = governance_documents.apply(actor=SYSTEM, document=document(text))
    lines = [str(change) for change in changes]
    for secret in (SECRET, NEW_SECRET):
        assert secret not in repr(changes) + "".join(lines)
    return lines


def test_a_document_creates_profiles_and_binds_namespaces():
    with unchanged():
        planned = governance_documents.plan(actor=SYSTEM, document=document())
    assert [(change.target, change.aspect) for change in planned] == [
        ("lake", "storage profile"),
        ("prod", "storage_profile"),
    ]
    assert apply() == [str(change) for change in planned]
    row = StorageProfile.objects.get()
    assert profiles.key_of(row) == Key("AKIAFIRST", SECRET)
    assert Namespace.objects.get(name="prod").storage_profile == row
    assert make_table("prod", "t").location.startswith("s3://lake/tables/")
    with unchanged():
        assert apply() == []


def test_an_export_has_no_secret_and_can_be_applied():
    apply()
    text = yaml_files.write(document_export.export(actor=SYSTEM))
    assert SECRET not in text
    assert "AKIAFIRST" in text
    with unchanged():
        assert apply(text) == []
    (entry,) = document_export.export(actor=SYSTEM)["storage_profiles"]
    assert entry["roots"] == ["s3://lake/tables"]
    assert not {"secret", "secret_from", "token_from", "endpoint"} & entry.keys()
    (prod,) = document_export.export(actor=SYSTEM)["namespaces"]
    assert prod["storage_profile"] == "lake"
    assert "storage_profiles" not in document_export.export(actor=SYSTEM, namespace=("prod",))


def test_changes_of_a_profile(monkeypatch):
    apply()
    assert apply(FILE.replace("eu-central-1", "eu-west-1")) == [
        "lake: storage profile: {'region': 'eu-central-1'} → {'region': 'eu-west-1'}"
    ]
    monkeypatch.setenv("MONODON_STORAGE_LAKE", NEW_SECRET)
    (line,) = apply(FILE.replace("eu-central-1", "eu-west-1"))
    assert "AKIAFIRST with another secret" in line
    assert profiles.key_of(StorageProfile.objects.get()) == Key("AKIAFIRST", NEW_SECRET)
    assert apply('version: 1\nnamespaces:\n- {name: [prod], storage_profile: ""}\n') == [
        "prod: storage_profile: lake → nothing"
    ]
    assert Namespace.objects.get(name="prod").storage_profile is None
    trail = json.dumps(list(AuditEvent.objects.values_list("before", "after")))
    assert SECRET not in trail
    assert NEW_SECRET not in trail


@shared_cases(
    ("old", "new", "message"),
    [
        ("  secret_from: env:MONODON_STORAGE_LAKE\n", "", "has a key without its secret"),
        ("env:MONODON_STORAGE_LAKE", "env:MONODON_STORAGE_NONE", "which is not set"),
        ("env:MONODON_STORAGE_LAKE", "env:MONODON_SECRET_KEY", "is no source of a secret"),
        ("env:MONODON_STORAGE_LAKE", "env:PATH", "is no source of a secret"),
        ("env:MONODON_STORAGE_LAKE", "file:/etc/passwd", "is no source of a secret"),
        ("env:MONODON_STORAGE_LAKE", SECRET, "is no source of a secret"),
        ("secret_from: env:MONODON_STORAGE_LAKE", f"secret: {SECRET}", "secret: Extra inputs"),
        ("  kind: s3\n", "", "set kind to create it"),
        ("kind: s3", "kind: ftp", r"storage_profiles\.0\.kind"),
        ("s3://lake/tables", "s3://lake/*", "holds a character"),
        ("storage_profile: lake", "storage_profile: other", "'other' does not exist"),
        ("- {name: [prod]", "- name: lake\n- {name: [prod]", "storage profile|valid|Field|name"),
        ("name: [prod]", "name: [nowhere]", "does not exist"),
    ],
)
def test_an_invalid_document_changes_nothing(old, new, message):
    assert old in FILE
    with unchanged(), pytest.raises(CatalogError, match=message) as refused:
        apply(FILE.replace(old, new))
    assert SECRET not in str(refused.value)
    assert "the-key-of-the-server" not in str(refused.value)


def test_a_profile_is_named_once():
    twice = FILE.replace("namespaces:", "- {name: lake}\nnamespaces:")
    with unchanged(), pytest.raises(InvalidInput, match="contains storage profile 'lake' twice"):
        apply(twice)


def test_a_refused_change_of_a_profile_leaves_everything_as_it_was():
    apply()
    make_table("prod", "t")
    text = FILE.replace("s3://lake/tables", "s3://other").replace("lake}", "lake, owner: x}")
    with unchanged(), pytest.raises(CatalogError, match="is in use"):
        apply(text)


def test_a_document_replaces_an_unreadable_key():
    apply()
    StorageProfile.objects.update(secret=b"encrypted with another key")
    assert len(apply()) == 1
    assert profiles.unreadable() == []
    assert apply() == []
