"""Common tasks, each in at most three clicks: as an administrator, as a steward of two namespaces, and as a reader of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import ROLES, WITHIN, SignIn
from tests.browser.hands import (
    choose,
    fill,
    open_command_bar,
    open_section,
    open_tab,
    press,
    says,
    submit,
)
from tests.live import LiveServer
from tests.shares import daily

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(900)]

MOST_CLICKS = 3
_COUNT = """
window.countClick ??= (event) => {
  if (event.isTrusted) sessionStorage.setItem("clicks", 1 + Number(sessionStorage.getItem("clicks")));
};
addEventListener("pointerdown", window.countClick, true);
"""
"""Counts once, although each test adds it to the page of its user."""
_TABLES = """
import pyarrow as pa
from catalog.access import SYSTEM
from catalog.models import Job, JobStatus, Principal, PrincipalKind
from catalog.services.iceberg import view_sources
from catalog.services.lance import data
from catalog.services.maintenance import measurements
from catalog.services.search import documents as search_documents
from tests.factories import make_iceberg_table, make_lance_table
from catalog.access import On
from catalog.privileges import parse
from catalog.services.access import grants
from catalog.services.recovery import undrop
from tests.lineage import make_view
ROWS = pa.table({"taskid": pa.array([1, 2], pa.int64())})
table = make_lance_table(("tasks", "kept"), ROWS)
data.insert(actor=SYSTEM, table=table.identifier, data=ROWS.to_reader())
OTHERS = pa.table({"id": pa.array([1, 2], pa.int64())})
for who in MANAGERS:
    for name in ("safe", "lost", "gone", "small"):
        row = make_lance_table(("tasks", f"{name}_{who}"), OTHERS)
        data.insert(actor=SYSTEM, table=row.identifier, data=OTHERS.to_reader())
for who, privileges in ROLES.items():
    if privileges:
        grants.set_grant(actor=SYSTEM, on=On.namespace(("tasks",)), principal=f"user:{who}", privileges=parse(privileges.split()))
undrop.set_approval_rule(actor=SYSTEM, namespace=("tasks",), actions=["purge"])
make_iceberg_table("tasks", "trips")
make_view(("tasks", "daily"), "SELECT * FROM tasks.trips")
make_view(("tasks", "weekly"), "SELECT * FROM tasks.daily")
Job.objects.create(kind="compact", table=table, status=JobStatus.FAILED, error="The disk of the worker is full")
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


MANAGERS = ("ada", "steward")


# Administrators and owners have the pages of the other users, with more links.
each_manager = pytest.mark.parametrize("who", daily(MANAGERS, "steward"))


@pytest.fixture(scope="module")
def tables(server: LiveServer, roles: None) -> None:
    server.manage(f"MANAGERS, ROLES = {MANAGERS!r}, {ROLES!r}\n{_TABLES}")


Start = Callable[[str], Page]


@pytest.fixture
def start(tables: None, sign_in: SignIn) -> Start:
    """Function that signs in a user, whose clicks are counted, and returns the overview."""

    def started(name: str) -> Page:
        page = sign_in(name)
        page.add_init_script(_COUNT)
        page.goto("/admin/")
        return page

    return started


@pytest.fixture(params=daily([*MANAGERS, "reader"], "reader"))
def page(request: pytest.FixtureRequest, start: Start) -> Page:
    """The overview of everybody who may read the tables."""
    return start(request.param)


def search(page: Page, text: str, name: str) -> None:
    """Open a result of the command bar: one click."""
    bar = open_command_bar(page)
    bar.press_sequentially(text, delay=20)
    result = page.locator("#command-results").get_by_role("link", name=name).first
    result.click()
    page.wait_for_url("**/change/**")


def test_find_a_table_by_its_column(page: Page) -> None:
    with few_clicks(page):
        search(page, "column:taskid", "tasks.kept")
        expect(page.get_by_role("heading", level=1, name="tasks.kept")).to_be_visible()


def test_who_changed_a_table_last(page: Page) -> None:
    with few_clicks(page):
        search(page, "tasks.kept", "tasks.kept")
        tile = page.locator(".m-tile").filter(has_text="Last commit")
        expect(tile).to_contain_text("by system")


def test_why_a_job_failed(page: Page) -> None:
    with few_clicks(page):
        search(page, "tasks.kept", "tasks.kept")
        open_section(page, "Health", "Jobs")
        expect(page.get_by_text("The disk of the worker is full").first).to_be_visible()


