"""Annotations of namespaces and tables: descriptions, owners, labels, sensitivity, links."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import annotations as s
from api.management.serializers.recovery import DependentsSerializer
from api.management.viewsets import ManagementViewSet
from catalog.services.governance import annotations
from catalog.services.tables import dependents


class NamespaceAnnotationsViewSet(ManagementViewSet):
    operation_ids = {
        "retrieve": "GetNamespaceAnnotations",
        "partial_update": "UpdateNamespaceAnnotations",
    }

    @extend_schema(responses=s.AnnotationsSerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """Get the annotations of a namespace, with the inherited ones."""
        return self._answer()

    @extend_schema(
        request=s.UpdateNamespaceAnnotationsSerializer, responses=s.AnnotationsSerializer
    )
    def partial_update(self, request: Request, id: str) -> Response:
        """Change the annotations of a namespace.

        Omitted fields keep their values.
        """
        changes = self.read_body(s.UpdateNamespaceAnnotationsSerializer)
        annotations.annotate_namespace(
            actor=request.user, namespace=self.identifier, changes=changes
        )
        return self._answer()

    def _answer(self) -> Response:
        row = annotations.namespace_annotations(actor=self.request.user, namespace=self.identifier)
        return Response(s.AnnotationsSerializer.represent(row))


class TableAnnotationsViewSet(ManagementViewSet):
    operation_ids = {
        "retrieve": "GetTableAnnotations",
        "partial_update": "UpdateTableAnnotations",
    }

    @extend_schema(responses=s.AnnotationsSerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """Get the annotations of a table or view and its columns, with the inherited ones."""
        return self._answer()

    @extend_schema(request=s.UpdateTableAnnotationsSerializer, responses=s.AnnotationsSerializer)
    def partial_update(self, request: Request, id: str) -> Response:
        """Change the annotations of a table or view and its columns.

        Omitted fields keep their values.
        """
        changes = self.read_body(s.UpdateTableAnnotationsSerializer)
        annotations.annotate_table(actor=request.user, table=self.identifier, changes=changes)
        return self._answer()

    def _answer(self) -> Response:
        row = annotations.table_annotations(actor=self.request.user, table=self.identifier)
        return Response(s.AnnotationsSerializer.represent(row))


class DependentsViewSet(ManagementViewSet):
    operation_ids = {"retrieve": "GetTableDependents"}

    @extend_schema(responses=DependentsSerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """List the tables that refer to files of a table.

        Shallow clones and snapshots of other tables do. As long as such tables exist, clean-up keeps
        the files that they need, and the table is not purged.
        """
        row = dependents.dependents_of_table(actor=request.user, table=self.identifier)
        return Response(DependentsSerializer.represent(row))
