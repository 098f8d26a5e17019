"""What is said of namespaces and tables: descriptions, owners, labels, sensitivity, links."""

from api.management import fact_messages as m
from api.management.operation import ManagementOperation
from catalog.access import Principal
from catalog.identifiers import Identifier
from catalog.services.governance import annotations


class GetNamespaceFacts(ManagementOperation):
    """What is said of a namespace, and what it inherits from those above."""

    response_model = m.FactsModel

    def handle(self, actor: Principal, body: None, id: Identifier) -> m.FactsModel:
        return m.FactsModel.of(annotations.namespace_annotations(actor=actor, namespace=id))


class UpdateNamespaceFacts(ManagementOperation):
    """Say something of a namespace; what is left out stays as it is."""

    verb = "PATCH"
    changes = True
    request_model = m.UpdateNamespaceFactsRequest
    response_model = m.FactsModel

    def handle(
        self, actor: Principal, body: m.UpdateNamespaceFactsRequest, id: Identifier
    ) -> m.FactsModel:
        annotations.annotate_namespace(actor=actor, namespace=id, changes=body.changes())
        return m.FactsModel.of(annotations.namespace_annotations(actor=actor, namespace=id))


class GetTableFacts(ManagementOperation):
    """What is said of a table or view and of its columns, and what it inherits."""

    response_model = m.FactsModel

    def handle(self, actor: Principal, body: None, id: Identifier) -> m.FactsModel:
        return m.FactsModel.of(annotations.table_annotations(actor=actor, table=id))


class UpdateTableFacts(ManagementOperation):
    """Say something of a table or view and its columns; what is left out stays as it is."""

    verb = "PATCH"
    changes = True
    request_model = m.UpdateTableFactsRequest
    response_model = m.FactsModel

    def handle(
        self, actor: Principal, body: m.UpdateTableFactsRequest, id: Identifier
    ) -> m.FactsModel:
        annotations.annotate_table(actor=actor, table=id, changes=body.changes())
        return m.FactsModel.of(annotations.table_annotations(actor=actor, table=id))
