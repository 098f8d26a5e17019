"""Links in the directories of Lance tables, also those created after a first read, lead the server nowhere."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from catalog import regular_files
from catalog.access import SYSTEM
from catalog.errors import CatalogError, ForeignFile
from catalog.formats.lance import manifest as lance_manifest
from catalog.models import Table, TableState
from catalog.services.engine.commit import commit
from catalog.services.lance import data as lance_data
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance import metadata as lance_metadata
from catalog.services.lance.indexes import indexes
from catalog.services.lance.indexes.index_plans import NewIndex
from catalog.services.lance.ledger import registration_operations, versions
from catalog.services.lance.refs import branches
from tests.factories import files, make_namespace, snapshot
from tests.security.inotify import watched

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
MINE, VICTIM = ("ws", "mine"), ("secret", "t")
BRANCH = "t"
"""Named as the directory of the victim."""
ROWS = pa.table({"id": [1, 2], "name": ["a", "b"]})
NEW = pa.table({"id": [3], "name": ["c"]})


def declare(table: tuple[str, str], location: Path) -> Table:
    row: Table = commit(
        [registration_operations.DeclareTable(table=table, location=str(location))], actor=SYSTEM
    ).results[0]
    return row


def insert(table: tuple[str, str], branch: str = "") -> None:
    lance_data.insert(actor=SYSTEM, table=table, data=NEW.to_reader(), branch=branch)


@pytest.fixture
def victim(warehouse: Path) -> Path:
    make_namespace("secret")
    make_namespace("ws")
    location = warehouse / "other" / "t"
    declare(VICTIM, location)
    insert(VICTIM)
    return location


@pytest.fixture
def mine(warehouse: Path, victim: Path) -> Path:
    """The location of a table that is only declared."""
    location = warehouse / "a" / "t"
    declare(MINE, location)
    return location


def everything(directory: Path) -> tuple[list[Path], dict[str, bytes]]:
    """The files and directories below a directory, and the content of the files."""
    return sorted(directory.rglob("*")), files(directory)


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(f"{path}.away")
    path.symlink_to(target)


# --- the first write of a declared table ---------------------------------------------------------

FIRST_WRITES: dict[str, Callable[[], object]] = {
    "insert": lambda: insert(MINE),
    "merge": lambda: lance_data.merge_insert(
        actor=SYSTEM,
        table=MINE,
        data=NEW.to_reader(),
        clauses=lance_data.MergeClauses(on=("id",), when_not_matched_insert_all=True),
    ),
}
PLACES: dict[str, Callable[[Path, Path], None]] = {
    "data": lambda mine, victim: link(mine / "data", victim / "data"),
    "_versions": lambda mine, victim: link(mine / "_versions", victim / "_versions"),
    "_transactions": lambda mine, victim: link(mine / "_transactions", victim / "data"),
    "the table": link,
    "a directory above": lambda mine, victim: link(mine.parent, victim.parent),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_first_write_follows_no_link(mine, victim, place):
    PLACES[place](mine, victim)
    before, ledger = everything(victim.parent), snapshot()
    for write in FIRST_WRITES.values():
        with pytest.raises(ForeignFile, match="may not be written for it"):
            write()
    assert everything(victim.parent) == before
    assert snapshot() == ledger
    assert Table.objects.named(MINE).get().state == TableState.DECLARED


# --- tables that are open ------------------------------------------------------------------------

LATE_PLACES = PLACES | {
    "the branch": lambda mine, victim: link(mine / "tree" / BRANCH, victim),
    "the directory of branches": lambda mine, victim: link(mine / "tree", victim.parent),
}
del LATE_PLACES["_versions"], LATE_PLACES["_transactions"]


@pytest.mark.parametrize("place", LATE_PLACES)
def test_an_open_table_follows_no_link(mine, victim, place):
    """The attacker knows the names of the victim's files, and its own have the same names."""
    branch = BRANCH if "branch" in place else ""
    insert(MINE)
    insert(MINE)
    if branch:
        branches.create_branch(actor=SYSTEM, table=MINE, name=BRANCH)
        insert(MINE, branch)
    for row in Table.objects.all():
        versions.settle(row)

    def read() -> int:
        dataset = lance_datasets.read(actor=SYSTEM, table=MINE, branch=branch)
        return int(dataset.to_table().num_rows)

    assert [read(), read()] == [3 if branch else 2] * 2
    insert(MINE, branch)  # a writer keeps the new version open
    assert read() == (4 if branch else 3)
    for path in [*mine.glob("data/*"), *mine.glob(f"tree/{BRANCH}/data/*")]:
        shutil.copy(path, victim / "data")
    LATE_PLACES[place](mine, victim)
    before, ledger = everything(victim.parent), snapshot()
    uses: tuple[Callable[[], object], ...] = (
        read,
        lambda: insert(MINE, branch),
        lambda: lance_data.update(
            actor=SYSTEM, table=MINE, updates=[("name", "'q'")], branch=branch
        ),
        lambda: lance_metadata.restore(actor=SYSTEM, table=MINE, version=2, branch=branch),
    )
    with watched(str(victim)) as touched:
        for use in uses:
            with pytest.raises(CatalogError):
                use()
    assert touched.events == []
    assert everything(victim.parent) == before
    assert snapshot() == ledger


