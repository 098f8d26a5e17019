"""Which files a Spark job may delete: those of its table (``Guard``) that are not needed (``NeededFiles``)."""

from pathlib import Path

import pytest

from catalog.storage import spellings
from tasks.jobs.iceberg import paths
from tasks.jobs.iceberg.guard import Guard
from tasks.jobs.iceberg.needed_files import NeededFiles
from tasks.jobs.iceberg.paths import is_local
from tasks.jobs.iceberg.removal import _is_kept, _is_metadata


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("own/data", "own/inner/data", "own2/data", "other/data", "path"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "x").write_text("x")
    (tmp_path / "own" / "link").symlink_to(tmp_path / "other" / "data")
    (tmp_path / "own" / "file").symlink_to(tmp_path / "other" / "data" / "x")
    (tmp_path / "way").symlink_to(tmp_path / "own")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "is_own"),
    [
        ("{at}/own/data/x", True),
        ("file:{at}/own/data/x", True),
        ("file://{at}/own/data/x", True),
        ("file:///{at}/own/data/x", False),
        ("{at}/own/missing/x", True),
        ("{at}/way/data/x", True),
        ("{at}/path/x", True),
        ("{at}/own2/data/x", False),
        ("{at}/other/data/x", False),
        ("{at}/own/inner/data/x", False),
        ("{at}/own/inner/mine/x", True),
        ("{at}/own/link/x", False),
        ("{at}/own/file", False),
        ("{at}/own/../other/data/x", False),
        ("{at}/own/./data/x", False),
        ("{at}/own//data/x", False),
        ("{at}/own/data/", False),
        ("{at}/own", False),
        ("file://host{at}/own/data/x", False),
        ("s3:/{at}/own/data/x", False),
        ("own/data/x", False),
        ("", False),
    ],
)
def test_only_own_files_are_deleted(directory: Path, path: str, is_own: bool):
    guard = Guard(
        [f"{directory}/own", f"file://{directory}/path", f"{directory}/own/inner/mine"],
        [f"{directory}/own/inner"],
    )
    assert guard.is_own(path.format(at=directory)) is is_own


def test_no_file_is_deleted_in_a_directory_of_two_tables(directory: Path):
    assert not Guard([f"{directory}/own"], [f"{directory}/own"]).is_own(f"{directory}/own/data/x")


def test_paths_in_an_object_store_are_compared_unchanged():
    guard = Guard(["s3://bucket/own"], ["s3://bucket/own/inner"])
    assert guard.is_own("s3://bucket/own/data/x")
    assert not guard.is_own("s3://bucket/own2/data/x")
    assert not guard.is_own("s3://bucket/own/inner/x")
    assert not guard.is_own("s3://bucket/own/../other/x")
    assert not guard.is_own("s3://other/own/data/x")
    assert not guard.is_own("s3a://bucket/own/data/x")


@pytest.mark.parametrize(
    "needed", ["{at}/own/data/x", "file:{at}/way/data/x", "{at}/own/../own/data/x"]
)
@pytest.mark.parametrize(
    ("path", "is_needed"),
    [
        ("{at}/own/data/x", True),
        ("file:{at}/own/data/x", True),
        ("file://{at}/own/data/x", True),
        ("file://localhost{at}/own/data/x", True),
        ("{at}/way/data/x", True),
        ("{at}/own/data/y", False),
        ("{at}/own2/data/x", False),
        ("{at}/own/missing/x", False),
    ],
)
def test_needed_files_have_many_spellings(directory: Path, needed: str, path: str, is_needed: bool):
    files = NeededFiles([needed.format(at=directory)])
    assert (path.format(at=directory) in files) is is_needed


def test_a_file_behind_a_needed_link_is_needed(directory: Path):
    files = NeededFiles([f"{directory}/own/file"])
    assert f"{directory}/other/data/x" in files
    assert f"{directory}/own/file" in files
    assert f"{directory}/own/data/x" not in files


def test_no_file_is_needed_by_an_empty_table():
    assert "/own/data/x" not in NeededFiles([])


