"""Table health in the admin, and the buttons that start maintenance."""

import re
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from django.contrib.messages import get_messages
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog import maintenance_actions
from catalog.access import SYSTEM
from catalog.models import (
    AuditEvent,
    Job,
    JobStatus,
    Table,
    TableHealth,
)
from catalog.planning import IndexSearch, MissingIndex, PartitionSize, Statistics
from catalog.services.engine.commit import commit
from catalog.services.lance.data import insert
from catalog.services.lance.indexes import indexes as lance_indexes
from catalog.services.lance.indexes.index_plans import NewIndex
from catalog.services.maintenance import job_runner, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.tables import table_operations
from tests.cases import shared_cases
from tests.factories import (
    make_iceberg_table,
    make_lance_table,
    make_table,
    make_version,
    unchanged,
)

LIST = "/admin/catalog/tablehealth/"
NOTHING: dict[str, Any] = {"score": 100, "planned": []}


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch):
    monkeypatch.setattr("celery.current_app.send_task", lambda *a, **k: None)


def make_live(*identifier: str) -> Table:
    make_table(*identifier)
    make_version(identifier, 1)
    return Table.objects.named(identifier).get()


def figures(**changed: Any) -> dict[str, Any]:
    values = {
        "format": "lance",
        "version": 7,
        "rows": 1_000,
        "deleted_rows": 50,
        "files": 40,
        "bytes": 3 * 1024**2,
        "small_files": 39,
        "rewrite_files": 39,
        "rewrite_bytes": 2 * 1024**2,
        "rewritten_files": 1,
        "versions": 41,
        "old_versions": 30,
        **changed,
    }
    return Statistics(**values).as_json()


COMPACT = {
    "kind": "compact",
    "mode": "dry_run",
    "reason": "39 of 40 files are small",
    "files_gone": 38,
    "bytes_read": 2 * 1024**2,
    "is_for_spark": False,
    "parameters": {},
}


def measured(table: Table, **changed: Any) -> TableHealth:
    values = {
        "score": 30,
        "statistics": figures(),
        "planned": [COMPACT],
        "files_gone": 38,
        "bytes_read": 2 * 1024**2,
        **changed,
    }
    TableHealth.objects.filter(table=table).update(is_newest=False)
    return TableHealth.objects.create(table=table, **values)


def url(row, action: str = "change") -> str:
    return f"/admin/catalog/{row._meta.model_name}/{row.pk}/{action}/"


def tab(row: Table) -> str:
    return f"{url(row)}?tab=maintenance"


def text(answer) -> str:
    assert answer.status_code == 200
    return answer.content.decode()


def messages_of(answer) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


def listed(browser, query: str = "") -> list[str]:
    """The tables of the list, in order."""
    answer = browser.get(f"{LIST}?{query}", follow=True)
    assert answer.status_code == 200
    return [str(row.table) for row in answer.context["cl"].result_list]


# --- the list


def test_an_empty_list_explains_the_next_steps(browser):
    assert "No table has been measured yet" in text(browser.get(LIST))
    assert "No matching entries." in text(browser.get(f"{LIST}?q=t"))


def test_the_list_is_ordered_by_score_and_shows_the_gain(browser):
    well, ill, odd = make_live("a", "well"), make_live("a", "ill"), make_live("a", "odd")
    measured(well, **NOTHING)
    measured(ill)
    measured(odd, score=0, statistics={"error": "its files are gone"}, planned=[])
    assert listed(browser) == ["a.odd", "a.ill", "a.well"]
    page = text(browser.get(LIST))
    for fragment in (
        'aria-valuenow="30"',
        "m-score-poor",
        "m-score-good",
        "39 of 40 files are small",
        "2.0\xa0MB",
        "3.0\xa0MB",
        "The table could not be measured: its files are gone",
        f'href="{tab(ill)}"',
    ):
        assert fragment in page, fragment


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("score=poor", ["a.ill"]),
        ("score=fair", ["b.c.fair"]),
        ("score=good", ["b.well"]),
        ("score=unknown", ["a.odd"]),
        ("work=any", ["a.ill", "b.c.fair"]),
        ("work=compact", ["a.ill", "b.c.fair"]),
        ("work=clean_up", []),
        ("format=iceberg", ["b.well"]),
        ("format=lance", ["a.odd", "a.ill", "b.c.fair"]),
        ("in=b", ["b.c.fair", "b.well"]),
        ("in=b.c", ["b.c.fair"]),
        ("in=b$c", ["b.c.fair"]),
        ("in=c", []),
        ("q=ill", ["a.ill"]),
        ("q=b.c.fair", ["b.c.fair"]),
        ("score=x&work=x&format=x", ["a.odd", "a.ill", "b.c.fair", "b.well"]),
    ],
)
def test_filters_and_search(browser, query, names):
    measured(make_live("a", "ill"))
    measured(make_live("b", "c", "fair"), score=60)
    make_iceberg_table("b", "well")
    measured(Table.objects.get(name="well"), **NOTHING)
    odd = make_live("a", "odd")
    measured(odd, score=0, statistics={"error": "x"}, planned=[])
    assert listed(browser, query) == names


