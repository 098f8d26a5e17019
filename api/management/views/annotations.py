"""Annotations of namespaces and tables: descriptions, owners, labels, sensitivity, links."""

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import annotations as s
from api.management.serializers.base import Serializer
from api.management.serializers.recovery import DependentsSerializer
from api.management.viewsets import ManagementViewSet
from catalog.services.governance import annotations
from catalog.services.tables import dependents


class NamespaceAnnotationsViewSet(ManagementViewSet):
    resource = "NamespaceAnnotations"
    target = "namespace"
    read_annotations: Callable[..., Any] = staticmethod(annotations.namespace_annotations)
    annotate: Callable[..., Any] = staticmethod(annotations.annotate_namespace)
    update_class: type[Serializer] = s.UpdateNamespaceAnnotationsSerializer

    @extend_schema(responses=s.AnnotationsSerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """Get the annotations of an object, with the inherited ones."""
        row = self.read_annotations(actor=self.principal, **{self.target: self.identifier})
        return Response(s.AnnotationsSerializer.represent(row))

    @extend_schema(
        request=s.UpdateNamespaceAnnotationsSerializer, responses=s.AnnotationsSerializer
    )
    def partial_update(self, request: Request, id: str) -> Response:
        """Change the annotations of an object.

        Omitted fields keep their values.
        """
        changes = self.read_body(self.update_class)
        self.annotate(actor=self.principal, **{self.target: self.identifier}, changes=changes)
        return self.retrieve(request, id)


@extend_schema_view(partial_update=extend_schema(request=s.UpdateTableAnnotationsSerializer))
class TableAnnotationsViewSet(NamespaceAnnotationsViewSet):
    resource = "TableAnnotations"
    target = "table"
    read_annotations = staticmethod(annotations.table_annotations)
    annotate = staticmethod(annotations.annotate_table)
    update_class = s.UpdateTableAnnotationsSerializer


class DependentsViewSet(ManagementViewSet):
    resource = "TableDependents"

    @extend_schema(responses=DependentsSerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """List the tables that refer to files of a table.

        Shallow clones and snapshots of other tables do. As long as such tables exist, clean-up keeps
        the files that they need, and the table is not purged.
        """
        row = dependents.dependents_of_table(actor=self.principal, table=self.identifier)
        return Response(DependentsSerializer.represent(row))
