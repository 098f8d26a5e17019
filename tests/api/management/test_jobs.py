"""Jobs of maintenance: start, list, cancel, retry."""

import json
from datetime import timedelta
from urllib.parse import quote

import pyarrow as pa
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog import access
from catalog.access import SYSTEM, On, Principal, credentials
from catalog.errors import PermissionDenied
from catalog.models import (
    ApiKey,
    AuditEvent,
    Grant,
    Job,
    JobEvent,
    JobKind,
    JobStatus,
    PrincipalLevel,
    Transaction,
)
from catalog.models import Principal as PrincipalRow
from catalog.privileges import Privilege, closure, parse
from catalog.services.access import api_keys, grants
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.lance.indexes import indexes as lance_indexes
from catalog.services.lance.indexes.index_plans import NewIndex
from catalog.services.maintenance import job_control, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.tables import job_operations, table_operations
from tests.api.client import Lance
from tests.api.management.client import Management
from tests.cases import shared_cases
from tests.factories import (
    make_iceberg_table,
    make_lance_table,
    make_root,
    make_table,
    make_version,
    unchanged,
)


@pytest.fixture(autouse=True)
def sent(monkeypatch) -> list[int]:
    sent_jobs: list[int] = []
    monkeypatch.setattr(
        "celery.current_app.send_task", lambda name, args, **options: sent_jobs.append(args[0])
    )
    return sent_jobs


@pytest.fixture(autouse=True)
def _catalog(db):
    make_root()
    for name in ("t", "u"):
        make_table("ws", name)
        make_version(("ws", name), 1)


def start(name: str = "t", kind: str = "compact", *, is_dry_run: bool = False, by: str = "") -> Job:
    actor = Principal(by, Privilege.ALL) if by else SYSTEM
    return maintenance_scheduler.start(
        actor=actor, table=("ws", name), kind=kind, is_dry_run=is_dry_run
    )


def end(job: Job, status: JobStatus = JobStatus.SUCCEEDED, result: object = None) -> None:
    taken = jobs.take(job.pk)
    assert taken is not None
    taken.result = result
    jobs.finish(taken, status, "no good" if status == JobStatus.FAILED else "")


# --- details -----------------------------------------------------------------------------------------

SECRET = "part=alice/00001.parquet"
VISIBLE = ("id", "kind", "status", "table", "progress", "total", "stages", "actor", "finished_at")


@pytest.fixture
def failed(sent) -> Job:
    """A failed job whose parameters, result, error and log name a file."""
    job = start()
    end(job, JobStatus.FAILED)
    Job.objects.update(
        parameters={"indexes": [SECRET]},
        result={"files": [SECRET]},
        error=SECRET,
        engine_reason=SECRET,
        spark_ui=f"http://spark/{SECRET}",
        progress=3,
        total=5,
    )
    JobEvent.objects.create(job=job, message=SECRET, data={"file": SECRET})
    return job


def client_with(*privileges: str) -> Management:
    _, key = api_keys.create_api_key(actor=SYSTEM, name="limited", level=PrincipalLevel.GRANTED)
    principal = ApiKey.objects.get(name="limited").principal.name
    grants.set_grant(
        actor=SYSTEM, on=On.table(("ws", "t")), principal=principal, privileges=parse(privileges)
    )
    return Management(key)


@pytest.mark.parametrize("privilege", ["browse", "maintain", "grant"])
def test_details_of_a_job_require_read(management: Management, failed, privilege):
    limited = client_with(privilege)
    whole = management.get(f"jobs/{failed.pk}")
    assert whole["has_details"] is True
    assert SECRET in whole["log"][-1]["message"]
    shown = limited.get(f"jobs/{failed.pk}")
    assert SECRET not in json.dumps(shown)
    assert {name: shown[name] for name in VISIBLE} == {name: whole[name] for name in VISIBLE}
    assert (shown["has_details"], shown["log"], shown["next_page_token"]) == (False, [], None)
    assert (shown["parameters"], shown["result"], shown["spark_ui"]) == ({}, None, "")
    assert shown["message"] == "The message is shown to principals that may read the table"
    (listed,) = limited.get("jobs")["jobs"]
    assert SECRET not in json.dumps(listed)
    assert listed["status"] == "failed"
    transaction = f"/v1/transaction/{failed.transaction_id}/describe"
    described = Lance(limited.headers["x-api-key"]).call("POST", transaction, {})
    assert described.status_code == 200
    assert SECRET not in described.content.decode()
    limited_principal = access.of_row(ApiKey.objects.get(name="limited").principal)
    with pytest.raises(PermissionDenied):
        job_control.list_events(actor=limited_principal, job=failed)
    failed.refresh_from_db()
    assert failed.error == SECRET  # only the answers lack it