def test_dropped_tables_and_old_measurements_are_not_in_the_list(browser):
    dropped, row = make_live("a", "gone"), make_live("a", "t")
    measured(dropped)
    measured(row)
    measured(row, **NOTHING)
    commit([table_operations.DeregisterTable(table=("a", "gone"))], actor=SYSTEM)
    assert listed(browser) == ["a.t"]


def test_a_measurement_links_to_its_table(browser):
    health = measured(make_live("a", "t"))
    answer = browser.get(url(health))
    assert (answer.status_code, answer.headers["location"]) == (302, tab(health.table))
    assert browser.get(f"{LIST}0/change/").status_code == 404


@shared_cases(
    "query",
    ["q=%00", "q=%FF", "in=%00", "in=..", "score=%00", "p=x", "o=9"],
    prepare=lambda: measured(make_live("a", "t")),
)
def test_invalid_parameters_do_not_break_the_list(browser, query):
    assert browser.get(f"{LIST}?{query}", follow=True).status_code == 200


def test_the_list_contains_only_tables_that_may_be_browsed(sign_in):
    health = measured(make_live("a", "t"))
    bob = sign_in()
    assert "a.t" not in bob.get(LIST).content.decode()
    assert bob.get(url(health)).status_code == 404  # as for a missing table


def test_the_sidebar_links_to_the_list(browser):
    assert f'href="{LIST}"' in text(browser.get("/admin/"))


# --- a table's tab


def test_the_tab_of_an_unmeasured_table_explains_the_next_steps(browser):
    page = text(browser.get(tab(make_live("a", "t"))))
    assert "The table has not been measured yet. Select “Measure”" in page
    assert "Start a dry run to see what a job would do" in page
    declared = text(browser.get(tab(make_table("a", "declared"))))
    assert "has no data yet" in declared
    assert 'aria-label="Compact"' not in declared


def test_the_tab_shows_figures_plan_trend_and_jobs(browser):
    row = make_live("a", "t")
    for days, score in ((9, 90), (5, 60), (0, 30)):
        health = measured(row, score=score)
        health.measured_at = timezone.now() - timedelta(days=days)
        health.save()
    maintenance_scheduler.start(actor=SYSTEM, table=("a", "t"), kind="compact", is_dry_run=True)
    page = text(browser.get(tab(row)))
    for fragment in (
        "<td>Small files</td><td>39</td>",
        "39 of 40 files are small, 50 rows are deleted",
        "<polyline",
        "90 first, 30 last, between 30 and 90",
        "Compact (dry run)",
        'aria-label="Compact"',
        'aria-label="Dry run: Compact"',
        "Measured at version 7 of the table.",
    ):
        assert fragment in page, fragment
    for fragment in ("Manifests", "Rewrite manifests"):
        assert fragment not in page, fragment


def test_the_tab_shows_measured_searches_and_missing_indexes(browser):
    row = make_live("a", "t")
    measured(row)
    page = text(browser.get(tab(row)))
    assert "Vector searches" not in page
    assert "Indexes that queries lack" not in page
    searched = IndexSearch("by_<b>vector", 0.875, 4.25, 31.0, 1_000, 3)
    missing = MissingIndex("country", "BTREE", 1_234, 8_192)
    measured(row, statistics=figures(index_searches=(searched,), missing_indexes=(missing,)))
    page = text(browser.get(tab(row)))
    for fragment in ("by_&lt;b&gt;vector", "88%", "4.2 ms", "31.0 ms", "country", "1,234", "BTREE"):
        assert fragment in page, fragment
    for title in ("Vector searches", "Indexes that queries lack"):
        assert title in page, title
    assert "queries lack indexes: BTREE on &#x27;country&#x27;" in page


