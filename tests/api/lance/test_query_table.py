import math
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lance.dataset import LanceDataset
from lance_namespace_urllib3_client import models as m

from catalog.access import SYSTEM
from catalog.errors import InvalidInput
from catalog.identifiers import Identifier
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data_operations, full_text
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance import queries as lance_queries
from catalog.services.lance.scans import scanners
from tests.api.client import Lance, stream
from tests.cases import shared_cases
from tests.factories import make_lance_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("QueryTable")]

TABLE: Identifier = ("w", "t")
PATH = "/v1/table/w$t/query"
TEXTS = ["red fox", "blue fox", "red dog", "green cat", "big old cow", "fox fox", "blue sky", "sea"]
NEAR = {"vector": {"single_vector": [1.0, 2.0]}, "k": 2, "vector_column": "v"}
IDS = {"columns": {"column_names": ["id"]}}
SCAN = {"vector": {}, "k": 0}


def vectors(dimensions: int, kind: str = "f4") -> pa.FixedSizeListArray:
    numbers = np.arange(8 * dimensions).astype(kind)
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers), dimensions)


def rows(**more: Any) -> pa.Table:
    return pa.table({"id": pa.array(range(8), pa.int64()), "text": TEXTS, "v": vectors(2), **more})


def wide() -> pa.Table:
    """Several columns of vectors: one inside a struct, one with several vectors per row."""
    inner = pa.StructArray.from_arrays(
        [vectors(3), pa.array(["x y", "z"] * 4), pa.array(range(8))], ["v", "t", "a b"]
    )
    several = pa.array(
        [[[i, 2.0], [3.0, i]] for i in range(8)], pa.list_(pa.list_(pa.float32(), 2))
    )
    return rows(s=inner, several=several, bits=vectors(8, "u1"), small=vectors(2, "i1"))


@pytest.fixture
def table(db) -> None:
    make_lance_table(TABLE, rows())


def ask(lance: Lance, **body: Any) -> pa.Table:
    response = lance.call("POST", PATH, body)
    assert response.status_code == 200, response.content
    assert response["content-type"] == "application/vnd.apache.arrow.file"
    content = b"".join(response) if response.streaming else response.content
    return pa.ipc.open_file(content).read_all()


def ids(result: pa.Table) -> list[int]:
    return result["id"].to_pylist()


def index(make: Callable[[LanceDataset], Any]) -> None:
    """Commit a version with an index, immediately."""
    lance_commits.write(
        actor=SYSTEM, table=TABLE, operation=data_operations.CreateTableIndex, work=make
    )


# --- vectors --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("everywhere")
def test_the_nearest_rows_come_first(lance, table):
    hits = ask(lance, **NEAR)
    assert hits.schema.names == ["id", "text", "v", "_distance"]
    assert ids(hits) == [0, 1]
    assert hits["_distance"].to_pylist() == [2.0, 2.0]
    assert hits["v"].to_pylist() == [[0.0, 1.0], [2.0, 3.0]]


@pytest.mark.parametrize(
    ("k", "count"), [(0, 8), (1, 1), (7, 7), (100, 8), (2**31 - 1, 8), (2**70, 8)]
)
def test_k_limits_the_results_and_zero_means_ten(lance, table, k, count):
    assert ask(lance, **{**NEAR, "k": k}).num_rows == count


def test_the_default_of_k_is_ten(lance, table):
    lance.post("/v1/table/w$t/insert", raw=stream(rows()))
    assert ask(lance, **{**NEAR, "k": 0}).num_rows == 10


def test_an_offset_skips_results_and_k_counts_the_rest(lance, table):
    vector = {"single_vector": [0.0, 0.0]}
    assert ids(ask(lance, **{**NEAR, "vector": vector}, offset=3)) == [3, 4]
    assert ids(ask(lance, **{**NEAR, "vector": vector}, offset=7)) == [7]
    assert ids(ask(lance, **{**NEAR, "vector": vector}, offset=2**70)) == []


