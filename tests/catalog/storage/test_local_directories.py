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