def test_the_tab_shows_the_sizes_of_files_and_partitions(sign_in):
    row = make_live("a", "t")
    largest = (PartitionSize("day=<b>1", 3, 9 * 1024**2), PartitionSize("", 1, 1024**2))
    layout = {"file_sizes": (3, 30, 0, 0, 0, 0, 2), "partitions": 12, "largest_partitions": largest}
    measured(row, statistics=figures(**layout))
    reader = sign_in("read")
    page = text(reader.get(tab(row)))
    for fragment in (
        *("File sizes", "Fragments by size", "1 MiB to 4 MiB: 30", "1 GiB or more", "max: 30"),
        "Of 35 of 40 fragments",
        *("Largest partitions", "day=&lt;b&gt;1", "9.0", "without partition", "2 of 12 partitions"),
    ):
        assert fragment in page, fragment
    measured(row)
    page = text(reader.get(tab(row)))
    assert "File sizes" not in page
    assert "Largest partitions" not in page


def test_names_of_partitions_are_for_readers(sign_in):
    row = make_live("a", "t")
    largest = (PartitionSize("patient=7", 3, 9),)
    measured(row, statistics=figures(file_sizes=(1,) * 7, partitions=1, largest_partitions=largest))
    page = text(sign_in("browse").get(tab(row)))
    assert "File sizes" in page
    assert "patient" not in page
    assert "Largest partitions" not in page


def test_the_plan_follows_the_current_policy(browser):
    row = make_live("a", "t")
    measured(row)
    policies.set_table_policy(actor=SYSTEM, table=("a", "t"), values={"compaction": "off"})
    panels = {panel.title: panel for panel in browser.get(tab(row)).context["panels"]}
    assert [str(line[0]) for line in panels["Planned maintenance"].rows] == ["Clean up"]


def test_the_tab_of_an_iceberg_table_shows_its_figures(browser):
    make_iceberg_table("a", "t")
    row = Table.objects.get(name="t")
    measured(row, statistics=figures(format="iceberg", manifests=70, rewritten_manifests=1))
    page = text(browser.get(tab(row)))
    for fragment in (
        "Manifests",
        "1 manifests can replace 70",
        'aria-label="Rewrite manifests"',
        "Spark",
    ):
        assert fragment in page, fragment
    assert "Optimize indexes" not in page


def test_names_of_tables_are_escaped(browser):
    evil = "<script>alert(1)</script>"
    row = make_live(evil, evil)
    stale = ({"name": evil, "unindexed_rows": 9},)
    measured(row, statistics=figures() | {"stale_indexes": stale}, planned=[{"kind": evil}])
    for page in (LIST, tab(row), url(row, "policy"), url(row, "compact"), "/admin/"):
        assert evil not in text(browser.get(page)), page


def test_a_view_has_no_maintenance(browser):
    row = make_live("a", "t")
    Table.objects.filter(pk=row.pk).update(kind="view", format="iceberg")
    page = text(browser.get(url(row)))
    assert "?tab=maintenance" not in page
    assert url(row, "compact") not in page
    assert url(row, "policy") not in page


# --- buttons


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_a_button_starts_a_job_and_redirects_to_it(browser, is_dry_run):
    row = make_live("a", "t")
    with unchanged():
        page = text(browser.get(url(row, "compact")))
    assert "Rewrites small files" in page
    answer = browser.post(url(row, "compact"), {"dry_run": "on"} if is_dry_run else {})
    job = Job.objects.get()
    assert (answer.status_code, answer.headers["location"]) == (302, url(job))
    assert (job.kind, job.is_dry_run, job.table_id) == ("compact", is_dry_run, row.pk)
    assert job.transaction.actor == "user:ada"
    (message,) = messages_of(answer)
    assert f'<a class="m-link" href="{url(job)}">Job {job.pk}</a>' in message
    event = AuditEvent.objects.get(action="maintenance.start")
    assert (event.actor, event.after["is_dry_run"]) == ("user:ada", is_dry_run)