@pytest.mark.parametrize("path", ["s3://bucket/own/data/x?y", "s3://bucket/own/data/x#y"])
def test_a_path_by_which_iceberg_opens_another_object_is_not_own(path: str):
    assert not Guard(["s3://bucket/own"], []).is_own(path)


@pytest.mark.parametrize(
    "path",
    [
        "{at}/own/data/x",
        "file:{at}/own/data/x",
        "file://{at}/own/data/x",
        "file://localhost{at}/own/data/x",
        "{at}/own/../own/data/x",
        "{at}/own//data/./x",
        "/{at}/own/data/x",
        "file:///{at}/own/data/x",
        "{at}/way/data/x",
        "{at}/linked",
        "FILE:{at}/own/data/x",
        "File://localhost{at}/own/data/x",
        "file:{at}/own/data/x?y",
        "file://{at}/own/data/x#y?z",
        "file:{at}/own/link/../data/x",
        "file:{at}/own/link/../data/x?y",
    ],
)
def test_a_file_is_needed_whatever_names_it(directory: Path, path: str):
    """PyIceberg opens what is before a query. Hadoop applies ``..`` before it follows links."""
    (directory / "linked").symlink_to(directory / "own" / "data" / "x")
    needed = NeededFiles([path.format(at=directory), "s3://bucket/x", "a\0b", "/a\0b/c"])
    assert f"file:{directory}/own/data/x" in needed
    assert f"file:{directory}/own/data/y" not in needed
    assert f"file:{directory}/own2/data/x" not in needed
    assert f"file:{directory}/own/data/x" not in NeededFiles([])


@pytest.mark.parametrize(
    "path",
    ["/t/x", "file:/t/x?a#b", "/t/link/../x", "FILE://localhost//t/a/../x#b", "//t/../x", ""],
)
def test_the_worker_derives_the_same_paths(path: str):
    """The worker cleans up tables, too, but Spark has none of its modules."""
    assert list(paths.readings(path)) == list(spellings.readings(path))


def test_long_paths_are_compared_in_linear_time(directory: Path):
    long = "/a" * 500_000
    needed = NeededFiles([long, f"{directory}/way{'/.' * 500_000}/data/x"])
    assert long in needed
    assert f"{directory}/own/data/x" in needed
    assert f"{directory}/own/data/y" not in needed
    assert not Guard([f"{directory}/own"], []).is_own(long)


def test_a_name_that_is_too_long_for_a_file_is_nobodys(directory: Path):
    """Otherwise a table with such a name could not be cleaned any more."""
    long = f"{directory}/own/data/{'x' * 300}"
    assert Guard([f"{directory}/own"], []).is_own(long)
    needed = NeededFiles([long, f"{directory}/own/data/x"])
    assert long in needed
    assert f"{directory}/own/data/x" in needed
    assert f"{directory}/own/data/y" not in needed


@pytest.mark.parametrize(
    ("location", "is_expected"),
    [
        ("/data/t", True),
        ("//data/t", True),
        ("file:/data/t", True),
        ("file:///data/t", True),
        ("file:////data/t", True),
        ("file://localhost/data/t", True),
        ("file://localhost//data/t", True),
        ("s3://bucket/t", False),
        ("gs://bucket/t", False),
        ("abfss://c@account.dfs.core.windows.net/t", False),
    ],
)
def test_needed_files_are_compared_as_those_of_the_tables_storage(location: str, is_expected: bool):
    assert is_local(location) is is_expected


def test_a_metadata_file_of_the_ledger_is_kept_whatever_its_name_is():
    """A table can be registered by a metadata file with any name."""
    ledger = frozenset({"first.json", "2.metadata.json"})
    for name, is_kept, is_metadata in (
        ("first.json", True, True),
        ("2.metadata.json", True, True),
        ("3.metadata.json", False, True),
        ("other.json", False, False),
    ):
        path = f"file:/t/metadata/{name}"
        assert (_is_kept(path, ledger), _is_metadata(path, ledger)) == (is_kept, is_metadata)
    assert _is_kept("file:/t/metadata/3.metadata.json", None)
    assert not _is_kept("file:/t/metadata/first.json", None)
