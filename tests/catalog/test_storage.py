import os
import random
from pathlib import Path
from urllib.parse import quote

import pytest

from catalog.errors import InvalidLocation, InvalidManifestPath
from catalog.storage import listing, local_directories, local_files, locations
from catalog.storage.local_files import Move
from tests.factories import files

NAMES = ["a", "a b", "größe", "🧊", "100%", "a+b", "_versions", "x.lance", "[1]", "a%20b", "#", "?"]


def test_every_spelling_of_a_location_is_one(warehouse: Path):
    dice = random.Random(1)
    for _ in range(200):
        parts = dice.choices([n for n in NAMES if "%" not in n], k=dice.randint(1, 4))
        path = f"{warehouse}/{'/'.join(parts)}"
        for spelling in (
            path,
            path + "/",
            path.replace("/", "//"),
            "/".join(parts),
            "./" + "/".join(parts),
            f"file://{quote(path)}",
            f"file:{quote(path)}",
        ):
            assert locations.check_location(spelling) == path


@pytest.mark.parametrize(
    "location", ["", "/", "//", " ", "/etc", "a/../b", "..", "a\0", "%2e%2e/x"]
)
def test_locations_that_are_refused(warehouse: Path, location):
    with pytest.raises(InvalidLocation):
        locations.check_location(location)


def test_the_warehouse_may_itself_be_a_link(tmp_path: Path, settings):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    settings.MONODON_WAREHOUSE = str(tmp_path / "link")
    assert locations.check_location(f"{tmp_path}/link/t") == f"{tmp_path}/real/t"
    assert locations.new_location("t").startswith(f"{tmp_path}/real/t-")


def test_new_locations_differ(warehouse: Path):
    assert len({locations.new_location("t") for _ in range(100)}) == 100


def test_parents():
    assert locations.parents("/a/b/c") == ["/a/b", "/a"]
    assert locations.parents("/a") == []


def test_uri():
    assert locations.uri("/a b/größe+%") == "file:///a%20b/gr%C3%B6%C3%9Fe%2B%25"


def test_every_spelling_of_a_manifest_path_is_one(warehouse: Path):
    dice = random.Random(2)
    for number in range(300):
        location = f"{warehouse}/{number}/{'/'.join(dice.choices(NAMES, k=dice.randint(1, 3)))}"
        relative = "_versions/" + dice.choice(NAMES)
        path = f"{location}/{relative}"
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()
        spellings = [path, path.lstrip("/"), f"file://{quote(path)}", f"file:{quote(path)}"]
        spellings += [quote(path), quote(path.lstrip("/")), relative, path.replace("/", "//")]
        for spelling in spellings:
            assert locations.path_in_table(location, spelling) == relative, spelling


def test_a_name_with_a_percent_sign_means_the_file_that_is_there(warehouse: Path):
    location = warehouse / "t"
    (location / "_versions").mkdir(parents=True)
    spelled = f"{location}/_versions/a%20b"
    assert locations.path_in_table(str(location), spelled) == "_versions/a%20b"
    (location / "_versions/a b").touch()
    assert locations.path_in_table(str(location), spelled) == "_versions/a b"
    (location / "_versions/a%20b").touch()
    assert locations.path_in_table(str(location), spelled) == "_versions/a%20b"


def test_paths_elsewhere(warehouse: Path):
    location = f"{warehouse}/t"
    for path in (
        location,
        f"{location}x/_versions/1",
        f"{warehouse}/u/_versions/1",
        "/etc/passwd",
        "file:///etc/passwd",
        "/_versions/1.manifest-x",
        "s3://bucket" + location + "/_versions/1",
        "file://other-host" + location + "/_versions/1",
    ):
        assert locations.path_in_table(location, path) is None, path


def test_a_relative_path_may_be_the_stores_or_the_tables(warehouse: Path):
    location = f"{warehouse}/t"
    assert locations.path_in_table(location, "etc/passwd") == "etc/passwd"
    assert not locations.is_surely_in_table(location, "etc/passwd")
    assert locations.is_surely_in_table(location, "_versions/1.manifest-x")
    assert locations.is_surely_in_table(location, "tree/dev/_versions/1.manifest-x")
    (warehouse / "t").mkdir()
    (warehouse / "t/staged").write_bytes(b"")
    assert locations.is_surely_in_table(location, "staged")


