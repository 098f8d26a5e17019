"""The state of governance as one document; `manage.py governance` has it as YAML."""

from typing import Any

from pydantic import BaseModel

from api.management.operation import ManagementOperation
from catalog.access import Principal
from catalog.services.governance import document_export, document_format
from catalog.services.governance import documents as governance_documents


class ChangeModel(BaseModel):
    target: str
    field: str
    before: Any
    after: Any


class Changes(BaseModel):
    """In the order in which they are made."""

    changes: list[ChangeModel]

    @classmethod
    def of(cls, found: list[governance_documents.Change]) -> "Changes":
        return cls(
            changes=[
                ChangeModel(
                    target=step.target, field=step.aspect, before=step.before, after=step.after
                )
                for step in found
            ]
        )


class State(document_format.Document):
    """A document that leaves nothing out."""

    principals: list[document_format.PrincipalPart]
    labels: list[document_format.LabelPart]
    namespaces: list[document_format.NamespacePart]
    tables: list[document_format.TablePart]


class GetGovernance(ManagementOperation):
    """What is said of principals, labels, namespaces and tables, to be kept and applied again."""

    response_model = State
    query = ("namespace",)
    described = {
        "namespace": {
            "description": "Only this one and below; spelled as in a path.",
            "schema": {"type": "string"},
        }
    }

    def handle(self, actor: Principal, body: None) -> State:
        document = document_export.export(actor=actor, namespace=self.named("namespace") or ())
        return State(**dict(document_format.read(document)))


class PlanGovernance(ManagementOperation):
    """What applying a document would change; nothing is changed."""

    verb = "POST"
    request_model = document_format.Document
    response_model = Changes

    def handle(self, actor: Principal, body: document_format.Document) -> Changes:
        return Changes.of(governance_documents.plan(actor=actor, document=body))


class ApplyGovernance(ManagementOperation):
    """Make everything that a document names as it says, all or nothing."""

    verb = "PUT"
    changes = True
    request_model = document_format.Document
    response_model = Changes

    def handle(self, actor: Principal, body: document_format.Document) -> Changes:
        return Changes.of(governance_documents.apply(actor=actor, document=body))
