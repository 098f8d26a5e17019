"""The page of a job: progress, parameters, plan, result and log."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice

from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from catalog.admin import cells, units
from catalog.admin.pages import Panel
from catalog.admin.paging import number, query
from catalog.models import Engine, Job, JobEvent, JobStatus
from catalog.policies import rules as all_rules

ACTIVE = (JobStatus.QUEUED, JobStatus.RUNNING)
_LOG = 50  # lines on a page
_ITEMS = 100  # of a plan or result
_LEVELS = {"info": "info", "warning": "warning", "error": "danger"}
# PostgreSQL does not keep the order of keys.
_ORDER = (
    *("version", "rows", "deleted_rows", "files", "small_files", "bytes", "versions"),
    *("old_versions", "orphans", "indexes", "stale_indexes", "unindexed_rows"),
    *("segments", "index_bytes"),
)
_FIGURES = ("before", "after", "plan", "planned", "layout")


# --- live --------------------------------------------------------------------------------------


def live(row: Job, status: object, progress: object) -> SafeString:
    """Progress of a job. The page polls this while the job is active, and then reloads."""
    last = None
    if row.has_details:
        last = row.events.order_by("-pk").values_list("message", flat=True).first()
    return render_to_string(
        "admin/catalog/job_progress.html",
        {
            "job": row,
            "is_active": row.status in ACTIVE,
            "status": status,
            "progress": progress,
            "last": cells.clipped(_progress_text(row, last or "")),
            "lasted": _lasted(row),
        },
    )


def _progress_text(row: Job, last: str) -> str:
    """The current stage of a running job, else the last line of its log."""
    if row.status != JobStatus.RUNNING or not row.stages:
        return last
    stage = row.stages[-1]
    size = f", {filesizeformat(stage['bytes'])}" if stage.get("bytes") else ""
    return f"{stage['name']}{size}"


def live_fact(row: Job, status: object, progress: object) -> SafeString:
    """Progress of a job as part of its page, with the URL to poll."""
    return render_to_string(
        "admin/catalog/job_live.html",
        {
            "fragment": live(row, status, progress),
            "is_active": row.status in ACTIVE,
            "url": reverse("admin:catalog_job_progress", args=[row.pk]),
        },
    )


def _lasted(row: Job) -> str:
    if row.started_at is None:
        return ""
    seconds = ((row.finished_at or timezone.now()) - row.started_at).total_seconds()
    if seconds < 1:
        return "less than a second"
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"


# --- panels ------------------------------------------------------------------------------------


def panels(request: HttpRequest, row: Job) -> list[Panel]:
    if not row.has_details:
        text = "Result and log are shown to users who may read the table."
        return [*_stages(row), Panel((), (), text, title="Log")]
    return [
        *_stages(row),
        *_figures(row),
        *_plan(row),
        *_policy(row),
        _log(request, row),
    ]


def engine(row: Job) -> SafeString | str:
    """The engine of a job and the reason for it, with a link to Spark's own pages."""
    if not row.engine:
        return cells.NOTHING
    lines: list[object] = [Engine(row.engine).label]
    if row.engine == Engine.SPARK and row.engine_profile:
        lines.append(f"engine profile '{row.engine_profile}'")
    if row.engine_reason:
        lines.append(cells.muted(row.engine_reason))
    if row.spark_ui.startswith(("http://", "https://")):
        lines.append(cells.anchor(row.spark_ui, "Pages of Spark"))
    return cells.lines(lines)


def _stages(row: Job) -> list[Panel]:
    """The stages of the last attempt with their durations."""
    if not row.stages or row.started_at is None:
        return []
    begins = [row.created_at, row.started_at]
    names: list[tuple[str, int | None]] = [("queued", None), ("started", None)]
    for stage in row.stages:
        begins.append(datetime.fromisoformat(stage["began_at"]))
        names.append((stage["name"], stage.get("bytes")))
    ends = [*begins[1:], row.finished_at or timezone.now()]
    return [
        Panel(
            title="Stages",
            columns=("Stage", "Began", "Duration", "Bytes"),
            rows=[
                (
                    name,
                    cells.moment(begin),
                    f"{max((end - begin).total_seconds(), 0):.1f} s",
                    cells.NOTHING if size is None else cells.size(size),
                )
                for (name, size), begin, end in zip(names, begins, ends, strict=True)
            ],
            empty="",
        )
    ]


def parameters(row: Job) -> SafeString:
    """Parameters of the job without the policy, which has its own panel."""
    return cells.mapping({key: text for key, text in row.parameters.items() if key != "policy"})