def test_traversal_is_refused_in_every_spelling(warehouse: Path):
    location = f"{warehouse}/t"
    for dots in ("..", "%2e%2e", "%2E.", ".%2e"):
        for path in (dots, f"{dots}/x", f"_versions/{dots}/x", f"{location}/{dots}/u/x"):
            for spelling in (path, f"file://{path}" if path.startswith("/") else path):
                with pytest.raises(InvalidManifestPath, match=r"holds '\.\.'"):
                    locations.path_in_table(location, spelling)
    # Dots that are part of a name lead nowhere.
    assert locations.path_in_table(location, "_versions/a..b") == "_versions/a..b"
    assert locations.path_in_table(location, "_versions/...") == "_versions/..."


# --- moving ------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    directory = tmp_path / "table"
    (directory / "_versions").mkdir(parents=True)
    (directory / "_versions/staged").write_bytes(b"one")
    return directory


def move(table: Path, final: str = "_versions/final") -> Move:
    return local_files.move_manifest(str(table), "_versions/staged", final)


def test_moves(table: Path):
    assert move(table) is Move.DONE
    assert files(table) == {"_versions/final": b"one"}
    assert move(table) is Move.DONE  # and again


def test_makes_the_directory_of_a_branch(table: Path):
    assert move(table, "tree/a/b/_versions/final") is Move.DONE
    assert files(table) == {"tree/a/b/_versions/final": b"one"}


def test_a_missing_file(table: Path):
    (table / "_versions/staged").unlink()
    assert move(table) is Move.MISSING


def test_an_occupied_name(table: Path):
    (table / "_versions/final").write_bytes(b"two")
    assert move(table) is Move.OCCUPIED
    assert files(table) == {"_versions/final": b"two", "_versions/staged": b"one"}


def test_a_file_system_without_hard_links(table: Path, monkeypatch):
    def no_links(*args, **options):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert move(table) is Move.DONE
    assert files(table) == {"_versions/final": b"one"}
    (table / "_versions/staged").write_bytes(b"two")
    assert move(table) is Move.OCCUPIED
    assert files(table) == {"_versions/final": b"one", "_versions/staged": b"two"}


def test_a_storage_that_fails_keeps_the_staged_file(table: Path, monkeypatch):
    def fail(*args, **options):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "link", fail)
    monkeypatch.setattr("catalog.regular_files.write_at", fail)
    with pytest.raises(OSError, match="Input/output"):
        move(table)
    assert files(table) == {"_versions/staged": b"one"}


def test_links_that_lead_out(table: Path, tmp_path: Path):
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


# --- listing and removing ------------------------------------------------------------------------


def test_lists_files_only(table: Path):
    (table / "_versions/directory").mkdir()
    (table / "_versions/link").symlink_to(table / "_versions/staged")
    found = list(listing.list_files(str(table), "_versions"))
    assert [(f.name, f.size) for f in found] == [("staged", 3)]
    assert list(listing.list_files(str(table), "nothing")) == []
    assert list(listing.list_files(str(table), "_versions/staged")) == []


def test_lists_branches(table: Path):
    assert listing.list_branches(str(table)) == []
    for branch in ("dev", "team/a", "team/b"):
        (table / f"tree/{branch}/_versions").mkdir(parents=True)
    (table / "tree/no/data").mkdir(parents=True)
    assert listing.list_branches(str(table)) == ["dev", "team/a", "team/b"]


def test_removes_everything_and_follows_no_link(table: Path, tmp_path: Path):
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


def test_a_location_that_became_a_link_is_not_followed(table: Path, tmp_path: Path):
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


def test_setting_aside(table: Path, warehouse: Path, settings):
    (table / "file").write_bytes(b"1")
    aside = local_directories.set_aside(str(table), "purged-7")
    assert aside == f"{table}.purged-7"
    assert not table.exists()
    table.mkdir()  # somebody else's, from now on
    assert local_directories.set_aside(str(table), "purged-7") == aside
    assert table.exists()
    assert local_directories.set_aside(f"{warehouse}/nothing", "purged-8") is None
    settings.MONODON_WAREHOUSE = f"{warehouse}/unmounted"
    with pytest.raises(OSError, match="is not there"):
        local_directories.set_aside(f"{warehouse}/unmounted/t", "purged-9")


def test_removal_goes_on_where_it_stopped(table: Path):
    for number in range(10):
        (table / f"_versions/{number}").write_bytes(b"x")
    removal = local_directories.remove_tree(str(table))
    for _ in range(4):
        next(removal)
    removal.close()
    assert len(files(table)) == 7
    assert len(list(local_directories.remove_tree(str(table)))) == 7
    assert not table.exists()
