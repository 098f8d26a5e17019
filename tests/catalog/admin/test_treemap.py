"""Layout of treemaps: areas are proportional, fill the whole, and do not overlap."""

import pytest

from catalog.admin.treemap import Item, draw, layout


@pytest.mark.parametrize("amounts", [[1], [5, 5], [100, 10, 1], list(range(40, 0, -1)), [2**62, 1]])
def test_areas_are_proportional_and_fill_the_whole(amounts):
    places = layout(amounts, 100, 32)
    assert len(places) == len(amounts)
    for amount, place in zip(amounts, places, strict=True):
        share = amount / sum(amounts)
        assert place.width * place.height / 3200 == pytest.approx(share, rel=1e-6, abs=1e-9)
        assert place.left + place.width <= 100 + 1e-6
        assert place.top + place.height <= 32 + 1e-6


def test_rectangles_do_not_overlap():
    places = layout([8, 5, 3, 2, 1, 1], 100, 32)
    for index, a in enumerate(places):
        for b in places[index + 1 :]:
            width = min(a.left + a.width, b.left + b.width) - max(a.left, b.left)
            height = min(a.top + a.height, b.top + b.height) - max(a.top, b.top)
            assert width < 1e-6 or height < 1e-6


def test_names_are_escaped_and_empty_items_are_left_out():
    html = draw("Sizes", [Item("<b>", "/a", 1, "1 byte"), Item("none", "/b", 0, "0 bytes")])
    assert html.count("<li") == 1
    assert "&lt;b&gt;" in html
    assert "none" not in html