def layout(row: Job) -> str | SafeString:
    """The order of rows that a compaction of an Iceberg table gives the new files."""
    result = row.result if isinstance(row.result, dict) else {}
    facts = result.get("layout")
    if not isinstance(facts, Mapping):
        return cells.NOTHING
    strategy, columns = facts.get("strategy", ""), facts.get("sort_order", "")
    text = f"{strategy} by {columns}" if columns else str(strategy)
    return cells.clipped(f"{text} ({facts['files']})" if facts.get("files") else text)


def outcome(row: Job) -> SafeString | str:
    """Result of the job without the values that have their own panels."""
    result = row.result if isinstance(row.result, dict) else {}
    return _entries({key: value for key, value in result.items() if key not in _FIGURES})


def _figures(row: Job) -> list[Panel]:
    """Figures before and after."""
    result = row.result if isinstance(row.result, dict) else {}
    before, after = _numbers(result.get("before")), _numbers(result.get("after"))
    if not before and not after:
        return []
    names = sorted({**before, **after}, key=lambda name: (_place(name), name))
    after_title = "After (projected)" if row.is_dry_run else "After"
    return [
        Panel(
            title="Before and after",
            columns=("Figure", "Before", after_title, "Difference"),
            rows=[
                (
                    _name(name),
                    _number(name, before.get(name)),
                    _number(name, after.get(name)),
                    _difference(name, before.get(name), after.get(name)),
                )
                for name in names
            ],
            empty="",
            note="The difference includes concurrent writes."
            if after and not row.is_dry_run
            else "",
        )
    ]


def _place(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _numbers(figures: object) -> dict[str, int | float]:
    if not isinstance(figures, Mapping):
        return {}
    numbers = {
        str(name): value
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return dict(islice(numbers.items(), _ITEMS))


def _name(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _number(name: str, value: float | None) -> object:
    if value is None:
        return cells.NOTHING
    if isinstance(value, int) and "bytes" in name:
        return cells.size(value)
    return f"{value:,}"


def _difference(name: str, before: float | None, after: float | None) -> object:
    if before is None or after is None:
        return cells.NOTHING
    change = after - before
    if not change:
        return cells.muted("unchanged")
    amount = filesizeformat(abs(change)) if "bytes" in name else f"{abs(change):,}"
    return f"{'+' if change > 0 else '−'}{amount}"


def _plan(row: Job) -> list[Panel]:
    result = row.result if isinstance(row.result, dict) else {}
    plan = result.get("plan", result.get("planned"))
    if not plan:
        return []
    parts: Sequence[object] = plan if isinstance(plan, list) else [plan]
    indexes = plan.get("indexes") if isinstance(plan, Mapping) else None
    if isinstance(indexes, list) and any(isinstance(item, Mapping) for item in indexes):
        parts = indexes  # each with its build parameters
    return [
        Panel(
            title="Plan",
            columns=("Plan",) if len(parts) == 1 else (f"Plan ({len(parts):,} parts)",),
            rows=[(_entries(item),) for item in parts[:_ITEMS]],
            empty="",
            note=f"and {len(parts) - _ITEMS:,} more" if len(parts) > _ITEMS else "",
        )
    ]


def _entries(data: object) -> SafeString | str:
    """Keys and values. Long values are folded."""
    if not isinstance(data, Mapping):
        return cells.brief(data)
    return cells.lines(
        cells.spaced([cells.muted(name), _value(str(name), value)])
        for name, value in islice(data.items(), _ITEMS)
    )


def _value(name: str, value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and not name.endswith("_id"):
        return _number(name, value)
    return cells.brief(value)


def _policy(row: Job) -> list[Panel]:
    values = row.parameters.get("policy")
    if not isinstance(values, Mapping):
        return []
    rules = [rule for rule in all_rules() if rule.name in values]
    return [
        Panel(
            title="Policy of the job",
            columns=("Rule", "Value", "Description"),
            rows=[
                (units.label(rule), units.show(rule, values[rule.name]), cells.muted(rule.help))
                for rule in rules
                if row.table.format in rule.formats
            ],
            empty="",
        )
    ]


def _log(request: HttpRequest, row: Job) -> Panel:
    before = number(request, "before")
    events = JobEvent.objects.filter(job=row)
    if before is not None:
        events = events.filter(pk__lt=before)
    lines = list(events.order_by("-pk")[: _LOG + 1])
    return Panel(
        title="Log",
        columns=("Time", "Level", "Message", "Figures"),
        rows=[
            (
                cells.moment(event.at),
                cells.badge(event.level, _LEVELS.get(event.level)),
                cells.expandable(event.message, 500),
                _entries(event.data) if event.data else cells.NOTHING,
            )
            for event in lines[:_LOG]
        ],
        empty="No log output yet." if row.status in ACTIVE else "No log output.",
        first=query(request, before=None) if before is not None else None,
        following=query(request, before=lines[_LOG - 1].pk) if len(lines) > _LOG else None,
    )
