"""Maintenance policies: their settings, their direct values and their effective values; engine profiles."""

from collections.abc import Callable
from functools import partial
from typing import Any

from drf_spectacular.helpers import forced_singular_serializer
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import engine_profiles as e
from api.management.serializers import maintenance as s
from api.management.viewsets import ManagementViewSet
from catalog.policies import rules
from catalog.services.maintenance import policies
from catalog.services.maintenance.engine_profiles import profiles


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


class EngineProfileViewSet(ManagementViewSet):
    lookup_field = "profile"
    lookup_value_regex = "[^/]+"
    results_field = "engine_profiles"
    resource = "EngineProfile"

    @extend_schema(responses=e.EngineProfileSerializer(many=True))
    def list(self, request: Request) -> Response:
        """List engine profiles by name, the built-in one first."""
        return self.page(
            partial(profiles.list_profiles, actor=self.principal), e.EngineProfileSerializer
        )

    @extend_schema(
        request=e.CreateEngineProfileSerializer, responses={201: e.EngineProfileSerializer}
    )
    def create(self, request: Request) -> Response:
        """Create an engine profile.

        The cluster is not contacted. Policies choose the profile with `engine_profile`.
        """
        body = self.read_body(e.CreateEngineProfileSerializer)
        row = profiles.create_profile(actor=self.principal, **body)
        return Response(e.EngineProfileSerializer.represent(row), status=201)

    @extend_schema(responses=e.EngineProfileSerializer)
    def retrieve(self, request: Request, profile: str) -> Response:
        """Get an engine profile."""
        row = profiles.find_profile(actor=self.principal, name=profile)
        return Response(e.EngineProfileSerializer.represent(row))

    @extend_schema(request=e.UpdateEngineProfileSerializer, responses=e.EngineProfileSerializer)
    def partial_update(self, request: Request, profile: str) -> Response:
        """Change an engine profile.

        Omitted fields keep their values. Waiting jobs use the changed profile; running jobs end on the
        Spark on which they began.
        """
        body = self.read_body(e.UpdateEngineProfileSerializer)
        row = profiles.update_profile(
            actor=self.principal, name=profile, changes=profiles.Changes(**body)
        )
        return Response(e.EngineProfileSerializer.represent(row))

    def destroy(self, request: Request, profile: str) -> Response:
        """Delete an engine profile that no policy and no active job uses.

        Policies in the trash count. The refusal names the policies.
        """
        profiles.delete_profile(actor=self.principal, name=profile)
        return Response(status=204)
