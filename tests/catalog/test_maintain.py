"""The command ``manage.py maintain``."""

import io
import json
import threading

import pyarrow as pa
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from catalog.access import SYSTEM
from catalog.management.commands import maintain
from catalog.models import Job, JobEvent, JobStatus, MaintenancePolicy, Table
from catalog.services.engine import jobs
from catalog.services.lance import data as lance_data
from catalog.services.lance.indexes import indexes as lance_indexes
from catalog.services.lance.indexes.index_plans import NewIndex
from catalog.services.maintenance import job_runner, measurements, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from tests import clocks
from tests.factories import make_iceberg_table, make_lance_table, make_root, make_table, unchanged

pytestmark = pytest.mark.django_db


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _table(db, warehouse, monkeypatch):
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    monkeypatch.setattr(maintain, "_POLL_SECONDS", 0.01)
    make_root()
    make_lance_table(("ws", "t"), pa.table({"id": [1, 2, 3]}))


@pytest.fixture
def replace_work(monkeypatch):
    """Function that replaces the work of jobs."""

    def put(work) -> None:
        monkeypatch.setattr(job_runner, "_work", lambda job, spark: work)

    return put


def maintain_(*args: str, out: io.StringIO | None = None) -> str:
    out = out or io.StringIO()
    call_command("maintain", *args, stdout=out)
    return out.getvalue()


def error(*args: str) -> str:
    with unchanged(), pytest.raises(CommandError) as raised:
        maintain_(*args)
    return str(raised.value)


# --- plan -------------------------------------------------------------------------------------------


def test_the_plan_of_a_table_is_not_stored():
    with unchanged():
        text = maintain_("plan", "ws$t")
    assert text.startswith("ws.t: health 100 of 100\n")
    assert f"  {'rows':22} 3\n" in text
    assert text.endswith("Nothing needs to be done.\n")


def test_a_plan_shows_actions_and_tables():
    policies.set_namespace_policy(actor=SYSTEM, namespace=(), values={"min_small_files": 2})
    for n in range(3):
        rows = pa.table({"id": [n]}).to_reader()
        lance_data.insert(actor=SYSTEM, table=("ws", "t"), data=rows)
    text = maintain_("plan", "ws$t")
    assert "compact (dry_run, by the worker): 4 of 4 files are small\n" in text


def test_the_tables_with_the_lowest_scores_are_listed():
    assert maintain_("plan") == "No table has been measured yet.\n"
    make_lance_table(("other", "u"))
    measurements.measure_due()
    assert maintain_("plan").splitlines() == [
        f"100  {name:40} nothing" for name in ("ws.t", "other.u")
    ]
    assert maintain_("plan", "--limit", "1").count("\n") == 1
    assert maintain_("plan", "--namespace", "other") == f"100  {'other.u':40} nothing\n"
    row = Table.objects.select_related("namespace").get(name="u")
    measurements._record_nothing(row, maintain.timezone.now(), "The storage is away")
    assert maintain_("plan").splitlines()[0] == f"  0  {'other.u':40} The storage is away"


# --- run --------------------------------------------------------------------------------------------


def test_a_run_in_this_process_shows_its_result(replace_work):
    def work(job, report):
        report(4, 8)
        return {"before": {"files": 8}, "after": {"files": 1}, "note": "a remark"}

    replace_work(work)
    text = maintain_("run", "ws$t", "compact", "--here")
    job = Job.objects.get()
    assert (job.kind, job.status, job.is_dry_run) == ("compact", "succeeded", False)
    line, remark, result = text.split("\n", 2)
    assert line == f"Job {job.pk}: compact succeeded 4/8 files"
    assert remark == "a remark"
    assert json.loads(result) == {"before": {"files": 8}, "after": {"files": 1}}
    assert "\r" not in text


def test_indexes_are_rebuilt():
    for name in ("one", "two"):
        index = NewIndex(column="id", index_type="BTREE", name=name)
        lance_indexes.create_index(actor=SYSTEM, table=("ws", "t"), index=index)
    kind = ("run", "ws$t", "rebuild_indexes")
    assert error(*kind, "--index", "gone") == "Table 'ws.t' has no index 'gone'"
    text = maintain_(*kind, "--index", "two", "--here")
    line, result = text.split("\n", 1)
    assert line == f"Job {Job.objects.get().pk}: rebuild_indexes succeeded 3/3 rows"
    assert [index["name"] for index in json.loads(result)["plan"]["indexes"]] == ["two"]
    text = maintain_(*kind, "--here", "--dry-run")
    dry_run = json.loads(text.split("\n", 1)[1])
    assert [index["name"] for index in dry_run["plan"]["indexes"]] == ["one", "two"]
    assert "version" not in dry_run