def test_readers_see_the_details_of_a_job(failed):
    reader = client_with("read")
    shown = reader.get(f"jobs/{failed.pk}")
    assert (shown["result"], shown["message"]) == ({"files": [SECRET]}, SECRET)
    assert shown["log"][-1]["message"] == SECRET


# --- start ------------------------------------------------------------------------------------------


@pytest.mark.operation("StartMaintenance")
@pytest.mark.parametrize("dry_run", [False, True])
def test_maintenance_starts_a_job(management: Management, sent, dry_run):
    policies.set_namespace_policy(
        actor=SYSTEM, namespace=("ws",), values={"compaction": "off", "target_rows": 4096}
    )
    body = {"kind": "compact", "dry_run": dry_run}
    started = management.post("tables/ws$t/maintenance", body, status=202)
    job = Job.objects.get()
    assert started == {
        "id": job.pk,
        "kind": "compact",
        "status": "queued",
        "table": ["ws", "t"],
        "format": "lance",
        "dry_run": dry_run,
        "attempts": 0,
        "progress": 0,
        "total": None,
        "unit": "files",
        "engine": "",
        "engine_profile": "default",
        "engine_reason": "",
        "stages": [],
        "spark_ui": "",
        "has_details": True,
        "message": "",
        "cancel_requested": False,
        "actor": "tester",
        "transaction_id": str(job.transaction_id),
        "created_at": started["created_at"],
        "started_at": None,
        "finished_at": None,
    }
    assert (job.is_dry_run, sent) == (dry_run, [job.pk])
    assert job.parameters["policy"]["target_rows"] == 4096
    event = AuditEvent.objects.get(action="maintenance.start")
    assert (event.actor, event.transaction_id) == ("tester", job.transaction_id)


@pytest.mark.operation("StartMaintenance")
@shared_cases(
    ("body", "text"),
    [
        ({}, "kind: This field is required."),
        ({"kind": "everything"}, "'everything' is not a kind of maintenance; use one of compact, "),
        ({"kind": "build_index"}, "'build_index' is not a kind of maintenance"),
        ({"kind": "purge_table"}, "'purge_table' is not a kind of maintenance"),
        ({"kind": "rewrite_manifests"}, "Lance format do not support 'rewrite_manifests'"),
        ({"kind": 5}, "kind: Not a valid string."),
        ({"kind": "compact", "dry_run": "yes"}, "dry_run: Must be a valid boolean."),
        ({"kind": "compact", "dry_run": 1}, "dry_run: Must be a valid boolean."),
        ({"kind": "compact", "dryrun": True}, "dryrun: Unknown field."),
    ],
)
def test_invalid_requests_are_refused(management: Management, body, text):
    management.refused(400, "invalid-input", text, "POST tables/ws$t/maintenance", body)


@pytest.mark.operation("StartMaintenance")
def test_a_request_may_name_indexes(management: Management, sent, warehouse):
    make_lance_table(("ws", "real"), pa.table({"id": [1, 2, 3]}))
    for name in ("one", "two"):
        index = NewIndex(column="id", index_type="BTREE", name=name)
        lance_indexes.create_index(actor=SYSTEM, table=("ws", "real"), index=index)
    body = {"kind": "rebuild_indexes", "indexes": ["one"]}
    started = management.post("tables/ws$real/maintenance", body, status=202)
    assert (started["kind"], started["unit"]) == ("rebuild_indexes", "rows")
    assert Job.objects.get().parameters["indexes"] == ["one"]
    management.post("tables/ws$real/maintenance", {"kind": "rebuild_indexes"}, status=202)
    assert "indexes" not in Job.objects.latest("pk").parameters
    body = {"kind": "optimize_indexes", "indexes": ["two"], "dry_run": True}
    management.post("tables/ws$real/maintenance", body, status=202)
    assert Job.objects.latest("pk").parameters["indexes"] == ["two"]


