"""A job that was queued before the principal of a reference lost its right reads no files through it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from catalog.access import SYSTEM, tokens
from catalog.formats.iceberg.job_properties import LEFT_OUT_FILES
from catalog.models import ApiKey, Job, JobStatus, Principal, Table, TableFormat
from catalog.privileges import Privilege, closure
from catalog.services.access import authentication
from catalog.services.engine.commit import commit
from catalog.services.maintenance import iceberg_statistics, job_runner
from catalog.services.tables import job_operations
from catalog.services.tables.table_operations import RenameTable
from tests.access.protocols import KEY
from tests.api.iceberg.client import Iceberg
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import make_namespace
from tests.security.foreign import COMMIT, MINE, World, message_of, refusal, snapshot, updates
from tests.security.watching import untouched

pytestmark = pytest.mark.django_db


def _revoke(requester: Principal, source: Table) -> None:
    requester.grants.filter(table=source).delete()


def _rename(requester: Principal, source: Table) -> None:
    """The right was granted on the namespace that the table leaves."""
    requester.grants.filter(table=source).delete()
    requester.grants.create(mask=closure(Privilege.READ).value, namespace=source.namespace)
    make_namespace("elsewhere")
    rename = RenameTable(table=("secret", "t"), new=("elsewhere", "t"), format=TableFormat.ICEBERG)
    commit([rename], actor=SYSTEM)


LOSSES: dict[str, Callable[[Principal, Table], None]] = {"revoked": _revoke, "renamed": _rename}


IS_LEFT_OUT = {"compact": [True], "rewrite_position_deletes": [False], "compute_statistics": []}
"""Whether each process of a job gets the data file as one to leave out."""


@pytest.mark.parametrize("kind", IS_LEFT_OUT)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_queued_job_reads_no_files_of_a_reference_that_has_ended(
    world: World, attacker: Iceberg, monkeypatch: pytest.MonkeyPatch, loss: str, kind: str
):
    for link in ("data", "directory"):  # Spark would follow them
        (world.mine / "metadata" / link).unlink()
    requester = ApiKey.objects.get(name="who").principal
    source = Table.objects.select_related("namespace").get(namespace__name="secret", name="t")
    requester.grants.create(mask=closure(Privilege.READ).value, table=source)
    open_table(*MINE).append(rows(1))
    path = world.path("hidden", "data")
    body = {"requirements": [], "updates": updates(snapshot("data", path))}
    assert attacker.call("POST", COMMIT, body).status_code == 200
    assert attacker.call("POST", f"{COMMIT}/plan", {}).status_code == 200
    real = iceberg_statistics._measure

    def measure(*arguments: Any) -> Any:
        return replace(real(*arguments), rewrite_files=9, rewritten_delete_files=9)

    monkeypatch.setattr(iceberg_statistics, "_measure", measure)

    is_left_out: list[bool] = []

    def process(job: Job, *arguments: Any, **options: Any) -> dict[str, Any]:
        client = Iceberg(tokens.issue_job_token(job.pk, job.attempts))
        properties = client.call("GET", COMMIT).json()["metadata"]["properties"]
        is_left_out.append(path in json.loads(properties.get(LEFT_OUT_FILES, "[]")))
        return {}

    start = job_operations.StartMaintenance(table=MINE, format="iceberg", kind_of_job=kind)
    queued: Job = commit([start], actor=authentication.authenticate(KEY)).results[0]
    LOSSES[loss](requester, source)
    with untouched(world.canaries()):
        assert message_of(attacker.call("POST", f"{COMMIT}/plan", {})) == refusal(path)
        job_runner.run_job(queued.pk, spark=process)
    queued.refresh_from_db()
    assert queued.status == JobStatus.SUCCEEDED, queued.error
    assert is_left_out == IS_LEFT_OUT[kind]
    skipped = (queued.result or {}).get("skipped")
    if kind == "rewrite_position_deletes":
        assert skipped is None
    else:
        assert skipped == {"foreign_files": 1, "examples": [path]}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_job_that_waits_in_the_queue_has_the_rights_of_the_time_of_its_use(
    world: World, attacker: Iceberg, loss: str
):
    """The job has started: its process asks the catalog for the table with the token of the job."""
    for link in ("data", "directory"):
        (world.mine / "metadata" / link).unlink()
    requester = ApiKey.objects.get(name="who").principal
    source = Table.objects.select_related("namespace").get(namespace__name="secret", name="t")
    requester.grants.create(mask=closure(Privilege.READ).value, table=source)
    path = world.path("hidden", "data")
    body = {"requirements": [], "updates": updates(snapshot("data", path))}
    assert attacker.call("POST", COMMIT, body).status_code == 200
    start = job_operations.StartMaintenance(
        table=MINE, format="iceberg", kind_of_job="compute_statistics"
    )
    queued: Job = commit([start], actor=authentication.authenticate(KEY)).results[0]
    statuses = []

    def process(job: Job, *arguments: Any, **options: Any) -> dict[str, Any]:
        client = Iceberg(tokens.issue_job_token(job.pk, job.attempts))
        statuses.append(client.call("GET", COMMIT).status_code)
        LOSSES[loss](requester, source)
        with untouched(world.canaries()):
            answer = client.call("GET", COMMIT)
            statuses.append(answer.status_code)
            assert message_of(answer) == refusal(path)
        return {}

    job_runner.run_job(queued.pk, spark=process)
    queued.refresh_from_db()
    assert statuses == [200, 400], queued.error
