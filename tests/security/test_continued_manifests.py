"""The client of an administrator continues from manifests that others have replaced since their commits.

Its own manifest list names the manifests of the list before, and merged manifests name their files. The rights of
the administrator open none of these for the writers and readers of the table.
"""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import write_manifest_list

from catalog.access import SYSTEM
from catalog.errors import ForeignFile
from catalog.models import FileReference
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import references as iceberg_references
from catalog.services.iceberg.changes import TableChange
from tests.api.iceberg.client import Iceberg
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.security.foreign import (
    COMMIT,
    MINE,
    World,
    _output,
    _write_manifest,
    local,
    message_of,
    refusal,
    snapshot,
    updates,
)
from tests.security.watching import untouched

pytestmark = pytest.mark.django_db
MERGE = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}


@pytest.fixture(params=[None, "_MAX_LIST_BYTES", "_MAX_MANIFEST_BYTES"])
def limit(request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commit read everything, or leave it to the periodic task.

    It follows ``world``, which later tests copy with what its own commits left unread.
    """
    if request.param is not None:
        monkeypatch.setattr(iceberg_files, request.param, 0)


@pytest.fixture
def mine(world: World, attacker: Iceberg) -> World:
    """The attacker has committed a snapshot with a file of its own."""
    added = updates(snapshot("none", ""))
    attacker.post(COMMIT, {"requirements": [], "updates": added})
    return world


def _replace_list(world: World) -> None:
    """The current manifest list names a manifest of the hidden table."""
    table = open_table(*MINE)
    current = table.current_snapshot()
    assert current is not None
    hidden = _manifests_of("secret", "t")
    with write_manifest_list(
        format_version=2,
        output_file=_output(current.manifest_list),
        snapshot_id=current.snapshot_id,
        parent_snapshot_id=None,
        sequence_number=current.sequence_number,
        avro_compression="deflate",
    ) as writer:
        writer.add_manifests(hidden)


def _manifests_of(*identifier: str) -> list[Any]:
    table = open_table(*identifier)
    current = table.current_snapshot()
    assert current is not None
    return current.manifests(table.io)


def _replace_manifest(world: World) -> None:
    """A manifest of the attacker names a data file of the hidden table."""
    table = open_table(*MINE)
    current = table.current_snapshot()
    assert current is not None
    (manifest,) = current.manifests(table.io)
    path = world.path("hidden", "data")
    _write_manifest(manifest.manifest_path, table, current.snapshot_id, path, "data")


def _require_closed(world: World, attacker: Iceberg) -> None:
    iceberg_references.read_unread()
    assert not any(FileReference.objects.values_list("directories", flat=True))
    with untouched(world.canaries()):
        response = attacker.call("POST", f"{COMMIT}/plan", {})
    assert response.status_code == 400, response.content


def test_a_client_commits_no_manifests_that_others_put_into_the_list_before(mine, attacker):
    _replace_list(mine)
    with pytest.raises(ForeignFile):
        open_table(*MINE).append(rows(9))
    _require_closed(mine, attacker)


@pytest.mark.usefixtures("limit")
def test_a_client_opens_no_files_of_a_list_that_is_not_read(mine, attacker):
    _replace_list(mine)
    with contextlib.suppress(ForeignFile):
        open_table(*MINE).append(rows(9))
    _require_closed(mine, attacker)


@pytest.mark.usefixtures("limit")
def test_a_client_opens_no_files_by_merging_the_manifests_of_others(mine, attacker):
    attacker.post(
        COMMIT,
        {"requirements": [], "updates": [{"action": "set-properties", "updates": MERGE}]},
    )
    _replace_manifest(mine)
    open_table(*MINE).append(rows(9))
    (merged,) = _manifests_of(*MINE)
    assert merged.existing_files_count == 1
    _require_closed(mine, attacker)
    path = mine.path("hidden", "data")
    assert message_of(attacker.call("POST", f"{COMMIT}/plan", {})) == refusal(path)


@pytest.mark.usefixtures("limit")
def test_a_client_opens_no_files_by_repeating_a_snapshot_of_others(mine, attacker):
    """Iceberg's clients add the files of the snapshot that they cherry-pick."""
    picked = snapshot("data", mine.path("hidden", "data"))
    summary = {"operation": "append", "source-snapshot-id": "1"}
    change = TableChange(
        table=MINE, requirements=[], updates=updates({**picked, "summary": summary})
    )
    iceberg_commits.commit_table(actor=SYSTEM, change=change)
    _require_closed(mine, attacker)


def test_files_that_were_taken_over_are_not_removed(mine, attacker):
    """Nobody may read them through the table, but its snapshots may need them."""
    _replace_manifest(mine)
    attacker.post(
        COMMIT,
        {"requirements": [], "updates": [{"action": "set-properties", "updates": MERGE}]},
    )
    open_table(*MINE).append(rows(9))
    (reference,) = FileReference.objects.all()
    assert (reference.source.name, reference.directories) == ("t", [])


def test_references_that_were_committed_stay_open(mine, attacker):
    """Another client merges manifests with files that its predecessor has added with its own rights."""
    path = mine.path("hidden", "data")
    directory = str(Path(local(path)).parent)
    change = TableChange(table=MINE, requirements=[], updates=updates(snapshot("data", path)))
    iceberg_commits.commit_table(actor=SYSTEM, change=change)
    attacker.post(
        COMMIT,
        {"requirements": [], "updates": [{"action": "set-properties", "updates": MERGE}]},
    )
    open_table(*MINE).append(rows(9))
    (reference,) = FileReference.objects.all()
    assert reference.directories == [directory]
    tasks = attacker.post(f"{COMMIT}/plan", {})["file-scan-tasks"]
    assert path in {task["data-file"]["file-path"] for task in tasks}
