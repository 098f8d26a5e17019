"""Governance as one document; `manage.py governance` has it as YAML."""

from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema
from pydantic import ValidationError
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import governance as s
from api.management.serializers.base import EXAMPLES
from api.management.viewsets import ManagementViewSet
from api.operation import complaint
from catalog.errors import InvalidInput
from catalog.services.governance import document_export, document_format
from catalog.services.governance import documents as governance_documents
from catalog.services.governance.document_format import Document

_DOCUMENT = OpenApiExample("Example", EXAMPLES["GovernanceDocument"], request_only=True)
_CHANGES = OpenApiExample("Example", EXAMPLES["Changes"], response_only=True)
_STATE = OpenApiExample("Example", EXAMPLES["GovernanceState"], response_only=True)


class GovernanceViewSet(ManagementViewSet):
    resource = "Governance"
    operation_ids = {"update": "ApplyGovernance"}
    dry_actions = frozenset({"plan"})
    query_classes = {"retrieve": s.GovernanceQuery}

    @extend_schema(responses=s.State, examples=[_STATE])
    def retrieve(self, request: Request) -> Response:
        """Get the governance document.

        Principals, labels, and the annotations and rules of namespaces and tables. The document can be
        applied again.
        """
        namespace = self.query()["namespace"]
        names = self.identify(namespace) if namespace else ()
        document = document_export.export(actor=self.principal, namespace=names)
        state = s.State(**dict(document_format.read(document)))
        return Response(state.model_dump(mode="json"))

    @extend_schema(request=Document, responses=s.ChangesSerializer, examples=[_DOCUMENT, _CHANGES])
    def update(self, request: Request) -> Response:
        """Apply a governance document.

        All objects in the document are changed to match it, or none.
        """
        changes = governance_documents.apply(actor=self.principal, document=self._document())
        return self._answer(changes)

    @extend_schema(request=Document, responses=s.ChangesSerializer, examples=[_DOCUMENT, _CHANGES])
    @action(detail=True, methods=["post"])
    def plan(self, request: Request) -> Response:
        """List the changes that applying a governance document would make.

        Nothing is changed.
        """
        changes = governance_documents.plan(actor=self.principal, document=self._document())
        return self._answer(changes)

    def _document(self) -> Document:
        """Return the document of the body, in the format that governance files share."""
        try:
            return Document.model_validate(self.read_object())
        except ValidationError as error:
            raise InvalidInput(complaint(error)) from None

    def _answer(self, changes: Any) -> Response:
        return Response(s.ChangesSerializer.represent({"changes": changes}))