def test_several_vectors_are_searched_separately(lance, table):
    many = {"vector": {"multi_vector": [[9, 9], [0.0, 0.0], [15, 15]]}, "k": 2, **IDS}
    hits = ask(lance, **many)
    assert hits.schema.names == ["query_index", "id", "_distance"]
    assert hits.schema.field("query_index").type == pa.int32()
    assert hits["query_index"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert ids(hits) == [4, 5, 0, 1, 7, 6]
    later = ask(lance, **many, offset=1)
    assert later["query_index"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert ids(later) == [5, 3, 1, 2, 6, 5]
    assert ask(lance, **many, offset=9).num_rows == 0


def test_a_single_multi_vector_returns_the_query_index_column(lance, table):
    single = {"vector": {"multi_vector": [[9.0, 9.0]]}, "k": 2, **IDS}
    assert ask(lance, **single).schema.names == ["query_index", "id", "_distance"]
    assert ids(ask(lance, **single, offset=1)) == [5, 3]


@pytest.mark.parametrize(
    "vector", [{}, None, {"single_vector": []}, {"multi_vector": []}, {"multi_vector": [[]]}]
)
def test_an_empty_vector_means_no_search(lance, table, vector):
    hits = ask(lance, vector=vector, k=3)
    assert hits.schema.names == ["id", "text", "v"]
    assert ids(hits) == [0, 1, 2]


def test_the_default_column_is_the_only_vector_column_or_vector(lance, table):
    hits = ask(lance, vector={"single_vector": [1.0, 2.0]}, k=1)
    assert hits["_distance"].to_pylist() == [2.0]
    make_lance_table(("w", "u"), rows(w=vectors(3), vector=vectors(4)))
    response = lance.call(
        "POST", "/v1/table/w$u/query", {"vector": {"single_vector": [0, 1, 2, 3]}, "k": 1}
    )
    assert pa.ipc.open_file(response.content).read_all()["_distance"].to_pylist() == [0.0]


@pytest.mark.parametrize("path", ["s.v", "`s`.v", "`s`.`v`"])
def test_a_column_inside_a_struct_is_named_by_its_path(lance, path):
    make_lance_table(TABLE, wide())
    hits = ask(lance, vector={"single_vector": [3, 4, 5]}, k=1, vector_column=path, **IDS)
    assert hits.to_pylist() == [{"id": 1, "_distance": 0.0}]


def test_multivector_columns_are_searched_by_several_vectors(lance):
    make_lance_table(TABLE, wide())
    many = {"multi_vector": [[5.0, 2.0], [3.0, 5.0]]}
    hits = ask(lance, vector=many, k=1, vector_column="several", distance_type="cosine", **IDS)
    assert hits.schema.names == ["id", "_distance"]  # one search, so no query_index
    assert ids(hits) == [5]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("l2", [0, 1]), ("L2", [0, 1]), ("Cosine", [1, 2]), ("dot", [7, 6])],
)
def test_distance_types(lance, table, kind, expected):
    assert ids(ask(lance, **NEAR, distance_type=kind)) == expected


def test_bits_are_compared_by_hamming(lance):
    make_lance_table(TABLE, wide())
    body = {"vector": {"single_vector": [8, 9, 10, 11, 12, 13, 14, 15]}, "k": 1, **IDS}
    hits = ask(lance, **body, vector_column="bits", distance_type="hamming")
    assert hits.to_pylist() == [{"id": 1, "_distance": 0.0}]


def test_bounds_of_the_distance(lance, table):
    body = {"vector": {"single_vector": [0, 0]}, "k": 8, **IDS}
    distances = ask(lance, **body)["_distance"].to_pylist()
    assert distances[:4] == [1.0, 13.0, 41.0, 85.0]
    assert ids(ask(lance, **body, lower_bound=13, upper_bound=85)) == [1, 2]
    assert ids(ask(lance, **body, upper_bound=13.5)) == [0, 1]
    assert ids(ask(lance, **body, lower_bound=90, upper_bound=2)) == []


def test_a_filter_is_applied_after_the_search_unless_prefilter_is_set(lance, table):
    assert ids(ask(lance, **NEAR, filter="id > 5")) == []
    assert ids(ask(lance, **NEAR, filter="id > 5", prefilter=False)) == []
    assert ids(ask(lance, **NEAR, filter="id > 5", prefilter=True)) == [6, 7]


@pytest.fixture
def indexed(db) -> pa.Table:
    """600 rows and an index of them, in 4 partitions."""
    numbers = np.random.default_rng(1).random(600 * 4, dtype=np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(numbers), 4)
    data = pa.table({"id": pa.array(range(600), pa.int64()), "v": vectors})
    make_lance_table(TABLE, data)
    index(lambda dataset: dataset.create_index("v", "IVF_HNSW_SQ", num_partitions=4))
    return data


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nprobes": 4},
        {"nprobes": 0},
        {"minimum_nprobes": 4},
        {"maximum_nprobes": 4},
        {"minimum_nprobes": 2, "maximum_nprobes": 4, "nprobes": 1},
        {"ef": 0},
        {"ef": 50},
        {"ef": 2**31 - 1},
        {"refine_factor": 0},
        {"refine_factor": 5},
        {"refine_factor": 2**31 - 1},
        {"bypass_vector_index": True},
        {"fast_search": True},
        {"k": 2**31 - 1, "refine_factor": 2},
        {"k": 2**62, "offset": 2**62},
    ],
)
def test_parameters_of_an_index_search(lance, indexed, options):
    """Lance aborts the process if a query requests more results than fit into memory."""
    vector = indexed["v"][7].as_py()
    hits = ask(lance, **{"vector": {"single_vector": vector}, "k": 3, **options})
    assert (hits.num_rows > 0) == ("offset" not in options)
    if hits.num_rows:
        assert ids(hits)[0] == 7
    plan = lance.post(
        "/v1/table/w$t/explain_plan",
        {"query": {"vector": {"single_vector": vector}, "k": 3, **options}},
    )
    assert ("ANN" in plan) == ("bypass_vector_index" not in options)