@pytest.mark.parametrize("kind", maintenance_actions.keys())
def test_each_format_has_its_own_buttons(browser, kind):
    lance = make_lance_table(("a", "t"), pa.table({"id": [1]}))
    index = NewIndex(column="id", index_type="BTREE")
    lance_indexes.create_index(actor=SYSTEM, table=("a", "t"), index=index)
    make_iceberg_table("a", "i")
    iceberg = Table.objects.get(name="i")
    for row in (lance, iceberg):
        is_offered = row.format in maintenance_actions.require(kind).formats
        assert (url(row, kind) in text(browser.get(tab(row)))) is is_offered
        answer = browser.post(url(row, kind))
        assert Job.objects.filter(kind=kind, table=row).exists() is is_offered
        if not is_offered:
            assert messages_of(answer) == [
                f"Tables in {row.get_format_display()} format do not support '{kind}'"
            ]


def test_selected_indexes_are_rebuilt(browser):
    row = make_lance_table(("a", "t"), pa.table({"id": [1]}))
    for name in ("one", "two", "<b>"):
        index = NewIndex(column="id", index_type="BTREE", name=name)
        lance_indexes.create_index(actor=SYSTEM, table=("a", "t"), index=index)
    with unchanged():
        page = text(browser.get(url(row, "rebuild_indexes") + "?index=two&index=gone"))
        refused = browser.post(url(row, "rebuild_indexes"), {"indexes": ["gone"]})
    assert re.findall(r'name="indexes" value="([^"]*)"', page) == ["&lt;b&gt;", "one", "two"]
    assert re.findall(r'value="([^"]*)"[^>]* checked[ >]', page) == ["two"]
    assert "gone is not one of the available choices" in text(refused)
    browser.post(url(row, "rebuild_indexes"), {"indexes": ["two", "<b>"], "dry_run": "on"})
    dry = Job.objects.get()
    assert (dry.kind, dry.is_dry_run) == ("rebuild_indexes", True)
    assert dry.parameters["indexes"] == ["two", "<b>"]
    job_runner.run_job(dry.pk)
    page = text(browser.get(url(dry)))
    assert "<td>Segments</td><td>3</td><td>3</td>" in page
    assert "Plan (2 parts)" in page
    assert page.count("BTREE") == 2
    browser.post(url(dry, "run"))
    job = Job.objects.latest("pk")
    assert (job.is_dry_run, job.parameters["indexes"]) == (False, ["two", "<b>"])
    browser.post(url(row, "rebuild_indexes"), {})
    assert "indexes" not in Job.objects.latest("pk").parameters


@pytest.mark.parametrize("make", [make_live, lambda *name: make_lance_table(name)])
def test_a_table_without_an_index_is_a_message(browser, make):
    row = make("a", "t")
    with unchanged():
        assert "Indexes to process" in text(browser.get(url(row, "rebuild_indexes")))
        answer = browser.post(url(row, "rebuild_indexes"))
    assert len(messages_of(answer)) == 1
    with unchanged():
        assert len(messages_of(press(browser, "rebuild_indexes_now", [row]))) == 1


def test_a_table_without_data_is_a_message(browser):
    row = make_table("a", "t")
    assert url(row, "compact") not in text(browser.get(url(row)))
    with unchanged():
        answer = browser.post(url(row, "compact"))
    assert answer.status_code == 200
    assert len(messages_of(answer)) == 1
    assert "a.t" in messages_of(answer)[0]


@pytest.mark.parametrize("action", ["compact", "measure"])
def test_the_page_of_a_dropped_table_does_not_change_a_new_table_of_its_name(browser, action):
    row = make_live("a", "t")
    commit([table_operations.DeregisterTable(table=("a", "t"))], actor=SYSTEM)
    make_live("a", "t")
    with unchanged():
        answer = browser.post(url(row, action))
    assert messages_of(answer) == ["Table 'a.t' does not exist"]
    assert 'aria-label="Compact"' not in text(browser.get(tab(row)))


@pytest.mark.parametrize("action", [*maintenance_actions.keys(), "measure"])
def test_buttons_require_privileges(sign_in, browser, action):
    row = make_live("a", "t")
    bob = sign_in("read")
    assert url(row, action) not in text(bob.get(tab(row)))
    with unchanged():
        assert bob.get(url(row, action)).status_code == 403
        assert bob.post(url(row, action)).status_code == 403


def test_a_button_measures_a_table(browser):
    row = make_lance_table(("a", "t"))
    answer = browser.post(url(row, "measure"))
    assert (answer.status_code, answer.headers["location"]) == (302, tab(row))
    health = TableHealth.objects.newest().get(table=row)
    assert messages_of(answer) == [f"Table 'a.t' was measured: health {health.score} of 100"]
    assert health.statistics["rows"] == 3


