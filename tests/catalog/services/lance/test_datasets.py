"""An open dataset is never used for another version with the same location and number."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import Session

from catalog.access import SYSTEM
from catalog.errors import CatalogError, InvalidManifestPath
from catalog.services.engine.commit import commit
from catalog.services.lance import data as lance_data
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance import open_versions
from catalog.services.lance.ledger import registration_operations
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.tables import table_operations
from tests.factories import make_lance_table, make_namespace, make_root, unchanged
from tests.security import lance_attacks

pytestmark = pytest.mark.django_db(transaction=True)

T = ("w", "t")


@pytest.fixture(autouse=True)
def warehouse(tmp_path, settings) -> Path:
    settings.MONODON_WAREHOUSE = str(tmp_path)
    make_root()
    return tmp_path


def ids(**options) -> list[int]:
    rows = lance_datasets.read(actor=SYSTEM, table=T, **options).to_table(filter="id > 0")
    return rows["id"].to_pylist()


def test_a_table_registered_at_a_former_location_is_reopened(warehouse):
    make_namespace("w")
    for values in ([1, 2], [7, 8, 9]):
        shutil.rmtree(warehouse / "place", ignore_errors=True)
        made = lance.write_dataset(pa.table({"id": values}), warehouse / "place")
        made.create_scalar_index("id", "BTREE")
        commit([registration_operations.RegisterTable(table=T, location="place")], actor=SYSTEM)
        assert ids() == ids(version=1) == values
        commit([table_operations.DeregisterTable(table=T)], actor=SYSTEM)


def test_a_branch_recreated_by_another_process_is_reopened(warehouse, monkeypatch):
    make_lance_table(T, pa.table({"id": [1]}))
    own = lance_datasets.session
    for value in (10, 20):
        with monkeypatch.context() as other_process:
            other_process.setattr(lance_datasets, "session", cache(Session))
            other_process.setattr(lance_datasets, "_entered", {})
            if value == 20:
                lance_branches.delete_branch(actor=SYSTEM, table=T, name="dev")
            lance_branches.create_branch(actor=SYSTEM, table=T, name="dev")
            more = pa.table({"id": [value]})
            lance_data.insert(actor=SYSTEM, table=T, data=more, branch="dev")
        assert lance_datasets.session is own
        assert ids(branch="dev") == [1, value]


def test_the_session_is_kept_while_nothing_is_recreated():
    make_lance_table(T, pa.table({"id": [1]}))
    before = lance_datasets.session()
    for value in (2, 3):
        lance_data.insert(actor=SYSTEM, table=T, data=pa.table({"id": [value]}))
        ids()
    assert ids(version=1) == [1]
    assert lance_datasets.session() is before


@pytest.fixture
def replaced_at(monkeypatch, warehouse) -> Callable[[Any, str], None]:
    """Replace the manifest of T, by one that leads to another table, when this function is called.

    Clients with credentials for a table in an object store can do that at any time.
    """
    mine = make_lance_table(T, pa.table({"id": [1]}))
    theirs = make_lance_table(("w", "theirs"), pa.table({"id": [7]}))
    lance_datasets.clear_caches()
    (path,) = Path(mine.location, "_versions").glob("*.manifest")
    leading_elsewhere = lance_attacks.clone_of(theirs, 1, warehouse / "clone")

    def replace_at(holder: Any, name: str) -> None:
        function = getattr(holder, name)

        def replacing(*args: Any) -> Any:
            path.write_bytes(leading_elsewhere)
            return function(*args)

        monkeypatch.setattr(holder, name, replacing)

    return replace_at


def test_a_manifest_that_is_replaced_before_lance_opens_it_is_refused(replaced_at):
    replaced_at(lance_datasets, "_open")
    for _ in range(2):  # nothing is kept
        with pytest.raises(CatalogError, match=r"was replaced while or after it was opened|belong"):
            ids()


WRITES: dict[str, Callable[[], Any]] = {
    "insert": lambda: lance_data.insert(actor=SYSTEM, table=T, data=pa.table({"id": [2]})),
    "delete": lambda: lance_data.delete(actor=SYSTEM, table=T, predicate="id = 7"),
}


@pytest.mark.parametrize("write", WRITES)
def test_nothing_is_written_from_a_manifest_that_was_replaced(replaced_at, write):
    replaced_at(open_versions.OpenVersion, "_open")
    with unchanged(), pytest.raises(InvalidManifestPath, match="was replaced"):
        WRITES[write]()
