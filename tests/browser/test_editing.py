"""Annotations are edited in place, with the keyboard, and without JavaScript as a page."""

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import SignIn
from tests.browser.hands import says, submit, violations
from tests.live import LiveServer

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(900)]

_TABLE = """
import pyarrow as pa
from catalog.access import SYSTEM
from catalog.services.governance import annotations
from tests.factories import make_lance_table
make_lance_table(("nyc", "edited"), pa.table({"id": pa.array([1], pa.int64())}))
annotations.create_label(actor=SYSTEM, key="stage", values=["raw", "clean"])
"""


@pytest.fixture(scope="module")
def table(server: LiveServer, roles: None) -> None:
    server.manage(_TABLE)


@pytest.fixture
def page(table: None, sign_in: SignIn) -> Page:
    """The page of a table, as a steward."""
    page = sign_in("steward")
    open_table(page)
    return page


def open_table(page: Page) -> None:
    page.goto("/admin/catalog/table/?q=nyc.edited")
    page.get_by_role("link", name="nyc.edited", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="nyc.edited")).to_be_visible()


def test_annotations_are_edited_with_the_keyboard(page: Page) -> None:
    page.goto(page.url.partition("?")[0] + "?tab=schema")
    for name, text in {"description": "The key"}.items():
        pen = page.get_by_role("link", name=f"Edit {name} of id", exact=True)
        pen.focus()
        page.keyboard.press("Enter")
        field = page.get_by_label(name.capitalize(), exact=True)
        expect(field).to_be_focused()
        page.keyboard.type("to be canceled")
        page.keyboard.press("Escape")
        expect(field).to_have_count(0)
        expect(pen).to_be_focused()

        page.keyboard.press("Enter")
        expect(field).to_be_focused()
        page.keyboard.type(text)
        assert violations(page) == []
        page.keyboard.press("Tab")
        with page.expect_navigation():
            page.keyboard.press("Enter")
        expect(page.locator(".m-cell").get_by_text(text, exact=True)).to_be_visible()
        says(page, "Saved.")
        expect(pen).to_be_focused()


def test_a_mistake_is_reported_beside_the_field(page: Page) -> None:
    edit(page, "links", "javascript:alert(1)")
    form = page.get_by_role("form", name="Edit links")
    expect(form.get_by_role("alert")).to_contain_text("javascript:alert(1)")
    page.get_by_label("Links", exact=True).fill("https://example.com/wiki Wiki")
    with page.expect_navigation():
        submit(page, "Save")
    expect(page.get_by_role("link", name="Wiki", exact=True)).to_be_visible()


def test_a_pencil_leads_to_the_login_after_the_session(page: Page, browser: Browser) -> None:
    context = browser.new_context(storage_state=page.context.storage_state())
    other = context.new_page()
    other.goto(page.url)
    context.clear_cookies()
    other.get_by_role("link", name="Edit owner of nyc.edited").click()
    expect(other.get_by_label("Password")).to_be_visible()
    context.close()


def test_annotations_are_edited_without_scripts(page: Page, browser: Browser) -> None:
    state = page.context.storage_state()
    context = browser.new_context(java_script_enabled=False, storage_state=state)
    plain = context.new_page()
    plain.goto(page.url)
    edit(plain, "description", "Written without scripts")
    says(plain, "Saved.")
    says(plain, "Written without scripts")
    context.close()


def test_readers_have_no_pencils(table: None, sign_in: SignIn) -> None:
    page = sign_in("reader")
    open_table(page)
    expect(page.locator(".m-pen")).to_have_count(0)
    page.goto(page.url.partition("?")[0] + "?tab=schema")
    expect(page.locator(".m-pen")).to_have_count(0)


def edit(page: Page, name: str, text: str) -> None:
    page.get_by_role("link", name=f"Edit {name} of nyc.edited", exact=True).click()
    page.get_by_label(name.capitalize(), exact=True).fill(text)
    submit(page, "Save")
