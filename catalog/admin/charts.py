"""Charts of the overview and of a table's growth, as SVG without scripts."""

from collections.abc import Callable, Sequence
from datetime import date, datetime

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from catalog.admin import cells
from catalog.admin.score_charts import grade

_WIDTH, _HEIGHT, _TOP, _BASE = 320, 90, 14, 74
_SPARK_WIDTH, _SPARK_HEIGHT = 120, 26
_VECTOR_WIDTH, _VECTOR_HEIGHT = 96, 22


def bars(title: str, days: Sequence[date], counts: Sequence[int]) -> SafeString:
    """Counts by day, oldest first."""
    step = _WIDTH / len(counts)
    drawn = format_html_join(
        "",
        '<rect class="m-bar-plain" x="{}" y="{}" width="{}" height="{}" rx="1">'
        "<title>{}: {}</title></rect>",
        (
            (*_bar(index, step, count, max(counts)), day.isoformat(), f"{count:,}")
            for index, (day, count) in enumerate(zip(days, counts, strict=True))
        ),
    )
    return _svg(title, drawn, f"{days[0]:%d %b}", f"{days[-1]:%d %b}", f"max: {max(counts):,}")


def histogram(buckets: Sequence[int]) -> SafeString:
    """Numbers of tables by health score, from 0 to 100."""
    step = _WIDTH / len(buckets)
    wide = 100 // len(buckets)
    drawn = format_html_join(
        "",
        '<rect class="m-dot-{}" x="{}" y="{}" width="{}" height="{}" rx="1">'
        "<title>{} to {}: {}</title></rect>",
        (
            (
                grade(low),
                *_bar(index, step, count, max(buckets)),
                low,
                low + wide,
                cells.counted(count, "table"),
            )
            for index, count in enumerate(buckets)
            for low in [index * wide]
        ),
    )
    return _svg("Tables by health", drawn, "0", "100", f"max: {max(buckets):,}")


def classes(title: str, names: Sequence[str], counts: Sequence[int]) -> SafeString:
    """Counts of classes in order, with the names of the first and the last one below."""
    step = _WIDTH / len(counts)
    drawn = format_html_join(
        "",
        '<rect class="m-bar-plain" x="{}" y="{}" width="{}" height="{}" rx="1">'
        "<title>{}: {}</title></rect>",
        (
            (*_bar(index, step, count, max(counts)), name, f"{count:,}")
            for index, (name, count) in enumerate(zip(names, counts, strict=True))
        ),
    )
    return _svg(title, drawn, names[0], names[-1], f"max: {max(counts):,}")


def distribution(title: str, counts: Sequence[int], left: str, right: str) -> SafeString:
    """Numbers of values in equal ranges between two values."""
    step = _WIDTH / len(counts)
    drawn = format_html_join(
        "",
        '<rect class="m-bar-plain" x="{}" y="{}" width="{}" height="{}" rx="1">'
        "<title>range {} of {}: {} value{}</title></rect>",
        (
            (
                *_bar(index, step, count, max(counts)),
                *(index + 1, len(counts), f"{count:,}", "" if count == 1 else "s"),
            )
            for index, count in enumerate(counts)
        ),
    )
    return format_html('<div class="m-distribution">{}</div>', _svg(title, drawn, left, right, ""))


def scatter(title: str, points: Sequence[tuple[float, float]], names: Sequence[str]) -> SafeString:
    """Points of a plane, with the same scale in both directions."""
    low = [min(point[axis] for point in points) for axis in (0, 1)]
    span = max(max(point[axis] for point in points) - low[axis] for axis in (0, 1)) or 1.0
    drawn = format_html_join(
        "",
        '<circle cx="{}" cy="{}" r="2.2"><title>{}</title></circle>',
        (
            (f"{8 + 304 * (x - low[0]) / span:.1f}", f"{8 + 304 * (y - low[1]) / span:.1f}", name)
            for (x, y), name in zip(points, names, strict=True)
        ),
    )
    height = 16 + 304 * (max(y for _, y in points) - low[1]) / span
    return format_html(
        '<svg class="m-chart m-scatter" viewBox="0 0 320 {}" role="img" aria-label="{}">{}</svg>',
        *(f"{height:.0f}", title, drawn),
    )


