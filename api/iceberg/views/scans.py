"""Scans that the server plans: the files to read, at once or in tasks to be fetched."""

from typing import Any

from api.iceberg.operation import IcebergOperation
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.services.iceberg import scans
from catalog.services.iceberg.scans import PlannedScan


class PlanTableScan(IcebergOperation):
    """Plan a scan of a table: the files that may have rows that match, and what deletes in them.

    A small scan is answered whole; of a large one come the names of tasks to be fetched.
    """

    verb = "POST"
    is_idempotent = True
    request_model = "PlanTableScanRequest"
    response_model = "PlanTableScanResult"

    def handle(
        self, actor: Principal, body: dict[str, Any], *, namespace: str, table: str
    ) -> dict[str, Any]:
        identifier = self.identify(namespace, table)
        return completed(scans.plan_scan(actor=actor, table=identifier, request=body))

    replay = handle


class FetchPlanningResult(IcebergOperation):
    """Tell which tasks of a plan are to be fetched."""

    verb = "GET"
    response_model = "FetchPlanningResult"

    def handle(
        self, actor: Principal, body: None, *, namespace: str, table: str, plan_id: str
    ) -> dict[str, Any]:
        identifier = self.identify(namespace, table)
        return completed(scans.fetch_plan(actor=actor, table=identifier, plan=plan_id))


class CancelPlanning(IcebergOperation):
    """Forget a plan."""

    verb = "DELETE"
    is_idempotent = True

    def handle(
        self, actor: Principal, body: None, *, namespace: str, table: str, plan_id: str
    ) -> None:
        identifier = self.identify(namespace, table)
        scans.cancel_plan(actor=actor, table=identifier, plan=plan_id)


class FetchScanTasks(IcebergOperation):
    """Fetch the files of one task of a plan."""

    verb = "POST"
    is_idempotent = True
    request_model = "FetchScanTasksRequest"
    response_model = "FetchScanTasksResult"

    def handle(
        self, actor: Principal, body: dict[str, Any], *, namespace: str, table: str
    ) -> dict[str, Any]:
        task = body.get("plan-task")
        if not isinstance(task, str):
            raise InvalidInput("plan-task: expected the name of a plan task")
        identifier = self.identify(namespace, table)
        return scans.fetch_tasks(actor=actor, table=identifier, plan_task=task)

    replay = handle


def completed(plan: PlannedScan) -> dict[str, Any]:
    answer = {"status": "completed", "plan-id": plan.plan, **plan.tasks}
    if plan.plan_tasks:
        answer["plan-tasks"] = plan.plan_tasks
    return answer