@pytest.mark.parametrize(("effort", "partitions"), [(0, 1), (1.0, 4)])
def test_the_search_effort_of_lancedb(lance, indexed, effort, partitions):
    """Its clients send the share of partitions to search."""
    plan = lance.post(
        "/v1/table/t/analyze_plan",
        {"vector": [0.5] * 4, "k": 3, "search_effort": effort},
        headers={"x-lancedb-database": "w"},
    )
    assert f"partitions_searched={partitions}," in plan


@pytest.mark.usefixtures("everywhere")
def test_a_batch_on_an_index_with_an_offset(lance, indexed):
    vectors = [indexed["v"][7].as_py(), indexed["v"][9].as_py()]
    body = {"vector": {"multi_vector": vectors}, "nprobes": 4, "refine_factor": 9, **IDS}
    all_of_it = ask(lance, **body, k=5)
    later = ask(lance, **body, k=3, offset=2)
    assert later["query_index"].to_pylist() == [0, 0, 0, 1, 1, 1]
    assert ids(later) == ids(all_of_it)[2:5] + ids(all_of_it)[7:10]
    assert (ids(all_of_it)[0], ids(all_of_it)[5]) == (7, 9)


def test_a_fast_search_skips_unindexed_rows(lance, indexed):
    vector = [9.0, 9.0, 9.0, 9.0]
    lance.post(
        "/v1/table/w$t/insert",
        raw=stream(pa.table({"id": [1000], "v": pa.array([vector], indexed["v"].type)})),
    )
    body = {"vector": {"single_vector": vector}, "k": 1, **IDS}
    assert ids(ask(lance, **body)) == [1000]
    assert ids(ask(lance, **body, fast_search=True)) != [1000]


# --- scans ----------------------------------------------------------------------------------------


def test_a_scan_without_k_returns_every_row(lance, table):
    assert ask(lance, **SCAN).equals(rows())
    assert ids(ask(lance, vector={}, k=2**31 - 1)) == list(range(8))  # LanceDB's "no limit"


def test_a_scan_with_filter_limit_and_offset(lance, table):
    assert ids(ask(lance, vector={}, k=2, filter="id >= 3")) == [3, 4]
    assert ids(ask(lance, vector={}, k=2, filter="id >= 3", offset=2)) == [5, 6]
    assert ids(ask(lance, vector={}, k=2, filter="")) == [0, 1]


def test_the_columns_and_their_order(lance):
    make_lance_table(TABLE, wide())
    search = {"vector": {}, "k": 1}
    hits = ask(lance, **search, columns={"column_names": ["s.t", "id"]})
    assert hits.to_pylist() == [{"s.t": "x y", "id": 0}]
    hits = ask(lance, **search, columns={"column_names": ["s.`a b`"]})
    assert hits.to_pylist()[0].popitem()[1] == 0
    hits = ask(lance, **search, columns={"column_aliases": {"x": "s.`a b`", "y": "id + 5"}})
    assert hits.to_pylist() == [{"x": 0, "y": 5}]
    for all_of_them in ({}, {"column_names": []}, {"column_aliases": {}}, None):
        assert ask(lance, **search, columns=all_of_them).schema.names == wide().schema.names


def test_a_search_adds_its_result_column(lance, table):
    assert ask(lance, **NEAR, **IDS).schema.names == ["id", "_distance"]
    aliases = {"column_aliases": {"number": "id"}}
    assert ask(lance, **NEAR, columns=aliases).schema.names == ["number", "_distance"]
    names = {"column_names": ["_distance", "id"]}
    assert ask(lance, **NEAR, columns=names).schema.names == ["_distance", "id"]


def test_row_ids(lance, table):
    hits = ask(lance, **NEAR, **IDS, with_row_id=True)
    assert hits.schema.names == ["id", "_distance", "_rowid"]
    assert hits.schema.field("_rowid").type == pa.uint64()
    assert hits["_rowid"].to_pylist() == [0, 1]
    assert ask(lance, **SCAN, with_row_id=True).schema.names == ["id", "text", "v", "_rowid"]


def test_a_large_answer_is_streamed(lance):
    data = pa.table({"id": range(20_000), "pad": ["x" * 1000] * 20_000})
    make_lance_table(TABLE, data)
    response = lance.call("POST", PATH, SCAN)
    assert response.streaming
    parts = list(response)
    assert len(parts) > 3
    assert max(map(len, parts)) < 3 * scanners._BATCH_BYTES
    assert pa.ipc.open_file(b"".join(parts)).read_all().equals(data)


def test_a_disconnected_client_ends_the_scan(lance, monkeypatch):
    make_lance_table(TABLE, pa.table({"id": range(20_000), "pad": ["x" * 1000] * 20_000}))
    ended = []
    whole = lance_queries._batches

    def watched(*args: Any) -> Any:
        try:
            yield from whole(*args)
        finally:
            ended.append(True)

    monkeypatch.setattr(lance_queries, "_batches", watched)
    response = lance.call("POST", PATH, SCAN)
    next(iter(response))
    assert not ended
    response.close()
    assert ended


