import os
from pathlib import Path

import pytest

from catalog.storage import local_directories
from tests.factories import files


def test_removal_includes_all_files_and_follows_no_link(table: Path, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"1")
    (table / "data/deep").mkdir(parents=True)
    (table / "data/deep/1.lance").write_bytes(b"rows")
    (table / "link").symlink_to(outside)
    (table / "data/file").symlink_to(outside / "precious")
    (table / "broken").symlink_to(tmp_path / "nowhere")
    counts = list(local_directories.remove_tree(str(table)))
    assert counts == sorted(counts)
    assert not table.exists()
    assert files(outside) == {"precious": b"1"}
    assert list(local_directories.remove_tree(str(table))) == []


def test_a_location_that_is_a_link_is_not_followed(table: Path, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"1")
    location = tmp_path / "location"
    location.symlink_to(outside)
    with pytest.raises(OSError, match="leads elsewhere"):
        local_directories.set_aside(str(location), "purged-1")
    with pytest.raises(OSError, match="leads elsewhere"):
        local_directories.set_aside(f"{location}/below", "purged-1")
    assert list(local_directories.remove_tree(str(location))) == [1]
    assert files(outside) == {"precious": b"1"}


def test_a_directory_is_renamed_before_removal(table: Path, warehouse: Path, settings):
    (table / "file").write_bytes(b"1")
    aside = local_directories.set_aside(str(table), "purged-7")
    assert aside == f"{table}.purged-7"
    assert not table.exists()
    table.mkdir()  # now the directory of another table
    assert local_directories.set_aside(str(table), "purged-7") == aside
    assert table.exists()
    assert local_directories.set_aside(f"{warehouse}/nothing", "purged-8") is None
    settings.MONODON_WAREHOUSE = f"{warehouse}/unmounted"
    with pytest.raises(OSError, match="is not there"):
        local_directories.set_aside(f"{warehouse}/unmounted/t", "purged-9")


def test_an_interrupted_removal_is_resumed(table: Path):
    for number in range(10):
        (table / f"_versions/{number}").write_bytes(b"x")
    removal = local_directories.remove_tree(str(table))
    for _ in range(4):
        next(removal)
    removal.close()
    assert len(files(table)) == 7
    assert len(list(local_directories.remove_tree(str(table)))) == 7
    assert not table.exists()


# --- trees that are deeper than Python's recursion, and than a path may be -----------------------

DEPTH = 3000


def make_deep(directory: Path, depth: int = DEPTH, file: str = "") -> None:
    """Make directories in each other, the lowest with a file if it has a name."""
    directory.mkdir(exist_ok=True)
    at = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    if file:
        os.close(os.open(file, os.O_CREAT, dir_fd=at))
    os.close(at)


def count_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_empty_directories_in_a_deep_tree_are_removed(deep_table: Path):
    before = count_descriptors()
    make_deep(deep_table / "data")
    names, most = [], 0
    for name in local_directories.remove_empty_directories(f"{deep_table}/data"):
        names.append(name)
        most = max(most, count_descriptors())
    assert names == ["d"] * DEPTH + ["data"]
    assert before <= most <= before + 1
    assert count_descriptors() == before
    assert not (deep_table / "data").exists()


def test_a_deep_tree_is_removed(deep_table: Path):
    before = count_descriptors()
    make_deep(deep_table / "data", file="1.lance")
    removal = local_directories.remove_tree(str(deep_table))
    most = max(count_descriptors() for _ in removal)
    assert before <= most <= before + 1
    assert count_descriptors() == before
    assert not deep_table.exists()


def test_a_deep_tree_with_a_file_keeps_its_directories(deep_table: Path):
    make_deep(deep_table / "data", file="1.lance")
    (deep_table / "data/empty").mkdir()
    visited = list(local_directories.remove_empty_directories(f"{deep_table}/data"))
    assert len(visited) == DEPTH + 2
    assert [path.name for path in (deep_table / "data").iterdir()] == ["d"]


@pytest.mark.parametrize(
    "remove", [local_directories.remove_tree, local_directories.remove_empty_directories]
)
def test_a_directory_that_is_moved_meanwhile_leads_nowhere(table: Path, tmp_path: Path, remove):
    """The directory above it is one of others then."""
    others = tmp_path / "others"
    (others / "data").mkdir(parents=True)
    (others / "data/precious").write_bytes(b"1")
    (table / "below/data/open").mkdir(parents=True)
    (table / "below/data/open/file").write_bytes(b"1")
    removal = remove(f"{table}/below")
    next(removal)  # the lowest directory is open
    (table / "below/data/open").rename(others / "open")
    with pytest.raises(OSError, match="was moved while it was open"):
        list(removal)
    assert (others / "data/precious").read_bytes() == b"1"
    assert (table / "below/data").exists()
