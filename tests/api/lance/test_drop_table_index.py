"""DropTableIndex."""

import pytest

from catalog.models import AuditEvent, TableVersion, Transaction
from tests.api.client import spell
from tests.api.lance.test_create_table_index import make_lance_branch, table
from tests.factories import make_lance_table, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("DropTableIndex")]

CREATE = "/v1/table/w$t/create_index"
LIST = "/v1/table/w$t/index/list"


def path(name: str, table: str = "t") -> str:
    return f"/v1/table/w${table}/index/{spell(name)}/drop"


def names(lance, **body) -> list[str]:
    return [index["index_name"] for index in lance.post(LIST, body)["indexes"]]


def test_a_drop_is_one_audited_version(lance):
    make_lance_table(("w", "t"), table(5))
    for column in ("id", "text"):
        lance.post(CREATE, {"column": column, "index_type": "BTREE"})
    answer = lance.post(path("id_idx"))
    assert names(lance) == ["text_idx"]
    assert names(lance, version=3) == ["id_idx", "text_idx"]
    event = AuditEvent.objects.get(action="index.drop")
    assert str(event.transaction_id) == answer["transaction_id"]
    assert (event.after["version"], event.after["name"]) == (4, "id_idx")
    operations = Transaction.objects.get(pk=answer["transaction_id"]).operations
    assert [operation["operation"] for operation in operations] == ["DropTableIndex"]
    assert TableVersion.objects.count() == 4
    lance.refused(404, 6, "Table 'w.t' has no index 'id_idx'", path("id_idx"))


def test_a_name_is_free_again(lance):
    make_lance_table(("w", "t"), table(5))
    for _ in range(2):
        lance.post(CREATE, {"column": "id", "index_type": "BTREE"})
        lance.post(path("id_idx"), {})
    assert names(lance) == []


@pytest.mark.parametrize("name", ["a b", "a+b", "a/b", "ü"])
def test_any_name(lance, name):
    make_lance_table(("w", "t"), table(5))
    lance.post(CREATE, {"column": "id", "index_type": "BTREE", "name": name})
    lance.post(path(name))
    assert names(lance) == []


def test_branches(lance):
    make_lance_branch(make_lance_table(("w", "t"), table(5)), ("w", "t"))
    lance.post(CREATE, {"column": "id", "index_type": "BTREE"})
    lance.post(CREATE, {"column": "id", "index_type": "BTREE", "branch": "dev"})
    lance.post(f"{path('id_idx')}?branch=dev")
    assert (names(lance), names(lance, branch="dev")) == (["id_idx"], [])
    lance.refused(404, 6, "no index 'id_idx'", f"{path('id_idx')}?branch=dev")
    lance.refused(404, 22, "no branch", f"{path('id_idx')}?branch=nope")
    lance.post(f"{path('id_idx')}?branch=main")
    assert names(lance) == []


def test_refusals(lance, reader):
    make_lance_table(("w", "t"), table(5))
    make_table("w", "declared")
    lance.refused(404, 6, "no index '__lance_frag_reuse'", path("__lance_frag_reuse"))
    lance.refused(404, 4, "'w.nope'", path("id_idx", "nope"))
    lance.refused(409, 19, "has no data", path("id_idx", "declared"))
    lance.post(CREATE, {"column": "id", "index_type": "BTREE"})
    lance.refused(400, 13, "is not the path's", path("id_idx"), {"index_name": "other"})
    reader.refused(403, 15, "", path("id_idx"))
    assert names(lance) == ["id_idx"]
