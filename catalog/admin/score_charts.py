"""Charts of maintenance: a score, scores over time and jobs by day, as SVG without scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

GOOD, FAIR = 80, 50
"""Lowest scores of the grades "good" and "fair"; a lower score is "poor"."""
RESULTS: Mapping[str, str] = {
    "succeeded": "succeeded",
    "dry_run": "dry runs",
    "canceled": "canceled",
    "failed": "failed",
}
"""Results of jobs in stacking order, and their names in the legend."""
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 640, 150, 34, 10, 22


@dataclass(frozen=True)
class Day:
    """Number of jobs requested on a day, by result."""

    day: date
    jobs: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.jobs.values())


def grade(score: int) -> str:
    return "good" if score >= GOOD else "fair" if score >= FAIR else "poor"


def score(value: int) -> SafeString:
    """A score as a coloured bar with its number."""
    return format_html(
        '<span class="m-score"><span class="m-meter m-score-{}" role="meter" aria-label="Health" aria-valuemin="0"'
        ' aria-valuemax="100" aria-valuenow="{}"><span style="width: {}%"></span></span>{}</span>',
        grade(value),
        value,
        value,
        value,
    )


def scores(points: Sequence[tuple[datetime, int]]) -> SafeString:
    """Scores over time, oldest first."""
    first, last = points[0][0], points[-1][0]
    span = (last - first).total_seconds() or 1.0
    right = _WIDTH - 8
    places = [
        (
            _LEFT + (right - _LEFT) * (at - first).total_seconds() / span
            if len(points) > 1
            else right,
            _level(value),
        )
        for at, value in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    grid = format_html_join(
        "",
        '<line class="m-grid-line" x1="{}" x2="{}" y1="{}" y2="{}"></line>'
        '<text x="{}" y="{}" text-anchor="end">{}</text>',
        (
            (
                _LEFT,
                right,
                f"{_level(mark):.1f}",
                f"{_level(mark):.1f}",
                _LEFT - 6,
                f"{y:.1f}",
                mark,
            )
            for mark in (0, FAIR, GOOD, 100)
            for y in [_level(mark) + 4]
        ),
    )
    dots = format_html_join(
        "",
        '<circle class="m-dot-{}" cx="{}" cy="{}" r="2.5"><title>{}: {}</title></circle>',
        (
            (grade(value), f"{x:.1f}", f"{y:.1f}", _when(at), value)
            for (at, value), (x, y) in zip(points, places, strict=True)
        ),
    )
    label = (
        f"Health from {_when(first)} to {_when(last)}: {points[0][1]} first, {points[-1][1]} last,"
        f" between {min(value for _, value in points)} and {max(value for _, value in points)}"
    )
    return format_html(
        '<svg class="m-chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}'
        '<polyline class="m-line" points="{}"></polyline>{}'
        '<text x="{}" y="{}">{}</text><text x="{}" y="{}" text-anchor="end">{}</text></svg>',
        *(_WIDTH, _HEIGHT, label, grid, line, dots),
        *(_LEFT, _HEIGHT - 4, f"{first:%Y-%m-%d}"),
        *(right, _HEIGHT - 4, f"{last:%Y-%m-%d}"),
    )


def days(series: Sequence[Day]) -> SafeString:
    """Jobs by day and result, stacked, with a legend."""
    most = max((day.total for day in series), default=0) or 1
    step = (_WIDTH - _LEFT - 8) / max(len(series), 1)
    bars: list[tuple[str, str, str, str, str, str, int, str]] = []
    for index, day in enumerate(series):
        below = float(_HEIGHT - _BOTTOM)
        for result, text in RESULTS.items():
            count = day.jobs.get(result, 0)
            height = (_HEIGHT - _TOP - _BOTTOM) * count / most
            below -= height
            if count:
                x = f"{_LEFT + index * step + 1:.1f}"
                size = (f"{max(step - 2, 1):.1f}", f"{height:.1f}")
                bars.append((result, x, f"{below:.1f}", *size, str(day.day), count, text))
    drawn = format_html_join(
        "",
        '<rect class="m-bar-{}" x="{}" y="{}" width="{}" height="{}"><title>{}: {} {}</title></rect>',
        bars,
    )
    totals = {result: sum(day.jobs.get(result, 0) for day in series) for result in RESULTS}
    legend = format_html_join(
        "",
        '<li><span class="m-key-{}"></span>{} {}</li>',
        ((result, f"{totals[result]:,}", text) for result, text in RESULTS.items()),
    )
    label = f"Jobs of the last {len(series)} days, by day and result: " + ", ".join(
        f"{totals[result]:,} {text}" for result, text in RESULTS.items()
    )
    return format_html(
        '<svg class="m-chart" viewBox="0 0 {} {}" role="img" aria-label="{}">'
        '<line class="m-grid-line" x1="{}" x2="{}" y1="{}" y2="{}"></line>'
        '<text x="{}" y="{}" text-anchor="end">{}</text>{}'
        '<text x="{}" y="{}">{}</text><text x="{}" y="{}" text-anchor="end">{}</text></svg>'
        '<ul class="m-legend">{}</ul>',
        *(_WIDTH, _HEIGHT, label),
        *(_LEFT, _WIDTH - 8, _HEIGHT - _BOTTOM, _HEIGHT - _BOTTOM),
        *(_LEFT - 6, _TOP + 8, f"{most:,}", drawn),
        *(_LEFT, _HEIGHT - 6, series[0].day if series else ""),
        *(_WIDTH - 8, _HEIGHT - 6, series[-1].day if series else ""),
        legend,
    )


def _level(value: int) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (100 - value) / 100


def _when(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
