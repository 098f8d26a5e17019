"""The approval gate: operations that a rule holds until a second person approves them.

    commit([PurgeNow(...)])            a rule of the namespace requires an approval:
      apply                            raises ApprovalRequired, which rolls back the transaction
      after_refusal                    saves a request and adds its number to the error
    commit([ApproveRequest(...)])      by another person: applies the operation as the requester

The request stores the state that the operation was requested on (``state``). If the state has
changed when the request is approved, the approval is refused: nobody approves what they did not
see.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Self

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from catalog.access import Principal
from catalog.errors import ApprovalOutdated, ApprovalRequired, CatalogError, ServiceUnavailable
from catalog.identifiers import Identifier, label
from catalog.models import ApprovalRequest, ApprovalStatus, GuardedAction, Namespace
from catalog.services.engine import audit_records
from catalog.services.engine.batch import Batch
from catalog.services.engine.operation import Operation
from catalog.services.tables import trash

_ATTEMPTS = 3


@dataclass(frozen=True)
class _Draft:
    """An approval request that is not saved yet."""

    description: str
    target: str
    namespace: Namespace
    state: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class GatedOperation(Operation):
    """An operation for which a namespace's rule may require an approval."""

    reason: str = ""
    """The reason of the requester, shown to the approver."""
    approved_for: Mapping[str, Any] | None = None
    """The state that a second person approved; set only by ``ApproveRequest``."""

    def require_approval(
        self,
        batch: Batch,
        *,
        action: GuardedAction | None,
        description: str,
        target: Identifier,
        namespace: Namespace,
        state: Mapping[str, Any],
        below: Collection[int] = (),
    ) -> bool:
        """Return True if a second person approved this operation on the current state.

        Raises ApprovalRequired if a rule of the namespace requires an approval (``action`` None:
        always), and ApprovalOutdated if the state has changed. ``state`` is JSON. ``below`` are the
        namespaces in it that the operation affects too: their own rules count as well.
        """
        if self.approved_for is not None:
            if dict(self.approved_for) != dict(state):
                raise ApprovalOutdated(label(target))
            return True
        if action is not None:
            effective = trash.rules({namespace.pk, *below}).values()
            if not any(action in rules.guarded for rules in effective):
                return False
        error = ApprovalRequired(description, target)
        error.draft = _Draft(description, label(target), namespace, state)
        raise error

    def after_refusal(self, error: CatalogError, actor: Principal) -> None:
        if not (isinstance(error, ApprovalRequired) and isinstance(error.draft, _Draft)):
            return
        draft = error.draft
        request = ApprovalRequest(
            action=draft.description,
            target=draft.target,
            namespace=draft.namespace,
            operation=self.stored(),
            expected=dict(draft.state),
            reason=self.reason,
            requester=actor.name,
            digest=self._digest(draft, actor),
            expires_at=timezone.now() + timedelta(days=settings.MONODON_APPROVAL_DAYS),
        )
        error.ask(save(request, actor))

    def stored(self) -> dict[str, Any]:
        """Return the operation as JSON, from which ``restored`` creates it again."""
        values = {
            field_.name: getattr(self, field_.name)
            for field_ in fields(self)
            if field_.name not in {"reason", "approved_for"}
        }
        return {"operation": self.name, **values}

    @classmethod
    def restored(cls, stored: Mapping[str, Any], state: Mapping[str, Any]) -> Self:
        values = {name: value for name, value in stored.items() if name != "operation"}
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **lists}, approved_for=state)

    def _digest(self, draft: _Draft, actor: Principal) -> str:
        text = json.dumps([actor.name, self.stored(), dict(draft.state)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def save(request: ApprovalRequest, actor: Principal) -> int:
    """Save a request; return its number, or that of a pending request for the same operation.

    Raises ServiceUnavailable.
    """
    same = ApprovalRequest.objects.filter(digest=request.digest, status=ApprovalStatus.PENDING)
    same.filter(expires_at__lte=timezone.now()).update(status=ApprovalStatus.EXPIRED)
    for _ in range(_ATTEMPTS):
        try:
            _insert(request, actor)
        except IntegrityError:
            pending = same.values_list("pk", flat=True).first()
            if pending is not None:
                return pending
            # A concurrent transaction has decided it, so this is a new request.
        else:
            return request.pk
    raise ServiceUnavailable("Requests for the same operation are being decided; try again")


def _insert(request: ApprovalRequest, actor: Principal) -> None:
    with transaction.atomic():
        request.save(force_insert=True)
        audit_records.record(
            actor,
            "approval.request",
            request.target,
            after={
                "request": request.pk,
                "action": request.action,
                "operation": request.operation,
                "reason": request.reason,
                "expires_at": request.expires_at.isoformat(),
            },
        )