def test_a_late_error_ends_the_answer(lance):
    make_lance_table(TABLE, pa.table({"id": range(20_000), "pad": ["x" * 1000] * 20_000}))
    columns = {"column_aliases": {"pad": "pad", "part": "10 / (id - 19000)"}}
    response = lance.call("POST", PATH, {**SCAN, "columns": columns})
    assert response.streaming
    sent = []
    with pytest.raises(InvalidInput, match="Divide by zero"):
        sent.extend(response)
    with pytest.raises(pa.ArrowInvalid):
        pa.ipc.open_file(b"".join(sent))


# --- text -----------------------------------------------------------------------------------------


@pytest.fixture
def texts(db) -> None:
    """An index of column 'text', with positions."""
    make_lance_table(TABLE, rows(other=["cat"] * 4 + ["red"] * 4))
    index(lambda dataset: dataset.create_scalar_index("text", "INVERTED", with_position=True))


def index_other() -> None:
    index(lambda dataset: dataset.create_scalar_index("other", "INVERTED", with_position=False))


def text_search(lance: Lance, k: int = 10, **query: Any) -> list[int]:
    return ids(ask(lance, vector={}, k=k, full_text_query=query, **IDS))


def structured(lance: Lance, query: dict[str, Any]) -> set[int]:
    return set(text_search(lance, structured_query={"query": query}))


@pytest.mark.usefixtures("everywhere")
def test_texts_are_ranked_by_their_score(lance, texts):
    fox = {"string_query": {"query": "fox"}}
    hits = ask(lance, vector={}, k=0, full_text_query=fox)
    assert hits.schema.names == ["id", "text", "v", "other", "_score"]
    scores = hits["_score"].to_pylist()
    assert ids(hits)[0] == 5
    assert set(ids(hits)) == {0, 1, 5}
    assert scores == sorted(scores, reverse=True)
    assert ask(lance, vector={}, k=2, full_text_query=fox, **IDS).schema.names == ["id", "_score"]
    assert text_search(lance, k=1, **fox) == [5]
    assert ids(ask(lance, vector={}, k=1, full_text_query=fox, offset=3, **IDS)) == []
    filtered = ask(lance, vector={}, k=9, full_text_query=fox, filter="id > 0", prefilter=True)
    assert set(ids(filtered)) == {1, 5}
    assert text_search(lance, string_query={"query": ""}) == []


def test_a_text_is_searched_in_the_given_columns(lance, texts):
    assert text_search(lance, string_query={"query": "cat", "columns": ["text"]}) == [3]
    assert text_search(lance, string_query={"query": "cat", "columns": []}) == [3]
    index_other()
    assert set(text_search(lance, string_query={"query": "cat"})) == {0, 1, 2, 3}
    both = {"query": "cat", "columns": ["text", "other"]}
    assert text_search(lance, string_query=both)[0] == 3


def test_match_queries(lance, texts):
    assert structured(lance, {"match": {"terms": "red fox"}}) == {0, 1, 2, 5}
    both = {"terms": "red fox", "column": "text", "operator": "AND"}
    assert structured(lance, {"match": both}) == {0}
    assert structured(lance, {"match": {"terms": "fux", "column": "text"}}) == set()
    fuzzy = {"terms": "fux", "fuzziness": 1, "max_expansions": 10, "prefix_length": 1}
    assert structured(lance, {"match": fuzzy}) == {0, 1, 5}
    assert (
        structured(lance, {"match": {"terms": "gux", "fuzziness": 1, "prefix_length": 1}}) == set()
    )


def test_a_match_without_column_searches_all_indexed_columns(lance, texts):
    assert structured(lance, {"match": {"terms": "cat"}}) == {3}
    index_other()
    assert structured(lance, {"match": {"terms": "cat"}}) == {0, 1, 2, 3}


def test_the_indexes_are_read_once_for_all_parts_of_a_query(lance, texts, monkeypatch):
    calls = []
    original = LanceDataset.describe_indices
    monkeypatch.setattr(
        LanceDataset, "describe_indices", lambda self: calls.append(1) or original(self)
    )
    cats = {"boolean": {"should": [{"match": {"terms": "cat"}}] * 30, "must": [], "must_not": []}}
    assert structured(lance, cats) == {3}
    assert len(calls) == 1


@pytest.mark.usefixtures("everywhere")
def test_phrase_queries(lance, texts):
    assert structured(lance, {"phrase": {"terms": "red dog"}}) == {2}
    assert structured(lance, {"phrase": {"terms": "dog red", "column": "text"}}) == set()
    assert structured(lance, {"phrase": {"terms": "big cow"}}) == set()
    assert structured(lance, {"phrase": {"terms": "big cow", "slop": 1}}) == {4}


