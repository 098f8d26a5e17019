"""Accessibility of the admin: screen readers, keyboard, and the dark theme."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import CHILDREN, SignIn
from tests.browser.hands import violations
from tests.live import LiveServer

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(900)]

PAGES = (
    "/admin/",
    "/admin/catalog/namespace/",
    "/admin/catalog/table/",
    "/admin/catalog/labeldefinition/search/?q=flights",
    "/admin/catalog/trashitem/",
    "/admin/catalog/approvalrequest/",
    "/admin/catalog/webhook/",
    "/admin/catalog/webhook/add/",
    "/admin/catalog/labeldefinition/add/",
    "/admin/catalog/principal/",
    "/admin/catalog/principal/add/",
    "/admin/catalog/apikey/add/",
    "/admin/catalog/materializedview/",
    "/admin/catalog/auditevent/",
    "/admin/catalog/job/",
    "/admin/my-access/",
    "/admin/my-access/keys/add/",
    "/admin/my-access/request/",
    "/admin/nothing-here/",
)
NARROW = ("/admin/my-access/", "/admin/my-access/request/", "/admin/nothing-here/")
"""Pages that have no column that scrolls."""


def test_axe_reports_no_violations(server: LiveServer, sign_in: SignIn) -> None:
    page = sign_in()
    page.goto("/admin/catalog/table/?q=nyc.flights")
    table = page.locator("#result_list a").first.get_attribute("href")
    assert table
    failures = {}
    for path in (*PAGES, table, f"{table}?tab=maintenance"):
        page.goto(path)
        expect(page.locator("h1")).to_have_count(1)
        if lines := violations(page):
            failures[path] = lines
    page.set_viewport_size({"width": 390, "height": 800})
    for path in (*NARROW, table):
        page.goto(path)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 390:
            failures[path] = [f"is {width} pixels wide on a screen of 390"]
    assert not failures, "\n".join(
        f"{path}: {line}" for path, lines in failures.items() for line in lines
    )


def test_long_levels_of_the_tree_are_loaded_in_pages(
    server: LiveServer, sign_in: SignIn, screen: Callable[..., None]
) -> None:
    page = sign_in()
    page.goto("/admin/catalog/namespace/")
    page.get_by_role("link", name="Open nyc in the tree").click()
    rows = page.locator("table.m-tree tbody tr")
    expect(rows).to_have_count(1 + 50 + 1)
    screen(page, "namespaces")
    page.get_by_role("link", name="Show more").click()
    expect(rows).to_have_count(1 + CHILDREN)
    names = rows.locator("a.m-link").all_inner_texts()
    assert names == ["nyc", *(f"n{number:02}" for number in range(CHILDREN))]
    created = rows.last.locator("time")
    expect(created).to_have_text(re.compile("just now|ago$"))
    created.hover()
    expect(created).to_have_attribute("title", re.compile(r" UTC · .+\d\d"))


def test_content_tree_and_menus_are_reachable_by_keyboard(
    server: LiveServer, sign_in: SignIn
) -> None:
    """Tab to the content, through the tree, and to a menu of a table's page."""
    page = sign_in()
    page.goto("/admin/catalog/namespace/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#content"

    first = page.get_by_role("row", name="nyc", exact=True)
    first.focus()
    expect(first).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("ArrowRight")
    expect(first).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("ArrowRight")
    child = page.get_by_role("row", name="n00", exact=True)
    expect(child).to_be_focused()
    page.keyboard.press("End")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Home")
    expect(first).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(child).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(first).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(first).to_have_attribute("aria-expanded", "false")
    expect(child).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="nyc")).to_be_visible()

    page.goto("/admin/catalog/table/")
    page.get_by_role("link", name="nyc.airports").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="nyc.airports")).to_be_visible()
    menu = page.get_by_role("button", name="More", exact=True)
    menu.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Description and owner", exact=True)).to_be_visible()