def test_a_button_compacts_a_table(browser):
    row = make_lance_table(("a", "t"), pa.table({"id": [1]}))
    for number in range(2, 12):
        insert(actor=SYSTEM, table=("a", "t"), data=pa.table({"id": [number]}).to_reader())
    browser.post(url(row, "measure"))
    assert "11 of 11 files are small" in text(browser.get(tab(row)))
    browser.post(url(row, "compact"), {"dry_run": "on"})
    dry = Job.objects.get(is_dry_run=True)
    job_runner.run_job(dry.pk)
    page = text(browser.get(url(dry)))
    assert "After (projected)" in page
    assert "<td>Files</td><td>11</td><td>1</td><td>−10</td>" in page
    assert url(dry, "run") in page
    answer = browser.post(url(dry, "run"))
    job = Job.objects.get(is_dry_run=False)
    assert answer.headers["location"] == url(job)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == JobStatus.SUCCEEDED
    page = text(browser.get(url(job)))
    assert "<td>Files</td><td>11</td><td>1</td><td>−10</td>" in page
    assert "committed version" in page
    month = browser.get("/admin/").context["month"]
    assert dict(month.figures)["small files merged"] == "10"


# --- several tables


def press(browser, action: str, rows, page: str = "/admin/catalog/table/", **more: str):
    form = {"action": action, "_selected_action": [row.pk for row in rows], **more}
    return browser.post(page, form)


def test_an_action_starts_jobs_for_several_tables(browser):
    rows = [make_live("a", f"t{number}") for number in range(3)]
    answer = press(browser, "compact_dry_run", rows[:2])
    assert answer.status_code == 302
    jobs = Job.objects.order_by("pk")
    assert {(job.table.name, job.kind, job.is_dry_run) for job in jobs} == {
        ("t0", "compact", True),
        ("t1", "compact", True),
    }
    (message,) = messages_of(answer)
    assert "2 jobs</a> were started" in message
    assert message.startswith("Compact (dry run): ")


def test_an_action_starts_jobs_for_several_measurements(browser):
    rows = [measured(make_live("a", f"t{number}")) for number in range(2)]
    assert press(browser, "clean_up_now", rows, LIST).status_code == 302
    assert Job.objects.filter(kind="clean_up", is_dry_run=False).count() == 2


def test_an_action_reports_the_tables_that_it_refuses(browser):
    good, declared = make_live("a", "good"), make_table("a", "declared")
    make_iceberg_table("a", "i")
    rows = [good, declared, Table.objects.get(name="i")]
    answer = press(browser, "optimize_indexes_now", rows)
    job = Job.objects.get()
    assert job.table == good
    messages = messages_of(answer)
    assert len(messages) == 3
    assert f"Job {job.pk}</a>" in messages[0]
    assert "a.i: Tables in Iceberg format do not support 'optimize_indexes'" in messages


def test_many_refusals_are_summarized(browser):
    rows = [make_table("a", f"t{number}") for number in range(9)]
    with unchanged():
        answer = press(browser, "compact_now", rows)
    assert len(messages_of(answer)) == 6
    assert messages_of(answer)[-1] == "and 4 more tables were not changed"


def test_actions_on_too_many_tables_are_refused(browser, monkeypatch):
    monkeypatch.setattr("catalog.admin.maintenance.actions.MAX_TABLES", 2)
    rows = [make_live("a", f"t{number}") for number in range(3)]
    with unchanged():
        answer = press(browser, "compact_now", rows[:1], select_across="1")
    assert messages_of(answer)[0].startswith("No job was started. Select at most 2 tables")


@pytest.mark.parametrize("page", ["/admin/catalog/table/", LIST])
def test_actions_require_privileges(sign_in, browser, page):
    row = make_live("a", "t")
    health = measured(row)
    bob = sign_in("read")
    assert "compact_now" in text(browser.get(page))
    assert "compact_now" not in text(bob.get(page))
    with unchanged():
        press(bob, "compact_now", [health if page == LIST else row], page)


# --- the first page


def ended(table: Table, kind: str, days: int = 0, **changed: Any) -> Job:
    values = {
        "status": JobStatus.SUCCEEDED,
        "finished_at": timezone.now() - timedelta(days=days),
        **changed,
    }
    return Job.objects.create(kind=kind, table=table, **values)


