"""Definitions of labels. Only principals with all privileges everywhere may change them."""

from drf_spectacular.helpers import forced_singular_serializer
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import annotations as s
from api.management.viewsets import ManagementViewSet
from catalog.services.governance import annotations


class LabelViewSet(ManagementViewSet):
    lookup_field = "label"
    lookup_value_regex = "[^/]+"
    pagination_class = None
    resource = "Label"

    @extend_schema(
        responses=forced_singular_serializer(s.LabelsSerializer)  # type: ignore[no-untyped-call]
    )
    def list(self, request: Request) -> Response:
        """List the definitions of all labels, by key."""
        return Response(s.LabelsSerializer.represent({"labels": annotations.list_labels()}))

    @extend_schema(request=s.CreateLabelSerializer, responses={201: s.LabelSerializer})
    def create(self, request: Request) -> Response:
        """Define a label."""
        body = self.read_body(s.CreateLabelSerializer)
        row = annotations.create_label(actor=self.principal, **body)
        return Response(s.LabelSerializer.represent(row), status=201)

    @extend_schema(responses=s.LabelSerializer)
    def retrieve(self, request: Request, label: str) -> Response:
        """Get the definition of a label."""
        return Response(s.LabelSerializer.represent(annotations.find_label(key=label)))

    @extend_schema(request=s.UpdateLabelSerializer, responses=s.LabelSerializer)
    def partial_update(self, request: Request, label: str) -> Response:
        """Change the definition of a label.

        Omitted fields keep their values.
        """
        body = self.read_body(s.UpdateLabelSerializer)
        row = annotations.update_label(actor=self.principal, key=label, **body)
        return Response(s.LabelSerializer.represent(row))

    def destroy(self, request: Request, label: str) -> Response:
        """Delete a label that no object has."""
        annotations.delete_label(actor=self.principal, key=label)
        return Response(status=204)
