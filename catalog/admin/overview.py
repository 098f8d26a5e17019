"""What the first page answers: what changed, what needs me, how big the catalog is, whether it is well.

Each answer is one statement that looks at so many rows and no more, of what the reader may browse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from django.db import connection
from django.db.models import BigIntegerField, Max
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.pages import Panel
from catalog.models import (
    ApiKey,
    ApprovalRequest,
    AuditEvent,
    DeliveryStatus,
    Job,
    JobStatus,
    TableHealth,
    TableState,
    TrashItem,
    Webhook,
    WebhookDelivery,
)
from catalog.models.audit import Outcome
from catalog.privileges import Privilege
from catalog.services import access, approvals, recovery

LOOKED_AT = 20_000
"""So many rows an answer looks at, the newest first."""
_MOST = 100  # counts of what needs somebody are not taken further
_CHANGES = 10
_LOOKED_THROUGH = 200
_SOON = timedelta(days=2)
_KEYS_SOON = timedelta(days=14)
_DAYS = 30
_FAIR = 50
_LOOK_BACK = 10_000  # jobs among which failed ones are looked for
_BUCKETS = 10

_GROWTH = """
    SELECT what, day, count(*) FROM (
        (SELECT 'tables' AS what, (created_at AT TIME ZONE 'UTC')::date AS day
         FROM catalog_table ORDER BY id DESC LIMIT %(limit)s)
        UNION ALL
        (SELECT 'versions', (created_at AT TIME ZONE 'UTC')::date
         FROM catalog_tableversion ORDER BY id DESC LIMIT %(limit)s)
    ) newest GROUP BY what, day
