"""Materialized views in the admin: the list, the page of a view, and its refresh."""

import pyarrow as pa
import pytest
from django.contrib.messages import get_messages
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog.access import SYSTEM, On
from catalog.models import AuditEvent, Job, JobKind, JobStatus, MaterializedView
from catalog.privileges import Privilege
from catalog.services.access import grants
from catalog.services.engine.commit import commit
from catalog.services.lance.data import insert
from catalog.services.lance.materialized_views import materialized_views, refreshes
from catalog.services.lance.materialized_views.refreshes import Refresh
from catalog.services.maintenance import job_runner
from catalog.services.tables import table_operations
from tests.api.client import encoded_schema
from tests.factories import make_lance_table, unchanged

LIST = "/admin/catalog/materializedview/"
IDS = pa.schema([("id", pa.int64())])


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch):
    monkeypatch.setattr("celery.current_app.send_task", lambda *a, **k: None)


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def make(name: str = "v", query: str = "SELECT id FROM ws.t WHERE id > 1") -> MaterializedView:
    materialized_views.create_view(
        actor=SYSTEM,
        table=("ws", name),
        kind="query",
        source_query=query,
        output_schema=encoded_schema(IDS),
        auto_refresh=name == "v",
    )
    return MaterializedView.objects.get(table__name=name)


@pytest.fixture
def view(browser) -> MaterializedView:
    """A view that is two versions behind its source."""
    make_lance_table(("ws", "t"), ids(1, 2, 3))
    row = make()
    refresh(row)
    insert(actor=SYSTEM, table=("ws", "t"), data=ids(4).to_reader())
    insert(actor=SYSTEM, table=("ws", "t"), data=ids(5).to_reader())
    return row


def refresh(row: MaterializedView) -> None:
    refreshes.start_refresh(actor=SYSTEM, table=row.table.identifier, refresh=Refresh())
    job_runner.run_job(Job.objects.get(table=row.table, status=JobStatus.QUEUED).pk)


def url(row: MaterializedView, action: str = "change") -> str:
    return f"{LIST}{row.pk}/{action}/"


def text(answer) -> str:
    assert answer.status_code == 200
    return answer.content.decode()


def messages_of(answer) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


def test_an_empty_list_explains_materialized_views(browser):
    assert browser.get(LIST).status_code == 200


def test_the_list_shows_views(browser, view):
    page = text(browser.get(LIST))
    for fragment in ("ws.v", "ws.t", "2 versions", "since"):
        assert fragment in page
    MaterializedView.objects.update(error="the disk is away", failed_at=timezone.now())
    assert "the disk is away" in text(browser.get(LIST))
    refresh(view)
    assert "up to date" in text(browser.get(LIST))


@pytest.mark.parametrize(
    ("condition", "is_listed"), [("behind", True), ("failed", False), ("auto", True), ("x", True)]
)
def test_the_list_is_filtered(browser, view, condition, is_listed):
    make("pinned", '{"source": ["ws", "t"], "version": 1}')
    refresh(MaterializedView.objects.get(table__name="pinned"))
    page = text(browser.get(f"{LIST}?condition={condition}", follow=True))
    assert (f'href="{url(view)}' in page) is is_listed
    assert ("ws.pinned" in page) is (condition == "x")


@pytest.mark.parametrize("query", ["q=v", "q=%00", "q=%FF", "condition=%00", "p=x"])
def test_invalid_parameters_do_not_break_the_list(browser, view, query):
    assert browser.get(f"{LIST}?{query}", follow=True).status_code == 200


def test_the_page_of_a_view_shows_its_facts(browser, view):
    page = text(browser.get(url(view)))
    for fragment in (
        "SELECT `id` FROM `ws`.`t` WHERE id &gt; 1",
        "SELECT id FROM ws.t WHERE id &gt; 1",
        "2 versions",
        "Refresh view",
        "3 of 3 rows",
    ):
        assert fragment in page, fragment
    assert "materialized_view.create" in text(browser.get(f"{url(view)}?tab=audit"))


