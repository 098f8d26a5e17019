"""Maintenance policies: their settings, their direct values and their effective values."""

from collections.abc import Callable
from typing import Any

from drf_spectacular.helpers import forced_singular_serializer
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import maintenance as s
from api.management.viewsets import ManagementViewSet
from catalog.policies import rules
from catalog.services.maintenance import policies


class RuleViewSet(ManagementViewSet):
    resource = "Rule"
    pagination_class = None

    @extend_schema(
        responses=forced_singular_serializer(s.RulesSerializer)  # type: ignore[no-untyped-call]
    )
    def list(self, request: Request) -> Response:
        """List the settings of policies, with units, defaults and limits."""
        return Response(s.RulesSerializer.represent({"rules": rules()}))


class NamespacePolicyViewSet(ManagementViewSet):
    resource = "NamespacePolicy"
    target = "namespace"
    read_policy: Callable[..., Any] = staticmethod(policies.policy_of_namespace)
    write_policy: Callable[..., Any] = staticmethod(policies.set_namespace_policy)

    @extend_schema(responses=s.PolicySerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """Get a policy: the effective values, and the direct values of the object."""
        pair = self.read_policy(actor=self.principal, **{self.target: self.identifier})
        return Response(s.PolicySerializer.represent(pair))

    @extend_schema(request=s.SetPolicySerializer, responses=s.PolicySerializer)
    def update(self, request: Request, id: str) -> Response:
        """Replace the direct values of a policy.

        Omitted values are inherited.
        """
        body = self.read_body(s.SetPolicySerializer)
        self.write_policy(actor=self.principal, **{self.target: self.identifier}, **body)
        return self.retrieve(request, id)

    def destroy(self, request: Request, id: str) -> Response:
        """Remove all direct values of a policy."""
        self.write_policy(actor=self.principal, **{self.target: self.identifier}, values={})
        return Response(status=204)


class TablePolicyViewSet(NamespacePolicyViewSet):
    resource = "TablePolicy"
    target = "table"
    read_policy = staticmethod(policies.policy_of_table)
    write_policy = staticmethod(policies.set_table_policy)
