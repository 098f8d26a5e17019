"""Versions or snapshots with their branches and tags, as SVG without scripts: newest at the top."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from catalog.admin import cells

MAX_COMMITS = 40
"""Commits drawn in a graph."""
_LANE, _ROW, _MARGIN, _TEXT_WIDTH = 18, 26, 14, 620
_MARKS = 6  # branches and tags named beside a commit


@dataclass(frozen=True)
class Mark:
    """A branch or tag that names a commit."""

    name: str
    is_tag: bool


@dataclass(frozen=True)
class Commit:
    """A version or snapshot of a graph."""

    key: Hashable
    parent: Hashable | None
    name: str
    details: str
    url: str
    marks: Sequence[Mark] = ()
    is_adjacent: bool = True
    """False if commits between this one and its parent are left out."""


def graph(commits: Sequence[Commit]) -> SafeString:
    """At most ``MAX_COMMITS`` commits, newest first, one per line. Each one links to its entry in the list."""
    places = _places(commits)
    lanes = max(lane for lane, _ in places.values()) + 1
    left = _MARGIN + lanes * _LANE
    width, height = left + _TEXT_WIDTH, len(commits) * _ROW
    lines = format_html_join("", "{}", ((_edge(commit, places),) for commit in commits))
    dots = format_html_join("", "{}", ((_dot(commit, places, left),) for commit in commits))
    return format_html(
        '<div class="m-scroll m-commits"><svg width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="group"'
        ' aria-label="Commits with their branches and tags, newest first">{2}{3}</svg></div>',
        width,
        height,
        lines,
        dots,
    )


_Places = dict[Hashable, tuple[int, int]]


def _places(commits: Sequence[Commit]) -> _Places:
    """The lane and the row of each commit. A lane is free again after the commit that it leads to."""
    expected: list[Hashable | None] = []
    places: _Places = {}
    for row, commit in enumerate(commits):
        leading = [lane for lane, key in enumerate(expected) if key == commit.key]
        if leading:
            lane = leading[0]
        elif None in expected:
            lane = expected.index(None)
        else:
            lane = len(expected)
            expected.append(None)
        for other in leading:
            expected[other] = None
        expected[lane] = commit.parent
        places[commit.key] = (lane, row)
    return places


def _point(place: tuple[int, int]) -> tuple[int, int]:
    lane, row = place
    return _MARGIN + lane * _LANE, row * _ROW + _ROW // 2


def _edge(commit: Commit, places: _Places) -> SafeString:
    """The line to the parent; a short dashed one if the parent is not drawn."""
    if commit.parent is None:
        return SafeString("")
    x, y = _point(places[commit.key])
    is_drawn = commit.parent in places and places[commit.parent][1] > places[commit.key][1]
    to_x, to_y = _point(places[commit.parent]) if is_drawn else (x, y + _ROW // 2)
    bend = to_y - _ROW  # the lane goes straight down, and bends before the parent
    middle = bend + _ROW // 2
    path = f"M{x} {y}V{max(bend, y)}C{x} {middle} {to_x} {middle} {to_x} {to_y}"
    style = "" if is_drawn and commit.is_adjacent else " m-gap"
    return format_html('<path class="m-edge{}" d="{}"></path>', style, path)


def _dot(commit: Commit, places: _Places, left: int) -> SafeString:
    x, y = _point(places[commit.key])
    marks = format_html_join(
        "",
        '<tspan class="m-mark-{}" dx="10">{}</tspan>',
        (("tag" if mark.is_tag else "branch", _mark(mark)) for mark in commit.marks[:_MARKS]),
    )
    more = len(commit.marks) - _MARKS
    return format_html(
        '<a href="{}"><circle cx="{}" cy="{}" r="5"></circle><text x="{}" y="{}">'
        '<tspan class="m-node-name">{}</tspan>{}{}<tspan dx="10">{}</tspan></text></a>',
        *(commit.url, x, y, left, y + 4, commit.name, marks),
        format_html('<tspan dx="10">and {} more</tspan>', more) if more > 0 else "",
        commit.details,
    )


def _mark(mark: Mark) -> str:
    return f"{'tag' if mark.is_tag else 'branch'} {cells.clipped(mark.name, 40)}"