def test_a_dry_run_changes_nothing():
    text = maintain_("run", "ws$t", "clean_up", "--dry-run", "--here")
    job = Job.objects.get()
    assert (job.status, job.is_dry_run, job.error) == ("succeeded", True, "")
    assert f"Job {job.pk}: clean_up (dry run) succeeded" in text


def test_a_progress_bar_appears_only_on_a_terminal(replace_work):
    replace_work(lambda job, report: report(4, 8))
    text = maintain_("run", "ws$t", "compact", "--here", out=Terminal())
    assert text.startswith("\rJob ")
    assert f"[{'#' * 15}{'.' * 15}] 4/8 files\n" in text
    assert text.endswith("{}\n")


@pytest.mark.django_db(transaction=True)
def test_a_run_by_a_worker_is_watched_until_it_ends(replace_work):
    half, resumed = threading.Event(), threading.Event()

    class Watched(Terminal):
        def write(self, text: str) -> int:
            if "running" in text and "4/8" in text:
                resumed.set()
            return super().write(text)

    def work(job, report):
        report(4, 8)
        jobs.renew(job)  # as the lease heartbeat does every two seconds
        half.set()
        resumed.wait(20)
        report(8, 8)

    replace_work(work)

    def worker() -> None:
        while not (job := Job.objects.filter(status=JobStatus.QUEUED).first()):
            pass
        job_runner.run_job(job.pk)
        connection.close()

    thread = threading.Thread(target=worker)
    thread.start()
    out = Watched()
    text = maintain_("run", "ws$t", "compact", out=out)
    thread.join()
    assert half.is_set()
    assert resumed.is_set()
    assert "succeeded" in text
    assert f"[{'#' * 30}] 8/8 files" in text


def test_a_job_may_be_left_to_a_worker():
    text = maintain_("run", "ws$t", "compact", "--no-wait")
    job = Job.objects.get()
    assert (text, job.status) == (f"Job {job.pk}: compact queued\n", "queued")


def test_an_interrupt_does_not_stop_the_job(monkeypatch):
    def interrupted(seconds):
        raise KeyboardInterrupt

    clocks.replace(monkeypatch, maintain, sleep=interrupted)
    with pytest.raises(
        CommandError, match=r"continues; run manage\.py maintain status \d+ to see it"
    ):
        maintain_("run", "ws$t", "compact")
    assert Job.objects.get().status == "queued"


def test_a_job_that_fails_is_an_error(replace_work):
    def work(job, report):
        raise maintain.InvalidInput("there is no way")

    replace_work(work)
    with pytest.raises(CommandError, match="has failed: there is no way"):
        maintain_("run", "ws$t", "compact", "--here")


def test_the_command_does_not_wait_for_retries(replace_work):
    def work(job, report):
        raise OSError("the storage is away")

    replace_work(work)
    with pytest.raises(CommandError, match="is queued for a worker: the storage is away"):
        maintain_("run", "ws$t", "compact", "--here")
    Job.objects.update(lease_until=None)
    with pytest.raises(CommandError, match="is queued for a worker: another job of the table"):
        maintain_("run", "ws$t", "compact", "--here")


def test_invalid_runs_are_refused():
    make_table("ws", "empty")
    make_iceberg_table("ws", "i")
    assert error("run", "ws$no", "compact") == "Table 'ws.no' does not exist"
    assert error("run", "no$no", "compact") == "Namespace 'no' does not exist"
    assert "declared" in error("run", "ws$empty", "compact")
    assert "Lance format do not support 'rewrite_manifests'" in error(
        "run", "ws$t", "rewrite_manifests"
    )
    assert error("run", "ws$", "compact") == "Table 'ws' does not exist"
    assert "name must not be empty" in error("run", "ws$$t", "compact")
    assert error("plan", "ws$no") == "Table 'ws.no' does not exist"
    assert "declared" in error("plan", "ws$empty")
    assert error("status", "99") == "Job '99' does not exist"
    assert "invalid choice" in error("run", "ws$t", "build_index")
    assert "not allowed with" in error("run", "ws$t", "compact", "--here", "--no-wait")
    assert "invalid" in error("status", "0")
    assert "invalid" in error("plan", "--limit", "-1")
    assert "out of range" in error("status", "--hours", "nan")
    assert "out of range" in error("status", "--hours", "1e12")


