"""Which files a job deletes: the guard in the process that runs beside Spark."""

from pathlib import Path

import pytest

from tasks.jobs.iceberg import Guard


@pytest.fixture
def place(tmp_path: Path) -> Path:
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
def test_only_own_files_are_deleted(place: Path, path: str, is_own: bool):
    guard = Guard(
        [f"{place}/own", f"file://{place}/path", f"{place}/own/inner/mine"], [f"{place}/own/inner"]
    )
    assert guard.is_own(path.format(at=place)) is is_own


def test_of_a_directory_that_two_tables_hold_nothing_is_deleted(place: Path):
    assert not Guard([f"{place}/own"], [f"{place}/own"]).is_own(f"{place}/own/data/x")


def test_paths_in_an_object_store_are_compared_as_they_are():
    guard = Guard(["s3://bucket/own"], ["s3://bucket/own/inner"])
    assert guard.is_own("s3://bucket/own/data/x")
    assert not guard.is_own("s3://bucket/own2/data/x")
    assert not guard.is_own("s3://bucket/own/inner/x")
    assert not guard.is_own("s3://bucket/own/../other/x")
    assert not guard.is_own("s3://other/own/data/x")
