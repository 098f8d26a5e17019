"""Removals in a Lance table whose directory has files on which Lance would wait or end."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from catalog.access import Principal
from catalog.models import AuditEvent, Job, Table
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.maintenance import job_runner
from catalog.services.tables import job_operations
from tests.factories import files, make_administrator, make_lance_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
TABLE = ("ws", "t")
POLICIES = {
    "clean_up": {"keep_for": 0, "keep_versions": 1},
    "remove_orphans": {"orphan_age": 3 * 86_400},
}


@pytest.fixture
def table() -> Table:
    make_administrator("ada")
    table = make_lance_table(TABLE, pa.table({"id": range(9)}))
    table.refresh_from_db()
    return table


def run(kind: str) -> Job:
    operation = job_operations.StartMaintenance(
        table=TABLE, kind_of_job=kind, is_dry_run=False, parameters={"policy": POLICIES[kind]}
    )
    job: Job = commit([operation], actor=Principal("ada", Privilege.ALL)).results[0]
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    return job


def assert_nothing_is_removed(table: Table, kind: str, fault: str) -> None:
    before = files(table.location)
    assert run(kind).error == f"nothing removed: {fault}"
    assert files(table.location) == before
    assert not AuditEvent.objects.filter(action__in=["version.retire", "table.clean_up"]).exists()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("name", ["_refs/tags/v.json", "_refs/branches/b.json", "_versions/pipe"])
def test_a_pipe_prevents_a_removal(table, name, kind):
    pipe = Path(table.location, name)
    pipe.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(pipe)
    assert run(kind).error == (
        f"nothing removed: '{name}' in the table's directory is not a regular file"
    )
    assert pipe.is_fifo()


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tags/v.json", b"{"),
        ("tags/v.json", b'{"version": "1"}'),
        ("tags/%zz.json", b'{"version": 1}'),
        ("branches/b.json", b"[]"),
    ],
)
def test_a_malformed_tag_or_branch_prevents_a_removal(table, name, content, kind):
    path = Path(table.location, "_refs", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    fault = f"'_refs/{name}' is not the file of a tag or branch"
    assert_nothing_is_removed(table, kind, fault)


@pytest.mark.parametrize("kind", POLICIES)
def test_other_files_among_the_tags_prevent_no_removal(table, kind):
    path = Path(table.location, "_refs", "tags", "notes.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"not a tag")
    job = run(kind)
    assert (job.status, job.error) == ("succeeded", "")
