import pytest

from catalog.models import AuditEvent, Job, JobStatus, Transaction
from catalog.services.maintenance import job_runner
from tests.api.client import Lance
from tests.cases import shared_cases
from tests.factories import files, make_table, make_version, manifest, stage

pytestmark = pytest.mark.operation("AlterTransaction")


def put(key: str, value: str, mode: str | None = None) -> dict:
    return {"setPropertyAction": {"key": key, "value": value, "mode": mode}}


def unset(key: str, mode: str | None = None) -> dict:
    return {"unsetPropertyAction": {"key": key, "mode": mode}}


def status(name: str) -> dict:
    return {"setStatusAction": {"status": name}}


@pytest.fixture
def committed(lance: Lance) -> str:
    """The path of a transaction that stands."""
    transaction_id = lance.post("/v1/namespace/ws/create")["transaction_id"]
    return f"/v1/transaction/{transaction_id}/alter"


@pytest.fixture
def queued(lance: Lance) -> str:
    """The path of a transaction whose table still waits for its data to be removed."""
    stage(make_table("t"), 1)
    return f"/v1/transaction/{lance.post('/v1/table/t/drop')['transaction_id']}/alter"


def alter(lance: Lance, path: str, *actions: dict) -> dict[str, str]:
    """The properties that a client set, after the actions."""
    altered = lance.post(path, {"actions": list(actions)})
    described = lance.post(path.replace("/alter", "/describe"))
    assert altered["status"] == described["status"]
    assert _set(altered) == _set(described)
    return _set(altered)


def _set(facts: dict) -> dict[str, str]:
    return {k: v for k, v in facts["properties"].items() if not k.startswith("monodon.")}


def test_sets_and_unsets_in_order(lance: Lance, committed):
    assert alter(lance, committed, put("a", "1"), put("b", "2")) == {"a": "1", "b": "2"}
    assert alter(lance, committed, unset("a"), put("c", "3"), put("c", "4")) == {"b": "2", "c": "4"}
    assert alter(lance, committed, put("d", "5"), unset("d")) == {"b": "2", "c": "4"}


@pytest.mark.parametrize("mode", [None, "Overwrite", "overwrite", "OVERWRITE"])
def test_set_overwrites(lance: Lance, committed, mode):
    alter(lance, committed, put("a", "1"))
    assert alter(lance, committed, put("a", "2", mode)) == {"a": "2"}


@pytest.mark.parametrize("mode", ["Skip", "skip", "SKIP"])
def test_set_may_keep_the_old_value(lance: Lance, committed, mode):
    alter(lance, committed, put("a", "1"))
    assert alter(lance, committed, put("a", "2", mode), put("b", "3", mode)) == {"a": "1", "b": "3"}


@pytest.mark.parametrize("mode", ["Fail", "fail", "FAIL"])
def test_set_may_fail(lance: Lance, committed, mode):
    assert alter(lance, committed, put("a", "1", mode)) == {"a": "1"}
    body = {"actions": [put("b", "2"), put("a", "2", mode), put("c", "3")]}
    lance.refused(409, 14, "Property 'a' is set already", committed, body)


@pytest.mark.parametrize("mode", [None, "Skip", "skip", "SKIP"])
def test_unset_skips_missing_properties(lance: Lance, committed, mode):
    assert alter(lance, committed, put("a", "1"), unset("b", mode)) == {"a": "1"}


@pytest.mark.parametrize("mode", ["Fail", "fail", "FAIL"])
def test_unset_may_fail(lance: Lance, committed, mode):
    body = {"actions": [put("a", "1"), unset("b", mode)]}
    lance.refused(400, 13, "Property 'b' is not set", committed, body)
    assert alter(lance, committed, put("b", "1"), unset("b", mode)) == {}


