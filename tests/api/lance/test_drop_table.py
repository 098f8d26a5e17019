from pathlib import Path

import pytest
from kombu.exceptions import OperationalError

from catalog.models import AuditEvent, Job, JobStatus, Table, TableState
from tests.api.client import Lance
from tests.factories import files, make_namespace, make_table, make_version, stage
from tests.factories import relative as spelled

pytestmark = pytest.mark.operation("DropTable")


def test_drops_now_and_removes_the_data_later(lance: Lance):
    table = make_table("ws", "t", properties={"k": "v"})
    manifest = stage(table, 1)
    make_version(("ws", "t"), 1, spelled(manifest))
    before = files(table.location)
    answer = lance.post("/v1/table/ws$t/drop")
    assert answer == {
        "id": ["ws", "t"],
        "location": table.location,
        "properties": {"k": "v"},
        "transaction_id": answer["transaction_id"],
    }
    lance.refused(404, 4, "Table 'ws.t' does not exist", "/v1/table/ws$t/describe", {})
    table.refresh_from_db()
    assert (table.state, table.dropped_at is not None) == (TableState.DROPPED, True)
    assert table.versions.count() == 1
    job = Job.objects.get()
    assert (job.table, job.status) == (table, JobStatus.QUEUED)
    assert files(table.location) == before
    facts = lance.post(f"/v1/transaction/{answer['transaction_id']}/describe")
    assert (facts["status"], facts["properties"]["monodon.targets"]) == ("Queued", "ws.t")
    event = AuditEvent.objects.get(action="table.drop")
    assert (event.target, event.before) == ("ws.t", {"location": table.location})


def test_a_new_table_of_the_name_gets_another_location(lance: Lance):
    old = make_table("ws", "t")
    lance.post("/v1/table/ws$t/drop")
    new = lance.post("/v1/table/ws$t/declare")["location"]
    assert new != old.location
    assert Table.objects.count() == 2


def test_a_body_is_ignored(lance: Lance):
    make_table("ws", "t")
    lance.post("/v1/table/ws$t/drop", raw=b"not json")


def test_an_unreachable_broker_loses_no_job(lance: Lance, monkeypatch):
    make_table("ws", "t")

    def unreachable(*args, **options):
        raise OperationalError("connection refused")

    monkeypatch.setattr("celery.current_app.send_task", unreachable)
    lance.post("/v1/table/ws$t/drop")
    assert Job.objects.get().status == JobStatus.QUEUED


def test_missing(lance: Lance):
    make_namespace("ws")
    lance.refused(404, 4, "Table 'ws.t' does not exist", "/v1/table/ws$t/drop")
    lance.refused(404, 1, "Namespace 'x' does not exist", "/v1/table/x$t/drop")


def test_twice(lance: Lance):
    make_table("ws", "t")
    lance.post("/v1/table/ws$t/drop")
    lance.refused(404, 4, "Table 'ws.t' does not exist", "/v1/table/ws$t/drop")


def test_only_post(lance: Lance):
    make_table("t")
    response = lance.refused(405, 0, "use POST", "/v1/table/t/drop", method="DELETE")
    assert response["allow"] == "POST"


def test_read_only_key(reader: Lance):
    table = make_table("ws", "t")
    stage(table, 1)
    reader.refused(403, 15, "may not manage 'ws.t'", "/v1/table/ws$t/drop")
    assert len(files(Path(table.location))) == 1
