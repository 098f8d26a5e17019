"""A treemap: rectangles whose areas are proportional to amounts, as HTML without scripts."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

_WIDTH, _HEIGHT = 100.0, 32.0  # in proportion to the element, see .m-treemap
_SHADES = 5


@dataclass(frozen=True)
class Item:
    name: str
    url: str
    amount: int
    text: str
    """The amount as text."""


@dataclass(frozen=True)
class Rectangle:
    left: float
    top: float
    width: float
    height: float


def layout(
    amounts: Sequence[int], width: float = _WIDTH, height: float = _HEIGHT
) -> list[Rectangle]:
    """Rectangles for positive amounts in descending order: a squarified treemap (Bruls et al., 2000)."""
    scale = width * height / (sum(amounts) or 1)
    areas = [amount * scale for amount in amounts]
    left, top = 0.0, 0.0
    rectangles: list[Rectangle] = []
    while areas:
        side = min(width, height)
        count = 1
        while count < len(areas) and _worst(areas[: count + 1], side) <= _worst(
            areas[:count], side
        ):
            count += 1
        row, areas = areas[:count], areas[count:]
        depth = sum(row) / side if side else 0.0
        offset = 0.0
        for area in row:
            length = area / depth if depth else 0.0
            if width >= height:
                rectangles.append(Rectangle(left, top + offset, depth, length))
            else:
                rectangles.append(Rectangle(left + offset, top, length, depth))
            offset += length
        if width >= height:
            left, width = left + depth, max(width - depth, 0.0)
        else:
            top, height = top + depth, max(height - depth, 0.0)
    return rectangles


def _worst(row: Sequence[float], side: float) -> float:
    """The largest ratio of sides among the rectangles of a row."""
    total = sum(row)
    if not total or not side or not min(row):
        return float("inf")
    return max(side**2 * max(row) / total**2, total**2 / (side**2 * min(row)))


def draw(title: str, items: Sequence[Item]) -> SafeString:
    """Items with an amount above zero, the largest first."""
    items = sorted((i for i in items if i.amount > 0), key=lambda i: (-i.amount, i.name))
    places = layout([item.amount for item in items])
    drawn = format_html_join(
        "",
        '<li class="m-shade-{}" style="left: {}%; top: {}%; width: {}%; height: {}%">'
        '<a href="{}" title="{}: {}"><b>{}</b> <span>{}</span></a></li>',
        (
            (
                min(index, _SHADES - 1),
                f"{100 * place.left / _WIDTH:.3f}",
                f"{100 * place.top / _HEIGHT:.3f}",
                f"{100 * place.width / _WIDTH:.3f}",
                f"{100 * place.height / _HEIGHT:.3f}",
                *(item.url, item.name, item.text, item.name, item.text),
            )
            for index, (item, place) in enumerate(zip(items, places, strict=True))
        ),
    )
    return format_html('<ul class="m-treemap" aria-label="{}">{}</ul>', title, drawn)
