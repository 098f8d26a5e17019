from enum import StrEnum

from lance_namespace_urllib3_client import models as m

from api.lance.operation import LanceOperation, choose
from catalog.access import Principal
from catalog.identifiers import Identifier
from catalog.services.engine.commit import commit
from catalog.services.storage import namespace_locations
from catalog.services.tables import namespace_operations, namespaces


class DropMode(StrEnum):
    """What to do when the namespace is not there."""

    FAIL = "fail"
    SKIP = "skip"


class DropBehavior(StrEnum):
    """What to do when the namespace is not empty."""

    RESTRICT = "restrict"
    CASCADE = "cascade"


class CreateNamespace(LanceOperation):
    """Create a namespace. Modes: Create (default), ExistOk, Overwrite."""

    request_model = m.CreateNamespaceRequest
    response_model = m.CreateNamespaceResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.CreateNamespaceRequest, *, id: Identifier
    ) -> m.CreateNamespaceResponse:
        committed = commit(
            [
                namespace_operations.CreateNamespace(
                    namespace=id,
                    mode=choose(
                        namespace_operations.CreateMode,
                        body.mode,
                        namespace_operations.CreateMode.CREATE,
                    ),
                    properties=body.properties or {},
                )
            ],
            actor=actor,
        )
        return m.CreateNamespaceResponse(
            properties=committed.results[0].properties, transaction_id=committed.id
        )


class ListNamespaces(LanceOperation):
    """List the names of the child namespaces, by name."""

    verb = "GET"
    response_model = m.ListNamespacesResponse
    query = ("page_token", "limit")

    def handle(self, actor: Principal, body: None, *, id: Identifier) -> m.ListNamespacesResponse:
        names, token = namespaces.list_namespaces(actor=actor, namespace=id, **self.page)
        return m.ListNamespacesResponse(namespaces=names, page_token=token)


class DescribeNamespace(LanceOperation):
    """Tell the properties of a namespace."""

    request_model = m.DescribeNamespaceRequest
    response_model = m.DescribeNamespaceResponse

    def handle(
        self, actor: Principal, body: m.DescribeNamespaceRequest, *, id: Identifier
    ) -> m.DescribeNamespaceResponse:
        row = namespaces.describe_namespace(actor=actor, namespace=id)
        return m.DescribeNamespaceResponse(
            properties=namespace_locations.visible_properties(actor, row)
        )


class DropNamespace(LanceOperation):
    """Drop a namespace. Modes: Fail (default), Skip; behaviors: Restrict (default), Cascade.

    The transaction id is there when tables were dropped with it: it follows the removal of their
    data.
    """

    request_model = m.DropNamespaceRequest
    response_model = m.DropNamespaceResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.DropNamespaceRequest, *, id: Identifier
    ) -> m.DropNamespaceResponse:
        behavior = choose(DropBehavior, body.behavior, DropBehavior.RESTRICT)
        drop = namespace_operations.DropNamespace(
            namespace=id,
            cascade=behavior is DropBehavior.CASCADE,
            missing_ok=choose(DropMode, body.mode, DropMode.FAIL) is DropMode.SKIP,
        )
        committed = commit([drop], actor=actor)
        row = committed.results[0]
        return m.DropNamespaceResponse(
            properties=row.properties if row else None,
            transaction_id=[committed.id] if committed.id and committed.goes_on else None,
        )


class NamespaceExists(LanceOperation):
    """Tell by the status whether a namespace exists."""

    request_model = m.NamespaceExistsRequest

    def handle(self, actor: Principal, body: m.NamespaceExistsRequest, *, id: Identifier) -> None:
        namespaces.describe_namespace(actor=actor, namespace=id)
