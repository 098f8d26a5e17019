"""Requests that wait for a second person."""

from typing import ClassVar

from api.management import recovery_messages as m
from api.management.operation import ManagementOperation
from catalog.access import Principal
from catalog.errors import ApprovalNotFound, InvalidInput
from catalog.models import ApprovalStatus
from catalog.services.governance import approvals


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ApprovalNotFound(text)
    return int(text)


class ListApprovals(ManagementOperation):
    """Requests that the caller made or may browse, the newest first."""

    response_model = m.ApprovalPage
    query = ("status", "waiting_for_me", "limit", "page_token")
    described: ClassVar = {
        "status": {"schema": {"type": "string", "enum": ApprovalStatus.values}},
        "waiting_for_me": {
            "description": "Only those that the caller may decide now.",
            "schema": {"type": "boolean", "default": False},
        },
    }

    def handle(self, actor: Principal, body: None) -> m.ApprovalPage:
        statuses = self.chosen("status", ApprovalStatus)
        if len(statuses) > 1:
            raise InvalidInput("Query parameter 'status' is one of them here")
        rows, token = approvals.list_approvals(
            actor=actor,
            status=statuses[0] if statuses else None,
            waiting_for_me=bool(self.flag("waiting_for_me")),
            **self.page,
        )
        return m.ApprovalPage(
            approvals=[m.ApprovalModel.of(row) for row in rows], next_page_token=token
        )


class GetApproval(ManagementOperation):
    """A request: who wants what and why, and what became of it."""

    response_model = m.ApprovalModel

    def handle(self, actor: Principal, body: None, approval: str) -> m.ApprovalModel:
        return m.ApprovalModel.of(approvals.find_approval(actor=actor, request=_number(approval)))


class ApproveRequest(ManagementOperation):
    """Approve what somebody else asked for: it is carried out as who asked."""

    verb = "POST"
    changes = True
    request_model = m.ApproveBody
    response_model = m.ApprovalModel

    def handle(self, actor: Principal, body: m.ApproveBody, approval: str) -> m.ApprovalModel:
        row = approvals.approve(actor=actor, request=_number(approval), reason=body.reason)
        return m.ApprovalModel.of(row)


class RefuseRequest(ManagementOperation):
    """Refuse what somebody else asked for, and say why."""

    verb = "POST"
    changes = True
    request_model = m.RefuseBody
    response_model = m.ApprovalModel

    def handle(self, actor: Principal, body: m.RefuseBody, approval: str) -> m.ApprovalModel:
        row = approvals.refuse(actor=actor, request=_number(approval), reason=body.reason)
        return m.ApprovalModel.of(row)


class WithdrawRequest(ManagementOperation):
    """Take one's own request back."""

    verb = "POST"
    changes = True
    response_model = m.ApprovalModel

    def handle(self, actor: Principal, body: None, approval: str) -> m.ApprovalModel:
        return m.ApprovalModel.of(approvals.withdraw(actor=actor, request=_number(approval)))
