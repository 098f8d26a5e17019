import pyarrow as pa
import pytest

from catalog.formats.lance import naming as lance_naming
from catalog.models import Branch
from tests.api.client import stream
from tests.factories import files, make_lance_table, make_table, make_version, open_lance, unchanged

PATH = "/v1/table/w$t/branches/list"
CREATE = "/v1/table/w$t/branches/create"
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.operation("ListTableBranches"),
    pytest.mark.usefixtures("everywhere"),
]


def size(table, number: int, branch: str = "") -> int:
    path = lance_naming.final_manifest_path(branch, number, lance_naming.NamingScheme.V2)
    return len(files(table.location)[path])


def test_a_table_without_any(lance, reader):
    make_lance_table(("w", "t"))
    with unchanged():
        assert lance.post(PATH) == {"branches": {}}
        assert reader.post(f"{PATH}/?delimiter=%24") == {"branches": {}}


def test_contents(lance):
    table = make_lance_table(("w", "t"), pa.table({"a": [1]}))
    lance.post("/v1/table/w$t/insert", raw=stream(pa.table({"a": [2]})))
    lance.post(CREATE, {"name": "dev"})
    lance.post("/v1/table/w$t/insert?branch=dev", raw=stream(pa.table({"a": [3]})))
    lance.post(CREATE, {"name": "a/b", "from_branch": "dev"})
    answer = lance.post(PATH)["branches"]
    made = {name: int(row.created_at.timestamp()) for name, row in rows().items()}
    assert abs(answer["dev"].pop("createAt") - made["dev"]) <= 2
    assert abs(answer["a/b"].pop("createAt") - made["a/b"]) <= 2
    assert answer == {
        "a/b": {"parentBranch": "dev", "parentVersion": 3, "manifestSize": size(table, 3, "dev")},
        "dev": {"parentVersion": 2, "manifestSize": size(table, 2)},
    }


def rows() -> dict[str, Branch]:
    return {row.name: row for row in Branch.objects.all()}


def test_metadata(lance):
    table = make_lance_table(("w", "t"))
    lance.post(CREATE, {"name": "dev"})
    open_lance(table.location).branches.replace_metadata("dev", {"owner": "me"})
    assert lance.post(PATH)["branches"]["dev"]["metadata"] == {"owner": "me"}


def test_without_a_file(lance, everywhere):
    """The client was killed after it recorded the first version."""
    table = make_lance_table(("w", "t"))
    make_version(("w", "t"), 5, branch="theirs")
    lance.post(CREATE, {"name": "dev"})
    everywhere.write(f"{table.location}/_refs/branches/dev.json", b"{")
    answer = lance.post(PATH)["branches"]
    made = {name: int(row.created_at.timestamp()) for name, row in rows().items()}
    assert answer == {
        "dev": {
            "parentVersion": 1,
            "createAt": made["dev"],
            "manifestSize": size(table, 1, "dev"),
        },
        "theirs": {"parentVersion": 5, "createAt": made["theirs"], "manifestSize": 0},
    }


def test_branches_unknown_to_the_ledger(lance):
    table = make_lance_table(("w", "t"))
    open_lance(table.location).create_branch("hidden", 1)
    assert lance.post(PATH) == {"branches": {}}
    lance.refused(404, 22, "'hidden'", "/v1/table/w$t/version/list?branch=hidden")


def test_pages(lance):
    make_lance_table(("w", "t"))
    for name in "cab":
        make_version(("w", "t"), 1, branch=name)
    first = lance.post(f"{PATH}?limit=2")
    assert (list(first["branches"]), first["page_token"]) == (["a", "b"], "b")
    second = lance.post(f"{PATH}?limit=2&page_token=b")
    assert (list(second["branches"]), "page_token" in second) == (["c"], False)
    assert "page_token" not in lance.post(f"{PATH}?limit=3")
    for wrong in ("0", "-1", "x"):
        lance.refused(400, 13, "limit", f"{PATH}?limit={wrong}")


def test_two_statements(lance, django_assert_num_queries):
    make_lance_table(("w", "t"))
    for name in "cab":
        make_version(("w", "t"), 1, branch=name)
    lance.post(PATH)
    with django_assert_num_queries(2):
        lance.post(PATH)


def test_refusals(lance):
    lance.refused(404, 1, "'w'", PATH)
    make_table("w", "t")
    lance.refused(409, 19, "declared", PATH)
    lance.refused(404, 4, "'w.u'", "/v1/table/w$u/branches/list")
