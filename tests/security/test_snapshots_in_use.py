"""Jobs never remove a snapshot to which a branch or tag refers, also if that was created meanwhile."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from catalog.access import SYSTEM, Principal
from catalog.errors import RequirementFailed
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from tests.catalog.services.iceberg.writing import open_table
from tests.factories import make_iceberg_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
T = ("ns", "t")
JOB = replace(SYSTEM, job_kind="clean_up")


def commit(actor: Principal, *updates: dict[str, Any]) -> dict[str, Any]:
    change = TableChange(table=T, requirements=[], updates=list(updates))
    return iceberg_commits.commit_table(actor=actor, change=change).document


def refer(name: str, snapshot: int, kind: str) -> dict[str, Any]:
    return {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": snapshot}


def remove(*snapshots: int) -> dict[str, Any]:
    return {"action": "remove-snapshots", "snapshot-ids": list(snapshots)}


@pytest.fixture
def snapshots() -> list[int]:
    """Ids of the snapshots of a table, the current one last."""
    make_iceberg_table(*T)
    for number in range(3):
        table = open_table(*T)
        table.append(pa.Table.from_pylist([{"id": number}], table.schema().as_arrow()))
    document = iceberg_tables.load_table(actor=SYSTEM, table=T).document
    return [snapshot["snapshot-id"] for snapshot in document["snapshots"]]


@pytest.mark.parametrize(("name", "kind"), [("main", "branch"), ("v1", "tag")])
def test_a_snapshot_that_was_tagged_or_restored_meanwhile_stays(snapshots, name, kind):
    """The job has read the table before; its commit has no requirement on references."""
    commit(SYSTEM, refer(name, snapshots[0], kind))
    with unchanged(), pytest.raises(RequirementFailed, match=f"referenced by '{name}'"):
        commit(JOB, remove(snapshots[0], snapshots[1]))


def test_unreferenced_snapshots_are_removed(snapshots):
    document = commit(JOB, remove(*snapshots[:2]))
    assert [snapshot["snapshot-id"] for snapshot in document["snapshots"]] == snapshots[2:]


def test_a_reference_whose_retention_has_ended_is_removed_with_its_snapshot(snapshots):
    commit(SYSTEM, refer("v1", snapshots[0], "tag"))
    removed = {"action": "remove-snapshot-ref", "ref-name": "v1"}
    assert set(commit(JOB, removed, remove(snapshots[0]))["refs"]) == {"main"}


def test_clients_remove_references_with_their_snapshots_as_iceberg_does(snapshots):
    commit(SYSTEM, refer("v1", snapshots[0], "tag"))
    assert set(commit(SYSTEM, remove(snapshots[0]))["refs"]) == {"main"}
