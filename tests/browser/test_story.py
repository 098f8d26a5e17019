"""A typical session in a real browser, from the login to the audit trail."""

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WITHIN, SignIn
from tests.browser.hands import choose, fill, open_command_bar, open_tab, press, says, violations
from tests.live import LiveServer

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(900)]

# Tasks that beat runs periodically.
_PASSES = """
from catalog.services.maintenance import measurements
from catalog.services.search import documents as search_documents
from catalog.services.tables import summaries
search_documents.update()
measurements.measure_due()
summaries.update()
"""
_TABLES = "/admin/catalog/table/"


def test_a_table_is_labelled_protected_dropped_restored_and_purged(
    server: LiveServer, sign_in: SignIn, screen: Callable[..., None]
) -> None:
    server.manage(_PASSES)
    ada = sign_in("ada")

    # A label, and the table that has a column of this name.
    ada.goto("/admin/catalog/labeldefinition/add/")
    fill(ada, "Key", "pii")
    fill(ada, "Values", "yes\nno")
    ada.get_by_role("button", name="Create").click()
    says(ada, "was created")
    open_with_command_bar(ada, "tailnum", "nyc.flights", screen)

    choose(ada, "More", "Description and owner")
    fill(ada, "Description", "Flights that **left New York** in 2013.")
    ada.get_by_role("button", name="Save").click()
    expect(ada.locator(".m-prose strong")).to_have_text("left New York")
    choose(ada, "More", "Labels")
    ada.get_by_label("Label").select_option("pii")
    fill(ada, "Values", "yes")
    fill(ada, "Column", "tailnum")
    ada.get_by_role("button", name="Save").click()
    says(ada, "Label 'pii' was set on column 'tailnum' of 'nyc.flights'")
    expect(ada.get_by_role("row").filter(has_text="tailnum").first).to_contain_text("pii=yes")
    screen(ada, "table")

    # A protected table is not dropped, even by its owner.
    choose(ada, "More", "Protection")
    ada.get_by_role("button", name="Protect", exact=True).click()
    says(ada, "is now protected")
    choose(ada, "More", "Drop")
    ada.get_by_role("button", name="Drop", exact=True).click()
    says(ada, "protected")
    ada.goto(_TABLES)
    expect(ada.get_by_role("link", name="nyc.flights")).to_be_visible()

    follow_a_job(ada, screen)
    drop_and_bring_back(ada, screen)
    purge_with_two_people(ada, sign_in, screen)
    read_the_trail(ada, screen)


def open_with_command_bar(page: Page, text: str, name: str, screen: Callable[..., None]) -> None:
    bar = open_command_bar(page)
    bar.press_sequentially(text, delay=20)
    # The table; the column is the next result.
    result = page.locator("#command-results").get_by_role("link", name=re.compile(name)).first
    expect(result).to_be_visible()
    screen(page, "command-bar")
    result.click()
    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()


def follow_a_job(page: Page, screen: Callable[..., None]) -> None:
    """Compact the current table, and wait until the worker has finished."""
    page.get_by_role("link", name="nyc.flights").click()
    open_tab(page, "Health")
    page.locator(".m-press form").filter(has_text="Compact").get_by_role("button").first.click()
    says(page, "was started for table")
    # The page polls the progress and reloads at the end. Only the reloaded page no longer polls; before that,
    # the reload may interrupt the next step.
    expect(page.locator("#m-live:not([data-poll])")).to_be_attached(timeout=4 * WITHIN)
    expect(page.get_by_text("succeeded", exact=True).first).to_be_visible()
    page.wait_for_load_state()
    screen(page, "job")
    page.goto(_TABLES)
    page.get_by_role("link", name="nyc.flights").click()
    expect(page.get_by_text("1, in 1 data file")).to_be_visible()


def drop_and_bring_back(page: Page, screen: Callable[..., None]) -> None:
    page.goto(_TABLES)
    page.get_by_role("link", name="nyc.planes").click()
    choose(page, "More", "Drop")
    page.get_by_role("button", name="Drop", exact=True).click()
    says(page, "was dropped")
    page.goto("/admin/catalog/trashitem/")
    screen(page, "trash")
    page.get_by_role("link", name="nyc.planes").click()
    press(page, "Undrop")
    page.get_by_role("button", name="Undrop", exact=True).click()
    says(page, "was undropped")
    expect(page.get_by_role("heading", level=1, name="nyc.planes")).to_be_visible()


def purge_with_two_people(ada: Page, sign_in: SignIn, screen: Callable[..., None]) -> None:
    ada.goto("/admin/catalog/namespace/")
    ada.locator("#content").get_by_role("link", name="nyc", exact=True).click()
    choose(ada, "More", "Retention and approvals")
    ada.get_by_text(re.compile("Require approval for purg", re.IGNORECASE)).click()
    ada.get_by_role("button", name="Save").click()
    says(ada, "were saved")
    ada.goto(_TABLES)
    ada.get_by_role("link", name="nyc.airlines").click()
    choose(ada, "More", "Drop")
    ada.get_by_role("button", name="Drop", exact=True).click()
    says(ada, "was dropped")
    ada.goto("/admin/catalog/trashitem/")
    ada.get_by_role("link", name="nyc.airlines").click()
    press(ada, "Purge")
    fill(ada, "Reason", "Nobody reads it")
    ada.get_by_role("button", name="Purge", exact=True).click()
    says(ada, "second person")

    grace = sign_in("grace")
    expect(grace.get_by_role("link", name="Pending approvals: 1")).to_be_visible()
    expect(grace.get_by_role("list", name="Storage by namespace")).to_be_visible()
    assert violations(grace) == []
    screen(grace, "dashboard")
    grace.goto("/admin/catalog/approvalrequest/?waiting=me")
    screen(grace, "approvals")
    grace.locator("#result_list tbody a").first.click()
    expect(grace.get_by_text("Nobody reads it")).to_be_visible()
    press(grace, "Approve")
    grace.get_by_role("button", name="Approve", exact=True).click()
    says(grace, "is done")

    # The worker removes it, and it disappears from the trash.
    deadline = time.monotonic() + 240
    while True:
        ada.goto("/admin/catalog/trashitem/")
        expect(ada.get_by_role("heading", level=1)).to_be_attached()
        if not ada.get_by_text("nyc.airlines").count():
            break
        if ada.get_by_text("purged", exact=True).count():
            break
        assert time.monotonic() < deadline, ada.locator("#content").inner_text()
        ada.wait_for_timeout(1000)


def read_the_trail(page: Page, screen: Callable[..., None]) -> None:
    page.goto("/admin/catalog/auditevent/")
    screen(page, "audit")
    text = page.locator("#content").inner_text()
    for action in ("table.drop", "table.undrop", "label.assign"):
        assert action in text, text
    for actor in ("user:ada", "user:grace"):
        assert actor in text, text
