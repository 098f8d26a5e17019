"""Requests for approval, and decisions on them."""

from functools import partial

from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import recovery as s
from api.management.viewsets import ManagementViewSet
from catalog.errors import ApprovalNotFound
from catalog.services.governance import approvals


class ApprovalViewSet(ManagementViewSet):
    lookup_field = "approval"
    lookup_value_regex = "[^/]+"
    results_field = "approvals"
    resource = "Approval"
    operation_ids = {
        "approve": "ApproveRequest",
        "refuse": "RefuseRequest",
        "withdraw": "WithdrawRequest",
    }
    query_classes = {"list": s.ApprovalQuery}

    @extend_schema(responses=s.ApprovalSerializer(many=True))
    def list(self, request: Request) -> Response:
        """List requests for approval, newest first.

        The requests that the caller made or may browse.
        """
        return self.page(
            partial(approvals.list_approvals, actor=self.principal, **self.query()),
            s.ApprovalSerializer,
        )

    @extend_schema(responses=s.ApprovalSerializer)
    def retrieve(self, request: Request, approval: str) -> Response:
        """Get a request for approval."""
        row = approvals.find_approval(actor=self.principal, request=self._number)
        return Response(s.ApprovalSerializer.represent(row))

    @extend_schema(request=s.ApproveSerializer, responses=s.ApprovalSerializer)
    @action(detail=True, methods=["post"])
    def approve(self, request: Request, approval: str) -> Response:
        """Approve a request of another principal.

        The request is executed at once, as its requester.
        """
        body = self.read_body(s.ApproveSerializer)
        row = approvals.approve(actor=self.principal, request=self._number, **body)
        return Response(s.ApprovalSerializer.represent(row))

    @extend_schema(request=s.RefuseSerializer, responses=s.ApprovalSerializer)
    @action(detail=True, methods=["post"])
    def refuse(self, request: Request, approval: str) -> Response:
        """Refuse a request of another principal."""
        body = self.read_body(s.RefuseSerializer)
        row = approvals.refuse(actor=self.principal, request=self._number, **body)
        return Response(s.ApprovalSerializer.represent(row))

    @extend_schema(request=None, responses=s.ApprovalSerializer)
    @action(detail=True, methods=["post"])
    def withdraw(self, request: Request, approval: str) -> Response:
        """Withdraw a request of the caller."""
        row = approvals.withdraw(actor=self.principal, request=self._number)
        return Response(s.ApprovalSerializer.represent(row))

    @property
    def _number(self) -> int:
        return self.number("approval", ApprovalNotFound)
