import pytest

from catalog.models import AuditEvent, Namespace
from tests.api.iceberg.client import Iceberg
from tests.factories import make_namespace, make_table

pytestmark = pytest.mark.operation("dropNamespace")


def test_drops_an_empty_namespace(iceberg: Iceberg):
    make_namespace("a", "b", properties={"k": "v"})
    assert iceberg.delete("namespaces/a%1Fb") is None
    assert not Namespace.objects.live().filter(name="b").exists()
    assert Namespace.objects.live().filter(name="a").exists()
    event = AuditEvent.objects.latest("pk")
    assert (event.action, event.target) == ("namespace.drop", "a.b")
    assert event.before == {"properties": {"k": "v"}}
    iceberg.refused(
        404, "NoSuchNamespaceException", "Namespace does not exist: a.b", "DELETE namespaces/a%1Fb"
    )


def test_in_a_warehouse(iceberg: Iceberg):
    make_namespace("a", "b")
    assert iceberg.at("a").delete("namespaces/b") is None
    assert not Namespace.objects.live().filter(name="b").exists()


def test_a_namespace_with_children_is_not_dropped(iceberg: Iceberg):
    make_namespace("a", "b")
    error = "Namespace a is not empty. It holds 0 tables and 1 namespace. Drop what it holds first"
    iceberg.refused(409, "NamespaceNotEmptyException", error, "DELETE namespaces/a")


def test_a_namespace_with_a_lance_table_is_not_dropped(iceberg: Iceberg):
    make_table("a", "t")
    error = "Namespace a is not empty. It holds 1 table and 0 namespaces"
    iceberg.refused(409, "NamespaceNotEmptyException", error, "DELETE namespaces/a")


def test_a_namespace_with_a_view_is_not_dropped(iceberg: Iceberg):
    view = make_table("a", "v")
    view.kind = "view"
    view.format = "iceberg"
    view.save()
    error = "Namespace a is not empty"
    iceberg.refused(409, "NamespaceNotEmptyException", error, "DELETE namespaces/a")


def test_a_missing_namespace_is_refused(iceberg: Iceberg):
    iceberg.refused(
        404, "NoSuchNamespaceException", "Namespace does not exist: a", "DELETE namespaces/a"
    )


def test_a_reader_is_refused(reader: Iceberg):
    make_namespace("a")
    error = "'reader' may not manage 'a'"
    reader.refused(403, "NotAuthorizedException", error, "DELETE namespaces/a")
