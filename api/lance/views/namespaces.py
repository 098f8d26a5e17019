"""Namespaces: creating, listing, describing and dropping them."""

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
    """Create a namespace.

    Its parent must exist. Modes: ``Create`` (default) refuses a name that is in use, ``ExistOk``
    returns the existing namespace, ``Overwrite`` drops the existing namespace with everything in
    it.
    """

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
    """List the child namespaces of a namespace.

    Returns the names that the caller may browse, sorted, a page at a time.
    """

    verb = "GET"
    response_model = m.ListNamespacesResponse
    query = ("page_token", "limit")

    def handle(self, actor: Principal, body: None, *, id: Identifier) -> m.ListNamespacesResponse:
        names, token = namespaces.list_namespaces(actor=actor, namespace=id, **self.page)
        return m.ListNamespacesResponse(namespaces=names, page_token=token)


class DescribeNamespace(LanceOperation):
    """Return the properties of a namespace.

    A location among them is left out for callers that may not read the namespace.
    """

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
    """Drop a namespace.

    Modes: ``Fail`` (default) refuses a namespace that does not exist, ``Skip`` accepts it.
    Behaviors: ``Restrict`` (default) refuses a namespace that is not empty, ``Cascade`` also drops
    its namespaces and tables. If tables were dropped, the answer has the id of the transaction that
    removes their data.
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
    """Check whether a namespace exists.

    Answers 200 without a body if it does, and 404 if not.
    """

    request_model = m.NamespaceExistsRequest

    def handle(self, actor: Principal, body: m.NamespaceExistsRequest, *, id: Identifier) -> None:
        namespaces.require_namespace(actor=actor, namespace=id)
