"""Queries of LanceDB's clients in the form of the Lance protocol."""

import pytest

from api.lancedb.queries import translate
from catalog.errors import InvalidInput

ALL = 2**63 - 1


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([], {}),
        (None, {}),
        ([1.0, 2], {"single_vector": [1.0, 2]}),
        ([[1.0], [2.0]], {"multi_vector": [[1.0], [2.0]]}),
        ({"single_vector": [1.0]}, {"single_vector": [1.0]}),
        ("text", "text"),
    ],
)
def test_vectors(sent, expected):
    assert translate({"vector": sent})["vector"] == expected


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (None, None),
        ([], None),
        (["id", "name"], {"column_names": ["id", "name"]}),
        ([["twice", "id * 2"]], {"column_aliases": {"twice": "id * 2"}}),
        ({"twice": "id * 2"}, {"column_aliases": {"twice": "id * 2"}}),
        ({"column_names": ["id"]}, {"column_names": ["id"]}),
        ({"column_names": "id"}, {"column_aliases": {"column_names": "id"}}),
        (7, 7),
    ],
)
def test_columns(sent, expected):
    assert translate({"columns": sent})["columns"] == expected


def test_numbers():
    assert translate({})["k"] == ALL
    assert translate({"k": ALL, "nprobes": 20, "maximum_nprobes": 0}) == {
        "k": ALL,
        "nprobes": 20,
        "maximum_nprobes": None,
        "vector": {},
        "columns": None,
        "full_text_query": None,
    }
    assert translate({"minimum_nprobes": 0})["minimum_nprobes"] is None
    assert translate({"k": 0, "filter": "id = 1"})["filter"] == "false"  # no rows


MATCH = {"match": {"terms": "seal", "column": "name"}}
SENT = {"multi_match": {"query": "seal", "columns": ["a", "b"], "boost": [1.0, 2.0]}}
EXPECTED = {
    "multi_match": {
        "match_queries": [
            {"terms": "seal", "column": "a", "boost": 1.0, "operator": None},
            {"terms": "seal", "column": "b", "boost": 2.0, "operator": None},
        ]
    }
}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"query": "seal"}, {"string_query": {"query": "seal", "columns": None}}),
        (
            {"query": "seal", "columns": ["name"]},
            {"string_query": {"query": "seal", "columns": ["name"]}},
        ),
        ({"query": MATCH}, {"structured_query": {"query": MATCH}}),
        ({"query": SENT}, {"structured_query": {"query": EXPECTED}}),
        (
            {"query": {"boolean": {"must": [SENT, MATCH], "should": []}}},
            {"structured_query": {"query": {"boolean": {"must": [EXPECTED, MATCH], "should": []}}}},
        ),
        (
            {"query": {"boost": {"positive": SENT, "negative": MATCH, "negative_boost": 0.5}}},
            {
                "structured_query": {
                    "query": {
                        "boost": {"positive": EXPECTED, "negative": MATCH, "negative_boost": 0.5}
                    }
                }
            },
        ),
        ({"string_query": {"query": "seal"}}, {"string_query": {"query": "seal"}}),
        (7, 7),
    ],
)
def test_full_text_queries(sent, expected):
    assert translate({"full_text_query": sent})["full_text_query"] == expected


def test_refusals():
    with pytest.raises(InvalidInput, match="at least one"):
        translate({"vector": [1.0], "k": 0})
    for boosts in ([1.0], "much"):
        query = {"multi_match": {**SENT["multi_match"], "boost": boosts}}
        with pytest.raises(InvalidInput):
            translate({"full_text_query": {"query": query}})