@pytest.mark.operation("StartMaintenance")
@shared_cases(
    ("body", "refusal"),
    [
        ({}, (400, "invalid-input", "Table 'ws.real' has no index")),
        ({"indexes": ["gone"]}, (404, "index-not-found", "has no index 'gone'")),
        ({"indexes": []}, (400, "invalid-input", "'indexes' is empty")),
        (
            {"kind": "compact", "indexes": ["a"]},
            (400, "invalid-input", "'compact' does not take 'indexes'"),
        ),
        ({"indexes": "a"}, (400, "invalid-input", "indexes: Expected a list")),
        ({"indexes": [1]}, (400, "invalid-input", "indexes.0: Not a valid string.")),
    ],
    prepare=lambda: make_lance_table(("ws", "real"), pa.table({"id": [1]})),
)
def test_invalid_index_names_are_refused(management: Management, warehouse, body, refusal):
    body = {"kind": "rebuild_indexes", **body}
    management.refused(*refusal, "POST tables/ws$real/maintenance", body)
    assert not Job.objects.exists()


def test_maintenance_of_a_table_without_data_is_refused(management: Management):
    make_table("ws", "empty")
    request = "POST tables/ws$empty/maintenance"
    management.refused(409, "table-has-no-data", "no data", request, {"kind": "compact"})


# --- the list ---------------------------------------------------------------------------------------


@pytest.mark.operation("ListJobs")
def test_the_list_has_pages_with_the_newest_first(reader: Management):
    made = [start(by=f"user-{number}").pk for number in range(5)]
    listed, token = [], ""
    while token is not None:
        page = reader.get(f"jobs?limit=2&page_token={token}")
        assert len(page["jobs"]) <= 2
        listed += [job["id"] for job in page["jobs"]]
        token = page["next_page_token"]
    assert listed == made[::-1]
    assert reader.get("jobs?limit=5")["next_page_token"] is None


@pytest.mark.operation("ListJobs")
def test_the_list_is_filtered(reader: Management):
    make_iceberg_table("ws", "i")
    by_name = {
        "failed": start(),
        "old": start("u"),
        "clean": start("u", "clean_up"),
        "i": start("i"),
    }
    commit([job_operations.StartBuildIndex(table=("ws", "t"), parameters={})], actor=SYSTEM)
    by_name["build"] = Job.objects.latest("pk")
    end(by_name["failed"], JobStatus.FAILED)
    end(by_name["old"])
    past = timezone.now() - timedelta(days=2)
    Job.objects.filter(pk=by_name["old"].pk).update(finished_at=past)
    names = {job.pk: name for name, job in by_name.items()}

    def listed(query: str) -> list[str]:
        return [names[job["id"]] for job in reader.get(f"jobs?{query}")["jobs"]]

    assert listed("") == ["build", "i", "clean", "old", "failed"]
    assert listed("status=failed,succeeded") == ["old", "failed"]
    assert listed("status=queued&kind=compact") == ["i"]
    assert listed("kind=clean_up,build_index") == ["build", "clean"]
    assert listed("table=ws$u") == ["clean", "old"]
    assert listed("table=ws:u&delimiter=:") == ["clean", "old"]
    yesterday = timezone.now() - timedelta(days=1)
    assert listed(f"since={quote(yesterday.isoformat())}") == ["build", "i", "clean", "failed"]
    assert listed(f"since={yesterday.isoformat()}") == ["build", "i", "clean", "failed"]
    assert listed(f"since={past - timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}&table=ws$u") == [
        "clean",
        "old",
    ]
    assert listed("since=2020-01-01") == ["build", "i", "clean", "old", "failed"]


def test_a_page_takes_a_fixed_number_of_statements(reader: Management):
    reader.get("rules")
    for number in range(20):
        start(by=f"user-{number}")
    with CaptureQueriesContext(connection) as statements:
        assert len(reader.get("jobs")["jobs"]) == 20
    assert len(statements) == 1


def test_a_list_for_a_principal_with_few_tables_reads_only_their_jobs():
    """The search ends whatever the number of the jobs of others."""
    own, hidden = start(), start("u")
    for job in (own, hidden):
        end(job, JobStatus.FAILED)
    principal = PrincipalRow.objects.create(name="tenant", kind="user")
    digest = credentials.key_digest("mnd_tenant")
    ApiKey.objects.create(name="tenant", principal=principal, digest=digest)
    mask = closure(Privilege.BROWSE).value
    Grant.objects.create(principal=principal, table=own.table, mask=mask)
    tenant = Management("mnd_tenant")
    assert [job["id"] for job in tenant.get("jobs?status=failed")["jobs"]] == [own.pk]
    with CaptureQueriesContext(connection) as statements:
        assert [job["id"] for job in tenant.get("jobs?status=failed&limit=1")["jobs"]] == [own.pk]
    (sql,) = (row["sql"] for row in statements if "ORDER BY" in row["sql"])
    assert f'"table_id" IN ({own.table_id})' in sql
    assert 'ORDER BY ("catalog_job"."id" + 0) DESC' in sql