def test_boost_queries(lance, texts):
    boost = {"positive": {"match": {"terms": "fox"}}, "negative": {"match": {"terms": "red"}}}

    def scores(**more: float) -> dict[int, float]:
        query = {"structured_query": {"query": {"boost": {**boost, **more}}}}
        hits = ask(lance, vector={}, k=9, full_text_query=query)
        return dict(zip(ids(hits), hits["_score"].to_pylist(), strict=True))

    whole, usual, less = scores(negative_boost=0), scores(), scores(negative_boost=0.2)
    assert whole.keys() == usual.keys() == {0, 1, 5}
    assert whole[1] == usual[1] == less[1]
    assert whole[0] - usual[0] > 0
    assert math.isclose((whole[0] - usual[0]) / 0.5, (whole[0] - less[0]) / 0.2, rel_tol=1e-5)


def test_multi_match_queries(lance, texts):
    index_other()
    queries = [{"terms": "cat", "column": "text"}, {"terms": "cat", "column": "other", "boost": 9}]
    hits = text_search(
        lance, structured_query={"query": {"multi_match": {"match_queries": queries}}}
    )
    assert set(hits) == {0, 1, 2, 3}
    first_query = [{"terms": "cat", "column": "text", "fuzziness": 1}]
    assert structured(lance, {"multi_match": {"match_queries": first_query}}) == {3}


def test_boolean_queries(lance, texts):
    def clause(**queries: str) -> dict[str, Any]:
        return {
            "boolean": {
                name: [{"match": {"terms": queries[name]}}] if name in queries else []
                for name in ("must", "should", "must_not")
            }
        }

    assert structured(lance, clause(must="red")) == {0, 2}
    assert structured(lance, clause(must="red", must_not="dog")) == {0}
    assert structured(lance, clause(should="dog cat")) == {2, 3}
    nested = {"boolean": {"must": [clause(should="red")], "should": [], "must_not": []}}
    assert structured(lance, nested) == {0, 2}


# --- versions and branches ------------------------------------------------------------------------


def test_new_versions_are_visible_immediately_and_old_ones_are_kept(lance, table):
    assert ask(lance, **SCAN).num_rows == 8
    for number in range(1, 4):
        lance.post("/v1/table/w$t/insert", raw=stream(rows()))
        assert ask(lance, **SCAN).num_rows == 8 * (number + 1)
    for version in range(1, 5):
        assert ask(lance, **SCAN, version=version).num_rows == 8 * version


@pytest.mark.usefixtures("everywhere")
def test_a_branch_has_its_own_rows(lance, table):
    lance.post("/v1/table/w$t/branches/create", {"name": "dev"})
    lance.post("/v1/table/w$t/insert?branch=dev", raw=stream(rows()))
    assert ask(lance, **SCAN, branch="dev").num_rows == 16
    assert ask(lance, **SCAN, branch="main").num_rows == 8
    assert ask(lance, **SCAN).num_rows == 8


def test_a_query_is_one_statement(lance, table, django_assert_num_queries):
    ask(lance, **NEAR)  # the key is in the cache now
    for body in (NEAR, SCAN, {**NEAR, "version": 1}):
        with django_assert_num_queries(1):
            ask(lance, **body)


def test_a_read_only_key_suffices(reader, table):
    assert ask(reader, **NEAR).num_rows == 2


# --- refusals -------------------------------------------------------------------------------------


