"""What may need a second person: refused at first, and kept as a request that somebody approves.

    commit([PurgeNow(...)])            a namespace's rule says that it takes two:
      apply                            raises ApprovalRequired, all is rolled back
      after_refusal                    enters the request, and tells its number in the refusal
    commit([ApproveRequest(...)])      by somebody else: applies the operation as who asked

The request keeps what the operation met (``state``). If that is not so any more when it is approved,
it is refused: nobody approves what they did not see.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Self

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from catalog.access import Principal
from catalog.errors import ApprovalOutdated, ApprovalRequired, CatalogError
from catalog.identifiers import Identifier, label
from catalog.models import ApprovalRequest, ApprovalStatus, GuardedAction, Namespace
from catalog.services.engine import audit_records
from catalog.services.engine.batch import Batch
from catalog.services.engine.operation import Operation
from catalog.services.tables import trash


@dataclass(frozen=True)
class _Draft:
    """A request that is not entered yet."""

    what: str
    target: str
    namespace: Namespace
    state: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Guarded(Operation):
    """An operation for which a namespace's rule may ask for a second person."""

    reason: str = ""
    """Why it is asked for, to be read by who decides."""
    approved_for: Mapping[str, Any] | None = None
    """What a second person approved it on; set by ``ApproveRequest`` alone."""

    def require_second(
        self,
        batch: Batch,
        *,
        action: GuardedAction | None,
        what: str,
        target: Identifier,
        namespace: Namespace,
        state: Mapping[str, Any],
    ) -> bool:
        """Whether a second person approved this, on a state that is still the same.

        Raises ApprovalRequired where the namespace's rule asks for one (``action`` None: always),
        and ApprovalOutdated. ``state`` is JSON.
        """
        if self.approved_for is not None:
            if dict(self.approved_for) != dict(state):
                raise ApprovalOutdated(label(target))
            return True
        if action is not None and action not in trash.rules([namespace.pk])[namespace.pk].guarded:
            return False
        needed = ApprovalRequired(what, target)
        needed.draft = _Draft(what, label(target), namespace, state)
        raise needed

    def after_refusal(self, error: CatalogError, actor: Principal) -> None:
        if not (isinstance(error, ApprovalRequired) and isinstance(error.draft, _Draft)):
            return
        draft = error.draft
        request = ApprovalRequest(
            action=draft.what,
            target=draft.target,
            namespace=draft.namespace,
            operation=self.stored(),
            expected=dict(draft.state),
            reason=self.reason,
            requester=actor.name,
            digest=self._digest(draft, actor),
            expires_at=timezone.now() + timedelta(days=settings.MONODON_APPROVAL_DAYS),
        )
        error.ask(_enter(request, actor))

    def stored(self) -> dict[str, Any]:
        """As JSON, from which ``restored`` makes it again."""
        said = {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if one.name not in {"reason", "approved_for"}
        }
        return {"operation": self.name, **said}

    @classmethod
    def restored(cls, stored: Mapping[str, Any], state: Mapping[str, Any]) -> Self:
        said = {name: value for name, value in stored.items() if name != "operation"}
        lists = {name: tuple(value) for name, value in said.items() if isinstance(value, list)}
        return cls(**{**said, **lists}, approved_for=state)

    def _digest(self, draft: _Draft, actor: Principal) -> str:
        text = json.dumps([actor.name, self.stored(), dict(draft.state)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _enter(request: ApprovalRequest, actor: Principal) -> int:
    """The number of a request, or of the one that asks for the same and waits."""
    same = ApprovalRequest.objects.filter(digest=request.digest, status=ApprovalStatus.PENDING)
    same.filter(expires_at__lte=timezone.now()).update(status=ApprovalStatus.EXPIRED)
    try:
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
    except IntegrityError:
        waiting = same.values_list("pk", flat=True).first()
        if waiting is None:  # decided at this very moment
            raise
        return waiting
    return request.pk
