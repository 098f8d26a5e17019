"""What describes an object: its annotations, its dependents and its lineage."""

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import annotations as s
from api.management.serializers import lineage as lineage_serializers
from api.management.serializers.base import Serializer
from api.management.viewsets import ManagementViewSet
from catalog.services.governance import annotations
from catalog.services.tables import column_lineage, dependents, lineage


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
        body = self.read_body(self.update_class)
        with self.rehearsal(body):
            self.annotate(actor=self.principal, **{self.target: self.identifier}, **body)
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

    @extend_schema(responses=lineage_serializers.TableDependentsSerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """List the tables that refer to files of a table, and the views that read it.

        Shallow clones and snapshots of other tables refer to files. As long as such tables exist,
        clean-up keeps the files that they need, and the table is not purged. Views do not prevent
        that a table is dropped.
        """
        row = dependents.dependents_of_table(actor=self.principal, table=self.identifier)
        return Response(lineage_serializers.TableDependentsSerializer.represent(row))


class DetachmentViewSet(ManagementViewSet):
    operation_ids = {"create": "DetachDependents"}

    @extend_schema(
        request=lineage_serializers.DetachDependentsSerializer,
        responses={200: lineage_serializers.DetachmentSerializer},
    )
    def create(self, request: Request, id: str) -> Response:
        """End the references to files of a table whose principals may not read it any more.

        Withdraw the privileges of these principals first. Clean-up and purge do not keep files for
        these references from then on.
        """
        body = self.read_body(lineage_serializers.DetachDependentsSerializer)
        with self.rehearsal(body):
            row = dependents.detach_dependents(actor=self.principal, table=self.identifier)
        return Response(lineage_serializers.DetachmentSerializer.represent(row))


class LineageViewSet(ManagementViewSet):
    resource = "TableLineage"
    query_classes = {"retrieve": lineage_serializers.LineageQuery}

    @extend_schema(responses=lineage_serializers.LineageSerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """Get the graph of sources and dependents of a table or view.

        A path ends at an object that the caller may not browse: it is neither named nor counted.
        """
        graph = lineage.lineage_of(actor=self.principal, table=self.identifier, **self.query())
        return Response(lineage_serializers.LineageSerializer.represent(graph))


class ColumnLineageViewSet(ManagementViewSet):
    resource = "TableColumnLineage"

    @extend_schema(responses=lineage_serializers.ColumnLineageSerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """Get the columns that those of a view are made from, and the columns of views that read an object.

        Only values count, not conditions and groupings. Objects that the caller may not read are not
        part of the answer.
        """
        row = column_lineage.lineage_of(actor=self.principal, table=self.identifier)
        return Response(lineage_serializers.ColumnLineageSerializer.represent(row))
