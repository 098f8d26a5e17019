"""Rendering of values in list columns, page details and table cells."""

import json
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Model
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.timesince import timesince

from catalog import writing_systems
from catalog.models import JobStatus, TableState, TransactionStatus

_LONGEST = 20_000  # characters of an expandable text
_BRIEF = 200  # characters of a text that is not folded
NOTHING = mark_safe('<span class="m-muted m-none">–</span>')
BADGES: dict[str, str] = {
    TableState.LIVE: "success",
    TableState.DECLARED: "info",
    TableState.DROPPED: "danger",
    TransactionStatus.SUCCEEDED: "success",
    TransactionStatus.QUEUED: "info",
    TransactionStatus.RUNNING: "info",
    TransactionStatus.FAILED: "danger",
    TransactionStatus.CANCELED: "warning",
    JobStatus.SUCCEEDED: "success",
    JobStatus.QUEUED: "info",
    JobStatus.RUNNING: "info",
    JobStatus.FAILED: "danger",
    JobStatus.CANCELED: "warning",
}


def page_url(row: Model) -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def list_url(model: type[Model], query: str = "") -> str:
    url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    return f"{url}?{query}" if query else url


def anchor(url: str, text: object) -> SafeString:
    return format_html('<a class="m-link" href="{}">{}</a>', url, text)


def link(row: Model | None, text: object = None) -> SafeString:
    """A link to the row's page; its text defaults to the row's name."""
    return NOTHING if row is None else anchor(page_url(row), str(row) if text is None else text)


def code(text: object, whole: object = None) -> SafeString:
    """A text in monospace. A long one is cut; its tooltip shows all of it."""
    if text in (None, ""):
        return NOTHING
    title = text if whole is None else whole
    return format_html('<code class="m-code" title="{}">{}</code>', title, text)


def exact(text: object) -> SafeString:
    """A text to copy: one click selects all of it, including the part that is cut."""
    if text in (None, ""):
        return NOTHING
    return format_html('<code class="m-code m-exact" title="{0}">{0}</code>', text)


def who(actor: str) -> SafeString:
    """The name of a principal. It names a script whose letters look like Latin ones."""
    if not actor:
        return NOTHING
    shown = format_html('<span class="m-who">{}</span>', actor)
    script = writing_systems.describe(actor)
    return spaced([shown, muted(f"({script} letters)")]) if script else shown


def muted(text: object) -> SafeString:
    return format_html('<span class="m-muted">{}</span>', text)


def moment(value: datetime | None) -> SafeString:
    """A time in UTC, in seconds; its tooltip shows microseconds."""
    if value is None:
        return NOTHING
    return format_html(
        '<time class="m-time" datetime="{}" title="{} UTC">{}</time>',
        value.isoformat(),
        value.strftime("%Y-%m-%d %H:%M:%S.%f"),
        value.strftime("%Y-%m-%d %H:%M:%S"),
    )


def when(value: datetime | None) -> SafeString:
    """A moment relative to now, in one unit, such as "3 hours ago" or "in 2 days".

    The tooltip shows the time in UTC; a script of the page adds the time in the zone of the user.
    """
    if value is None:
        return NOTHING
    now = timezone.now()
    if abs(now - value) < timedelta(minutes=1):
        text = "just now"
    elif value < now:
        text = f"{timesince(value, now, depth=1)} ago"
    else:
        text = f"in {timesince(now, value, depth=1)}"
    return format_html(
        '<time class="m-time" datetime="{}" title="{} UTC" data-local>{}</time>',
        value.isoformat(),
        value.strftime("%Y-%m-%d %H:%M:%S"),
        text,
    )


def size(value: int | None) -> SafeString:
    if value is None:
        return NOTHING
    return format_html('<span title="{} bytes">{}</span>', value, filesizeformat(value))


def badge(text: str, colour: str | None = None) -> SafeString:
    colour = colour or BADGES.get(text, "plain")
    return format_html('<span class="m-badge m-{}">{}</span>', colour, text)


