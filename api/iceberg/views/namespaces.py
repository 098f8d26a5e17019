"""Namespaces: creating, listing, describing and dropping them, and their properties."""

from typing import Any

from api.iceberg import messages as m
from api.iceberg import prefixes
from api.iceberg.operation import IcebergOperation
from api.operation import refuse_repeated_keys
from catalog.access import Principal
from catalog.identifiers import Identifier
from catalog.services.engine.commit import commit
from catalog.services.storage import namespace_locations
from catalog.services.tables import namespace_operations, namespaces


class ListNamespaces(IcebergOperation):
    """List the namespaces in a namespace.

    Without ``parent``, lists those at the top of the warehouse. Sorted by name.
    """

    response_model = m.ListNamespacesResponse
    query = ("parent", "pageToken", "pageSize")

    def handle(self, actor: Principal, body: None) -> dict[str, Any]:
        children = namespaces.list_children(actor=actor, namespace=self._parent(actor), **self.page)
        parent = self.relative(children.parent)
        return {
            "namespaces": [[*parent, name] for name in children.names],
            "next-page-token": self.token(children.next_page),
        }

    def _parent(self, actor: Principal) -> Identifier:
        text = self.query_values.get("parent")
        if not text:
            return self.warehouse
        parent = self.identify(text)
        if "%" not in text:
            return parent
        other = self.absolute(prefixes.quoted_levels(text))
        row = namespaces.first_namespace(actor=actor, paths=[parent, other])
        return parent if row is None else row.identifier


class CreateNamespace(IcebergOperation):
    """Create a namespace.

    Its parent must exist.
    """

    verb = "POST"
    changes = True
    is_idempotent = True
    request_model = m.CreateNamespaceRequest
    response_model = m.CreateNamespaceResponse

    def handle(self, actor: Principal, body: m.CreateNamespaceRequest) -> dict[str, Any]:
        create = namespace_operations.CreateNamespace(
            namespace=self.absolute(body.namespace), properties=body.properties or {}
        )
        row = commit([create], actor=actor).results[0]
        rows = [*namespace_locations.line(row.identifier[:-1]), row]
        return {
            "namespace": self.relative(row.identifier),
            "properties": namespace_locations.properties_of(actor, rows),
        }

    def replay(self, actor: Principal, body: m.CreateNamespaceRequest) -> dict[str, Any]:
        return _described(self, actor, self.absolute(body.namespace))


def _described(
    operation: IcebergOperation, actor: Principal, namespace: Identifier
) -> dict[str, Any]:
    row, properties = namespace_locations.describe(actor, namespace)
    return {"namespace": operation.relative(row.identifier), "properties": properties}


class LoadNamespaceMetadata(IcebergOperation):
    """Return the properties of a namespace.

    Callers that may read the namespace also get the location of its tables.
    """

    response_model = m.GetNamespaceResponse

    def handle(self, actor: Principal, body: None, *, namespace: str) -> dict[str, Any]:
        return _described(self, actor, self.identify(namespace))


class NamespaceExists(IcebergOperation):
    """Check whether a namespace exists.

    Answers 204 if it does, and 404 if not, without a body.
    """

    verb = "HEAD"

    def handle(self, actor: Principal, body: None, *, namespace: str) -> None:
        namespaces.require_namespace(actor=actor, namespace=self.identify(namespace))


class DropNamespace(IcebergOperation):
    """Drop an empty namespace.

    A namespace that holds namespaces, tables, views or functions is refused.
    """

    verb = "DELETE"
    changes = True
    is_idempotent = True

    def handle(self, actor: Principal, body: None, *, namespace: str) -> None:
        commit(
            [namespace_operations.DropNamespace(namespace=self.identify(namespace))], actor=actor
        )


class UpdateProperties(IcebergOperation):
    """Set and remove properties of a namespace.

    Properties that the request does not name stay. The answer lists the updated, the removed and
    the missing keys.
    """

    verb = "POST"
    changes = True
    is_idempotent = True
    request_model = m.UpdateNamespacePropertiesRequest
    response_model = m.UpdateNamespacePropertiesResponse

    def handle(
        self, actor: Principal, body: m.UpdateNamespacePropertiesRequest, *, namespace: str
    ) -> dict[str, Any]:
        refuse_repeated_keys(self.content())
        update = namespace_operations.UpdateNamespaceProperties(
            namespace=self.identify(namespace),
            removals=body.removals or (),
            updates=body.updates or {},
        )
        changes = commit([update], actor=actor).results[0]
        return {"updated": changes.updated, "removed": changes.removed, "missing": changes.missing}

    def replay(
        self, actor: Principal, body: m.UpdateNamespacePropertiesRequest, *, namespace: str
    ) -> dict[str, Any]:
        namespaces.require_namespace(actor=actor, namespace=self.identify(namespace))
        # It is no longer known which keys existed before.
        return {
            "updated": list(body.updates or {}),
            "removed": list(body.removals or ()),
            "missing": [],
        }
