"""The queries of materialized views, in both forms."""

import pytest

from catalog.errors import InvalidInput
from catalog.formats.view_queries import UNDERSTOOD, ViewQuery, from_json, parse

T = ("t",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('SELECT * FROM "t"', ViewQuery(T)),
        # LanceDB's notation.
        (
            'SELECT `id` AS "id" FROM "t" WHERE id > 1',
            ViewQuery(T, (("id", "`id`"),), "id > 1"),
        ),
        ('SELECT id*2 AS "twice" FROM "t" LIMIT 3', ViewQuery(T, (("twice", "id*2"),), limit=3)),
        (
            (
                'select id, `Na Me`, "x y",\n upper(substr(n, 1, 2)) as up from ws.`t.x`'
                " where n = 'FROM ''x''' and (id in (1,2)) limit 5 ;"
            ),
            ViewQuery(
                ("ws", "t.x"),
                (
                    ("id", "`id`"),
                    ("Na Me", "`Na Me`"),
                    ("x y", "`x y`"),
                    ("up", "upper(substr(n, 1, 2))"),
                ),
                "n = 'FROM ''x''' and (id in (1,2))",
                5,
            ),
        ),
        (
            "SELECT EXTRACT(YEAR FROM d) AS y FROM t",
            ViewQuery(T, (("y", "EXTRACT(YEAR FROM d)"),)),
        ),
        ('{"source": ["t"]}', ViewQuery(T)),
        (
            (
                ' {"source": ["ws", "t"], "columns": ["a", ["b", "c * 2"]], "filter": " a > 1 ",'
                ' "limit": 0, "version": 7}'
            ),
            ViewQuery(("ws", "t"), (("a", "`a`"), ("b", "c * 2")), "a > 1", 0, 7),
        ),
        (
            '{"source": ["t"], "columns": {"z": "x", "a": "y"}, "filter": ""}',
            ViewQuery(T, (("z", "x"), ("a", "y"))),
        ),
    ],
)
def test_supported_queries_are_parsed(text, expected):
    query = parse(text)
    assert query == expected
    assert from_json(query.to_json()) == query
    if query.version is None:
        assert parse(query.to_sql()) == query


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "neither a JSON object nor a SELECT"),
        ("DELETE FROM t", "neither a JSON object nor a SELECT"),
        ("SELECT *", "it has no FROM"),
        ("SELECT * FROM", "not the name of one table"),
        ("SELECT * FROM a, b", "not the name of one table"),
        ("SELECT * FROM t AS u", "not the name of one table"),
        ("SELECT * FROM (SELECT 1)", "not the name of one table"),
        ("SELECT * FROM a JOIN b", "JOIN is not supported"),
        ("SELECT * FROM t GROUP BY id", "GROUP is not supported"),
        ("SELECT * FROM t ORDER BY id", "ORDER is not supported"),
        ("SELECT id+1 FROM t", "has no name"),
        ("SELECT a.* FROM t", "has no name"),
        ("SELECT id, FROM t", "empty column"),
        ("SELECT id AS a, n AS a FROM t", "two columns named 'a'"),
        ('SELECT id AS "a.b" FROM t', "cannot be named 'a.b'"),
        ("SELECT * FROM t WHERE", "its WHERE is empty"),
        ("SELECT * FROM t WHERE x WHERE y", "WHERE is not where it belongs"),
        ("SELECT * LIMIT 3 FROM t", "FROM is not where it belongs"),
        ("SELECT * FROM t LIMIT x", "LIMIT 'x' is not a number"),
        ("SELECT * FROM t LIMIT -1", "LIMIT '-1' is not a number"),
        ("SELECT * FROM t; DROP TABLE t", "more than one statement"),
        ("SELECT (id FROM t", "parentheses do not match"),
        ("SELECT 'a FROM t", "a quote without an end at position 7"),
        ("SELECT id FROM t WHERE n = '\x00'", "NUL"),
        ("SELECT " + "+" * 100_000 + " AS a FROM w.t", "more than 100,000 characters"),
        ('{"source": ["t"], "filter": "' + "1" * 100_000 + '"}', "more than 100,000 characters"),
        ("{", "cannot be read"),
        ('{"source": "t"}', "'source' is not a list"),
        ('{"source": [1]}', "'source' is not a list"),
        ('{"source": []}', "root namespace"),
        ('{"source": ["t"], "where": "x"}', "unknown key 'where'"),
        ('{"source": ["t"], "columns": []}', "no columns"),
        ('{"source": ["t"], "columns": "id"}', "neither a list nor an object"),
        ('{"source": ["t"], "columns": [1]}', "column 1 is neither"),
        ('{"source": ["t"], "columns": [["a", 1]]}', "is neither"),
        ('{"source": ["t"], "columns": ["a.b"]}', "cannot be named 'a.b'"),
        ('{"source": ["t"], "columns": {"a": "x, y"}}', "is not one expression"),
        ('{"source": ["t"], "columns": {"a": " "}}', "is not one expression"),
        ('{"source": ["t"], "filter": 1}', "'filter' is not a text"),
        ('{"source": ["t"], "limit": -1}', "'limit' is not a number"),
        ('{"source": ["t"], "limit": true}', "'limit' is not a number"),
        ('{"source": ["t"], "version": 1.5}', "'version' is not a number"),
    ],
)
def test_unsupported_queries_are_refused(text, why):
    with pytest.raises(InvalidInput, match="cannot be read") as refused:
        parse(text)
    assert why in refused.value.message
    assert refused.value.detail == UNDERSTOOD
