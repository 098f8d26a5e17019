import pytest

from catalog.models import AuditEvent, Namespace, Transaction
from tests.api.iceberg.client import Iceberg, own
from tests.cases import shared_cases
from tests.factories import make_namespace

pytestmark = pytest.mark.operation("createNamespace")


def test_creates_a_namespace(iceberg: Iceberg):
    body = {"namespace": ["prod"], "properties": {"owner": "Ana", "größe": "🧊"}}
    assert own(iceberg.post("namespaces", body)) == body
    row = Namespace.objects.get(name="prod")
    assert (row.path, row.properties, row.owner) == (["prod"], body["properties"], "tester")
    event = AuditEvent.objects.latest("pk")
    assert (event.actor, event.action, event.target) == ("tester", "namespace.create", "prod")
    assert event.after == {"properties": body["properties"]}
    assert event.request_id
    assert Transaction.objects.get().operations[0]["operation"] == "CreateNamespace"


@pytest.mark.parametrize("properties", [{}, {"properties": {}}, {"properties": None}])
def test_properties_are_optional(iceberg: Iceberg, properties):
    made = iceberg.post("namespaces", {"namespace": ["a"], **properties})
    assert own(made) == {"namespace": ["a"], "properties": {}}


def test_creates_a_namespace_in_another(iceberg: Iceberg):
    make_namespace("a")
    assert iceberg.post("namespaces", {"namespace": ["a", "b c/d"]})["namespace"] == ["a", "b c/d"]
    assert Namespace.objects.get(name="b c/d").parent.path == ["a"]


def test_the_parent_must_exist(iceberg: Iceberg):
    iceberg.refused(
        404,
        "NoSuchNamespaceException",
        "Namespace does not exist: a",
        "POST namespaces",
        {"namespace": ["a", "b"]},
    )


def test_in_a_warehouse(iceberg: Iceberg):
    make_namespace("prod", "ml")
    made = iceberg.at("prod.ml").post("namespaces", {"namespace": ["x"]})
    assert made["namespace"] == ["x"]
    assert Namespace.objects.get(name="x").path == ["prod", "ml", "x"]
    iceberg.at("prod.no").refused(
        404,
        "NoSuchNamespaceException",
        "Warehouse does not exist: prod.no",
        "POST namespaces",
        {"namespace": ["x"]},
    )


def test_twice(iceberg: Iceberg):
    iceberg.post("namespaces", {"namespace": ["a"]})
    iceberg.refused(
        409,
        "AlreadyExistsException",
        "Namespace already exists: a",
        "POST namespaces",
        {"namespace": ["a"], "properties": {"x": "y"}},
    )


@shared_cases(
    ("body", "error"),
    [
        ({}, "namespace: Field required"),
        ({"namespace": []}, "namespace: List should have at least 1 item"),
        ({"namespace": "a"}, "namespace: Input should be a valid list"),
        ({"namespace": [1]}, "namespace.0: Input should be a valid string"),
        ({"namespace": ["a", ""]}, "must not be empty"),
        ({"namespace": ["a\x1fb"]}, "control character"),
        ({"namespace": ["a/tables"]}, "cannot be addressed"),
        ({"namespace": ["x" * 256]}, "256 characters"),
        ({"namespace": ["a"], "properties": {"n": 1}}, "properties.n: Input should be a valid str"),
        ({"namespace": ["a"], "properties": {"n": None}}, "properties.n: Input should be a valid"),
        ({"namespace": ["a"], "properties": ["n"]}, "properties: Input should be a valid dict"),
        ({"namespace": ["a"], "properties": {"n": "\0"}}, "NUL character"),
        ({"namespace": ["a"], "properties": {"\0": "n"}}, "NUL character"),
    ],
)
def test_invalid_bodies_are_refused(iceberg: Iceberg, body, error):
    iceberg.refused(400, "BadRequestException", error, "POST namespaces", body)


def test_text_that_looks_like_nul(iceberg: Iceberg):
    body = {"namespace": ["a"], "properties": {"n": "\\u0000"}}
    assert own(iceberg.post("namespaces", body)) == body


def test_a_reader_is_refused(reader: Iceberg):
    reader.refused(
        403,
        "NotAuthorizedException",
        "'reader' may not create anything in '(root)'",
        "POST namespaces",
        {"namespace": ["a"]},
    )