def test_the_page_of_a_view_with_a_dropped_source(browser, view):
    commit([table_operations.DropTable(table=("ws", "t"), purge=False)], actor=SYSTEM)
    refresh(view)
    page = text(browser.get(url(view)))
    assert "dropped" in page
    assert "The source of the view was dropped" in page


def test_pages_take_a_fixed_number_of_queries(browser, view):
    def cost() -> list[int]:
        counts = []
        for page in (LIST, url(view), f"{url(view)}?tab=audit"):
            with CaptureQueriesContext(connection) as queries:
                assert browser.get(page).status_code == 200
            counts.append(len(queries))
        return counts

    before = cost()
    for number in range(8):
        make(f"w{number}")
        refresh(view)
    assert cost() == before
    assert before == [3, 5, 5]


def test_a_button_starts_a_refresh(browser, view):
    with unchanged():
        assert "Refresh view &#x27;ws.v&#x27;?" in text(browser.get(url(view, "refresh")))
    answer = browser.post(url(view, "refresh"))
    assert answer.status_code == 302
    assert messages_of(answer) == ["Job to refresh view 'ws.v' was started"]
    job = Job.objects.get(status=JobStatus.QUEUED)
    assert (job.kind, job.table, job.transaction.actor) == (
        JobKind.REFRESH_VIEW,
        view.table,
        "user:ada",
    )
    event = AuditEvent.objects.get(action="materialized_view.start_refresh", actor="user:ada")
    assert event.target == "ws.v"
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == "succeeded"
    page = text(browser.get(f"/admin/catalog/job/{job.pk}/change/"))
    for fragment in ("user:ada", "source_version", "m-meter", "2 of 2 rows"):
        assert fragment in page, fragment


def test_buttons_require_privileges(sign_in, browser, view):
    bob = sign_in("read")
    assert url(view, "refresh") in text(browser.get(url(view)))
    assert url(view, "refresh") not in text(bob.get(url(view)))
    with unchanged():
        assert bob.post(url(view, "refresh")).status_code == 403


def test_a_missing_row_gets_404(browser):
    for action in ("change", "refresh"):
        assert browser.get(f"{LIST}0/{action}/").status_code == 404
    assert browser.get(f"{LIST}x/change/").status_code == 404


def test_rows_are_read_only(browser, view):
    assert browser.post(url(view, "delete"), {"post": "yes"}).status_code == 403
    assert MaterializedView.objects.exists()


def test_the_source_is_named_only_if_it_may_be_browsed(browser, view, sign_in):
    commit([table_operations.RenameTable(table=("ws", "t"), new=("ws", "secret"))], actor=SYSTEM)
    reader = sign_in()
    grants.set_grant(
        actor=SYSTEM, on=On.table(("ws", "v")), principal="user:bob", privileges=Privilege.READ
    )
    for client, is_visible in ((browser, True), (reader, False)):
        for page in (LIST, url(view)):
            content = text(client.get(page))
            assert "ws.v" in content
            assert ("secret" in content) is is_visible, page
            assert ("a table that is not visible to you" in content) is (not is_visible), page
        # The query, too, names the source: as it was when the view was created.
        assert ("ws.t" in text(client.get(url(view)))) is is_visible
        results = text(client.get(f"{LIST}?q=secret"))
        assert (f'href="{url(view)}' in results) is is_visible


@pytest.mark.parametrize("privilege", [None, Privilege.BROWSE, Privilege.READ])
def test_the_lag_is_shown_to_who_may_read_the_source(view, sign_in, privilege):
    """The number of its versions, and their times, are the activity of the source."""
    reader = sign_in()
    for name, granted in (("v", Privilege.READ), ("t", privilege)):
        if granted:
            on = On.table(("ws", name))
            grants.set_grant(actor=SYSTEM, on=on, principal="user:bob", privileges=granted)
    reads = privilege == Privilege.READ
    lineage = f"/admin/catalog/table/{view.pk}/change/?tab=lineage"
    for page in (LIST, url(view), lineage):
        content = text(reader.get(page))
        assert "ws.v" in content
        assert ("2 versions" in content) is reads, page
        assert "up to date" not in content, page
    assert (f'href="{url(view)}' in text(reader.get(f"{LIST}?condition=behind"))) is reads