@pytest.mark.parametrize("name", ["Canceled", "canceled", "CANCELED"])
def test_cancel_of_queued_work(lance: Lance, queued, name):
    facts = lance.post(queued, {"actions": [status(name), put("why", "mistake")]})
    assert (facts["status"], facts["properties"]["why"]) == ("Canceled", "mistake")
    job = Job.objects.get()
    assert (job.status, job.finished_at is not None) == (JobStatus.CANCELED, True)
    job_runner.run_job(job.pk)  # a message that comes late
    assert list(files(job.table.location).values()) == [manifest(1)]
    assert lance.post(queued.replace("/alter", "/describe"))["status"] == "Canceled"


def test_a_failed_action_prevents_the_cancel(lance: Lance, queued):
    body = {"actions": [status("Canceled"), unset("x", "Fail")]}
    lance.refused(400, 13, "Property 'x' is not set", queued, body)
    assert Job.objects.get().status == JobStatus.QUEUED


def test_setting_the_current_status_is_a_no_op(lance: Lance, committed, queued):
    assert lance.post(committed, {"actions": [status("Succeeded")]})["status"] == "Succeeded"
    assert lance.post(queued, {"actions": [status("queued")]})["status"] == "Queued"


@pytest.mark.parametrize("name", ["Canceled", "Failed", "Queued", "Running"])
def test_a_committed_transaction_cannot_be_canceled(lance: Lance, committed, name):
    lance.refused(
        400, 13, f"is Succeeded and cannot become {name}", committed, {"actions": [status(name)]}
    )


@pytest.mark.parametrize("name", ["Running", "Succeeded", "Failed"])
def test_waiting_work_can_only_be_canceled(lance: Lance, queued, name):
    body = {"actions": [put("a", "1"), status(name)]}
    lance.refused(400, 13, f"is Queued and cannot become {name}", queued, body)


def test_by_table_and_version(lance: Lance):
    make_table("ws", "t")
    row = make_version(("ws", "t"), 1).transaction
    assert alter(lance, "/v1/transaction/ws$t$1/alter", put("a", "1")) == {"a": "1"}
    row.refresh_from_db()
    assert row.properties == {"a": "1"}


def test_audited_with_context(lance: Lance, committed):
    lance.post(committed, {"actions": [put("a", "1")]}, headers={"x-lance-ctx-trace_id": "abc"})
    event = AuditEvent.objects.get(action="transaction.alter")
    assert event.context == {"trace_id": "abc"}
    assert event.before == {"status": "Succeeded", "properties": {}}
    assert event.after == {"status": "Succeeded", "properties": {"a": "1"}}


@shared_cases(
    ("actions", "error"),
    [
        ([], "actions"),
        ([put("a", "1"), {}], "Action 1: exactly one of"),
        ([{**put("a", "1"), **unset("a")}], "Action 0: exactly one of"),
        ([{"setStatusAction": {}}], "no status"),
        ([status("Paused")], "'Paused'"),
        ([{"setPropertyAction": {"key": "a"}}], "key and a value"),
        ([{"setPropertyAction": {"value": "a"}}], "key and a value"),
        ([{"unsetPropertyAction": {}}], "needs a key"),
        ([put("a", "1", "Replace")], "'Replace'"),
        ([unset("a", "Replace")], "'Replace'"),
        ([put("monodon.actor", "me")], "monodon."),
        ([put("a", 1)], "actions.0"),
        ([put("a", "\0")], "cannot be stored"),
        ({}, "actions"),
    ],
)
def test_malformed_requests_are_refused(lance: Lance, committed, actions, error):
    lance.refused(400, 13, error, committed, {"actions": actions})


def test_actions_are_needed(lance: Lance, committed):
    lance.refused(400, 13, "actions", committed, {})


def test_missing(lance: Lance):
    body = {"actions": [put("a", "1")]}
    lance.refused(404, 10, "Transaction 'x' does not exist", "/v1/transaction/x/alter", body)
    lance.refused(404, 10, "ws.t.1", "/v1/transaction/ws$t$1/alter", body)


def test_read_only_key(lance: Lance, reader: Lance, committed):
    reader.refused(403, 15, "'reader' may not write", committed, {"actions": [put("a", "1")]})
    assert Transaction.objects.get().properties == {}
