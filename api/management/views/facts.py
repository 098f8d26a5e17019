"""What is said of namespaces and tables: descriptions, owners, labels, sensitivity, links."""

from api.management import fact_messages as m
from api.management.operation import ManagementOperation
from api.management.recovery_messages import Dependents
from catalog.access import Principal
from catalog.identifiers import Identifier
from catalog.services.governance import annotations
from catalog.services.tables import dependents


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


class GetTableDependents(ManagementOperation):
    """The tables that refer to files of a table, as shallow clones and snapshots of tables do.

    While some do, clean-up spares the files that they need, or removes none, and nothing is purged.
    """

    response_model = Dependents

    def handle(self, actor: Principal, body: None, id: Identifier) -> Dependents:
        return Dependents.of(dependents.dependents_of_table(actor=actor, table=id))


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