def manifest_of(version: int) -> Path:
    entry = versions.describe_version(actor=SYSTEM, table=MINE, version=version)
    return Path(f"/{entry.manifest_path}")


def test_an_open_table_follows_no_link_that_its_replaced_manifest_conceals(mine, victim):
    """The manifest in storage no longer names the file that is a link, but the open dataset does."""
    insert(MINE)
    for row in Table.objects.all():
        versions.settle(row)
    read = partial(lance_datasets.read, actor=SYSTEM, table=MINE)
    before = set(mine.glob("data/*"))
    insert(MINE)  # a writer keeps the new version open
    (added,) = set(mine.glob("data/*")) - before
    versions.settle(Table.objects.named(MINE).get())
    assert read().to_table().num_rows == 2
    older, newest = map(manifest_of, (1, 2))
    newest.write_bytes(lance_manifest.with_version(older.read_bytes(), 2))
    (hidden,) = victim.glob("data/*")
    added.unlink()
    link(added, hidden)
    ledger = snapshot()
    uses: tuple[Callable[[], object], ...] = (
        lambda: read().to_table(),
        lambda: lance_data.update(actor=SYSTEM, table=MINE, updates=[("name", "'q'")]),
    )
    with watched(str(victim)) as touched:
        for use in uses:
            with pytest.raises(CatalogError, match="was replaced"):
                use()
    assert touched.events == []
    assert snapshot() == ledger


def test_an_open_table_follows_no_link_in_an_index_that_its_replaced_manifest_conceals(
    mine, victim
):
    insert(MINE)
    indexes.create_index(actor=SYSTEM, table=MINE, index=NewIndex(column="id", index_type="BTREE"))
    for row in Table.objects.all():
        versions.settle(row)
    read = partial(lance_datasets.read, actor=SYSTEM, table=MINE)
    assert len(read().describe_indices()) == 1
    older, newest = map(manifest_of, (1, 2))
    newest.write_bytes(lance_manifest.with_version(older.read_bytes(), 2))
    (hidden,) = victim.glob("data/*")
    for path in list(mine.glob("_indices/*/*")):
        path.unlink()
        link(path, hidden)
    with watched(str(victim)) as touched, pytest.raises(CatalogError, match="was replaced"):
        read().to_table(filter="id = 3")
    assert touched.events == []


def test_links_on_a_path(tmp_path):
    directory = tmp_path / "a" / "b"
    directory.mkdir(parents=True)
    (tmp_path / "file").touch()
    link(tmp_path / "c", tmp_path / "a")
    link(tmp_path / "dangling", tmp_path / "missing")
    expected = {
        "a": True,
        "a/b": True,
        "a/missing": True,
        "missing/below": True,
        "c": False,
        "c/b": False,
        "c/missing": False,
        "dangling": False,
        "dangling/below": False,
        "file": False,
    }
    results = {name: regular_files.is_free_of_links(f"{tmp_path}/{name}") for name in expected}
    assert results == expected
