from pathlib import Path

from catalog.storage import listing, local_links
from tests.catalog.storage.test_local_directories import make_deep


def test_a_listing_contains_only_files(table: Path):
    (table / "_versions/directory").mkdir()
    (table / "_versions/link").symlink_to(table / "_versions/staged")
    listed = list(listing.list_files(str(table), "_versions"))
    assert [(f.name, f.size) for f in listed] == [("staged", 3)]
    assert list(listing.list_files(str(table), "nothing")) == []
    assert list(listing.list_files(str(table), "_versions/staged")) == []


def test_branches_are_listed(table: Path):
    assert listing.list_branches(str(table)) == []
    for branch in ("dev", "team/a", "team/b"):
        (table / f"tree/{branch}/_versions").mkdir(parents=True)
    (table / "tree/no/data").mkdir(parents=True)
    assert listing.list_branches(str(table)) == ["dev", "team/a", "team/b"]


def test_branches_in_a_deep_tree_are_listed(deep_table: Path):
    """No request can name a path that is too long for the system."""
    (deep_table / "tree/dev/_versions").mkdir(parents=True)
    make_deep(deep_table / "tree/dev", file="file")
    assert listing.list_branches(str(deep_table)) == ["dev"]


def test_links_in_a_deep_directory_are_noticed(deep_table: Path):
    (deep_table / "data").mkdir()
    make_deep(deep_table / "data", 1500)
    deep = deep_table / "data" / "/".join(["d"] * 1500)
    assert local_links.is_plain(str(deep_table))
    assert list(local_links.irregular_below(str(deep_table))) == []
    (deep / "link").symlink_to(deep_table)
    assert not local_links.is_plain(str(deep_table))
    assert list(local_links.irregular_below(str(deep_table))) == [str(deep / "link")]