# --- one job ----------------------------------------------------------------------------------------


@pytest.mark.operation("GetJob")
def test_the_log_of_a_job_has_pages(reader: Management):
    job = start(is_dry_run=True)
    taken = jobs.take(job.pk)
    for n in range(3):
        jobs.log_event(taken, f"line {n}", JobEvent.Level.WARNING, {"n": n})
    taken.progress, taken.total, taken.result = 3, 8, {"before": {"files": 8}}
    jobs.finish(taken, JobStatus.FAILED, "no good")
    other = start("u")
    jobs.log_event(other, "of another")
    first_page = reader.get(f"jobs/{job.pk}?limit=2")
    assert first_page["log"][0] == {
        "at": first_page["log"][0]["at"],
        "level": "warning",
        "message": "line 0",
        "data": {"n": 0},
    }
    second_page = reader.get(f"jobs/{job.pk}?limit=2&page_token={first_page['next_page_token']}")
    assert [line["message"] for line in first_page["log"] + second_page["log"]] == [
        "line 0",
        "line 1",
        "line 2",
    ]
    assert second_page["next_page_token"] is None
    assert (first_page["status"], first_page["message"], first_page["dry_run"]) == (
        "failed",
        "no good",
        True,
    )
    assert (first_page["progress"], first_page["total"], first_page["attempts"]) == (3, 8, 1)
    assert first_page["result"] == {"before": {"files": 8}}
    assert first_page["parameters"]["policy"]["keep_versions"] == 10
    assert first_page["started_at"] <= first_page["finished_at"]


@pytest.mark.operation("GetJob")
def test_the_job_of_a_dropped_table(reader: Management):
    job = start()
    commit([table_operations.DropTable(table=("ws", "t"))], actor=SYSTEM)
    canceled = reader.get(f"jobs/{job.pk}")
    assert (canceled["status"], canceled["table"], canceled["result"]) == (
        "canceled",
        ["ws", "t"],
        None,
    )


# --- cancel, retry ----------------------------------------------------------------------------------


@pytest.mark.operation("CancelJob")
def test_a_queued_job_is_canceled(management: Management):
    job = start()
    canceled = management.post(f"jobs/{job.pk}/cancel")
    assert (canceled["status"], canceled["cancel_requested"]) == ("canceled", True)
    assert canceled["finished_at"]
    assert Transaction.objects.get(pk=job.transaction_id).status == "Canceled"
    event = AuditEvent.objects.get(action="transaction.alter")
    assert (event.actor, event.transaction_id) == ("tester", job.transaction_id)
    text = f"Job {job.pk} is canceled and cannot be canceled"
    management.refused(409, "invalid-job-state", text, f"POST jobs/{job.pk}/cancel")


@pytest.mark.operation("CancelJob")
def test_a_running_job_gets_a_request_to_stop(management: Management):
    job = start()
    taken = jobs.take(job.pk)
    requested = management.post(f"jobs/{job.pk}/cancel")
    assert (requested["status"], requested["cancel_requested"]) == ("running", True)
    assert jobs.renew(taken)
    assert management.post(f"jobs/{job.pk}/cancel")["status"] == "running"  # a second request
    jobs.finish(taken, JobStatus.SUCCEEDED)
    management.refused(409, "invalid-job-state", "is succeeded", f"POST jobs/{job.pk}/cancel")


@pytest.mark.operation("RetryJob")
@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.CANCELED])
def test_a_retry_starts_a_new_job(management: Management, status):
    old = start(is_dry_run=True)
    end(old, status)
    retried = management.post(f"jobs/{old.pk}/retry", status=202)
    new = Job.objects.latest("pk")
    assert (retried["id"], retried["status"], retried["actor"]) == (new.pk, "queued", "tester")
    assert (retried["kind"], retried["dry_run"], retried["attempts"]) == ("compact", True, 0)
    assert management.get(f"jobs/{old.pk}")["status"] == status


@pytest.mark.operation("RetryJob")
def test_retries_of_other_jobs_are_refused(management: Management):
    job = start()
    request = f"POST jobs/{job.pk}/retry"
    management.refused(409, "invalid-job-state", "is queued and cannot be retried", request)
    end(job)
    management.refused(409, "invalid-job-state", "is succeeded and cannot be retried", request)
    Job.objects.update(status=JobStatus.FAILED, kind=JobKind.BUILD_INDEX)
    management.refused(400, "invalid-input", "is 'build_index', which is not maintenance", request)
    Job.objects.update(kind="compact")
    commit([table_operations.DropTable(table=("ws", "t"))], actor=SYSTEM)
    management.refused(404, "table-not-found", "'ws.t' does not exist", request)


