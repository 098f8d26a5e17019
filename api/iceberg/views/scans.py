"""Scan planning: the files that a scan reads, at once or in tasks that the client fetches."""

from typing import Any

from api.iceberg.operation import IcebergOperation
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.services.iceberg import scans
from catalog.services.iceberg.scans import PlannedScan


class PlanTableScan(IcebergOperation):
    """Plan a scan of a table.

    Returns the data files that may have matching rows, and the files that delete rows in them. The
    plan of a large scan has the names of tasks instead, which the client fetches.
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
    """Return the tasks of a plan.

    Plans are kept for a while after the scan was planned, for the principal that planned it.
    """

    verb = "GET"
    response_model = "FetchPlanningResult"

    def handle(
        self, actor: Principal, body: None, *, namespace: str, table: str, plan_id: str
    ) -> dict[str, Any]:
        identifier = self.identify(namespace, table)
        return completed(scans.fetch_plan(actor=actor, table=identifier, plan=plan_id))


class CancelPlanning(IcebergOperation):
    """Remove a plan.

    The tasks of the plan can no longer be fetched.
    """

    verb = "DELETE"
    is_idempotent = True

    def handle(
        self, actor: Principal, body: None, *, namespace: str, table: str, plan_id: str
    ) -> None:
        identifier = self.identify(namespace, table)
        scans.cancel_plan(actor=actor, table=identifier, plan=plan_id)


class FetchScanTasks(IcebergOperation):
    """Fetch the files of one task of a plan.

    The task's name is one of the ``plan-tasks`` that PlanTableScan or FetchPlanningResult returned.
    """

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