@shared_cases(
    ("body", "text"),
    [
        ({"vector": {"single_vector": [1.0, 2.0, 3.0]}}, "3 dimensions, and column 'v' has 2"),
        ({"vector": {"multi_vector": [[1.0, 2.0], [1.0]]}}, "1 dimensions, and column 'v' has 2"),
        ({"vector": {"multi_vector": [[1.0, 2.0], []]}}, "0 dimensions"),
        ({"vector": {"single_vector": [1.0], "multi_vector": [[1.0]]}}, "not both"),
        ({"vector": {"single_vector": [1.0, None]}}, "single_vector.1"),
        ({"vector": {"single_vector": ["a", 1]}}, "single_vector.0"),
        ({"vector": {"single_vector": [True, 1]}}, "single_vector.0"),
        ({"vector": {"single_vector": [1e39, 1]}}, "not a finite number"),
        ({"vector": {"single_vector": [float("nan"), 1]}}, "not a finite number"),
        ({"vector": {"single_vector": [float("-inf"), 1]}}, "not a finite number"),
        ({"vector": {"single_vector": [10**400, 1]}}, "too large"),
        ({"vector": [1.0, 2.0]}, "vector"),
        ({"vector_column": "id"}, "Column 'id' holds no vectors; it is of type int64"),
        ({"vector_column": "s"}, "holds no vectors"),
        ({"vector_column": "s..v"}, "malformed at position 2"),
        ({"vector_column": ""}, "vector_column"),
        ({"vector_column": None}, "name one as vector_column: bits, s.v, several, small, v"),
        ({"vector_column": "small"}, "Int8"),
        ({"k": -1}, "k: "),
        ({"k": 1.5}, "k: "),
        ({"k": "2"}, "k: "),
        ({"k": None}, "k: "),
        ({"offset": -1}, "offset: "),
        ({"distance_type": "nope"}, "'nope' is not supported"),
        ({"distance_type": "hamming"}, "hamming does not support"),
        ({"nprobes": -1}, "nprobes"),
        ({"nprobes": 2**31}, "'nprobes' is more than 2147483647"),
        ({"minimum_nprobes": 3, "maximum_nprobes": 2}, "minimum_nprobes must be <="),
        ({"ef": 2**40}, "'ef' is more than"),
        ({"refine_factor": 2**40}, "'refine_factor' is more than"),
        ({"lower_bound": float("nan")}, "bound"),
        ({"upper_bound": 10**400}, "too large"),
        ({"filter": "id >"}, "sql parser error"),
        ({"filter": "id"}, "does not return a boolean"),
        ({"filter": "id = 'x'"}, "could not convert"),
        ({"filter": "nofunction(id)"}, "Invalid function"),
        ({"filter": "id / 0 = 1"}, "Divide by zero"),
        ({"filter": "cast(text as int) = 1", "vector": {}}, "Cannot cast"),
        ({"filter": "id = ?"}, "placeholder"),
        ({"filter": "text = $$x$$", "vector": {}}, "placeholder"),
        ({"filter": "id in (select 1)"}, "not supported SQL"),
        ({"filter": "id" + "+id" * 3000 + " > 1"}, "more than 300 operators"),
        ({"columns": {"column_names": ["id", "id"]}}, "'id' is requested twice"),
        ({"columns": {"column_names": [""]}}, "column_names"),
        ({"columns": {"column_names": ["id"], "column_aliases": {"a": "id"}}}, "not both"),
        ({"columns": {"column_aliases": {"a": "id +"}}}, "Expression is not valid"),
        ({"columns": {"column_aliases": {"a": "?"}}}, "placeholder"),
        ({"columns": {"column_aliases": {"a": "sum(id)"}}}, "Not supported"),
        ({"columns": {"column_aliases": {"a": "id" + "+id" * 3000}}}, "more than 300 operators"),
        ({"full_text_query": {"string_query": {"query": "fox"}}}, "vectors or text, not both"),
        ({"version": -1}, "version"),
        ({"version": "1"}, "version"),
        ({"id": ["w", "u"]}, "is not the path's id"),
    ],
    prepare=lambda: make_lance_table(TABLE, wide()),
)
def test_invalid_queries_are_refused(lance, body, text):
    lance.refused(400, 13, text, PATH, {**NEAR, **body})


@shared_cases(
    ("body", "code", "text"),
    [
        ({"vector_column": "nope"}, 12, "Column 'nope' does not exist"),
        ({"vector_column": "V"}, 12, "Column 'V' does not exist"),
        ({"columns": {"column_names": ["nope"]}}, 12, "Column 'nope' does not exist"),
        ({"columns": {"column_names": ["id + 1"]}}, 12, "Column 'id + 1' does not exist"),
        ({"columns": {"column_names": ["_nope"]}}, 12, "_nope"),
        ({"columns": {"column_aliases": {"a": "nope"}}}, 12, "nope"),
        ({"filter": "nope > 1"}, 12, "No field named nope"),
        ({"version": 2}, 11, "has no version 2"),
        ({"version": 2**70}, 11, "has no version"),
        ({"branch": "nope"}, 22, "has no branch 'nope'"),
    ],
)
def test_missing_tables_are_refused(lance, table, body, code, text):
    lance.refused(404, code, text, PATH, {**NEAR, **body})


@pytest.mark.parametrize("body", [{}, {"k": 2}, {"vector": {}}])
def test_vector_and_k_are_required(lance, table, body):
    lance.refused(400, 13, "Field required", PATH, body)


LONG = {"match": {"terms": "a " * 8_200, "column": "text"}}