"""


@dataclass(frozen=True)
class Need:
    """Something that waits for the reader, and where it is decided."""

    count: str
    text: str
    url: str
    icon: str


@dataclass(frozen=True)
class Wellness:
    """The newest measurements: how many tables have which score, and what is in them."""

    chart: SafeString
    tables: int
    unhealthy: int
    rows: int
    bytes: int
    is_whole: bool

    @property
    def rows_text(self) -> str:
        return f"{self.rows:,}"


@dataclass(frozen=True)
class Growth:
    tables: SafeString
    versions: SafeString
    made: str
    written: str


def needs(request: HttpRequest) -> list[Need]:
    """What waits for the reader. Four statements; for administrators six."""
    asking = actor(request)
    now = timezone.now()
    newest_job = Job.objects.order_by().aggregate(newest=Max("pk"))["newest"] or 0
    failed = Job.objects.filter(
        access.visible_tables(asking, "table__"),
        status=JobStatus.FAILED,
        pk__gt=newest_job - _LOOK_BACK,
    )
    purged = recovery.visible(asking).filter(purge_at__gt=now, purge_at__lt=now + _SOON)
    found = [
        (
            approvals.waiting_for(asking),
            "Requests to decide",
            cells.list_url(ApprovalRequest, "waiting=me"),
            "approval",
        ),
        (failed, "Failed jobs", cells.list_url(Job, "status__exact=failed"), "error"),
        (purged, "Purged within two days", cells.list_url(TrashItem), "auto_delete"),
    ]
    if asking.holds_everywhere(Privilege.ALL):
        dead = WebhookDelivery.objects.filter(status=DeliveryStatus.DEAD)
        keys = ApiKey.objects.filter(
            revoked_at=None, expires_at__gt=now, expires_at__lt=now + _KEYS_SOON
        )
        found += [
            (dead, "Events no webhook took", cells.list_url(Webhook), "webhook"),
            (keys, "Keys that expire within two weeks", cells.list_url(ApiKey), "key"),
        ]
    told = []
    for rows, text, url, icon in found:
        count = len(rows.order_by().values_list("pk", flat=True)[: _MOST + 1])
        if count:
            told.append(Need(cells.bounded(count, _MOST), text, url, icon))
    return told


def changes(request: HttpRequest) -> Panel:
    """What was done last and by whom: of everything, or of what was done by the reader.

    The audit trail goes by names that may be others' now, so what may be browsed cannot be told
    from it.
    """
    asking = actor(request)
    rows = AuditEvent.objects.filter(outcome=Outcome.DONE)
    sees_all = asking.holds_everywhere(Privilege.READ)
    if not sees_all:
        rows = rows.filter(actor=asking.name)
    # Who came and went is no change; of a day with nothing else little is looked at.
    newest = rows.only("action", "target", "actor", "at").order_by("-pk")[:_LOOKED_THROUGH]
    done = [event for event in newest if not event.action.startswith("session.")]
    return Panel(
        title="What changed" if sees_all else "What you changed",
        columns=("What", "On", "Who", "When"),
        rows=[
            (
                event.action,
                cells.code(event.target),
                cells.who(event.actor),
                cells.moment(event.at),
            )
            for event in done[:_CHANGES]
        ],
        empty="Nothing was changed yet.",
    )


def wellness(request: HttpRequest) -> Wellness:
    """One statement."""
    asking = actor(request)
    newest = (
        TableHealth.objects.newest()
        .exclude(table__state=TableState.DROPPED)
        .filter(access.visible_tables(asking, "table__"))
        .annotate(
            rows=Cast(KT("statistics__rows"), BigIntegerField()),
            bytes=Cast(KT("statistics__bytes"), BigIntegerField()),
        )
        .order_by("score", "table")
        .values_list("score", "rows", "bytes")[: LOOKED_AT + 1]
    )
    buckets = [0] * _BUCKETS
    tables = unhealthy = rows = size = 0
    found = list(newest)
    for score, of_rows, of_bytes in found[:LOOKED_AT]:
        buckets[min(score * _BUCKETS // 100, _BUCKETS - 1)] += 1
        tables += 1
        unhealthy += score < _FAIR
        rows += of_rows or 0
        size += of_bytes or 0
    return Wellness(_histogram(buckets), tables, unhealthy, rows, size, len(found) <= LOOKED_AT)


def growth() -> Growth:
    """How many tables and versions came on each of the last days. One statement."""
    with connection.cursor() as cursor:
        cursor.execute(_GROWTH, {"limit": LOOKED_AT})
        rows: list[tuple[str, date, int]] = cursor.fetchall()
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=number) for number in range(_DAYS - 1, -1, -1)]
    by_day = {(what, day): count for what, day, count in rows}
    series = {what: [by_day.get((what, day), 0) for day in days] for what in ("tables", "versions")}
    told = {
        what: f"{'≥ ' if sum(n for w, _, n in rows if w == what) >= LOOKED_AT else ''}{sum(counts):,}"
        for what, counts in series.items()
    }
    return Growth(
        _bars("Tables made by day", days, series["tables"]),
        _bars("Versions written by day", days, series["versions"]),
        told["tables"],
        told["versions"],
    )


# --- pictures ----------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _BASE = 320, 90, 74


def _bars(title: str, days: Sequence[date], counts: Sequence[int]) -> SafeString:
    most = max(*counts, 1)
    step = _WIDTH / len(counts)
    bars = format_html_join(
        "",
        '<rect class="m-bar-plain" x="{}" y="{}" width="{}" height="{}" rx="1">'
        "<title>{}: {}</title></rect>",
        (
            (
                f"{place * step:.1f}",
                f"{_BASE - height:.1f}",
                f"{step - 2:.1f}",
                f"{height:.1f}",
                day.isoformat(),
                f"{count:,}",
            )
            for place, (day, count) in enumerate(zip(days, counts, strict=True))
            for height in [max(60 * count / most, 1.5) if count else 0]
        ),
    )
    return _svg(title, bars, f"{days[0]:%d %b}", f"{days[-1]:%d %b}", f"most: {max(counts):,}")


def _histogram(buckets: Sequence[int]) -> SafeString:
    most = max(*buckets, 1)
    step = _WIDTH / len(buckets)
    bars = format_html_join(
        "",
        '<rect class="m-dot-{}" x="{}" y="{}" width="{}" height="{}" rx="1">'
        "<title>{} to {}: {} tables</title></rect>",
        (
            (
                "poor" if low < _FAIR else "fair" if low < 80 else "good",
                f"{place * step:.1f}",
                f"{_BASE - height:.1f}",
                f"{step - 3:.1f}",
                f"{height:.1f}",
                low,
                low + 10,
                f"{count:,}",
            )
            for place, count in enumerate(buckets)
            for low in [place * 10]
            for height in [max(60 * count / most, 1.5) if count else 0]
        ),
    )
    return _svg("Tables by health", bars, "0", "100", f"most: {max(buckets):,}")


def _svg(title: str, bars: SafeString, left: str, right: str, top: str) -> SafeString:
    return format_html(
        '<svg class="m-chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}'
        '<line class="m-grid-line" x1="0" x2="{}" y1="{}" y2="{}"></line>'
        '<text x="0" y="{}">{}</text><text x="{}" y="{}" text-anchor="end">{}</text>'
        '<text x="{}" y="10" text-anchor="end">{}</text></svg>',
        _WIDTH,
        _HEIGHT,
        title,
        bars,
        _WIDTH,
        _BASE,
        _BASE,
        _HEIGHT - 3,
        left,
        _WIDTH,
        _HEIGHT - 3,
        right,
        _WIDTH,
        top,
    )