def test_the_overview_adds_up_results_of_maintenance(browser):
    row = make_live("a", "t")
    assert "No maintenance jobs." in text(browser.get("/admin/"))
    ended(row, "clean_up", 1, result={"files": 7, "bytes": 1024})
    ended(row, "remove_orphans", 2, result={"files": 3, "bytes": 2048, "plan": {"files": 9}})
    deleted_counts = {"deleted_data_files_count": 5, "deleted_manifest_files_count": 5}
    ended(
        row,
        "clean_up",
        3,
        result={"done": deleted_counts, "files": 10, "bytes": 1024, "before": {}},
    )
    ended(row, "compact", 3, result={"before": {"files": 20}, "after": {"files": 2}})
    ended(row, "compact", 3, result={"before": {"files": 2}, "after": {"files": 5}})
    # These do not count: dry runs, failures, other kinds of jobs, old jobs, and invalid results.
    ended(row, "clean_up", 1, is_dry_run=True, result={"files": 100, "bytes": 100})
    ended(row, "clean_up", 1, status=JobStatus.FAILED, result={"files": 100})
    ended(row, "clean_up", 1, status=JobStatus.CANCELED, result=None)
    ended(row, "build_index", 1, result={"files": 100})
    ended(row, "clean_up", 40, result={"files": 100})
    ended(row, "clean_up", 4, result={"files": "many", "bytes": None, "done": [1]})
    ended(row, "clean_up", 4, result=["odd"])
    maintenance_scheduler.start(actor=SYSTEM, table=("a", "t"), kind="compact")
    month = browser.get("/admin/").context["month"]
    assert {name: str(value) for name, value in month.figures} == {
        "bytes reclaimed": '<span title="4096 bytes">4.0\xa0KB</span>',
        "files removed": "20",
        "small files merged": "18",
        "plans kept": '<span class="m-muted m-none">–</span>',
        "jobs succeeded": "7",
        "failed": "1",
        "running or queued": "1",
    }
    assert month.note == ""
    assert "7 succeeded, 1 dry runs, 1 canceled, 1 failed" in month.chart
    yesterday = (timezone.now() - timedelta(days=1)).date()
    assert f"<title>{yesterday}: 1 failed</title>" in month.chart


def test_the_overview_reports_its_limit_of_jobs(browser, monkeypatch):
    monkeypatch.setattr("catalog.admin.site.month.MAX_ROWS", 2)
    row = make_live("a", "t")
    for days in (1, 2, 3):
        ended(row, "clean_up", days, result={"files": 1, "bytes": 1})
    month = browser.get("/admin/").context["month"]
    assert dict(month.figures)["files removed"] == "2"
    oldest = (timezone.now() - timedelta(days=2)).date()
    assert month.note == f"Based on the last 2 finished jobs, back to {oldest}."
    assert month.note in text(browser.get("/admin/"))


def test_the_overview_names_the_tables_with_the_lowest_scores(browser):
    measured(make_live("a", "ill"))
    measured(make_live("a", "well"), **NOTHING)
    panel = browser.get("/admin/").context["unhealthy"]
    assert len(panel.rows) == 1
    assert "a.ill" in panel.rows[0][0]


# --- cost


def test_pages_take_a_fixed_number_of_queries(browser):
    def fill(start: int, stop: int) -> None:
        for number in range(start, stop):
            row = make_live(f"n{number}", "t")
            measured(row)
            ended(row, "compact")
            measured(first)
            ended(first, "clean_up", result={"files": 1, "bytes": 1})
            maintenance_scheduler.start(actor=SYSTEM, table=("n", "first"), kind="compact")

    first = make_live("n", "first")
    expected = {
        "/admin/": 23,
        LIST: 3,
        f"{LIST}?score=poor&work=compact&format=lance&in=n": 4,
        f"{LIST}?q=t": 3,
        tab(first): 18,
        url(first, "compact"): 3,
        "/admin/catalog/job/": 3,
        "/admin/catalog/job/?since=month&dry_run=no": 3,
    }

    def cost() -> dict[str, int]:
        counts = {}
        for page in expected:
            with CaptureQueriesContext(connection) as queries:
                assert browser.get(page).status_code == 200
            counts[page] = len(queries)
        return counts

    fill(0, 3)
    assert cost() == expected
    fill(3, 30)
    assert cost() == expected


def test_rows_are_read_only(browser):
    health = measured(make_live("a", "t"))
    assert browser.post(url(health, "delete"), {"post": "yes"}).status_code == 403
    press(browser, "delete_selected", [health], LIST, post="yes")
    assert TableHealth.objects.filter(pk=health.pk).exists()
