"""Principals: people, groups and service accounts, and the members of groups."""

from functools import partial

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import access as s
from api.management.viewsets import ManagementViewSet
from catalog.services.access import principals


class PrincipalViewSet(ManagementViewSet):
    lookup_field = "principal"
    lookup_value_regex = "[^/]+"
    results_field = "principals"
    resource = "Principal"
    query_classes = {"list": s.PrincipalQuery}

    @extend_schema(responses=s.PrincipalSerializer(many=True))
    def list(self, request: Request) -> Response:
        """List principals by name.

        For administrators.
        """
        kinds = self.query()["kind"]
        return self.page(
            partial(principals.list_principals, actor=self.principal, kinds=kinds),
            s.PrincipalSerializer,
        )

    @extend_schema(request=s.CreatePrincipalSerializer, responses={201: s.PrincipalSerializer})
    def create(self, request: Request) -> Response:
        """Create a person, a group or a service account.

        For administrators.
        """
        body = self.read_body(s.CreatePrincipalSerializer)
        row = principals.create_principal(actor=self.principal, **body)
        return Response(s.PrincipalSerializer.represent(row), status=201)

    @extend_schema(responses=s.PrincipalSerializer)
    def retrieve(self, request: Request, principal: str) -> Response:
        """Get a principal with its groups.

        For administrators and the principal itself.
        """
        row = principals.find_principal(actor=self.principal, name=principal)
        return Response(s.PrincipalSerializer.represent(row))

    @extend_schema(request=s.UpdatePrincipalSerializer, responses=s.PrincipalSerializer)
    def partial_update(self, request: Request, principal: str) -> Response:
        """Change a principal.

        For administrators. Omitted fields keep their values.
        """
        body = self.read_body(s.UpdatePrincipalSerializer)
        row = principals.update_principal(actor=self.principal, name=principal, **body)
        return Response(s.PrincipalSerializer.represent(row))


class MemberViewSet(ManagementViewSet):
    operation_ids = {"update": "AddMember", "destroy": "RemoveMember"}

    @extend_schema(request=None, responses={204: None})
    def update(self, request: Request, principal: str, member: str) -> Response:
        """Add a person or a service account to a group.

        For administrators.
        """
        principals.add_member(actor=self.principal, group=principal, member=member)
        return Response(status=204)

    def destroy(self, request: Request, principal: str, member: str) -> Response:
        """Remove a member from a group.

        For administrators.
        """
        principals.remove_member(actor=self.principal, group=principal, member=member)
        return Response(status=204)
