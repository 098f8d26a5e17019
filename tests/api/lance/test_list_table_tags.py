from pathlib import Path

import lance as pylance
import pyarrow as pa
import pytest

from catalog.models import TableVersion
from tests.factories import make_lance_table, make_table, unchanged

PATH = "/v1/table/w$t/tags/list"
pytestmark = [pytest.mark.django_db, pytest.mark.operation("ListTableTags")]


def size(table, number: int = 1, branch: str = "") -> int:
    directory = Path(table.location, *(("tree", branch) if branch else ()), "_versions")
    return (directory / f"{2**64 - 1 - number}.manifest").stat().st_size


def test_a_table_without_any(lance, reader):
    make_lance_table(("w", "t"))
    with unchanged():
        assert lance.post(PATH) == {"tags": {}}
        assert reader.post(f"{PATH}/?delimiter=%24") == {"tags": {}}


def test_contents(lance):
    table = make_lance_table(("w", "t"))
    lance.post("/v1/table/w$t/branches/create", {"name": "dev/x"})
    lance.post("/v1/table/w$t/tags/create", {"tag": "v1", "version": 1})
    lance.post("/v1/table/w$t/tags/create", {"tag": "d", "version": 1, "branch": "dev/x"})
    assert lance.post(PATH) == {
        "tags": {
            "d": {"branch": "dev/x", "version": 1, "manifestSize": size(table, branch="dev/x")},
            "v1": {"version": 1, "manifestSize": size(table)},
        }
    }


def test_tags_of_clients(lance):
    """Clients write tags to storage without notifying the catalog."""
    table = make_lance_table(("w", "t"))
    dataset = pylance.dataset(table.location)
    dataset.tags.create("theirs", 1)
    dataset.tags.create("é", 1)
    assert list(lance.post(PATH)["tags"]) == ["theirs", "é"]
    dataset.tags.delete("theirs")
    assert list(lance.post(PATH)["tags"]) == ["é"]


def test_invalid_tag_files_are_skipped(lance):
    table = make_lance_table(("w", "t"))
    lance.post("/v1/table/w$t/tags/create", {"tag": "v1", "version": 1})
    tags = Path(table.location) / "_refs/tags"
    contents = ["{", "[]", "null", "{}", '{"version": "1"}', '{"version": -1}', '{"version": true}']
    for number, content in enumerate(contents):
        (tags / f"bad{number}.json").write_text(content)
    (tags / "note.txt").write_text('{"version": 1}')
    (tags / "directory.json").mkdir()
    (tags / "link.json").symlink_to("/etc/passwd")
    (tags / "few.json").write_text('{"version": 1, "manifestSize": null, "branch": 7}')
    assert list(lance.post(PATH)["tags"]) == ["few", "v1"]


def test_pages(lance):
    table = make_lance_table(("w", "t"))
    dataset = pylance.dataset(table.location)
    for name in "cabde":
        dataset.tags.create(name, 1)
    first = lance.post(f"{PATH}?limit=2")
    assert (list(first["tags"]), first["page_token"]) == (["a", "b"], "b")
    second = lance.post(f"{PATH}?limit=2&page_token=b")
    assert (list(second["tags"]), second["page_token"]) == (["c", "d"], "d")
    assert list(lance.post(f"{PATH}?limit=2&page_token=d")["tags"]) == ["e"]
    assert "page_token" not in lance.post(f"{PATH}?limit=5")
    assert lance.post(f"{PATH}?page_token=e") == {"tags": {}}
    assert list(lance.post(f"{PATH}?page_token=")["tags"]) == list("abcde")
    for wrong in ("0", "-1", "x"):
        lance.refused(400, 13, "limit", f"{PATH}?limit={wrong}")


def test_refusals(lance):
    lance.refused(404, 1, "'w'", PATH)
    make_table("w", "t")
    lance.refused(409, 19, "declared", PATH)
    lance.refused(404, 4, "'w.u'", "/v1/table/w$u/tags/list")


def test_tags_of_missing_versions_are_listed(lance):
    """A tag whose version is no longer in the ledger is listed."""
    make_lance_table(("w", "t"), pa.table({"a": [1]}))
    lance.post("/v1/table/w$t/tags/create", {"tag": "v1", "version": 1})
    TableVersion.objects.update(deleted_at="2026-01-01T00:00Z")  # as older releases allowed
    assert lance.post(PATH)["tags"]["v1"]["version"] == 1