@shared_cases(
    ("query", "answer", "text"),
    [
        ({"match": {"terms": "x", "column": "nope"}}, (404, 12), "'nope' does not exist"),
        ({"match": {"terms": "x", "column": "no\npe"}}, (404, 12), "does not exist"),
        ({"match": {"terms": "x", "column": "id"}}, (400, 13), "FTS field 'id'"),
        ({"match": {"terms": "x", "operator": "xor"}}, (400, 13), "use And or Or"),
        ({"match": {"terms": "fox", "column": "text", "fuzziness": 99}}, (400, 13), "fuzzy"),
        (
            {"match": {"terms": "x", "column": "text", "fuzziness": 2**40}},
            (400, 13),
            "'fuzziness' is more than",
        ),
        (  # Lance takes more than a kilobyte of memory for each character
            {"match": {"terms": "a" * 1_025, "column": "text", "fuzziness": 1}},
            (400, 13),
            "The fuzzy texts of a full-text query have more than 1,024 characters",
        ),
        (
            {
                "boolean": {
                    "should": [
                        {"match": {"terms": "a" * 600, "column": "text", "fuzziness": 1}},
                        {"match": {"terms": "a" * 600, "column": "text", "fuzziness": 1}},
                    ],
                    "must": [],
                    "must_not": [],
                }
            },
            (400, 13),
            "fuzzy texts",
        ),
        (
            {"match": {"terms": "x", "column": "text", "fuzziness": 1, "max_expansions": 1_001}},
            (400, 13),
            "'max_expansions' is 1001; at most 1,000 are allowed",
        ),
        (
            {"match": {"terms": "a " * 16_385, "column": "text"}},
            (400, 13),
            "The texts of a full-text query have more than 32,768 characters",
        ),
        (
            {"phrase": {"terms": "a " * 16_385, "column": "text"}},
            (400, 13),
            "more than 32,768 characters",
        ),
        (
            {"boost": {"positive": LONG, "negative": LONG, "negative_boost": 0.5}},
            (400, 13),
            "more than 32,768 characters",
        ),
        ({"match": {"terms": "x", "boost": -1}}, (400, 13), "boost"),
        ({"match": {}}, (400, 13), "terms"),
        ({"phrase": {"terms": "x", "column": "nope"}}, (404, 12), "'nope' does not exist"),
        (
            {"phrase": {"terms": "x", "column": "text", "slop": 2**40}},
            (400, 13),
            "'slop' is more than",
        ),
        ({"phrase": {"terms": "cat"}}, (400, 13), "names its column; there are other, text"),
        ({"phrase": {"terms": "cat", "column": "other"}}, (400, 13), "position is not found"),
        ({}, (400, 13), "exactly one of"),
        ({"match": {"terms": "x"}, "phrase": {"terms": "x"}}, (400, 13), "exactly one of"),
        ({"multi_match": {"match_queries": []}}, (400, 13), "no match_queries"),
        ({"match": {"terms": "x", "fuzziness": 1}}, (406, 0), "cannot be fuzzy"),
        (
            {"multi_match": {"match_queries": [{"terms": "x"}, {"terms": "y"}]}},
            (406, 0),
            "the same terms",
        ),
        ({"boolean": {"must": [], "should": [], "must_not": []}}, (400, 13), "at least one"),
        (
            {"boolean": {"must": [], "should": [], "must_not": [{"match": {"terms": "x"}}]}},
            (400, 13),
            "at least one",
        ),
    ],
)
def test_invalid_structured_queries_are_refused(lance, texts, query, answer, text):
    index_other()
    body = {"vector": {}, "k": 5, "full_text_query": {"structured_query": {"query": query}}}
    lance.refused(*answer, text, PATH, body)


def test_a_long_text_is_refused(lance, texts):
    body = {"vector": {}, "k": 5, "full_text_query": {"string_query": {"query": "a " * 16_385}}}
    lance.refused(400, 13, "more than 32,768 characters", PATH, body)


def test_invalid_text_queries_are_refused(lance, texts):
    fox = {"query": "fox"}
    match = {"query": {"match": {"terms": "fox"}}}
    for query, status, code, text in (
        ({"string_query": fox, "structured_query": match}, 400, 13, "not both"),
        ({"string_query": {"query": "x", "columns": ["nope"]}}, 404, 12, "'nope' does not exist"),
        ({"string_query": {"query": "x", "columns": ["id"]}}, 400, 13, "FTS field 'id'"),
        ({"string_query": {}}, 400, 13, "Field required"),
    ):
        lance.refused(status, code, text, PATH, {"vector": {}, "k": 5, "full_text_query": query})


def test_a_text_search_needs_an_index_or_a_column(lance, table):
    body = {"vector": {}, "k": 5}
    text = {"full_text_query": {"string_query": {"query": "fox"}}}
    lance.refused(400, 13, "unless an INVERTED index has been created", PATH, {**body, **text})
    match = {"full_text_query": {"structured_query": {"query": {"match": {"terms": "fox"}}}}}
    lance.refused(400, 13, "has no full-text index", PATH, {**body, **match})
    assert text_search(lance, string_query={"query": "fox", "columns": ["text"]})[0] == 5


def test_a_deeply_nested_query_is_refused(lance, texts):
    opening, end = '{"boolean":{"should":[],"must_not":[],"must":[', "]}}"
    nested = opening * 2000 + '{"match":{"terms":"fox"}}' + end * 2000
    raw = f'{{"k":1,"vector":{{}},"full_text_query":{{"structured_query":{{"query":{nested}}}}}}}'
    lance.refused(400, 13, "recursion limit", PATH, raw=raw.encode())


