"""Registering tables that lie in storage already."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import registrations as s
from api.management.viewsets import ManagementViewSet
from catalog.models import TableFormat
from catalog.services.discovery import plans, registration
from catalog.services.discovery.registration import Entry


class RegistrationViewSet(ManagementViewSet):
    operation_ids = {"create": "RegisterStoredTables", "plan": "PlanRegistrations"}
    dry_actions = frozenset({"plan"})

    @extend_schema(
        request=s.RegisterStoredTablesSerializer,
        responses={200: s.RegistrationResultsSerializer},
    )
    def create(self, request: Request) -> Response:
        """Register tables that lie in storage.

        Takes the tables of a plan, or some of them, with the names that they are to have. Missing
        namespaces are created. A table that is refused does not keep the others from being registered;
        the request can be repeated.
        """
        body = self.read_body(s.RegisterStoredTablesSerializer)
        results = registration.register(
            actor=self.principal, entries=[_entry(entry) for entry in body["tables"]]
        )
        return Response(s.RegistrationResultsSerializer.represent({"results": list(results)}))

    @extend_schema(
        request=s.PlanRegistrationsSerializer, responses={200: s.RegistrationPlanSerializer}
    )
    @action(detail=True, methods=["post"])
    def plan(self, request: Request) -> Response:
        """List the tables that lie below a location.

        Each with the name that it would get, and whether it is in the catalog already. Nothing is
        changed.
        """
        body = self.read_body(s.PlanRegistrationsSerializer)
        plan = plans.plan(
            actor=self.principal,
            location=body["location"],
            namespace=tuple(body["namespace"]),
            formats=frozenset(body["formats"] or TableFormat),
        )
        return Response(s.RegistrationPlanSerializer.represent(plan))


def _entry(entry: Any) -> Entry:
    return Entry(entry["format"], tuple(entry["table"]), entry["location"])