@each_manager
def test_grant_to_a_team_and_see_the_effect(who: str, start: Start) -> None:
    page = start(who)
    search(page, f"tasks.safe_{who}", f"tasks.safe_{who}")
    with few_clicks(page):
        press(page, "Grant")
        page.get_by_label("Principal").fill("group:analysts")
        page.get_by_label("Role").select_option("reader")
        submit(page, "Show effect")
        expect(page.get_by_text("group:analysts").first).to_be_visible()
        submit(page, "Grant")
        says(page, "group:analysts")


@each_manager
def test_protect_a_table(who: str, start: Start) -> None:
    page = start(who)
    search(page, f"tasks.safe_{who}", f"tasks.safe_{who}")
    with few_clicks(page):
        choose(page, "More", "Protection")
        submit(page, "Protect")
        says(page, "is now protected")


@each_manager
def test_drop_a_table_and_undo(who: str, start: Start) -> None:
    page = start(who)
    search(page, f"tasks.lost_{who}", f"tasks.lost_{who}")
    with few_clicks(page):
        choose(page, "More", "Drop")
        submit(page, "Drop")
        says(page, "was dropped")
    with few_clicks(page):
        page.get_by_role("link", name="Undrop", exact=True).first.click()
        submit(page, "Undrop")
        says(page, "was undropped")


@each_manager
def test_compact_a_table_and_watch(who: str, start: Start) -> None:
    page = start(who)
    search(page, f"tasks.small_{who}", f"tasks.small_{who}")
    with few_clicks(page):
        open_tab(page, "Health")
        page.locator(".m-press form").filter(has_text="Compact").get_by_role("button").first.click()
        says(page, "was started for table")
        expect(page.locator("#m-live:not([data-poll])")).to_be_attached(timeout=4 * WITHIN)
        expect(page.get_by_text("succeeded", exact=True).first).to_be_visible()


def test_follow_lineage_over_two_steps(page: Page) -> None:
    search(page, "tasks.trips", "tasks.trips")
    with few_clicks(page):
        open_section(page, "Data", "Lineage")
        graph = page.get_by_role("group", name="Lineage, also listed below")
        expect(graph.get_by_role("link")).to_have_count(3)
        graph.get_by_role("link", name="tasks.weekly, view, 2 steps downstream").click()
        expect(page.get_by_role("heading", level=1, name="tasks.weekly")).to_be_visible()


def test_compare_two_versions(page: Page) -> None:
    search(page, "tasks.kept", "tasks.kept")
    with few_clicks(page):
        open_tab(page, "History")
        page.get_by_role("link", name="Compare", exact=True).first.click()
        expect(page.get_by_text("have the same columns").first).to_be_visible()


@pytest.mark.parametrize("name", ["tasks.kept", "nyc.fleet"])
def test_preview_rows_of_both_formats(page: Page, name: str) -> None:
    with few_clicks(page):
        search(page, name, name)
        open_tab(page, "Data")
        expect(page.locator("#content table tbody tr").first).to_be_visible()


def test_the_catalog_at_an_earlier_time(page: Page) -> None:
    with few_clicks(page):
        page.get_by_role("link", name="History", exact=True).first.click()
        expect(page.get_by_role("button", name="Show", exact=True)).to_be_visible()
        page.get_by_label("At (time in UTC or transaction ID)").fill("2020-01-31T12:00:00Z")
        submit(page, "Show")
        expect(page.locator("#content")).to_contain_text("2020-01-31 12:00:00")


@pytest.mark.parametrize(("asker", "approver"), [("ada", "steward"), ("steward", "grace")])
def test_approve_a_purge(asker: str, approver: str, start: Start) -> None:
    page, name = start(asker), f"tasks.gone_{asker}"
    search(page, name, name)
    choose(page, "More", "Drop")
    submit(page, "Drop")
    page.goto("/admin/catalog/trashitem/")
    page.get_by_role("link", name=name).click()
    press(page, "Purge")
    fill(page, "Reason", "Nobody reads it")
    submit(page, "Purge")
    says(page, "second person")

    other = start(approver)
    with few_clicks(other):
        other.get_by_role("link", name="Pending approvals: 1").click()
        press(other, "Approve")
        submit(other, "Approve")
        says(other, "is done")
