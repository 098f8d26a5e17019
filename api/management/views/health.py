"""The health of tables, and the maintenance that they need."""

from functools import partial

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import maintenance as s
from api.management.viewsets import ManagementViewSet
from catalog.services.maintenance import health, measurements


class HealthViewSet(ManagementViewSet):
    results_field = "tables"
    operation_ids = {"list": "ListHealth"}
    query_classes = {"list": s.HealthQuery}

    @extend_schema(responses=s.HealthSerializer(many=True))
    def list(self, request: Request) -> Response:
        """List the measured tables, lowest health first."""
        query = self.query()
        namespace = self.identify(query["namespace"]) if query["namespace"] else ()
        rows = partial(
            health.list_health, actor=self.principal, **{**query, "namespace": namespace}
        )
        return self.page(rows, s.HealthSerializer)


class TableHealthViewSet(ManagementViewSet):
    resource = "TableHealth"
    query_classes = {"retrieve": s.TableHealthQuery}

    @extend_schema(responses=s.TableHealthSerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """Get the health of a table now and in the last days."""
        report = health.table_health(actor=self.principal, table=self.identifier, **self.query())
        return Response(s.TableHealthSerializer.represent(report))


class MeasurementViewSet(ManagementViewSet):
    operation_ids = {"create": "MeasureTable"}

    @extend_schema(request=None, responses={200: s.HealthWithStatisticsSerializer})
    def create(self, request: Request, id: str) -> Response:
        """Measure a table now, and store the figures."""
        row = measurements.measure(actor=self.principal, table=self.identifier)
        return Response(s.HealthWithStatisticsSerializer.represent(row))


class PlanViewSet(ManagementViewSet):
    operation_ids = {"create": "PlanMaintenance"}
    dry_actions = frozenset({"create"})

    @extend_schema(request=None, responses={200: s.PlanSerializer})
    def create(self, request: Request, id: str) -> Response:
        """Measure a table now, and plan its maintenance.

        Nothing is stored or changed.
        """
        measurement = measurements.plan(actor=self.principal, table=self.identifier)
        return Response(s.PlanSerializer.represent(measurement))
