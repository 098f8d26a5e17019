"""Governance documents: export, plan, and repeated application."""

import pyarrow as pa
import pytest

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import CatalogError, InvalidInput, PermissionDenied
from catalog.models import AuditEvent, Grant, Principal, PrincipalKind
from catalog.privileges import READ_ONLY, Privilege
from catalog.services.access import principals
from catalog.services.engine.commit import commit
from catalog.services.governance import annotations, document_export, document_format, yaml_files
from catalog.services.governance import documents as governance_documents
from catalog.services.lance.ledger import registration_operations
from catalog.services.search import table_columns
from tests.cases import shared_cases
from tests.factories import make_lance_table, make_namespace, make_root, unchanged

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("warehouse")]

FILE = """
version: 1
principals:
- {name: etl, kind: service, level: read, description: loads, groups: ["group:jobs"]}
- {name: "group:jobs", kind: group}
- {name: "group:analysts", kind: group, description: they look}
labels:
- {key: pii, colour: red, values: ["yes", "no"], applies_to: [table, column]}
- {key: team}
namespaces:
- name: [prod]
  owner: etl
  description: What **counts**.
  sensitivity: internal
  labels: {team: [sales]}
  links: [{title: Wiki, url: "https://example.com/wiki"}]
  retention_seconds: 86400
  approvals: [purge]
  protected: true
  grants: {"group:analysts": [read], etl: [write, create]}
  maintenance: {keep_versions: 5}
tables:
- name: [prod, users]
  labels: {pii: ["yes"]}
  grants: {etl: [manage]}
  columns:
    name: {description: As told., sensitivity: restricted, labels: {pii: ["no"]}}
"""


@pytest.fixture(autouse=True)
def _catalog():
    make_root()
    make_lance_table(("prod", "users"))


def document(text: str = FILE) -> document_format.Document:
    return document_format.read(yaml_files.parse(text))


def test_applying_a_document_twice_changes_nothing():
    planned = governance_documents.plan(actor=SYSTEM, document=document())
    assert Principal.objects.filter(name="etl").count() == 0
    result = governance_documents.apply(actor=SYSTEM, document=document())
    assert [str(change) for change in result] == [str(change) for change in planned]
    assert governance_documents.plan(actor=SYSTEM, document=document()) == []
    before = AuditEvent.objects.count()
    assert governance_documents.apply(actor=SYSTEM, document=document()) == []
    assert AuditEvent.objects.count() == before
    etl = access.named("etl")
    assert etl is not None
    assert access.held_on(etl, access.On.table(("prod", "users"))) == Privilege.ALL  # owner
    annotated = annotations.table_annotations(actor=SYSTEM, table=("prod", "users"))
    assert {label.key: list(label.values) for label in annotated.labels}["pii"] == ["yes"]


def test_an_export_can_be_applied():
    governance_documents.apply(actor=SYSTEM, document=document())
    text = yaml_files.write(document_export.export(actor=SYSTEM))
    assert governance_documents.plan(actor=SYSTEM, document=document(text)) == []
    exported = document_export.export(actor=SYSTEM)
    (prod,) = exported["namespaces"]
    assert prod["name"] == ["prod"]
    assert prod["grants"] == {"etl": ["write", "create"], "group:analysts": ["read"]}
    assert prod["maintenance"] == {"keep_versions": 5}
    (users,) = exported["tables"]
    assert users["columns"]["name"]["sensitivity"] == "restricted"
    below = document_export.export(actor=SYSTEM, namespace=("prod",))
    assert "principals" not in below
    assert below["tables"] == exported["tables"]


def test_the_columns_of_a_table_are_read_once(monkeypatch):
    """A table may have thousands of columns, and a document may annotate as many."""
    make_lance_table(("prod", "wide"), pa.table({f"c{number}": [1] for number in range(20)}))
    reads: list[str] = []
    read = table_columns.read
    monkeypatch.setattr(table_columns, "read", lambda row: reads.append(row.name) or read(row))

    def apply(count: int) -> int:
        columns = "".join(f"    c{number}: {{description: x}}\n" for number in range(count))
        text = f"version: 1\ntables:\n- name: [prod, wide]\n  columns:\n{columns}"
        return len(governance_documents.apply(actor=SYSTEM, document=document(text)))

    assert apply(1) == 1
    of_one_column = len(reads)
    assert apply(20) == 19
    assert len(reads) == 2 * of_one_column


