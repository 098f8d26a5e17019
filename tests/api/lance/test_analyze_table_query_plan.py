import numpy as np
import pyarrow as pa
import pytest

from tests.api.client import stream
from tests.cases import shared_cases
from tests.factories import make_lance_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("AnalyzeTableQueryPlan")]

PATH = "/v1/table/w$t/analyze_plan"
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


def test_the_query_is_executed_and_its_steps_are_measured(lance):
    analysis = lance.post(PATH, NEAR)
    assert isinstance(analysis, str)
    assert analysis.startswith("AnalyzeExec")
    assert "output_rows=3" in analysis
    assert "elapsed_compute" in analysis


def test_a_filter_a_version_and_a_branch(lance):
    lance.post("/v1/table/w$t/branches/create", {"name": "dev"})
    lance.post("/v1/table/w$t/insert", raw=stream(ROWS))
    scan = {"vector": {}, "k": 0}
    assert "output_rows=16" in lance.post(PATH, scan)
    assert "output_rows=8" in lance.post(PATH, {**scan, "version": 1})
    assert "output_rows=8" in lance.post(PATH, {**scan, "branch": "dev"})
    assert "output_rows=4" in lance.post(PATH, {**scan, "filter": "id > 5"})


def test_an_analysis_is_one_statement(lance, django_assert_num_queries):
    lance.post(PATH, NEAR)
    with django_assert_num_queries(1):
        lance.post(PATH, NEAR)


def test_a_read_only_key_suffices(reader):
    assert "output_rows=3" in reader.post(PATH, NEAR)


@shared_cases(
    ("body", "answer", "text"),
    [
        ({"vector": {"single_vector": [1.0]}}, (400, 13), "has 1 dimensions, and column 'v' has 2"),
        ({"k": None}, (400, 13), "k: "),
        ({"filter": "id >"}, (400, 13), "sql parser error"),
        ({"filter": "id = ?"}, (400, 13), "placeholder"),
        ({"columns": {"column_names": ["nope"]}}, (404, 12), "Column 'nope' does not exist"),
        ({"version": 2}, (404, 11), "has no version 2"),
        ({"branch": "nope"}, (404, 22), "has no branch 'nope'"),
        ({"id": ["w", "u"]}, (400, 13), "is not the path's id"),
    ],
)
def test_refusals(lance, body, answer, text):
    lance.refused(*answer, text, PATH, {**NEAR, **body})
