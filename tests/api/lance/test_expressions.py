"""Expressions that Lance would need minutes to read are refused by every operation that takes one."""

from urllib.parse import urlencode

import pyarrow as pa
import pytest

from tests.api.client import encoded_schema, stream
from tests.cases import shared_cases
from tests.factories import make_lance_table

pytestmark = pytest.mark.django_db

ROWS = pa.table({"id": [1, 2]})
MERGE = {"on": "id", "when_not_matched_insert_all": "true"}


def _merge(expression: str, clause: str):
    query = urlencode({**MERGE, clause: expression})
    return f"merge_insert?{query}", None, stream(ROWS)


REQUESTS = {
    "count": lambda e: ("count_rows", {"predicate": e}, None),
    "query": lambda e: ("query", {"k": 1, "vector": {}, "filter": e}, None),
    "query column": lambda e: (
        "query",
        {"k": 1, "vector": {}, "columns": {"column_aliases": {"n": e}}},
        None,
    ),
    "explain": lambda e: ("explain_plan", {"query": {"k": 1, "vector": {}, "filter": e}}, None),
    "analyze": lambda e: ("analyze_plan", {"k": 1, "vector": {}, "filter": e}, None),
    "update": lambda e: ("update", {"updates": [["id", e]]}, None),
    "update where": lambda e: ("update", {"updates": [["id", "1"]], "predicate": e}, None),
    "delete": lambda e: ("delete", {"predicate": e}, None),
    "merge update": lambda e: _merge(e, "when_matched_update_all_filt"),
    "merge delete": lambda e: _merge(e, "when_not_matched_by_source_delete_filt"),
    "add": lambda e: ("add_columns", {"new_columns": [{"name": "n", "expression": e}]}, None),
    "add computed": lambda e: (
        "add_columns",
        {"new_columns": [{"name": "n", "computed": e}]},
        None,
    ),
    "backfill": lambda e: ("backfill_column", {"column": "twice", "where": e}, None),
}


@pytest.fixture(autouse=True)
def table(db, lance) -> None:
    make_lance_table(("w", "t"), ROWS)
    lance.post(
        "/v1/table/w$t/add_columns", {"new_columns": [{"name": "twice", "computed": "id * 2"}]}
    )


@shared_cases("request_of", REQUESTS.values())
@shared_cases(
    ("expression", "text"),
    [
        ("cast(" * 40 + "id" + " as bigint)" * 40 + " > 1", "10 functions in functions"),
        ("position(" * 30, "10 functions in functions"),
        ("id > 1 or id = 1\x00", "NUL"),
    ],
)
def test_too_deeply_nested_expressions_are_refused(lance, request_of, expression, text):
    action, body, raw = request_of(expression)
    lance.refused(400, 13, text, f"/v1/table/w$t/{action}", body, raw=raw)


@pytest.mark.parametrize("clause", ["filter", "columns"])
def test_views_check_their_expressions_too(lance, clause):
    deep = "position(" * 30
    query = {"filter": f'"filter": "{deep}"', "columns": f'"columns": {{"id": "{deep}"}}'}[clause]
    body = {
        "kind": "query",
        "source_query": f'{{"source": ["w", "t"], {query}}}',
        "output_schema": encoded_schema(pa.schema([("id", "int64")])),
    }
    path = "/v1/materialized_view/w$v/create"
    lance.refused(400, 13, "10 functions in functions", path, body)
