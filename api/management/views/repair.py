"""Repairing a Lance table."""

from api.management import repair_messages as m
from api.management.operation import ManagementOperation
from catalog.access import Principal
from catalog.identifiers import Identifier
from catalog.services.recovery import lance_repair


class RepairTable(ManagementOperation):
    """Compare a Lance table's ledger with its storage, and make its newest version a whole one."""

    verb = "POST"
    changes = True
    request_model = m.RepairTableRequest
    response_model = m.RepairReport

    def handle(
        self, actor: Principal, body: m.RepairTableRequest, id: Identifier
    ) -> m.RepairReport:
        report = lance_repair.repair(actor=actor, table=id, is_dry_run=body.dry_run)
        return m.RepairReport.of(report)
