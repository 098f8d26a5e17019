"""Files of tags and branches that no client would write: names that cannot be stored, and much metadata."""

import json
from pathlib import Path

import pytest

from catalog.models import AuditEvent, Table
from tests.factories import make_lance_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
CREATE = "/v1/table/w$t/branches/create"
NAMES = ["a\0b", "\ud800", "../t", "x" * 256]


def _write(table: Table, kind: str, file: str, **content: object) -> Path:
    path = Path(table.location) / "_refs" / kind / f"{file}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("branch", NAMES)
def test_a_tag_of_an_impossible_branch_can_only_be_deleted(lance, branch):
    path = _write(make_lance_table(("w", "t")), "tags", "v", branch=branch, version=1)
    assert lance.post("/v1/table/w$t/tags/list") == {"tags": {}}
    for operation in ("version", "update"):
        body = {"tag": "v", "version": 1}
        lance.refused(404, 8, "no tag 'v'", f"/v1/table/w$t/tags/{operation}", body)
    lance.post("/v1/table/w$t/tags/delete", {"tag": "v"})
    assert not path.exists()
    assert AuditEvent.objects.filter(action="tag.delete").count() == 1


def test_a_tag_with_a_name_that_cannot_be_stored_is_none(lance):
    path = _write(make_lance_table(("w", "t")), "tags", "%00", version=1)
    assert lance.post("/v1/table/w$t/tags/list") == {"tags": {}}
    lance.refused(404, 8, "no tag", "/v1/table/w$t/tags/delete", {"tag": "\0"})
    assert path.exists()


@pytest.mark.parametrize("parent", NAMES)
def test_the_ledger_describes_a_branch_with_an_impossible_parent(lance, parent):
    table = make_lance_table(("w", "t"))
    lance.post(CREATE, {"name": "dev"})
    _write(table, "branches", "dev", parentBranch=parent, parentVersion=7)
    (branch,) = lance.post("/v1/table/w$t/branches/list")["branches"].values()
    assert (branch["parentVersion"], "parentBranch" in branch) == (1, False)


def test_a_page_of_branches_with_much_metadata_ends_early(lance):
    table = make_lance_table(("w", "t"))
    names = [f"b{number}" for number in range(6)]
    for name in names:
        lance.post(CREATE, {"name": name})
        _write(table, "branches", name, parentVersion=1, metadata={"key": "x" * 1_000_000})
    first = lance.post("/v1/table/w$t/branches/list")
    assert list(first["branches"]) == names[:5]
    token = first["page_token"]
    second = lance.post(f"/v1/table/w$t/branches/list?page_token={token}")
    assert list(second["branches"]) == names[5:]
    assert second.get("page_token") is None