def counted(count: int, noun: str) -> str:
    """A count with its noun, such as "1 table" and "2 tables"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def not_changed(count: int) -> str:
    """The end of a list of tables that an action did not change."""
    return f"and {counted(count, 'more table')} {'was' if count == 1 else 'were'} not changed"


def bounded(count: int, limit: int) -> str:
    """A count that stopped above the limit, such as "1,000+"."""
    return f"{limit:,}+" if count > limit else f"{count:,}"


def value(content: object, depth: int = 0) -> SafeString | str:
    """A JSON value in words: pairs of an object, items of an array; below the second level as indented JSON."""
    if content is None or content == "":
        return NOTHING
    if isinstance(content, str):
        return content
    if isinstance(content, bool | int | float):
        return json.dumps(content)
    if isinstance(content, list) and not any(isinstance(item, dict | list) for item in content):
        items = (item if isinstance(item, str) else json.dumps(item) for item in content)
        return ", ".join(items) or NOTHING
    if isinstance(content, dict) and depth < 2:
        return mapping(content, depth + 1)
    return format_html(
        '<pre class="m-json">{}</pre>', json.dumps(content, indent=2, ensure_ascii=False)
    )


def mapping(entries: Mapping[str, Any], depth: int = 0) -> SafeString:
    """Keys and values, one pair in a line."""
    if not entries:
        return NOTHING
    return format_html_join(
        "",
        '<div class="m-pair"><span class="m-muted">{}</span> {}</div>',
        ((key, value(item, depth)) for key, item in entries.items()),
    )


def fold(title: object, content: object) -> SafeString:
    """Content that is folded below a title."""
    return format_html('<details class="m-fold"><summary>{}</summary>{}</details>', title, content)


def clipped(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def expandable(text: str, limit: int = _BRIEF) -> SafeString | str:
    """A text of any length: a long one is folded, and the longest is cut."""
    if len(text) <= limit:
        return text or NOTHING
    return fold(clipped(text, 80), source(text, _LONGEST))


def brief(content: object) -> SafeString | str:
    """A JSON value of any size; a long one is folded, as JSON."""
    if isinstance(content, dict | list):
        text = json.dumps(content, ensure_ascii=False)
        return expandable(text) if len(text) > _BRIEF else value(content)
    return expandable(content) if isinstance(content, str) else value(content)


def source(text: str, limit: int) -> SafeString:
    """Preformatted text such as SQL, with a note of how many characters are cut."""
    hidden = len(text) - limit
    return format_html(
        '<pre class="m-json m-sql">{}</pre>{}',
        text[:limit],
        muted(f"… and {hidden:,} more characters") if hidden > 0 else "",
    )


def delta(added: object, removed: object) -> SafeString:
    """Added and removed amounts, as "+ 3 − 1"."""
    parts = [
        format_html('<span class="{}">{}{}</span>', *side)
        for side in (("m-plus", "+", added), ("m-minus", "−", removed))
        if side[2] not in (None, "")
    ]
    if not parts:
        return NOTHING
    return format_html('<span class="m-delta">{}</span>', spaced(parts))


def meter(amount: int, whole: int, text: object) -> SafeString:
    """A share of a whole, as a bar and a text."""
    share = 100 * amount / whole if whole > 0 else 0
    return format_html(
        '<span class="m-meter"><span style="width: {}%"></span></span>{}', f"{share:.1f}", text
    )


def spaced(items: Iterable[object]) -> SafeString:
    return format_html_join(" ", "{}", ((item,) for item in items))


def actions(links: Iterable[object]) -> SafeString:
    """Links of a row, with space between them."""
    return format_html('<span class="m-actions">{}</span>', spaced(links))


def sides(left: object, right: object) -> SafeString:
    """Two contents of a line, apart from each other."""
    return format_html('<div class="m-sides">{}<div>{}</div></div>', left, right)


def lines(items: Iterable[object]) -> SafeString:
    return format_html_join("", "<div>{}</div>", ((item,) for item in items)) or NOTHING


def prose(html: SafeString) -> SafeString:
    """Rendered Markdown."""
    return format_html('<div class="m-prose">{}</div>', html)


def as_uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
