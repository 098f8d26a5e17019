"""The lineage with the keyboard and on a narrow screen, the glossary, and the command bar."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import SignIn
from tests.browser.hands import open_command_bar, open_section, violations
from tests.live import LiveServer

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(900)]

_VIEWS = """
from catalog.access import SYSTEM
from catalog.services.iceberg import view_sources
from tests.factories import make_namespace
from tests.lineage import make_view
make_view(("lineage", "daily"), "SELECT * FROM nyc.fleet JOIN nyc.planes ON 1 = 1")
make_view(("lineage", "weekly"), "SELECT * FROM lineage.daily")
view_sources.read_due()
"""


def test_the_lineage_leads_from_a_table_to_a_view(
    server: LiveServer, sign_in: SignIn, screen: Callable[..., None]
) -> None:
    server.manage(_VIEWS)
    page = sign_in()
    page.goto("/admin/catalog/table/?q=nyc.fleet")
    page.get_by_role("link", name="nyc.fleet", exact=True).click()
    open_section(page, "Data", "Lineage")
    graph = page.get_by_role("group", name="Lineage, also listed below")
    expect(graph.get_by_role("link")).to_have_count(3)
    assert violations(page) == []
    screen(page, "lineage")

    # The keyboard reaches the objects, from left to right.
    graph.get_by_role("link", name="nyc.fleet, table").focus()
    page.keyboard.press("Tab")
    view = graph.get_by_role("link", name="lineage.daily, view, 1 step downstream")
    expect(view).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="lineage.daily")).to_be_visible()
    expect(graph.get_by_role("link", name="nyc.planes, table, 1 step upstream")).to_be_visible()

    # On a narrow screen only the graph scrolls sideways.
    page.set_viewport_size({"width": 390, "height": 800})
    widths = "() => [document.documentElement.scrollWidth, window.innerWidth]"
    wide, window = page.evaluate(widths)
    assert wide <= window
    scrolls = "element => element.parentElement.scrollWidth > element.parentElement.clientWidth"
    assert graph.evaluate(scrolls)
    page.set_viewport_size({"width": 1280, "height": 800})

    # The "?" beside a heading.
    page.get_by_role("heading", level=2, name="Lineage").get_by_role("link", name="Help").click()
    expect(page.locator("#lineage")).to_be_in_viewport()
    find_with_command_bar(page)


def find_with_command_bar(page: Page) -> None:
    bar = open_command_bar(page)
    bar.press_sequentially("nothinghasit", delay=20)
    expect(page.get_by_text("Nothing that you may open matches “nothinghasit”.")).to_be_visible()
    bar.fill("")
    bar.press_sequentially("create webh", delay=20)
    expect(
        page.locator("#command-results").get_by_role("link", name="Create webhook")
    ).to_be_visible()
    bar.press("Enter")
    expect(page.get_by_role("heading", level=2, name="Create a webhook")).to_be_visible()
