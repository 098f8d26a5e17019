import numpy as np
import pyarrow as pa
import pytest

from tests.api.client import stream
from tests.cases import shared_cases
from tests.factories import make_lance_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("ExplainTableQueryPlan")]

PATH = "/v1/table/w$t/explain_plan"
NEAR = {"vector": {"single_vector": [1.0, 2.0]}, "k": 3}
ROWS = pa.table(
    {
        "id": range(8),
        "v": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(16, dtype="f4")), 2),
    }
)


@pytest.fixture(autouse=True)
def table(db) -> None:
    make_lance_table(("w", "t"), ROWS)


def test_the_answer_is_a_bare_text(lance):
    plan = lance.post(PATH, {"query": NEAR})
    assert isinstance(plan, str)
    assert "KNNVectorDistance: metric=l2" in plan
    assert "fetch=3" in plan


def test_a_scan_and_its_filter(lance):
    query = {"vector": None, "k": 2, "filter": "id > 3", "columns": {"column_names": ["id"]}}
    plan = lance.post(PATH, {"query": query})
    assert "LanceRead" in plan
    assert "id > Int64(3)" in plan
    assert "KNN" not in plan


def test_a_verbose_plan_has_more_details(lance):
    query = {"query": {**NEAR, "filter": "id > 3", "prefilter": True}}
    plain = lance.post(PATH, {**query, "verbose": False})
    assert lance.post(PATH, query) == plain
    assert len(lance.post(PATH, {**query, "verbose": True})) >= len(plain)


def test_versions_and_branches(lance):
    lance.post("/v1/table/w$t/branches/create", {"name": "dev"})
    lance.post("/v1/table/w$t/insert", raw=stream(ROWS))

    def fragments(**more) -> str:
        plan = lance.post(PATH, {"query": {"vector": {}, "k": 0, **more}})
        return plan.partition("num_fragments=")[2][0]

    assert fragments() == "2"
    assert fragments(version=1) == "1"
    assert fragments(branch="main") == "2"
    assert fragments(branch="dev") == "1"
    plan = lance.post(PATH, {"query": {"vector": {}, "k": 0}, "branch": "dev"})
    assert "num_fragments=1" in plan


def test_an_explanation_is_one_statement(lance, django_assert_num_queries):
    lance.post(PATH, {"query": NEAR})
    with django_assert_num_queries(1):
        lance.post(PATH, {"query": NEAR})


def test_a_read_only_key_suffices(reader):
    assert "KNN" in reader.post(PATH, {"query": NEAR})


@shared_cases(
    ("body", "answer", "text"),
    [
        ({}, (400, 13), "query: Field required"),
        ({"query": {"k": 1}}, (400, 13), "query.vector: Field required"),
        ({"query": {**NEAR, "k": -1}}, (400, 13), "query.k"),
        ({"query": {**NEAR, "filter": "nope > 1"}}, (404, 12), "No field named nope"),
        ({"query": {**NEAR, "filter": "id = ?"}}, (400, 13), "placeholder"),
        ({"query": {**NEAR, "vector_column": "id"}}, (400, 13), "holds no vectors"),
        ({"query": {**NEAR, "version": 2}}, (404, 11), "has no version 2"),
        ({"query": {**NEAR, "branch": "nope"}}, (404, 22), "has no branch 'nope'"),
        ({"query": {**NEAR, "branch": "a"}, "branch": "b"}, (400, 13), "different branches"),
        ({"query": {**NEAR, "branch": "a"}, "branch": "main"}, (400, 13), "different branches"),
        ({"query": {**NEAR, "id": ["w", "u"]}}, (400, 13), "The query's id ['w', 'u']"),
        ({"query": NEAR, "verbose": "yes"}, (400, 13), "verbose"),
    ],
)
def test_refusals(lance, body, answer, text):
    lance.refused(*answer, text, PATH, body)


def test_the_query_may_repeat_the_id(lance):
    assert "KNN" in lance.post(PATH, {"id": ["w", "t"], "query": {**NEAR, "id": ["w", "t"]}})