# --- status -----------------------------------------------------------------------------------------


def test_the_status_shows_active_and_recent_jobs(replace_work):
    assert maintain_("status") == "No maintenance ran.\n"

    def work(job, report):
        report(3, None)
        raise maintain.InvalidInput("there is no way")

    replace_work(work)
    failed = maintenance_scheduler.start(actor=SYSTEM, table=("ws", "t"), kind="compact")
    job_runner.run_job(failed.pk)
    waits = maintenance_scheduler.start(
        actor=SYSTEM, table=("ws", "t"), kind="clean_up", is_dry_run=True
    )
    assert maintain_("status").splitlines() == [
        f"{waits.pk:>8}  {'ws.t':40} clean_up (dry run) queued",
        f"{failed.pk:>8}  {'ws.t':40} compact failed 3 files there is no way",
    ]
    assert maintain_("status", "--limit", "1").count("\n") == 1
    past = maintain.timezone.now() - maintain.timedelta(hours=3)
    Job.objects.filter(pk=failed.pk).update(finished_at=past)
    assert maintain_("status", "--hours", "2").count("\n") == 1
    assert maintain_("status", "--hours", "4").count("\n") == 2


def test_the_status_of_a_job_shows_its_log(replace_work, monkeypatch):
    monkeypatch.setattr(maintain.job_control, "PAGE_SIZE", 1)

    def work(job, report):
        jobs.log_event(job, "planned", data={"files": 8})
        jobs.log_event(job, "others were quicker", JobEvent.Level.WARNING)
        return {"after": 1}

    replace_work(work)
    job = maintenance_scheduler.start(actor=SYSTEM, table=("ws", "t"), kind="compact")
    job_runner.run_job(job.pk)
    head, first, second, *result = maintain_("status", str(job.pk)).splitlines()
    assert head == f"Job {job.pk}, ws.t: compact succeeded"
    assert first.endswith('  info     planned {"files": 8}')
    assert second.endswith("  warning  others were quicker")
    assert json.loads("\n".join(result)) == {"after": 1}


# --- policy -----------------------------------------------------------------------------------------


def lines(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split(maxsplit=2)[1:] for line in text.splitlines()}


def test_policies_are_set_and_shown():
    with unchanged():
        assert lines(maintain_("policy", "ws$t"))["compaction"] == ["dry_run", "default"]
    maintain_("policy", "--namespace", "$", "--set", "keep_versions=4", "--set", "small_ratio=0.25")
    maintain_("policy", "--namespace", "ws", "--set", "compaction=on", "--set", "window_from=22:00")
    text = maintain_("policy", "ws$t", "--set", "target_rows=4096", "--set", "cleanup=off")
    settings = lines(text)
    assert settings["keep_versions"] == ["4", "(root)"]
    assert settings["small_ratio"] == ["0.25", "(root)"]
    assert settings["compaction"] == ["on", "ws"]
    assert settings["target_rows"] == ["4096", "set here, ws.t"]
    values = MaintenancePolicy.objects.get(table__name="t").values
    assert values == {"target_rows": 4096, "cleanup": "off"}
    maintain_("policy", "ws$t", "--unset", "cleanup", "--set", "keep_versions=9")
    values = MaintenancePolicy.objects.get(table__name="t").values
    assert values == {"target_rows": 4096, "keep_versions": 9}
    maintain_("policy", "ws$t", "--unset", "target_rows", "--unset", "keep_versions")
    assert not MaintenancePolicy.objects.filter(table__name="t").exists()


def test_invalid_policies_are_refused():
    assert "Policy setting 'nothing' does not exist" in error(
        "policy", "ws$t", "--set", "nothing=1"
    )
    assert "Policy setting 'nothing' does not exist" in error(
        "policy", "ws$t", "--unset", "nothing"
    )
    assert "does not have the form name=value" in error("policy", "ws$t", "--set", "compaction")
    assert "not 'many'" in error("policy", "ws$t", "--set", "keep_versions=many")
    assert "one of off, dry_run, on" in error("policy", "ws$t", "--set", "compaction=yes")
    assert error("policy", "ws$no") == "Table 'ws.no' does not exist"
    assert error("policy", "--namespace", "no") == "Namespace 'no' does not exist"
