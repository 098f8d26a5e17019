from pathlib import Path

from catalog.storage import listing


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
