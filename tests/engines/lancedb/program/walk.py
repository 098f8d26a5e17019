"""Uses LanceDB's client for Python, also an old one, with a database, and prints results as lines of JSON."""

import json
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import lancedb
import pyarrow as pa

warnings.simplefilter("ignore")
url, key, database = sys.argv[1:]
db = lancedb.connect(
    f"db://{database}",
    api_key=key,
    host_override=url,
    client_config={"retry_config": {"retries": 0}},
)


def animals(*names: str, first: int = 1) -> list[dict[str, Any]]:
    return [
        {"id": n, "name": name, "vector": [float(n), 0.0]} for n, name in enumerate(names, first)
    ]


def ids(query: Any) -> list[int]:
    return [row["id"] for row in query.to_list()]


def step(name: str, work: Callable[[], Any]) -> None:
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 -- the message is the result
        result = {"error": str(error)[:200]}
    print(json.dumps([name, result]), flush=True)


def rows() -> int:
    table.add(animals("beluga", first=5))
    table.update(where="id = 1", values={"name": "unicorn"})
    table.delete("id = 2")
    merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(animals("bowhead", "dolphin", first=5))
    return table.count_rows()


def indexes() -> list[str]:
    table.create_fts_index("name")
    table.create_scalar_index("id")
    if hasattr(table, "wait_for_index"):
        table.wait_for_index(["name_idx", "id_idx"], timedelta(seconds=30))
    return sorted(index.name for index in table.list_indices())


def columns() -> list[str]:
    table.add_columns({"twice": "id * 2"})
    table.alter_columns({"path": "twice", "rename": "double"})
    table.drop_columns(["double"])
    return table.schema.names


def checkout() -> int:
    table.checkout(1)
    number = table.count_rows()
    table.checkout_latest()
    return number


table = db.create_table("animals", animals("narwhal", "walrus", "seal", "orca"))
step("create", table.count_rows)
step("exists", lambda: str(db.create_table("animals", animals("seal"))))
empty = pa.schema([("id", pa.int64())])
step("empty", lambda: db.create_table("empty", schema=empty).count_rows())
step("names", lambda: list(db.table_names()))
step("open", lambda: db.open_table("animals").schema.names)
step("rows", rows)
step("search", lambda: ids(table.search([3.2, 0.0]).limit(2)))
step("filter", lambda: ids(table.search([3.2, 0.0]).where("id <> 3").select(["id"]).limit(1)))
aliased = table.search([3.2, 0.0]).select({"twice": "id * 2"}).limit(1)
step("alias", lambda: [row["twice"] for row in aliased.to_list()])
step("several", lambda: sorted(ids(table.search([[3.2, 0.0], [1.1, 0.0]]).limit(1))))
step("scan", lambda: sorted(ids(table.search().where("id > 3").limit(10))))
step("indexes", indexes)
step("stats", lambda: table.index_stats("id_idx").num_indexed_rows)
step("text", lambda: ids(table.search("seal", query_type="fts").limit(5)))
hybrid = table.search(query_type="hybrid").vector([3.0, 0.0]).text("seal").limit(1)
step("hybrid", lambda: ids(hybrid))
step("columns", columns)
step("checkout", checkout)
step("versions", lambda: len(table.list_versions()))
db.drop_table("empty")
step("drop", lambda: list(db.table_names()))
step("missing", lambda: str(db.open_table("missing")))
