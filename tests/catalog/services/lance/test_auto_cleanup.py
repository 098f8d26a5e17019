"""Lance's automatic clean-up, which clients configure in a manifest, never runs after a commit of the server.

It would remove versions that tags, clones and policies need, and follow links to files of other tables.
"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from catalog import policies
from catalog.access import SYSTEM
from catalog.errors import CommitConflict
from catalog.formats.lance import manifest as lance_manifest
from catalog.formats.lance import naming as lance_naming
from catalog.models import AuditEvent, Job, JobStatus, Table, TableVersion
from catalog.services.engine.commit import commit
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data as lance_data
from catalog.services.lance import data_operations, metadata, schemas
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.indexes import indexes
from catalog.services.lance.indexes.index_plans import NewIndex
from catalog.services.lance.ledger import version_operations, versions
from catalog.services.lance.refs import branches
from catalog.services.maintenance import job_runner
from catalog.services.recovery import lance_repair
from catalog.services.tables import job_operations
from tests.factories import files, make_lance_table, relative, snapshot, stage
from tests.security import lance_attacks as attacks

pytestmark = pytest.mark.django_db
T = ("ws", "t")
ROWS = pa.table({"id": [7], "name": ["x"]})
SETTINGS = {"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.older_than": "0s"}


@pytest.fixture
def victim(warehouse: Path) -> Path:
    """Another table, whose files are old enough for Lance to remove them."""
    location = Path(make_lance_table(("secret", "t")).location)
    month_ago = time.time() - 30 * 86_400
    for path in location.rglob("*"):
        os.utime(path, (month_ago, month_ago))
    return location


@pytest.fixture
def table(victim: Path) -> Table:
    """A table of four versions. The newest has the settings, and a link in its directory leads to the victim."""
    row = make_lance_table(T)
    for _ in range(2):
        lance_data.insert(actor=SYSTEM, table=T, data=ROWS.to_reader())
    versions.settle(row)
    configure(row)
    link = Path(row.location) / "_indices" / "x"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(victim)
    return row


def configure(row: Table, branch: str = "") -> int:
    """Enter a copy of the newest version with the settings, as a client does; returns its number."""
    newest = TableVersion.objects.visible().filter(table=row, branch=branch).latest("version")
    number = newest.version + 1
    staged = stage(row, number, branch=branch)
    content = attacks.with_auto_cleanup(Path(f"/{newest.manifest_path}").read_bytes())
    staged.write_bytes(lance_manifest.with_version(content, number))
    create = version_operations.CreateVersion(
        table=T, version=number, branch=branch, manifest_path=relative(staged)
    )
    commit([create], actor=SYSTEM)
    versions.settle(row)
    return number


def stored(row: Table, branch: str = "") -> dict[int, lance_manifest.Head]:
    """The versions in storage with the heads of their manifests."""
    directory = Path(row.location) / lance_naming.versions_directory(branch)
    paths = {lance_naming.parse_manifest_name(path.name): path for path in directory.iterdir()}
    return {
        name.version: lance_manifest.read(path.read_bytes()).head
        for name, path in paths.items()
        if name is not None
    }


def listed(branch: str = "") -> list[int]:
    rows = TableVersion.objects.visible().filter(table__name="t", branch=branch)
    rows = rows.exclude(table__namespace__name="secret").order_by("version")
    return list(rows.values_list("version", flat=True))


def compact() -> None:
    policy = {name: setting.value for name, setting in policies.effective([]).values.items()}
    start = job_operations.StartMaintenance(
        table=T, kind_of_job="compact", parameters={"policy": policy}
    )
    job: Job = commit([start], actor=SYSTEM).results[0]
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == JobStatus.SUCCEEDED, job.error


def insert() -> None:
    lance_data.insert(actor=SYSTEM, table=T, data=ROWS.to_reader())


def overwrite() -> None:
    lance_data.insert(actor=SYSTEM, table=T, data=ROWS.to_reader(), overwrite=True)


def merge() -> None:
    clauses = lance_data.MergeClauses(on=("id",), when_not_matched_insert_all=True)
    lance_data.merge_insert(actor=SYSTEM, table=T, data=ROWS.to_reader(), clauses=clauses)


def update() -> None:
    lance_data.update(actor=SYSTEM, table=T, updates=[("name", "'q'")])


def delete() -> None:
    lance_data.delete(actor=SYSTEM, table=T, predicate="id = 7")


def index() -> None:
    indexes.create_index(actor=SYSTEM, table=T, index=NewIndex(column="id", index_type="BTREE"))


def add_column() -> None:
    schemas.add_columns(actor=SYSTEM, table=T, columns=[schemas.NewColumn("twice", "id * 2")])


def update_metadata() -> None:
    metadata.update_schema_metadata(actor=SYSTEM, table=T, metadata={"a": "b"})


WRITES: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        *(insert, overwrite, merge, update, delete),
        *(index, add_column, update_metadata, compact),
    )
}


def test_a_client_that_commits_with_the_settings_cleans_up(table, victim, tmp_path):
    """The control: the clean-up does follow the link, and removes all versions but two."""
    copy = tmp_path / "copy"
    shutil.copytree(table.location, copy, symlinks=True)
    lance.write_dataset(ROWS, str(copy), mode="append")
    assert files(victim) == {}
    assert len(list(copy.glob("_versions/*.manifest"))) < 5


@pytest.mark.parametrize("write", WRITES)
def test_no_write_of_the_server_cleans_up(table, victim, write):
    before = files(victim)
    WRITES[write]()
    assert files(victim) == before
    versions.settle(table)
    heads = stored(table)
    assert len(heads) > 5
    assert listed() == list(range(1, max(heads) + 1)) == sorted(heads)
    assert heads[4].auto_cleanup == tuple(SETTINGS.items())
    assert [number for number, head in heads.items() if head.auto_cleanup] == [4]
    event = AuditEvent.objects.get(action="table.remove_auto_cleanup")
    assert (event.target, event.after) == (
        "ws.t",
        {
            "version": 5,
            "manifest_path": TableVersion.objects.get(table=table, version=5).manifest_path,
            "settings": SETTINGS,
        },
    )


def test_the_next_write_removes_nothing(table):
    insert()
    insert()
    assert AuditEvent.objects.filter(action="table.remove_auto_cleanup").count() == 1
    assert listed() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("restored", [2, 4])
def test_a_restored_version_has_no_settings(table, victim, restored):
    insert()
    before, count = files(victim), len(listed())
    metadata.restore(actor=SYSTEM, table=T, version=restored)
    versions.settle(table)
    assert files(victim) == before
    assert listed() == sorted(stored(table)) == list(range(1, count + 2))
    assert stored(table)[count + 1].auto_cleanup == ()
    dataset = lance_datasets.read(actor=SYSTEM, table=T)
    assert (dataset.version, dataset.count_rows()) == (count + 1, {2: 4, 4: 5}[restored])
    assert not list(Path(table.location).glob("_versions/*.manifest-*"))


def test_a_branch_is_created_and_written_without_clean_up(table, victim):
    before = files(victim)
    branches.create_branch(actor=SYSTEM, table=T, name="b")
    assert AuditEvent.objects.filter(action="table.remove_auto_cleanup").count() == 0
    lance_data.insert(actor=SYSTEM, table=T, data=ROWS.to_reader(), branch="b")
    versions.settle(table)
    assert files(victim) == before
    assert listed("b") == sorted(stored(table, "b")) == [4, 5, 6]
    assert stored(table, "b")[6].auto_cleanup == ()
    assert listed() == sorted(stored(table)) == [1, 2, 3, 4]


def test_settings_of_a_concurrent_commit_are_refused(table, victim):
    """A client enters another version with the settings while the server commits; Lance rebases on it."""
    insert()
    before, numbers = files(victim), listed()

    added: list[int] = []

    def enter_another() -> None:
        if not added:
            added.append(configure(table))

    with pytest.raises(
        CommitConflict, match=r"clean-up was configured for table 'ws\.t' meanwhile"
    ):
        lance_commits.write(
            actor=SYSTEM,
            table=T,
            operation=data_operations.InsertIntoTable,
            work=lambda dataset: dataset.insert(ROWS, mode="append"),
            can_repeat=False,
            may_commit=enter_another,
        )
    versions.settle(table)
    assert files(victim) == before
    assert listed() == sorted(stored(table)) == [*numbers, *added]


def test_repair_copies_a_version_with_settings(table, victim):
    before = files(victim)
    path = Path(f"/{TableVersion.objects.get(table=table, version=4).manifest_path}")
    content = path.read_bytes()
    path.unlink()
    Path(f"/{TableVersion.objects.get(table=table, version=3).manifest_path}").write_bytes(
        lance_manifest.with_version(content, 3)
    )
    lance_datasets.clear_caches()
    assert lance_repair.repair(actor=SYSTEM, table=T).published == {"": 5}
    versions.settle(table)
    assert (files(victim), listed()) == (before, [1, 2, 3, 5])
    assert stored(table)[5].auto_cleanup == tuple(SETTINGS.items())


def test_a_read_only_request_does_not_remove_the_settings(table):
    before = snapshot()
    assert lance_datasets.read(actor=SYSTEM, table=T).count_rows() == 5
    assert snapshot() == before
