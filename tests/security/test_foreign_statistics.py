"""Statistics files in Iceberg metadata that belong to another table, or become links later, are not used or removed."""

from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from catalog.access import SYSTEM
from catalog.models import Job, JobStatus
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.maintenance import iceberg_statistics, job_runner, policies
from tests.api.iceberg.client import Iceberg
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.security.foreign import COMMIT, KINDS, MINE, World, local, row
from tests.security.watching import untouched

pytestmark = pytest.mark.django_db

FIELDS = ("statistics", "partition-statistics")


def named(field: str, path: str) -> dict[str, Any]:
    """An update with which the current snapshot names a statistics file."""
    current = open_table(*MINE).current_snapshot()
    assert current is not None
    content: dict[str, Any] = {
        "snapshot-id": current.snapshot_id,
        "statistics-path": path,
        "file-size-in-bytes": 4,
    }
    if field == "statistics":
        content |= {"file-footer-size-in-bytes": 1, "blob-metadata": []}
    return {"action": f"set-{field}", field: content}


def commit(*updates: dict[str, Any]) -> None:
    change = TableChange(table=MINE, requirements=[], updates=list(updates))
    iceberg_commits.commit_table(actor=SYSTEM, change=change)


def use(attacker: Iceberg) -> None:
    """Everything but a job on Spark, which gets the prefixes of the table's own files."""
    assert attacker.call("POST", f"{COMMIT}/plan", {}).status_code in {200, 400}
    assert attacker.call("GET", COMMIT).status_code == 200
    assert iceberg_statistics.measure(row(), policies.effective_policy(row())) is not None


def remove(attacker: Iceberg, field: str, snapshot: int) -> None:
    body = {
        "requirements": [],
        "updates": [{"action": f"remove-{field}", "snapshot-id": snapshot}],
    }
    assert attacker.call("POST", COMMIT, body).status_code == 200


def purge() -> str:
    with override_settings(MONODON_TRASH_SECONDS=0):
        iceberg_tables.drop_table(actor=SYSTEM, table=MINE, purge=True)
    job = Job.objects.latest("pk")
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == JobStatus.SUCCEEDED, job.error
    return job.error


@pytest.mark.parametrize("is_removed", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", FIELDS)
def test_planted_statistics(world: World, attacker: Iceberg, field, kind, is_removed):
    """Metadata that an older release accepted."""
    open_table(*MINE).append(rows(1))
    path = world.path(kind, "data")
    update = named(field, path)
    with pytest.MonkeyPatch.context() as unguarded:
        unguarded.setattr(iceberg_files, "check_updates", lambda *_: iceberg_files.References())
        commit(update)
    with untouched(world.canaries()):
        use(attacker)
        if is_removed:
            remove(attacker, field, update[field]["snapshot-id"])
        note = purge()
    assert ("left in place: 1 files" in note) != is_removed, note


@pytest.mark.parametrize("replaced", ["file", "directory"])
@pytest.mark.parametrize("field", FIELDS)
def test_statistics_that_become_a_link(world: World, attacker: Iceberg, field, replaced):
    open_table(*MINE).append(rows(1))
    target = world.victims["hidden"].data
    directory = world.mine / "statistics"
    directory.mkdir()
    own = directory / target.name
    own.write_bytes(b"PFA1")
    commit(named(field, f"file://{own}"))
    own.unlink()
    if replaced == "file":
        own.symlink_to(target)
    else:
        directory.rmdir()
        directory.symlink_to(target.parent)
    with untouched(world.canaries()):
        use(attacker)
        note = purge()
    assert "left in place: 1 files of other tables" in note, note
    assert target.exists()


@pytest.mark.parametrize("field", FIELDS)
def test_statistics_of_the_table_itself_are_purged(world: World, attacker: Iceberg, field):
    open_table(*MINE).append(rows(1))
    own = Path(local(f"file://{world.mine}/metadata/own.puffin"))
    own.write_bytes(b"PFA1")
    commit(named(field, f"file://{own}"))
    purge()
    assert not own.exists()
