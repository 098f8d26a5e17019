"""Panels of the overview: recent changes, items that need attention, and table health.

Each panel reads a bounded number of rows that the user may browse.
"""

from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby, pairwise
from typing import Any, cast

from django.db.models import Count, F, Q, QuerySet, Sum
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString

from catalog.admin import cells, charts
from catalog.admin.access import api_keys
from catalog.admin.actor import actor, browsable_tables, few_tables, is_administrator
from catalog.admin.pages import Panel
from catalog.admin.recovery import trash
from catalog.admin.score_charts import FAIR
from catalog.models import (
    ApiKey,
    ApprovalRequest,
    AuditEvent,
    DeliveryStatus,
    Job,
    TableSummary,
    TrashItem,
    Webhook,
    WebhookDelivery,
)
from catalog.models.audit import Outcome
from catalog.privileges import Privilege
from catalog.services.audit import chain
from catalog.services.events import feed
from catalog.services.governance import approvals
from catalog.services.maintenance import job_control
from catalog.services.recovery import undrop

MAX_ROWS = 20_000
"""Maximum number of rows that a panel reads, newest first."""
_MOST = 100  # limit of the counts of items that need attention
_CHANGES = 6
_MAX_EVENTS = 200  # newest audit events, scanned for changes
_RECENT = timedelta(days=7)
_FAILED_JOBS = "_monodon_failed_jobs"
_BUCKETS = 10
MAX_SEAL_LAG = 60.0
"""Seconds for which an audit event may wait for a seal. Beat starts the seal every 5 seconds."""


@dataclass(frozen=True)
class Need:
    """An item that needs the attention of the user, and the URL of its page."""

    count: str
    text: str
    url: str
    icon: str


@dataclass(frozen=True)
class HealthSummary:
    """Summary of the newest measurements: tables by score, rows and bytes."""

    chart: SafeString
    tables: int
    unhealthy: int
    rows: int
    bytes: int
    is_whole: bool

    @property
    def rows_text(self) -> str:
        return f"{self.rows:,}"


def needs(request: HttpRequest) -> list[Need]:
    """Items that need the attention of the user. Five statements at most; six for administrators."""
    principal = actor(request)
    purged = undrop.visible(principal).filter(trash.purged_soon())
    waiting = _keys(approvals.waiting_for(principal))
    only = cells.page_url(ApprovalRequest(pk=waiting[0])) if len(waiting) == 1 else ""
    candidates = [
        (
            waiting,
            "Pending approvals",
            only or cells.list_url(ApprovalRequest, "waiting=me"),
            "approval",
        ),
        (
            failed_jobs(request),
            "Failed jobs in the last 7 days",
            cells.list_url(Job, "status__exact=failed&since=week"),
            "error",
        ),
        (
            _keys(purged),
            "Purges within 2 days",
            cells.list_url(TrashItem, "purged=soon"),
            "auto_delete",
        ),
    ]
    if principal.holds_everywhere(Privilege.ALL):
        dead = WebhookDelivery.objects.filter(status=DeliveryStatus.DEAD)
        keys = ApiKey.objects.filter(api_keys.expiring())
        candidates += [
            (_keys(dead), "Undelivered events", cells.list_url(Webhook, "dead=some"), "webhook"),
            (
                _keys(keys),
                "API keys that expire within 2 weeks",
                cells.list_url(ApiKey, "expires=soon"),
                "key",
            ),
        ]
    pending = [
        Need(cells.bounded(len(pks), _MOST), text, url, icon)
        for pks, text, url, icon in candidates
        if pks
    ]
    if principal.holds_everywhere(Privilege.ALL):
        pending += _unsealed()
    return pending


def _keys(rows: QuerySet[Any]) -> list[int]:
    return list(rows.order_by().values_list("pk", flat=True)[: _MOST + 1])


def failed_jobs(request: HttpRequest) -> list[int]:
    """The failed jobs of the last days that the user may see, newest first; cached in the request.

    Three statements at most, whose cost does not depend on the jobs of others.
    """
    if not hasattr(request, _FAILED_JOBS):
        pks = job_control.newest_failed(
            actor=actor(request),
            since=timezone.now() - _RECENT,
            limit=_MOST + 1,
            few_tables=few_tables(request, with_dropped=True),
        )
        setattr(request, _FAILED_JOBS, pks)
    return cast("list[int]", getattr(request, _FAILED_JOBS))


def _unsealed() -> list[Need]:
    """The alarm about audit events that wait for a seal: without seals, changes of the trail go unnoticed."""
    lag = chain.lag_seconds()
    if lag <= MAX_SEAL_LAG:
        return []
    text = "Audit events wait for a seal; check the worker of tasks and beat. Minutes"
    return [Need(f"{lag // 60:,.0f}", text, cells.list_url(AuditEvent), "gpp_maybe")]


def changes(request: HttpRequest) -> Panel:
    """Recent changes: all of them, those of data, or those of the user.

    Users who read everything, but do not manage it, see changes of data, as in the stream of events.
    The audit trail records names, which other objects may have now. So it cannot be filtered by
    what the user may browse.
    """
    principal = actor(request)
    rows = AuditEvent.objects.filter(outcome=Outcome.DONE)
    sees_all = principal.holds_everywhere(Privilege.READ)
    if not sees_all:
        rows = rows.filter(actor=principal.name)
    # Log-ins and log-outs are not changes. Only a limited number of events is scanned.
    newest = rows.only("action", "target", "actor", "at").order_by("-pk")[:_MAX_EVENTS]
    sees_access = not sees_all or principal.holds_everywhere(Privilege.MANAGE)
    events = [
        event
        for event in newest
        if not event.action.startswith("session.")
        and (sees_access or event.action.startswith(feed.OF_DATA))
    ]
    # Consecutive commits of a loader are one line.
    runs = [list(run) for _, run in groupby(events, lambda e: (e.action, e.target, e.actor))]
    return Panel(
        title="Recent changes" if sees_all else "Your recent changes",
        columns=("Action", "Target", "Actor", "Time"),
        rows=[
            (
                _action(run[0], len(run)),
                cells.code(run[0].target),
                cells.who(run[0].actor),
                cells.when(run[0].at),
            )
            for run in runs[:_CHANGES]
        ],
        empty="No changes.",
        note=cells.anchor(cells.list_url(AuditEvent), "All audit events")
        if is_administrator(request)
        else "",
    )


def _action(newest: AuditEvent, count: int) -> SafeString | str:
    if count == 1:
        return newest.action
    return cells.spaced([newest.action, cells.muted(f"× {count:,}")])


def health_summary(request: HttpRequest) -> HealthSummary:
    """Summary of table health, as of some seconds ago. Two statements at most."""
    worst = TableSummary.objects.filter(browsable_tables(request), score__isnull=False).order_by(
        F("score").asc(nulls_first=True), "table"
    )[:MAX_ROWS]
    limits = [number * 100 // _BUCKETS for number in range(_BUCKETS)]
    figures = worst.aggregate(
        tables=Count("pk"),
        unhealthy=Count("pk", filter=Q(score__lt=FAIR)),
        total_rows=Sum("rows"),
        total_bytes=Sum("bytes"),
        **{f"from_{limit}": Count("pk", filter=Q(score__gte=limit)) for limit in limits},
    )
    cumulative = [figures[f"from_{limit}"] for limit in limits] + [0]
    return HealthSummary(
        charts.histogram([start - end for start, end in pairwise(cumulative)]),
        figures["tables"],
        figures["unhealthy"],
        int(figures["total_rows"] or 0),
        int(figures["total_bytes"] or 0),
        figures["tables"] < MAX_ROWS,
    )