# --- summary ----------------------------------------------------------------------------------------

NOTHING = {
    "succeeded": 0,
    "failed": 0,
    "canceled": 0,
    "dry_runs": 0,
    "files_removed": 0,
    "bytes_reclaimed": 0,
    "files_merged": 0,
    "plans_kept": 0,
    "plans_broken": 0,
}


@pytest.mark.operation("GetSummary")
def test_the_summary_of_no_jobs_is_zero(reader: Management):
    with unchanged():
        summary = reader.get("summary")
    since = timezone.now() - timedelta(days=30)
    assert abs(timezone.datetime.fromisoformat(summary.pop("since")) - since) < timedelta(minutes=1)
    assert summary == {"queued": 0, "running": 0, "total": NOTHING, "by_kind": {}}


@pytest.mark.operation("GetSummary")
def test_the_summary_adds_up_the_results(reader: Management):
    make_iceberg_table("ws", "i")
    # Of Lance tables.
    plan = {"promise": {"kept": True, "figures": {}}}
    end(start(), result={"before": {"files": 200}, "after": {"files": 10}} | plan)
    end(
        start(), result={"before": {"files": 10}, "after": {"files": 12}}
    )  # concurrent writers added more
    end(start(is_dry_run=True), result={"before": {"files": 99}, "after": {"files": 1}})
    end(start(kind="clean_up"), result={"before": {}, "after": {}, "files": 30, "bytes": 500})
    end(start(kind="remove_orphans"), result={"files": 4, "bytes": 40})
    end(start(kind="remove_orphans", is_dry_run=True), result={"files": 9, "bytes": 90})
    end(start(), JobStatus.FAILED, result={"promise": {"kept": False, "figures": {}}})
    end(start(), JobStatus.CANCELED)
    # Of Iceberg tables.
    figures = {"before": {"files": 50}, "after": {"files": 5}}
    end(start("i"), result={**figures, "done": {"rewritten_data_files_count": 45}})
    counts = {
        "deleted_data_files_count": 7,
        "deleted_manifest_files_count": 3,
        "deleted_x": None,
    }
    end(
        start("i", "clean_up"), result={"done": counts, "files": 10}
    )  # too many files: sizes were not summed
    counts = {"orphan_files_count": 2, "orphan_bytes": 20, "orphan_files": ["a", "b"]}
    end(start("i", "remove_orphans"), result={"done": counts, "files": 2, "bytes": 20})
    # Jobs that are not maintenance, and old jobs, do not count.
    commit([job_operations.StartBuildIndex(table=("ws", "u"), parameters={})], actor=SYSTEM)
    end(Job.objects.latest("pk"), result={"files": 10**6})
    old = start("u", "clean_up")
    end(old, result={"files": 1000, "bytes": 10**6})
    Job.objects.filter(pk=old.pk).update(finished_at=timezone.now() - timedelta(days=31))
    start("u")
    start("u", by="another")
    jobs.take(start("i").pk)

    with CaptureQueriesContext(connection) as statements:
        summary = reader.get("summary")
    assert len(statements) <= 5  # three of them check the key
    assert (summary["queued"], summary["running"]) == (2, 1)
    assert summary["total"] == {
        "succeeded": 7,
        "failed": 1,
        "canceled": 1,
        "dry_runs": 2,
        "files_removed": 30 + 4 + 10 + 2,
        "bytes_reclaimed": 500 + 40 + 20,
        "files_merged": 190 + 45,
        "plans_kept": 1,
        "plans_broken": 1,
    }
    assert list(summary["by_kind"]) == ["clean_up", "compact", "remove_orphans"]
    assert summary["by_kind"]["clean_up"] == NOTHING | {
        "succeeded": 2,
        "files_removed": 40,
        "bytes_reclaimed": 500,
    }
    assert reader.get("summary?days=32")["total"]["files_removed"] == 1046


def test_stages_state_their_bytes_if_they_are_known(management):
    table = make_table("ws", "staged")
    began = "2027-01-31T12:00:00Z"
    stages = [{"name": "planning", "began_at": began}]
    stages.append({"name": "rewriting", "began_at": began, "bytes": 5})
    job = Job.objects.create(kind="compact", table=table, stages=stages)
    expected = [{**stages[0], "bytes": None}, stages[1]]
    assert management.get(f"jobs/{job.pk}")["stages"] == expected
    (listed,) = [row for row in management.get("jobs")["jobs"] if row["id"] == job.pk]
    assert listed["stages"] == expected
