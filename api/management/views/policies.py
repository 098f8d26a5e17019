"""Maintenance policies: their settings, their direct values and their effective values."""

from drf_spectacular.helpers import forced_singular_serializer
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import maintenance as s
from api.management.viewsets import ManagementViewSet
from catalog.policies import RULES
from catalog.services.maintenance import policies


class RuleViewSet(ManagementViewSet):
    operation_ids = {"list": "ListRules"}
    pagination_class = None

    @extend_schema(responses=forced_singular_serializer(s.RulesSerializer))
    def list(self, request: Request) -> Response:
        """List the settings of policies, with units, defaults and limits."""
        return Response(s.RulesSerializer.represent({"rules": RULES}))


class NamespacePolicyViewSet(ManagementViewSet):
    operation_ids = {
        "retrieve": "GetNamespacePolicy",
        "update": "SetNamespacePolicy",
        "destroy": "DeleteNamespacePolicy",
    }

    @extend_schema(responses=s.PolicySerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """Get the policy of a namespace: the effective and the direct values."""
        return self._answer()

    @extend_schema(request=s.SetPolicySerializer, responses=s.PolicySerializer)
    def update(self, request: Request, id: str) -> Response:
        """Replace the direct values of a namespace's policy.

        Omitted values are inherited.
        """
        values = self.read_body(s.SetPolicySerializer)["values"]
        policies.set_namespace_policy(actor=request.user, namespace=self.identifier, values=values)
        return self._answer()

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:
        """Remove all direct values of a namespace's policy."""
        policies.set_namespace_policy(actor=request.user, namespace=self.identifier, values={})
        return Response(status=204)

    def _answer(self) -> Response:
        pair = policies.policy_of_namespace(actor=self.request.user, namespace=self.identifier)
        return Response(s.PolicySerializer.represent(pair))


class TablePolicyViewSet(ManagementViewSet):
    operation_ids = {
        "retrieve": "GetTablePolicy",
        "update": "SetTablePolicy",
        "destroy": "DeleteTablePolicy",
    }

    @extend_schema(responses=s.PolicySerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """Get the policy of a table: the effective and the direct values."""
        return self._answer()

    @extend_schema(request=s.SetPolicySerializer, responses=s.PolicySerializer)
    def update(self, request: Request, id: str) -> Response:
        """Replace the direct values of a table's policy.

        Omitted values are inherited.
        """
        values = self.read_body(s.SetPolicySerializer)["values"]
        policies.set_table_policy(actor=request.user, table=self.identifier, values=values)
        return self._answer()

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:
        """Remove all direct values of a table's policy."""
        policies.set_table_policy(actor=request.user, table=self.identifier, values={})
        return Response(status=204)

    def _answer(self) -> Response:
        pair = policies.policy_of_table(actor=self.request.user, table=self.identifier)
        return Response(s.PolicySerializer.represent(pair))
