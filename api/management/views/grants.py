"""Grants of privileges, the privileges that follow from them, and what a change would take away."""

from functools import partial
from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import access as s
from api.management.viewsets import ManagementViewSet
from catalog.access import On
from catalog.privileges import parse
from catalog.services.access import grants, withdrawal


class _ObjectViewSet(ManagementViewSet):
    is_table: ClassVar[bool] = False

    @property
    def on(self) -> On:
        return On.table(self.identifier) if self.is_table else On.namespace(self.identifier)


class NamespaceGrantViewSet(_ObjectViewSet):
    results_field = "grants"
    resource = "NamespaceGrant"
    query_classes = {"list": s.GrantQuery, "destroy": s.GranteeQuery}

    @extend_schema(responses=s.GrantSerializer(many=True))
    def list(self, request: Request, id: str) -> Response:
        """List direct grants.

        The grants on the object itself, without those that it inherits.
        """
        rows = partial(grants.list_grants, actor=self.principal, on=self.on, **self.query())
        return self.page(rows, s.GrantSerializer)

    @extend_schema(request=s.SetGrantSerializer, responses=s.GrantedSerializer)
    def update(self, request: Request, id: str) -> Response:
        """Set a direct grant.

        The principal is granted exactly these privileges on the object and everything below it. Without
        `expires_at` the grant has no end, also if the previous grant had one.
        """
        body = self.read_body(s.SetGrantSerializer)
        with self.rehearsal(body):
            change = grants.set_grant(
                actor=self.principal,
                on=self.on,
                principal=body["principal"],
                privileges=parse(body["privileges"]),
                expires_at=body["expires_at"],
            )
            granted = {
                "principal": body["principal"],
                "privileges": change.privileges,
                "expires_at": change.expires_at,
                "remaining": withdrawal.after_grant(self.principal, change),
            }
            return Response(s.GrantedSerializer.represent(granted))

    def destroy(self, request: Request, id: str) -> Response:
        """Delete a direct grant.

        Privileges of the principal from other sources remain. To learn how long clients keep access with
        credentials that they hold, set the grant to no privileges instead.
        """
        principal = self.query()["principal"]
        grants.set_grant(
            actor=self.principal, on=self.on, principal=principal, privileges=parse([])
        )
        return Response(status=204)


class TableGrantViewSet(NamespaceGrantViewSet):
    is_table = True
    resource = "TableGrant"


class NamespaceAccessViewSet(_ObjectViewSet):
    results_field = "principals"
    operation_ids = {"list": "ExplainNamespaceAccess", "what_if": "WhatIfNamespaceGrant"}
    dry_actions = frozenset({"what_if"})
    query_classes = {"list": s.HolderQuery}

    @extend_schema(responses=s.HolderSerializer(many=True))
    def list(self, request: Request, id: str) -> Response:
        """Explain access.

        The principals with privileges on the object, and the sources of the privileges.
        """
        rows = partial(grants.explain, actor=self.principal, on=self.on, **self.query())
        return self.page(rows, s.HolderSerializer)

    @extend_schema(request=s.WhatIfSerializer, responses=s.LossSerializer(many=True))
    @action(detail=True, methods=["post"], url_path="what-if")
    def what_if(self, request: Request, id: str) -> Response:
        """List the privileges that a change of a grant would take away.

        Nothing is changed.
        """
        body = self.read_body(s.WhatIfSerializer)
        rows = partial(
            grants.what_if,
            actor=self.principal,
            on=self.on,
            principal=body["principal"],
            privileges=parse(body["privileges"]),
        )
        return self.page(rows, s.LossSerializer)


class TableAccessViewSet(NamespaceAccessViewSet):
    is_table = True
    operation_ids = {"list": "ExplainTableAccess", "what_if": "WhatIfTableGrant"}
