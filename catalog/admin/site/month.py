"""Maintenance of the last 30 days, for the overview."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from django.utils.safestring import SafeString

from catalog.admin import cells, score_charts
from catalog.admin.score_charts import Day
from catalog.models import Job, JobStatus
from catalog.services.maintenance import job_control
from catalog.services.maintenance.job_control import Tally

DAYS = 30
MAX_ROWS = 20_000
"""Maximum number of recently finished jobs that are counted."""


@dataclass(frozen=True)
class Month:
    """Figures and chart, with a note if they do not cover the whole period."""

    figures: Sequence[tuple[str, object]]
    chart: SafeString
    is_empty: bool
    note: str
    jobs_url: str
    failed_url: str


def month() -> Month:
    """Maintenance of the last days. One statement of bounded cost."""
    today = datetime.now(UTC).date()
    first = today - timedelta(days=DAYS - 1)
    since = datetime(first.year, first.month, first.day, tzinfo=UTC)
    account = job_control.count_activity(since=since, limit=MAX_ROWS)
    total = Tally()
    by_day: dict[date, Tally] = defaultdict(Tally)
    for (day, _), tally in account.tallies.items():
        total.add(tally)
        by_day[day].add(tally)
    days = [_day(day, by_day[day]) for day in (first + timedelta(days=n) for n in range(DAYS))]
    active = account.queued + account.running
    return Month(
        figures=(
            ("bytes reclaimed", cells.size(total.bytes_reclaimed)),
            ("files removed", f"{total.files_removed:,}"),
            ("small files merged", f"{total.files_merged:,}"),
            ("plans kept", _plans_kept(total)),
            ("jobs succeeded", f"{total.succeeded:,}"),
            ("failed", f"{total.failed:,}"),
            ("running or queued", cells.bounded(active, MAX_ROWS - 1)),
        ),
        chart=score_charts.days(days),
        is_empty=not account.tallies and not active,
        note=f"Based on the last {MAX_ROWS:,} finished jobs, back to {account.whole_since:%Y-%m-%d}."
        if account.whole_since
        else "",
        jobs_url=cells.list_url(Job, "since=month"),
        failed_url=cells.list_url(Job, f"since=month&status__exact={JobStatus.FAILED.value}"),
    )


def _plans_kept(total: Tally) -> object:
    """The share of jobs whose files and bytes were within 10 % of their plans."""
    percent = total.plans_kept_percent
    return cells.NOTHING if percent is None else f"{percent} %"


def _day(day: date, tally: Tally) -> Day:
    jobs = {
        "succeeded": tally.succeeded,
        "dry_run": tally.dry_runs,
        "canceled": tally.canceled,
        "failed": tally.failed,
    }
    return Day(day, {name: count for name, count in jobs.items() if count})