def test_mappings_are_replaced_and_omitted_fields_keep_their_values():
    governance_documents.apply(actor=SYSTEM, document=document())
    changes = governance_documents.apply(
        actor=SYSTEM,
        document=document(
            'version: 1\nnamespaces:\n- {name: [prod], grants: {"group:analysts": [browse]}}\n'
        ),
    )
    assert [str(change) for change in changes] == [
        "prod: grant to etl: write, create → nothing",
        "prod: grant to group:analysts: read → browse",
    ]
    assert Grant.objects.filter(namespace__isnull=False).count() == 1
    annotated = annotations.namespace_annotations(actor=SYSTEM, namespace=("prod",))
    assert annotated.description == "What **counts**."


def test_a_document_is_applied_atomically():
    """If the last change in the document is refused, no change is applied."""
    text = FILE.replace("maintenance: {keep_versions: 5}", "maintenance: {keep_versions: -1}")
    with unchanged(), pytest.raises(InvalidInput):
        governance_documents.apply(actor=SYSTEM, document=document(text))
    assert not Principal.objects.filter(name="etl").exists()
    text = FILE.replace("etl: [manage]", "nobody-knows: [manage]")
    with unchanged(), pytest.raises(CatalogError):
        governance_documents.apply(actor=SYSTEM, document=document(text))
    assert not Principal.objects.filter(name="etl").exists()


@shared_cases(
    ("text", "message"),
    [
        ("", "valid dictionary|model"),
        ("version: 2", "version"),
        ("version: 1\nnamespace: []", "namespace: Extra"),
        ("version: 1\nnamespaces: [{name: [prod], grant: {}}]", "grant: Extra"),
        ("version: 1\nnamespaces: [{name: [prod], grants: {a: [fly]}}]", "'fly' is no privilege"),
        ("version: 1\nnamespaces: [{name: [nowhere], owner: etl}]", "does not exist"),
        ("version: 1\ntables: [{name: [prod, nothing], owner: etl}]", "does not exist"),
        ("version: 1\ntables: [{name: [prod, users]}, {name: [prod, users]}]", "twice"),
        ('version: 1\nprincipals: [{name: "user:ada", kind: user}]', "does not exist"),
        ("version: 1\nversion: 1", "line 2, column 1: duplicate key 'version'"),
        ("version: &a 1\nlabels: *a", "anchors and aliases"),
        (
            "version: !!python/object/apply:os.system ['true']",
            "line 1, column 10: tags are not allowed",
        ),
        ('version: !!int ""', "tags are not allowed"),
        ("version: !!timestamp soon", "tags are not allowed"),
        ("version: 1\n? [labels]\n: []", "line 2, column 3: a key is no text"),
        ("version: 1\n{principals: 1}: []", "a key is no text|not valid YAML"),
        ("version: 1\nlabels: " + "[" * 40 + "]" * 40, "nested too deeply"),
        ("a: [", "not valid YAML"),
        ("\x00", "not valid YAML"),
    ],
)
def test_an_invalid_document_is_refused_and_changes_nothing(text, message):
    with unchanged(), pytest.raises(CatalogError, match=message):
        governance_documents.apply(actor=SYSTEM, document=document(text))


def test_only_administrators_apply_documents():
    principals.create_principal(actor=SYSTEM, name="etl", kind=PrincipalKind.SERVICE)
    etl = access.Principal("etl", READ_ONLY)
    for call in (
        lambda: document_export.export(actor=etl),
        lambda: governance_documents.plan(actor=etl, document=document()),
        lambda: governance_documents.apply(actor=etl, document=document()),
    ):
        with unchanged(), pytest.raises(PermissionDenied):
            call()


def test_names_with_dots_are_accepted():
    make_namespace("a.b")
    commit([registration_operations.DeclareTable(table=("a.b", "c.d"))], actor=SYSTEM)
    text = "version: 1\ntables: [{name: [a.b, c.d], description: odd}]"
    assert len(governance_documents.apply(actor=SYSTEM, document=document(text))) == 1
    assert document_export.export(actor=SYSTEM)["tables"][-1]["name"] == ["a.b", "c.d"]
