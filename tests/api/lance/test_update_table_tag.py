import pyarrow as pa
import pytest

from catalog.models import AuditEvent, Transaction
from tests.api.client import stream
from tests.factories import make_lance_table, make_table, open_lance

PATH = "/v1/table/w$t/tags/update"
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.operation("UpdateTableTag"),
    pytest.mark.usefixtures("everywhere"),
]


@pytest.fixture
def table(lance):
    table = make_lance_table(("w", "t"), pa.table({"a": [1]}))
    lance.post("/v1/table/w$t/insert", raw=stream(pa.table({"a": [2]})))
    lance.post("/v1/table/w$t/branches/create", {"name": "dev", "from_version": 1})
    lance.post("/v1/table/w$t/tags/create", {"tag": "v1", "version": 1})
    return table


def test_a_tag_is_moved_to_another_version(lance, table):
    answer = lance.post(PATH, {"tag": "v1", "version": 2})
    assert lance.post("/v1/table/w$t/tags/version", {"tag": "v1"}) == {"version": 2}
    assert open_lance(table.location, "v1").count_rows() == 2
    event = AuditEvent.objects.get(action="tag.update")
    assert event.before == {"tag": "v1", "version": 1}
    assert event.after == {"tag": "v1", "version": 2}
    assert str(event.transaction_id) == answer["transaction_id"]
    (operation,) = Transaction.objects.get(pk=answer["transaction_id"]).operations
    assert operation["operation"] == "UpdateTableTag"


def test_to_a_branch_and_back(lance, table):
    lance.post(PATH, {"tag": "v1", "version": 1, "branch": "dev"})
    assert lance.post("/v1/table/w$t/tags/version", {"tag": "v1"}) == {
        "version": 1,
        "branch": "dev",
    }
    lance.post(PATH, {"tag": "v1", "version": 1, "branch": "main"})
    assert lance.post("/v1/table/w$t/tags/version", {"tag": "v1"}) == {"version": 1}
    event = AuditEvent.objects.filter(action="tag.update").latest("pk")
    assert event.before == {"tag": "v1", "version": 1, "branch": "dev"}
    assert event.after == {"tag": "v1", "version": 1}


def test_refusals(lance, table):
    lance.refused(404, 8, "'v2'", PATH, {"tag": "v2", "version": 1})
    lance.refused(404, 8, "has no tag", PATH, {"tag": "a/b", "version": 1})
    lance.refused(404, 11, "version 3", PATH, {"tag": "v1", "version": 3})
    lance.refused(404, 11, "'dev'", PATH, {"tag": "v1", "version": 2, "branch": "dev"})
    lance.refused(404, 22, "'nope'", PATH, {"tag": "v1", "version": 1, "branch": "nope"})
    for body in ({"version": 1}, {"tag": "v1"}, {"tag": "v1", "version": -1}):
        lance.refused(400, 13, "", PATH, body)
    lance.refused(404, 4, "'w.u'", "/v1/table/w$u/tags/update", {"tag": "v1", "version": 1})
    make_table("w", "d")
    lance.refused(409, 19, "declared", "/v1/table/w$d/tags/update", {"tag": "v1", "version": 1})
    assert lance.post("/v1/table/w$t/tags/version", {"tag": "v1"}) == {"version": 1}
    assert not AuditEvent.objects.filter(action="tag.update").exists()


def test_an_invalid_tag_file_is_refused(lance, table, everywhere):
    everywhere.write(f"{table.location}/_refs/tags/bad.json", b"{")
    lance.refused(404, 8, "'bad'", PATH, {"tag": "bad", "version": 1})


def test_read_only_key(reader, table):
    reader.refused(403, 15, "", PATH, {"tag": "v1", "version": 2})
