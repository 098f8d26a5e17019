"""Jobs in the admin: the list, the page of an active or finished job, and its buttons."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog.access import SYSTEM, Principal
from catalog.models import (
    Heartbeat,
    Job,
    JobEvent,
    JobKind,
    JobStatus,
    ProcessRole,
    Table,
    TransactionStatus,
    TrashItem,
)
from catalog.privileges import Privilege
from catalog.services.engine import jobs, processes
from catalog.services.engine.commit import commit
from catalog.services.maintenance import policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.tables import table_operations
from tests.cases import shared_cases
from tests.factories import make_iceberg_table, make_table, make_version, unchanged

LIST = "/admin/catalog/job/"


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch):
    monkeypatch.setattr("celery.current_app.send_task", lambda *a, **k: None)


@pytest.fixture
def table(browser) -> Table:
    make_table("prod", "t")
    make_version(("prod", "t"), 1)
    return Table.objects.select_related("namespace").get(name="t")


def start(
    kind: str = "compact", *, is_dry_run: bool = False, actor: Principal = SYSTEM, **changed: Any
) -> Job:
    job = maintenance_scheduler.start(
        actor=actor, table=("prod", "t"), kind=kind, is_dry_run=is_dry_run
    )
    Job.objects.filter(pk=job.pk).update(**changed)
    return Job.objects.select_related("table__namespace", "transaction").get(pk=job.pk)


def end(job: Job, status: JobStatus, **changed: Any) -> Job:
    """Give a job the state of one that has just ended."""
    now = timezone.now()
    values = {"started_at": now - timedelta(seconds=75), "finished_at": now, "attempts": 1}
    Job.objects.filter(pk=job.pk).update(status=status, **(values | changed))
    return Job.objects.select_related("table__namespace", "transaction").get(pk=job.pk)


def url(row: Job, action: str = "change") -> str:
    return f"{LIST}{row.pk}/{action}/"


def test_details_are_shown_to_readers_of_the_table_only(browser, sign_in, table):
    secret = "part=alice/00001.parquet"
    job = end(start(), JobStatus.FAILED, error=secret, result={"x": secret}, spark_ui=secret)
    JobEvent.objects.create(job=job, message=secret)
    bob = sign_in("browse")
    pages = (
        LIST,
        url(job),
        url(job, "progress"),
        "/admin/",
        f"/admin/catalog/table/{table.pk}/change/",
    )
    for page in (*pages, f"{pages[-1]}?tab=jobs", f"{pages[-1]}?tab=health"):
        assert secret not in text(bob.get(page)), page
    assert "failed" in text(bob.get(url(job)))
    assert "Result and log are shown to users who may read the table." in text(bob.get(url(job)))
    for page in (LIST, url(job), f"{pages[-1]}?tab=jobs"):
        assert secret in text(browser.get(page)), page


def text(answer) -> str:
    assert answer.status_code == 200
    return answer.content.decode()


def messages_of(answer) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


def panel(browser, row: Job, title: str):
    answer = browser.get(url(row))
    assert answer.status_code == 200
    return next(
        candidate for candidate in answer.context["panels"] if candidate.title.startswith(title)
    )


# --- the list


def test_an_empty_list_explains_the_next_steps(browser):
    assert "No jobs." in text(browser.get(LIST))
    assert "No matching entries." in text(browser.get(f"{LIST}?dry_run=yes"))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"old", "dry", "failed", "other"}),
        ("kind__exact=clean_up", {"failed"}),
        ("status__exact=failed", {"failed"}),
        ("dry_run=yes", {"dry"}),
        ("dry_run=no", {"old", "failed", "other"}),
        ("dry_run=x", {"old", "dry", "failed", "other"}),
        ("table=prod.t", {"old", "dry", "failed"}),
        ("table=prod$u", {"other"}),
        ("table=nowhere", set()),
        ("since=hour", {"dry", "failed", "other"}),
        ("since=day", {"dry", "failed", "other"}),
        ("since=week", {"old", "dry", "failed", "other"}),
        ("since=x", {"old", "dry", "failed", "other"}),
        ("q=u", {"other"}),
        ("table=prod.t&dry_run=no&since=month", {"old", "failed"}),
    ],
)
def test_the_list_is_filtered(browser, table, query, expected):
    rows = {
        "old": start(created_at=timezone.now() - timedelta(days=2)),
        "dry": start(is_dry_run=True),
        "failed": start("clean_up", status=JobStatus.FAILED),
    }
    make_table("prod", "u")
    commit([table_operations.DropTable(table=("prod", "u"))], actor=SYSTEM)
    make_table("prod", "u")
    rows["other"] = Job.objects.create(
        kind=JobKind.BACKFILL_COLUMN, table=Table.objects.named(("prod", "u")).get()
    )
    answer = browser.get(f"{LIST}?{query}", follow=True)
    assert answer.status_code == 200
    keys = {row.pk for row in answer.context["cl"].result_list}
    purge = {Job.objects.get(kind=JobKind.PURGE_TABLE).pk}
    assert keys - purge == {rows[name].pk for name in expected}


def test_a_filtered_list_searches_the_newest_jobs(browser, table, monkeypatch):
    monkeypatch.setattr("catalog.admin.maintenance.jobs.SEARCHED", 1)
    actors = [Principal(f"user-{number}", Privilege.ALL) for number in range(3)]
    rows = [start(is_dry_run=True, actor=actor) for actor in actors]

    def listed(query: str) -> list[int]:
        return [row.pk for row in browser.get(f"{LIST}?{query}").context["cl"].result_list]

    newest_first = [row.pk for row in reversed(rows)]
    assert listed("dry_run=yes") == newest_first[:1]
    assert listed("table=prod.t&dry_run=yes") == newest_first
    assert listed("") == newest_first


def test_the_list_marks_dry_runs(browser, table):
    start(is_dry_run=True)
    assert "Compact (dry run)" in text(browser.get(LIST))


@shared_cases(
    "query", ["table=%00", "table=%FF", "table=..", "since=%00", "dry_run=%00", "q=%00", "p=x"]
)
def test_invalid_parameters_do_not_break_the_list(browser, table, query):
    start()
    assert browser.get(f"{LIST}?{query}", follow=True).status_code == 200


# --- a job's page


def test_the_page_shows_the_request(browser, table):
    policies.set_table_policy(actor=SYSTEM, table=("prod", "t"), values={"keep_for": 86_400})
    row = start(is_dry_run=True)
    rows = {str(line[0]): str(line[1]) for line in panel(browser, row, "Policy of the job").rows}
    assert rows["Keep for"] == "1 day"
    assert rows["Compaction"] == "Dry run"
    assert "Min manifests" not in rows  # a setting of Iceberg
    page = text(browser.get(url(row)))
    assert "yes, without changes" in page
    assert "system" in page


def test_the_page_of_an_active_job_refreshes_every_two_seconds(browser, table):
    row = start(
        status=JobStatus.RUNNING,
        progress=30,
        total=120,
        attempts=2,
        started_at=timezone.now() - timedelta(minutes=65),
        lease_until=timezone.now() + timedelta(minutes=1),
    )
    jobs.log_event(row, "planned")
    jobs.log_event(row, "committed version 7")
    page = text(browser.get(url(row)))
    assert f'data-poll="{url(row, "progress")}"' in page
    assert 'data-interval="2000"' in page
    assert "setTimeout(poll, live.dataset.interval)" in page
    assert "<noscript><p" in page
    with CaptureQueriesContext(connection) as queries:
        answer = browser.get(url(row, "progress"))
    assert len(queries) == 4
    assert "no-store" in answer.headers["cache-control"]
    fragment = text(answer)
    for expected in (
        "data-active",
        'role="progressbar"',
        'aria-valuemax="120" aria-valuenow="30"',
        'aria-valuetext="30 of 120 files"',
        "width: 25.0%",
        "running for 1 h 5 min, attempt 2",
        "committed version 7",
    ):
        assert expected in fragment, expected
    assert "<html" not in fragment
    assert "planned" not in fragment
    end(row, JobStatus.SUCCEEDED, progress=120)
    fragment = text(browser.get(url(row, "progress")))
    assert "data-active" not in fragment
    assert "took 1 min 15 s" in fragment
    page = text(browser.get(url(row)))
    assert "data-poll" not in page
    assert "<noscript><p" not in page


def test_the_page_of_a_queued_job_shows_that_it_waits(browser, table):
    assert "waiting for a worker" in text(browser.get(url(start(), "progress")))
    again = start(started_at=timezone.now(), attempts=1)
    assert "waiting for the next attempt" in text(browser.get(url(again, "progress")))


def test_progress_requires_browse(sign_in, client, table):
    row = start()
    assert sign_in().get(url(row, "progress")).status_code == 404
    assert client.get(url(row, "progress")).status_code == 302


@pytest.mark.parametrize(("privilege", "is_visible"), [("browse", False), ("read", True)])
def test_locations_require_read(sign_in, table, privilege, is_visible):
    pages = [url(start())]
    bob = sign_in(privilege)
    assert (table.location in text(bob.get(pages[0]))) is is_visible
    commit([table_operations.DropTable(table=("prod", "t"))], actor=SYSTEM)
    pages.append(f"/admin/catalog/trashitem/{TrashItem.objects.get().pk}/change/")
    for page in pages:
        content = text(bob.get(page))
        assert "prod.t" in content
        assert (table.location in content) is is_visible, page


@pytest.mark.parametrize("number", ["0", "x", "99999999999999999999"])
def test_a_missing_job_gets_404(browser, number):
    assert browser.get(f"{LIST}{number}/progress/").status_code == 404
    for action in ("retry", "run", "cancel", "change"):
        assert browser.get(f"{LIST}{number}/{action}/").status_code == 404


def test_figures_before_and_after_are_shown(browser, table):
    result = {
        "before": {"files": 200, "bytes": 4096, "rows": 10, "odd": [1], "gone": 3},
        "after": {"files": 4, "bytes": 5120, "rows": 10, "is": True, "new": 2},
        "plan": {"files": 196, "paths": ["a"] * 200, "bytes": 2048},
        "version": 1_234,
        "transaction_id": "0190",
    }
    row = end(start(), JobStatus.SUCCEEDED, result=result, error="a remark")
    figures = panel(browser, row, "Before and after")
    assert figures.columns == ("Figure", "Before", "After", "Difference")
    plain = [[str(cell) for cell in line] for line in figures.rows]
    assert [line[0] for line in plain] == ["Rows", "Files", "Bytes", "Gone", "New"]
    none = '<span class="m-muted m-none">–</span>'
    assert plain[0] == ["Rows", "10", "10", '<span class="m-muted">unchanged</span>']
    assert plain[1] == ["Files", "200", "4", "−196"]
    assert plain[2][3] == "+1.0\xa0KB"
    assert plain[3] == ["Gone", "3", none, none]
    assert plain[4] == ["New", none, "2", none]
    page = text(browser.get(url(row)))
    for fragment in ("<h2><span>Plan<", "2.0\xa0KB", "<dt>Remark</dt><dd>a remark</dd>", "1,234"):
        assert fragment in page, fragment


def test_the_page_of_a_dry_run_shows_its_plan(browser, table):
    result = {
        "before": {"versions": 9},
        "after": {"versions": 2},
        "plan": [{"branch": "", "versions": [[1, 8]]}, {"branch": "b"}],
    }
    row = end(start(is_dry_run=True), JobStatus.SUCCEEDED, result=result)
    assert panel(browser, row, "Before and after").columns[2] == "After (projected)"
    assert len(panel(browser, row, "Plan").rows) == 2


@pytest.mark.parametrize(
    "result", [None, [], "x", {"before": None, "after": 3}, {"plan": "all"}, {"planned": [1]}]
)
def test_the_page_opens_with_invalid_results(browser, table, result):
    row = end(start(), JobStatus.SUCCEEDED, result=result)
    assert browser.get(url(row)).status_code == 200
    Job.objects.filter(pk=row.pk).update(parameters={"policy": ["odd"], "indexes": ["a"]})
    assert browser.get(url(row)).status_code == 200


def test_the_log_is_paged_with_the_newest_first(browser, table):
    row = start()
    for number in range(120):
        jobs.log_event(row, f"line {number}", JobEvent.Level.WARNING, {"bytes": number * 1024})
    messages, here = [], url(row)
    while here:
        answer = browser.get(here)
        log = next(p for p in answer.context["panels"] if p.title.startswith("Log"))
        messages += [line[2] for line in log.rows]
        here = log.following and f"{url(row)}{log.following}"
    assert messages == [f"line {number}" for number in range(119, -1, -1)]
    assert "m-warning" in text(browser.get(url(row)))
    assert browser.get(f"{url(row)}?before=x").status_code == 200


def test_texts_of_jobs_are_escaped(browser, table):
    evil = "<script>alert(1)</script>"
    row = end(
        start(),
        JobStatus.FAILED,
        error=evil,
        result={evil: evil, "before": {evil: 1}, "plan": {evil: evil}},
        parameters={"policy": {"keep_for": evil}, evil: evil},
    )
    jobs.log_event(row, evil, data={evil: evil})
    assert evil not in text(browser.get(url(row)))
    Job.objects.filter(pk=row.pk).update(status=JobStatus.RUNNING)
    assert evil not in text(browser.get(url(row, "progress")))


def test_pages_take_a_fixed_number_of_queries(browser, table):
    row = start()

    def cost() -> list[int]:
        counts = []
        for page in (url(row), url(row, "progress")):
            with CaptureQueriesContext(connection) as queries:
                assert browser.get(page).status_code == 200
            counts.append(len(queries))
        return counts

    for number in range(3):
        jobs.log_event(row, f"line {number}")
    assert cost() == [5, 4]
    for number in range(90):
        jobs.log_event(row, f"line {number}")
    assert cost() == [5, 4]


# --- buttons


@pytest.mark.parametrize(
    ("status", "is_dry_run", "offered"),
    [
        (JobStatus.QUEUED, False, {"cancel"}),
        (JobStatus.RUNNING, True, {"cancel"}),
        (JobStatus.FAILED, False, {"retry"}),
        (JobStatus.CANCELED, True, {"retry"}),
        (JobStatus.SUCCEEDED, True, {"run"}),
        (JobStatus.SUCCEEDED, False, set()),
    ],
)
def test_buttons_depend_on_the_state_of_the_job(browser, table, status, is_dry_run, offered):
    row = start(is_dry_run=is_dry_run, status=status)
    page = text(browser.get(url(row)))
    assert {name for name in ("cancel", "retry", "run") if url(row, name) in page} == offered


def test_jobs_of_other_kinds_cannot_be_retried(browser, table):
    row = Job.objects.create(kind=JobKind.BACKFILL_COLUMN, table=table, status=JobStatus.FAILED)
    assert url(row, "retry") not in text(browser.get(url(row)))
    with unchanged():
        answer = browser.post(url(row, "retry"))
    assert len(messages_of(answer)) == 1


def test_a_failed_job_is_retried(browser, table):
    row = end(start("clean_up", is_dry_run=True), JobStatus.FAILED, error="no Java")
    with unchanged():
        assert "Retry Job" in text(browser.get(url(row, "retry")))
    answer = browser.post(url(row, "retry"))
    again = Job.objects.get(status=JobStatus.QUEUED)
    assert (answer.status_code, answer.headers["location"]) == (302, url(again))
    assert (again.kind, again.is_dry_run) == ("clean_up", True)
    assert again.transaction.actor == "user:ada"
    row.refresh_from_db()
    assert (row.status, row.error) == (JobStatus.FAILED, "no Java")


def test_an_active_job_is_not_retried(browser, table):
    row = start()
    with unchanged():
        answer = browser.post(url(row, "retry"))
    assert messages_of(answer) == [f"Job {row.pk} is queued and cannot be retried"]


def test_the_plan_of_a_dry_run_is_executed(browser, table):
    row = end(start(is_dry_run=True), JobStatus.SUCCEEDED)
    answer = browser.post(url(row, "run"))
    job = Job.objects.get(status=JobStatus.QUEUED)
    assert answer.headers["location"] == url(job)
    assert not job.is_dry_run


@pytest.mark.parametrize("action", ["retry", "run"])
def test_a_job_of_a_dropped_table_does_not_change_a_new_table_of_its_name(browser, table, action):
    row = end(start(is_dry_run=True), JobStatus.CANCELED)
    commit([table_operations.DeregisterTable(table=("prod", "t"))], actor=SYSTEM)
    make_table("prod", "t")
    make_version(("prod", "t"), 1)
    with unchanged():
        answer = browser.post(url(row, action))
    assert messages_of(answer) == ["Table 'prod.t' does not exist"]


def test_a_queued_job_is_canceled(browser, table):
    row = start()
    assert browser.post(url(row, "cancel")).status_code == 302
    row.refresh_from_db()
    assert row.status == JobStatus.CANCELED
    assert row.transaction.status == TransactionStatus.CANCELED


def test_a_running_job_gets_a_request_to_stop(browser, table):
    row = start(status=JobStatus.RUNNING, lease_until=timezone.now() + timedelta(minutes=1))
    assert browser.post(url(row, "cancel")).status_code == 302
    page = text(browser.get(url(row)))
    assert "cancellation requested" in page
    assert "data-poll" in page


@pytest.mark.parametrize("action", ["retry", "run", "cancel"])
def test_buttons_require_privileges(sign_in, browser, table, action):
    status = JobStatus.QUEUED if action == "cancel" else JobStatus.FAILED
    row = start(status=status)
    bob = sign_in("read")
    assert url(row, action) not in text(bob.get(url(row)))
    with unchanged():
        assert bob.post(url(row, action)).status_code == 403


# --- stages and engines --------------------------------------------------------------------------


def test_the_page_shows_stages_with_their_durations_and_the_engine(table, browser):
    job = end(
        start(),
        JobStatus.SUCCEEDED,
        engine="spark",
        engine_reason="2.0 GB must be rewritten, more than 'spark_above' (1.0 GB)",
        spark_ui="http://127.0.0.1:4040",
    )
    began = job.finished_at - timedelta(seconds=20)
    Job.objects.filter(pk=job.pk).update(
        stages=[
            {"name": "planning", "began_at": (began - timedelta(seconds=5)).isoformat()},
            {"name": "rewriting", "began_at": began.isoformat(), "bytes": 3 * 1024**2},
        ]
    )
    page = browser.get(f"{LIST}{job.pk}/change/").content.decode()
    stages = page.partition("Stages")[2].partition("Log")[0]
    assert stages.index("planning") < stages.index("rewriting")
    assert "5.0 s" in stages
    assert "20.0 s" in stages
    assert "3.0" in stages
    assert "more than &#x27;spark_above&#x27; (1.0 GB)" in page
    assert 'href="http://127.0.0.1:4040"' in page


def test_a_url_of_spark_that_is_no_web_page_is_not_a_link(table, browser):
    job = end(start(), JobStatus.SUCCEEDED, engine="spark", spark_ui="javascript:alert(1)")
    assert "javascript:" not in browser.get(f"{LIST}{job.pk}/change/").content.decode()


def test_the_progress_of_a_running_job_names_its_stage(table, browser):
    job = start(
        status=JobStatus.RUNNING,
        started_at=timezone.now(),
        stages=[
            {"name": "rewriting", "began_at": timezone.now().isoformat(), "bytes": 5 * 1024**2}
        ],
    )
    fragment = browser.get(f"{LIST}{job.pk}/progress/").content.decode()
    assert "rewriting, 5.0" in fragment


def test_kinds_that_no_worker_can_run_have_no_buttons(browser):
    row = make_iceberg_table("prod", "ice")
    url = f"/admin/catalog/table/{row.pk}/change/?tab=maintenance"
    assert "/compact/" in browser.get(url).content.decode()
    processes.report(
        Heartbeat(
            name="jobs@a",
            role=ProcessRole.JOB_WORKER,
            seen_at=Now(),
            started_at=Now(),
            missing_for_iceberg="Spark needs Java 17 to 23, and none is installed",
        )
    )
    page = browser.get(url).content.decode()
    assert "/compact/" not in page
    assert "Spark needs Java 17 to 23, and none is installed" in page
    assert "/measure/" in page