def course(
    title: str, points: Sequence[tuple[datetime, int]], shown: Callable[[int], str]
) -> SafeString:
    """An amount over time, oldest first, as an area above zero."""
    first, last = points[0][0], points[-1][0]
    span = (last - first).total_seconds()
    most = max(value for _, value in points)
    places = [
        (
            _WIDTH * (at - first).total_seconds() / span if span else float(_WIDTH),
            _BASE - (_BASE - _TOP) * value / (most or 1),
        )
        for at, value in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = format_html_join(
        "",
        '<circle class="m-point" cx="{}" cy="{}" r="3"><title>{} UTC: {}</title></circle>',
        (
            (f"{x:.1f}", f"{y:.1f}", f"{at:%Y-%m-%d %H:%M}", shown(value))
            for (at, value), (x, y) in zip(points, places, strict=True)
        ),
    )
    area = f"{places[0][0]:.1f},{_BASE} {line} {places[-1][0]:.1f},{_BASE}"
    drawn = format_html(
        '<polygon class="m-area" points="{}"></polygon>'
        '<polyline class="m-line" points="{}"></polyline>{}',
        area,
        line,
        dots,
    )
    label = (
        f"{title}: {shown(points[0][1])} on {first:%d %b}, {shown(points[-1][1])} on {last:%d %b}"
    )
    return _svg(label, drawn, f"{first:%d %b}", f"{last:%d %b}", f"max: {shown(most)}")


def vector(values: Sequence[float]) -> SafeString:
    """The values of a vector as small bars above and below zero."""
    low, high = min(0.0, *values), max(0.0, *values)
    if low == high:
        low, high = -1.0, 1.0  # a line in the middle
    # Halved, because the difference of two finite numbers may be infinite.
    span = high / 2 - low / 2
    step = _VECTOR_WIDTH / len(values)
    drawn = format_html_join(
        "",
        '<rect x="{}" y="{}" width="{}" height="{}"></rect>',
        (
            (
                f"{index * step:.1f}",
                f"{_VECTOR_HEIGHT * (high / 2 - max(value, 0.0) / 2) / span:.1f}",
                f"{max(step - 0.4, 0.6):.1f}",
                f"{max(_VECTOR_HEIGHT * abs(value / 2) / span, 0.5):.1f}",
            )
            for index, value in enumerate(values)
        ),
    )
    return format_html(
        '<svg class="m-vector" viewBox="0 0 {} {}" width="{}" height="{}" aria-hidden="true">{}</svg>',
        *(_VECTOR_WIDTH, _VECTOR_HEIGHT, _VECTOR_WIDTH, _VECTOR_HEIGHT),
        drawn,
    )


def sparkline(title: str, values: Sequence[float]) -> SafeString:
    """The course of a figure, without axes; empty for fewer than two values."""
    if len(values) < 2:
        return SafeString("")
    low, high = min(values), max(values)
    span = (high - low) or 1
    step = _SPARK_WIDTH / (len(values) - 1)
    line = " ".join(
        f"{index * step:.1f},{_SPARK_HEIGHT - 2 - (_SPARK_HEIGHT - 4) * (value - low) / span:.1f}"
        for index, value in enumerate(values)
    )
    return format_html(
        '<svg class="m-spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<polyline points="{}"></polyline></svg>',
        *(_SPARK_WIDTH, _SPARK_HEIGHT, title, line),
    )


def _bar(index: int, step: float, count: int, most: int) -> tuple[str, str, str, str]:
    """Left, top, width and height. A count above zero is always visible."""
    height = max((_BASE - _TOP) * count / most, 1.5) if count else 0.0
    gap = min(step / 3, 3)
    return (
        f"{index * step:.1f}",
        f"{_BASE - height:.1f}",
        f"{step - gap:.1f}",
        f"{height:.1f}",
    )


def _svg(title: str, drawn: SafeString, left: str, right: str, top: str) -> SafeString:
    return format_html(
        '<svg class="m-chart m-chart-small" viewBox="0 0 {} {}" role="img" aria-label="{}">'
        '<line class="m-grid-line" x1="0" x2="{}" y1="{}" y2="{}"></line>{}'
        '<text x="0" y="{}">{}</text><text x="{}" y="{}" text-anchor="end">{}</text>'
        '<text x="{}" y="10" text-anchor="end">{}</text></svg>',
        *(_WIDTH, _HEIGHT, title, _WIDTH, _BASE, _BASE, drawn),
        *(_HEIGHT - 3, left, _WIDTH, _HEIGHT - 3, right, _WIDTH, top),
    )
