import os
from pathlib import Path

import pytest

from catalog.storage import local_files
from catalog.storage.stores import Move
from tests.factories import files


def move(table: Path, final: str = "_versions/final") -> Move:
    return local_files.move_manifest(str(table), "_versions/staged", final)


def test_a_file_is_moved_repeatedly(table: Path):
    assert move(table) is Move.DONE
    assert files(table) == {"_versions/final": b"one"}
    assert move(table) is Move.DONE  # repeated


def test_a_move_creates_the_directory_of_a_branch(table: Path):
    assert move(table, "tree/a/b/_versions/final") is Move.DONE
    assert files(table) == {"tree/a/b/_versions/final": b"one"}


def test_moving_a_missing_file_fails(table: Path):
    (table / "_versions/staged").unlink()
    assert move(table) is Move.MISSING


def test_moving_to_an_existing_name_fails(table: Path):
    (table / "_versions/final").write_bytes(b"two")
    assert move(table) is Move.OCCUPIED
    assert files(table) == {"_versions/final": b"two", "_versions/staged": b"one"}


def test_files_are_moved_without_hard_links(table: Path, monkeypatch):
    def no_links(*args, **options):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert move(table) is Move.DONE
    assert files(table) == {"_versions/final": b"one"}
    (table / "_versions/staged").write_bytes(b"two")
    assert move(table) is Move.OCCUPIED
    assert files(table) == {"_versions/final": b"one", "_versions/staged": b"two"}


def test_a_failed_move_keeps_the_staged_file(table: Path, monkeypatch):
    def fail(*args, **options):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "link", fail)
    monkeypatch.setattr("catalog.regular_files.write_at", fail)
    with pytest.raises(OSError, match="Input/output"):
        move(table)
    assert files(table) == {"_versions/staged": b"one"}


def test_links_out_of_the_table_are_refused(table: Path, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "staged").write_bytes(b"precious")
    (table / "_versions/staged").unlink()
    (table / "_versions/staged").symlink_to(outside / "staged")
    assert move(table) is Move.MISSING
    assert files(outside) == {"staged": b"precious"}
    (table / "tree").symlink_to(outside)
    (table / "_versions/staged").unlink()
    (table / "_versions/staged").write_bytes(b"one")
    assert move(table, "tree/b/_versions/final") is Move.MISSING
    assert files(outside) == {"staged": b"precious"}