def test_a_search_for_too_many_results_is_refused(lance, table, monkeypatch):
    monkeypatch.setattr(lance_queries, "MAX_SEARCH_BYTES", 300)
    assert ask(lance, **{**NEAR, "k": 4}).num_rows == 4
    for body in ({"k": 5}, {"k": 1, "offset": 4}, {"k": 2, "refine_factor": 3}):
        lance.refused(400, 13, "at most 4 are possible", PATH, {**NEAR, **body})
    many = {"vector": {"multi_vector": [[1, 2]] * 3}, "k": 2}
    lance.refused(400, 13, "6 results of this table takes too much", PATH, many)
    text = {"string_query": {"query": "fox", "columns": ["text"]}}
    lance.refused(400, 13, "8 results", PATH, {"vector": {}, "k": 0, "full_text_query": text})


def test_tables_without_vectors_or_data_and_missing_tables(lance):
    make_lance_table(TABLE, pa.table({"id": [1]}))
    body = {"vector": {"single_vector": [1.0]}, "k": 1}
    lance.refused(400, 13, "has no column of vectors", PATH, body)
    lance.post("/v1/table/w$declared/declare", {})
    lance.refused(409, 19, "has no data yet", "/v1/table/w$declared/query", body)
    lance.refused(404, 4, "does not exist", "/v1/table/w$nope/query", body)
    lance.refused(404, 1, "does not exist", "/v1/table/nope$nope/query", body)


def test_an_empty_table_has_no_rows(lance):
    make_lance_table(TABLE, rows().slice(0, 0))
    assert ask(lance, **NEAR).schema.names == ["id", "text", "v", "_distance"]
    assert ask(lance, **NEAR).num_rows == 0
    assert ask(lance, **SCAN).num_rows == 0
    assert ask(lance, **{**NEAR, "vector": {"multi_vector": [[1, 2], [3, 4]]}}).num_rows == 0


# --- repeated queries -----------------------------------------------------------------------------


def test_repeated_queries_of_a_version_are_cached(lance, monkeypatch):
    make_lance_table(("w", "again"), pa.table({"id": range(8)}))
    path, body = "/v1/table/w$again/query", {"vector": {}, "k": 3, "filter": "id > 2"}
    first = lance.call("POST", path, body).content
    with monkeypatch.context() as patch:
        patch.setattr(lance_queries, "query", None)
        assert lance.call("POST", path, body).content == first
    lance.post("/v1/table/w$again/insert", raw=stream(pa.table({"id": [100]})))
    lance.post("/v1/table/w$again/delete", {"predicate": "id < 5"})
    newest = pa.ipc.open_file(lance.call("POST", path, body).content).read_all()
    assert newest["id"].to_pylist() == [5, 6, 7]
    of_first = pa.ipc.open_file(lance.call("POST", path, body | {"version": 1}).content).read_all()
    assert of_first["id"].to_pylist() == [3, 4, 5]


@pytest.mark.parametrize("filter", ["random() >= 0.0", "now() > to_timestamp(0)"])
def test_volatile_queries_are_not_cached(lance, filter):
    make_lance_table(("w", "again"), pa.table({"id": range(8)}))
    lance_datasets.clear_caches()
    lance.call("POST", "/v1/table/w$again/query", {"vector": {}, "k": 3, "filter": filter})
    assert not lance_datasets.answers._entries


def test_volatile_functions_in_encoded_queries_are_not_cached(lance):
    make_lance_table(("w", "again"), pa.table({"id": range(8)}))
    lance_datasets.clear_caches()
    raw = b'{"vector": {}, "k": 3, "filter": "r\\u0061ndom() >= 0.0"}'
    assert lance.call("POST", "/v1/table/w$again/query", raw=raw).status_code == 200
    assert not lance_datasets.answers._entries


def test_large_answers_are_not_cached(lance):
    make_lance_table(("w", "again"), pa.table({"id": range(100_000)}))
    lance_datasets.clear_caches()
    lance.call("POST", "/v1/table/w$again/query", {"vector": {}, "k": 100_000})
    assert not lance_datasets.answers._entries


def test_a_column_with_thousands_of_names_is_read_in_small_batches(lance):
    """Lance counts the bytes of the column once."""
    make_lance_table(("w", "wide"), pa.table({"s": ["x" * 100] * 10_000}))
    names = {f"name{number}": "s" for number in range(2_000)}
    body = {"vector": {}, "k": 0, "columns": {"column_aliases": names}}
    response = lance.call("POST", "/v1/table/w$wide/query", body)
    parts = [len(part) for part in islice(response.streaming_content, 5)]
    assert max(parts) < 64 << 20


def test_a_column_that_a_text_query_names_often_is_searched_once():
    def search(text: str, columns: list[str]):
        query = m.StringFtsQuery(query=text, columns=columns)
        requested = m.QueryTableRequestFullTextQuery(string_query=query)
        return full_text.search(("w", "t"), None, requested)  # type: ignore[arg-type]

    assert search("fox", ["text"] * 9_000) == {"query": "fox", "columns": ["text"]}
    with pytest.raises(InvalidInput, match="more than 32,768 characters"):
        search("a" * 20_000, ["text", "title"])
