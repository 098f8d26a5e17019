"""The tab of an Iceberg table's files, which reads manifests from storage."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from catalog.models import Table
from tests.catalog.admin.iceberg.test_pages import words
from tests.catalog.admin.test_pages import cost
from tests.catalog.formats.iceberg.scans.test_planning import BY_DAY, SIMPLE, row
from tests.catalog.formats.iceberg.written import POSITION, Written
from tests.catalog.services.iceberg.test_scans import register
from tests.factories import make_iceberg_table

T = ("ws", "t")


@pytest.fixture
def written(db: None, warehouse: Path) -> Written:
    """A table with two snapshots that each add a file, and one that deletes rows."""
    made = Written(warehouse / "ws-t", SIMPLE, BY_DAY)
    made.commit([made.file([row(1, 0), row(2, 0)])])
    made.commit([made.file([row(3, 31)])])
    made.commit([made.file([row(1)], content=POSITION, metrics=False)], operation="delete")
    register(made, *T)
    return made


def panels(browser, **parameters: str):
    page = f"/admin/catalog/table/{Table.objects.get(name='t').pk}/change/"
    return browser.get(page, {"tab": "files", **parameters}).context["panels"]


def lines(panel) -> list[list[str]]:
    return [[words(cell) for cell in line] for line in panel.rows]


def test_the_manifests_of_the_current_snapshot_are_listed(browser, written):
    (panel,) = panels(browser)
    assert panel.title == f"Manifests of snapshot {written.document['current-snapshot-id']}"
    assert {tuple(line[1:5]) for line in lines(panel)} == {
        ("data", "1", "2", "0"),
        ("data", "1", "1", "0"),
        ("deletes", "1", "1", "0"),
    }


def test_the_files_of_a_manifest_are_listed(browser, written):
    made = {manifest_file.manifest_path: manifest_file for manifest_file in written.manifests}
    by_content = {}
    for path in made:
        files, manifests = panels(browser, manifest=path)
        assert len(manifests.rows) == 3
        assert files.title == f"Files of {Path(path).name}"
        (line,) = lines(files)
        by_content[(line[1], line[2], line[3])] = line
    assert set(by_content) == {
        ("data, parquet", "the_day=1970-01-01", "2"),
        ("data, parquet", "the_day=1970-02-01", "1"),
        ("position deletes, parquet", "the_day=1970-01-01", "1"),
    }
    # A file that is not a manifest of the snapshot is not opened.
    assert len(panels(browser, manifest="file:///etc/passwd")) == 1


def test_an_older_snapshot_may_be_selected(browser, written):
    oldest = written.document["snapshots"][0]["snapshot-id"]
    (panel,) = panels(browser, snapshot=str(oldest))
    assert len(panel.rows) == 1
    (panel,) = panels(browser, snapshot="7")
    assert panel.empty == "The table has no snapshot '7'."


def remove(path: Path) -> None:
    path.unlink()


def torn(path: Path) -> None:
    path.write_bytes(b"no Avro")


def outside(path: Path) -> None:
    elsewhere = path.parents[3] / "outside.avro"
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (remove, "cannot be read"),
        (torn, "torn, or none at all"),
        (outside, "does not belong to table"),
    ],
)
@pytest.mark.parametrize("of", ["list", "manifest"])
def test_unreadable_files_are_reported(
    browser, written, spoil: Callable[[Path], None], message: str, of: str
):
    manifest = written.manifests[0].manifest_path
    snapshot = written.document["snapshots"][-1]
    spoilt = snapshot["manifest-list"] if of == "list" else manifest
    spoil(Path(spoilt.removeprefix("file://")))
    (panel,) = panels(browser, manifest=manifest)
    assert panel.rows == ()
    assert message in panel.empty


def test_files_that_are_too_large_are_not_read(browser, written, monkeypatch):
    monkeypatch.setattr("catalog.services.iceberg.contents.MAX_BYTES", 100)
    assert "too large to be shown" in panels(browser)[0].empty


def test_a_table_without_a_snapshot_has_no_files(browser, warehouse):
    make_iceberg_table(*T)
    assert panels(browser)[0].empty == "The table has no snapshot yet."


def test_the_tab_takes_no_more_queries_than_others(browser, written):
    page = f"/admin/catalog/table/{Table.objects.get(name='t').pk}/change/?tab=files"
    assert cost(browser, [page]) == {page: 4}
