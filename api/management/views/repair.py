"""The repair of Lance tables."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import recovery as s
from api.management.viewsets import ManagementViewSet
from catalog.services.recovery import lance_repair


class RepairViewSet(ManagementViewSet):
    operation_ids = {"create": "RepairTable"}

    @extend_schema(request=s.RepairTableSerializer, responses={200: s.RepairReportSerializer})
    def create(self, request: Request, id: str) -> Response:
        """Repair a Lance table.

        Compares the ledger with the storage, and publishes a complete version if the newest one is
        incomplete. With ``dry_run``, it only reports.
        """
        body = self.read_body(s.RepairTableSerializer)
        report = lance_repair.repair(
            actor=self.principal, table=self.identifier, is_dry_run=body["dry_run"]
        )
        return Response(s.RepairReportSerializer.represent(report))
