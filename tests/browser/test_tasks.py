"""Common tasks, each in at most three clicks."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WITHIN, SignIn
from tests.browser.hands import choose, fill, open_section, open_tab, press, says, submit
from tests.live import LiveServer

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(900)]

MOST_CLICKS = 3
_COUNT = """
addEventListener("pointerdown", (event) => {
  if (event.isTrusted) sessionStorage.setItem("clicks", 1 + Number(sessionStorage.getItem("clicks")));
}, true);
"""
_TABLES = """
import pyarrow as pa
from catalog.access import SYSTEM
from catalog.models import Job, JobStatus, Principal, PrincipalKind
from catalog.services.iceberg import view_sources
from catalog.services.lance import data
from catalog.services.maintenance import measurements
from catalog.services.search import documents as search_documents
from tests.factories import make_iceberg_table, make_lance_table
from tests.lineage import make_view
ROWS = pa.table({"taskid": pa.array([1, 2], pa.int64())})
for name in ("kept", "lost", "gone"):
    row = make_lance_table(("tasks", name), ROWS)
    data.insert(actor=SYSTEM, table=row.identifier, data=ROWS.to_reader())
make_iceberg_table("tasks", "trips")
make_view(("tasks", "daily"), "SELECT * FROM tasks.trips")
make_view(("tasks", "weekly"), "SELECT * FROM tasks.daily")
Job.objects.create(kind="compact", table=row, status=JobStatus.FAILED, error="The disk of the worker is full")
Principal.objects.get_or_create(name="group:analysts", defaults={"kind": PrincipalKind.GROUP})
view_sources.read_due()
search_documents.update()
measurements.measure_due()
"""


@contextmanager
def few_clicks(page: Page) -> Iterator[None]:
    """Count the presses of the mouse in a task, on all of its pages."""
    page.evaluate("sessionStorage.setItem('clicks', 0)")
    yield
    count = page.evaluate("Number(sessionStorage.getItem('clicks'))")
    assert 1 <= count <= MOST_CLICKS, f"{count} clicks"


@pytest.fixture(scope="module")
def tables(server: LiveServer) -> None:
    server.manage(_TABLES)


@pytest.fixture
def ada(tables: None, sign_in: SignIn) -> Page:
    page = sign_in("ada")
    page.add_init_script(_COUNT)
    page.goto("/admin/")
    return page


def search(page: Page, text: str, name: str) -> None:
    """Open a result of the command bar: one click."""
    page.wait_for_load_state()
    page.keyboard.press("Control+k")
    bar = page.locator("#search-input-command")
    expect(bar).to_be_focused()
    bar.press_sequentially(text, delay=20)
    result = page.locator("#command-results").get_by_role("link", name=name).first
    result.click()
    page.wait_for_url("**/change/**")


def test_find_a_table_by_its_column(ada: Page) -> None:
    with few_clicks(ada):
        search(ada, "column:taskid", "tasks.kept")
        expect(ada.get_by_role("heading", level=1, name="tasks.kept")).to_be_visible()


def test_who_changed_a_table_last(ada: Page) -> None:
    with few_clicks(ada):
        search(ada, "tasks.kept", "tasks.kept")
        tile = ada.locator(".m-tile").filter(has_text="Last commit")
        expect(tile).to_contain_text("by system")


def test_why_a_job_failed(ada: Page) -> None:
    with few_clicks(ada):
        search(ada, "tasks.gone", "tasks.gone")
        open_section(ada, "Health", "Jobs")
        expect(ada.get_by_text("The disk of the worker is full").first).to_be_visible()


def test_grant_to_a_team_and_see_the_effect(ada: Page) -> None:
    search(ada, "tasks.kept", "tasks.kept")
    with few_clicks(ada):
        press(ada, "Grant")
        ada.get_by_label("Principal").fill("group:analysts")
        ada.get_by_label("Role").select_option("reader")
        submit(ada, "Show effect")
        expect(ada.get_by_text("group:analysts").first).to_be_visible()
        submit(ada, "Grant")
        says(ada, "group:analysts")


def test_protect_a_table(ada: Page) -> None:
    search(ada, "tasks.kept", "tasks.kept")
    with few_clicks(ada):
        choose(ada, "More", "Protection")
        submit(ada, "Protect")
        says(ada, "is now protected")


def test_drop_a_table_and_undo(ada: Page) -> None:
    search(ada, "tasks.lost", "tasks.lost")
    with few_clicks(ada):
        choose(ada, "More", "Drop")
        submit(ada, "Drop")
        says(ada, "was dropped")
    with few_clicks(ada):
        ada.get_by_role("link", name="Undrop", exact=True).first.click()
        submit(ada, "Undrop")
        says(ada, "was undropped")


def test_compact_a_table_and_watch(ada: Page) -> None:
    search(ada, "tasks.kept", "tasks.kept")
    with few_clicks(ada):
        open_tab(ada, "Health")
        ada.locator(".m-press form").filter(has_text="Compact").get_by_role("button").first.click()
        says(ada, "was started for table")
        expect(ada.locator("#m-live:not([data-poll])")).to_be_attached(timeout=4 * WITHIN)
        expect(ada.get_by_text("succeeded", exact=True).first).to_be_visible()


def test_follow_lineage_over_two_steps(ada: Page) -> None:
    search(ada, "tasks.trips", "tasks.trips")
    with few_clicks(ada):
        open_section(ada, "Data", "Lineage")
        graph = ada.get_by_role("group", name="Lineage, also listed below")
        expect(graph.get_by_role("link")).to_have_count(3)
        graph.get_by_role("link", name="tasks.weekly, view, 2 steps downstream").click()
        expect(ada.get_by_role("heading", level=1, name="tasks.weekly")).to_be_visible()


def test_compare_two_versions(ada: Page) -> None:
    search(ada, "tasks.kept", "tasks.kept")
    with few_clicks(ada):
        open_tab(ada, "History")
        ada.get_by_role("link", name="Compare", exact=True).first.click()
        expect(ada.get_by_text("have the same columns").first).to_be_visible()


@pytest.mark.parametrize("name", ["tasks.kept", "nyc.fleet"])
def test_preview_rows_of_both_formats(ada: Page, name: str) -> None:
    with few_clicks(ada):
        search(ada, name, name)
        open_tab(ada, "Data")
        expect(ada.locator("#content table tbody tr").first).to_be_visible()


def test_the_catalog_at_an_earlier_time(ada: Page) -> None:
    with few_clicks(ada):
        search_pages(ada, "history")
        ada.get_by_label("At (time in UTC or transaction ID)").fill("2020-01-31T12:00:00Z")
        submit(ada, "Show")
        expect(ada.locator("#content")).to_contain_text("2020-01-31 12:00:00")


def search_pages(page: Page, name: str) -> None:
    """Open a page of the sidebar: one click."""
    page.get_by_role("link", name="History", exact=True).first.click()
    expect(page.get_by_role("button", name="Show", exact=True)).to_be_visible()


def test_approve_a_purge(ada: Page, sign_in: SignIn) -> None:
    ada.goto("/admin/catalog/namespace/")
    ada.locator("#content").get_by_role("link", name="tasks", exact=True).click()
    choose(ada, "More", "Retention and approvals")
    ada.get_by_text("Require approval for purg").click()
    submit(ada, "Save")
    says(ada, "were saved")
    search(ada, "tasks.gone", "tasks.gone")
    choose(ada, "More", "Drop")
    submit(ada, "Drop")
    ada.goto("/admin/catalog/trashitem/")
    ada.get_by_role("link", name="tasks.gone").click()
    press(ada, "Purge")
    fill(ada, "Reason", "Nobody reads it")
    submit(ada, "Purge")
    says(ada, "second person")

    grace = sign_in("grace")
    grace.add_init_script(_COUNT)
    grace.goto("/admin/")
    with few_clicks(grace):
        grace.get_by_role("link", name="Pending approvals: 1").click()
        press(grace, "Approve")
        submit(grace, "Approve")
        says(grace, "is done")
