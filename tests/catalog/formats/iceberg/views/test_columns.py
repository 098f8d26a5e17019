"""What the columns of a view are made from, by its SQL."""

import time

import pytest

from catalog.formats.iceberg.describe_views import Representation, ViewVersion
from catalog.formats.iceberg.views import columns, sources, stored_columns
from catalog.formats.iceberg.views.relations import (
    ALIAS,
    AMBIGUOUS,
    BY_POSITION,
    UNKNOWN,
    UNSUPPORTED,
)
from catalog.formats.iceberg.views.sources import Sources

RECURSIVE = "WITH RECURSIVE r(m, n, o) AS (SELECT a, b, c FROM t UNION ALL SELECT n, o, m FROM r) "


def read(*texts: str, dialect: str = "spark", fields: tuple[str, ...] = ()) -> Sources:
    representations = tuple(Representation(dialect, text) for text in texts)
    version = ViewVersion(1, None, 0, "", ("ws",), representations, {})
    return sources.read(version, ("ws",), fields)


def derive(sql: str, **options) -> dict[str, str]:
    """The origins of each column: "|" between those of which one is read, "*" after a computed one."""
    parsed = read(sql, **options)
    assert (parsed.problems, parsed.column_problems) == ((), ())
    ((_, derived),) = parsed.columns
    return {
        column.name: " ".join(
            "|".join(".".join([*parts, name]) for parts, name in reference)
            for reference in column.references
        )
        + ("" if column.is_copy else "*")
        for column in derived
    }


def problem(sql: str, **options) -> str:
    ((_, (column,)),) = read(sql, **options).columns
    return column.problem


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a, b + c AS d, 1 AS e FROM t", {"a": "t.a", "d": "t.b t.c*", "e": "*"}),
        ("SELECT (a) AS x, CAST(a AS INT) AS y FROM t", {"x": "t.a", "y": "t.a*"}),
        ("SELECT x.a, y.b FROM t AS x JOIN u y ON x.i = y.i", {"a": "t.a", "b": "u.b"}),
        ("SELECT a FROM t, u", {"a": "t.a|u.a"}),
        ("SELECT db.t.a, u.b FROM db.t, other.u", {"a": "db.t.a", "b": "other.u.b"}),
        ("SELECT id FROM t JOIN u USING (id)", {"id": "t.id u.id"}),
        ("SELECT T.A FROM t", {"A": "t.A"}),
        ("SELECT point.x, t.point.y FROM t", {"x": "t.point*", "y": "t.point*"}),
        ("SELECT a FROM t LEFT SEMI JOIN u ON t.i = u.i", {"a": "t.a"}),
        ("SELECT a, b FROM (SELECT a, x AS b FROM t), u", {"a": "t.a", "b": "t.x"}),
        ("SELECT a FROM (t JOIN u ON t.i = u.i)", {"a": "t.a|u.a"}),
        ("WITH c AS (SELECT x AS a FROM t) SELECT a FROM c", {"a": "t.x"}),
        ("WITH c(a) AS (SELECT x FROM t) SELECT d.a FROM c AS d", {"a": "t.x"}),
        ("WITH t AS (SELECT a FROM t) SELECT a FROM t", {"a": "t.a"}),
        ("WITH c AS (SELECT *, 1 AS n FROM t) SELECT a, n FROM c", {"a": "t.a", "n": "*"}),
        (f"{RECURSIVE} SELECT m FROM r", {"m": "t.a t.b t.c"}),
        ("SELECT a FROM t UNION ALL SELECT b FROM u", {"a": "t.a u.b"}),
        ("SELECT a FROM t UNION SELECT 1", {"a": "t.a*"}),
        ("SELECT * FROM (SELECT a FROM t) UNION SELECT * FROM (SELECT b FROM u)", {"a": "t.a u.b"}),
        (f"{RECURSIVE.replace('SELECT n, o, m', 'SELECT *')} SELECT m FROM r", {"m": "t.a"}),
        ("SELECT a FROM t EXCEPT SELECT b FROM u", {"a": "t.a"}),
        ("SELECT a FROM t UNION SELECT b FROM u UNION SELECT c FROM v", {"a": "t.a u.b v.c"}),
        ("SELECT (SELECT max(u.x) FROM u WHERE u.i = t.i) AS m FROM t", {"m": "u.x*"}),
        ("SELECT a IN (SELECT y.b FROM u AS y) AS f FROM t AS x", {"f": "t.a u.b*"}),
        ("SELECT transform(xs, x -> x + y) AS z FROM t", {"z": "t.xs t.y*"}),
        ("SELECT sum(a) OVER (PARTITION BY b ORDER BY c) AS s FROM t", {"s": "t.a t.b t.c*"}),
        ("SELECT count(*) AS n FROM t WHERE a > 1 GROUP BY b", {"n": "*"}),
        ("SELECT e.item FROM t LATERAL VIEW explode(t.items) e AS item", {"item": "t.items*"}),
        ("SELECT v.a FROM VALUES (1, 2) AS v(a, b)", {"a": "*"}),
        ("SELECT upper(a) AS a, a AS b FROM t", {"a": "t.a*", "b": "t.a*"}),
        ("SELECT * FROM t", {"*": "t.*"}),
        ("SELECT t.*, u.x FROM t, u", {"*": "t.*", "x": "u.x"}),
        ("SELECT * FROM (SELECT a, b AS c FROM t)", {"a": "t.a", "c": "t.b"}),
    ],
)
def test_origins_of_columns(sql, expected):
    assert derive(sql) == expected


@pytest.mark.parametrize(
    ("sql", "fields", "expected"),
    [
        ("SELECT * FROM t", ("a", "b"), {"a": "t.a", "b": "t.b"}),
        ("SELECT x, 2 FROM t", ("a", "b"), {"a": "t.x", "b": "*"}),
        ("SELECT 1, t.*, u.x FROM t, u", ("n", "a", "z"), {"n": "*", "a": "t.a", "z": "u.x"}),
        ("SELECT *, b AS c, * FROM t", ("a", "c", "d"), {"a": "t.a", "c": "t.b", "d": "t.d"}),
        ("SELECT * FROM t JOIN u USING (i)", ("i", "a"), {"i": "t.i u.i", "a": "t.a|u.a"}),
        ("SELECT x, y FROM t", ("a",), {"x": "t.x", "y": "t.y"}),
        ("VALUES (1, 2)", ("a", "b"), {"a": "*", "b": "*"}),
    ],
)
def test_the_schema_of_the_view_names_its_columns(sql, fields, expected):
    assert derive(sql, fields=fields) == expected


def test_modifiers_of_all_columns():
    sql = "SELECT * EXCEPT (a) REPLACE (b + c AS b) FROM t"
    assert derive(sql, dialect="bigquery", fields=("b", "d")) == {"b": "t.b t.c*", "d": "t.d"}
    sql = "SELECT * EXCEPT (a) REPLACE (c AS b) FROM (SELECT a, b, c FROM t)"
    assert derive(sql, dialect="bigquery") == {"b": "t.c", "c": "t.c"}
    sql = "SELECT * REPLACE (c AS b) FROM t"
    assert derive(sql, dialect="bigquery") == {"*": "t.*", "b": "t.c"}
    sql = "SELECT * EXCLUDE (a) RENAME (b AS x) FROM t"
    assert derive(sql, dialect="snowflake", fields=("x",)) == {"x": "t.b"}
    sql = "SELECT * RENAME (b AS x) FROM (SELECT a, b FROM t)"
    assert derive(sql, dialect="snowflake") == {"a": "t.a", "x": "t.b"}
    sql = "SELECT a, b FROM t UNION ALL BY NAME SELECT b, a FROM u"
    assert derive(sql, dialect="duckdb") == {"a": "t.a u.a", "b": "t.b u.b"}


def test_names_of_a_dialect_that_stores_lower_case():
    sql = 'SELECT k FROM "T" CROSS JOIN UNNEST(T.m) AS u(k, v)'
    assert derive(sql, dialect="trino") == {"k": "t.m*"}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT t.a FROM x.t, y.t", AMBIGUOUS),
        ("SELECT a FROM (SELECT a FROM t), (SELECT a FROM u)", AMBIGUOUS),
        ("SELECT a", UNKNOWN),
        ("SELECT x.a FROM (SELECT b FROM t) AS x", UNKNOWN),
        ("SELECT a FROM t PIVOT (sum(x) FOR y IN (1, 2))", UNSUPPORTED),
        ("SELECT struct(t.*) AS s FROM t", UNSUPPORTED),
        ("SELECT x.a FROM t AS x(a, b)", BY_POSITION),
        (
            "WITH RECURSIVE r AS (SELECT * FROM t UNION ALL SELECT * FROM r) SELECT a FROM r",
            "The query is recursive.",
        ),
    ],
)
def test_columns_that_are_not_certain_say_so(sql, expected):
    assert problem(sql) == expected


def test_an_array_of_structs_says_that_its_sources_are_not_certain():
    sql = "SELECT ARRAY(SELECT AS STRUCT a FROM t) AS x FROM u"
    assert problem(sql, dialect="bigquery") == UNSUPPORTED


def test_an_alias_that_may_be_a_column():
    ((_, derived),) = read("SELECT a + b AS x, x + 1 AS y FROM t").columns
    assert [column.problem for column in derived] == ["", ALIAS]


def test_all_columns_in_a_union_match_by_position():
    ((_, derived),) = read("SELECT * FROM t UNION ALL SELECT * FROM u", fields=("a", "b")).columns
    assert {column.problem for column in derived} == {BY_POSITION}


def test_dialects_and_sql_that_cannot_be_parsed():
    parsed = read("SELECT a FROM t", "SELECT FROM FROM", "SELECT b AS a FROM t")
    assert [len(derived) for _, derived in parsed.columns] == [1, 1]
    assert len(parsed.problems) == 1


def test_chains_of_common_table_expressions_do_not_take_exponential_time():
    chain = ", ".join(f"c{n} AS (SELECT * FROM c{n - 1}, c{n - 1})" for n in range(1, 60))
    sql = f"WITH c0 AS (SELECT * FROM t), {chain} SELECT x FROM c59"
    started = time.thread_time()
    assert derive(sql) == {"x": "t.x"}
    assert time.thread_time() - started < 2
    deep = read(sql.replace("x FROM c59", "*  FROM c59"))  # 2^59 times the columns of t
    assert time.thread_time() - started < 8
    assert deep.problems == ()
    assert len(deep.columns) == 1 or deep.column_problems


def test_nested_recursive_queries_end_after_their_time(monkeypatch):
    sql = "SELECT a FROM t"
    for depth in range(15):
        body = f"SELECT a FROM ({sql}) UNION ALL SELECT a FROM ({sql}) JOIN r{depth}"
        sql = (
            f"WITH RECURSIVE r{depth} AS (SELECT a FROM t UNION ALL {body}) SELECT a FROM r{depth}"
        )
        if len(sql) > 20_000:
            break
    monkeypatch.setattr(sources, "MAX_SECONDS", 0.5)
    started = time.thread_time()
    parsed = read(sql)
    assert time.thread_time() - started < 5
    assert parsed.column_problems or parsed.columns or parsed.problems


def test_deep_chains_are_a_problem():
    chain = ", ".join(f"c{n} AS (SELECT * FROM c{n - 1})" for n in range(1, 900))
    parsed = read(f"WITH c0 AS (SELECT * FROM t), {chain} SELECT x FROM c899")
    assert parsed.problems == ()
    (reason,) = parsed.column_problems
    assert reason == "The columns of dialect 'spark' cannot be derived: it is nested too deeply."


def test_columns_and_origins_are_limited(monkeypatch):
    monkeypatch.setattr(columns, "MAX_COLUMNS", 2)
    parsed = read("SELECT a, b, c FROM t", "SELECT d FROM t")
    assert [len(derived) for _, derived in parsed.columns] == [2, 0]
    assert parsed.column_problems == ("Only 2 columns are recorded.",) * 2
    monkeypatch.setattr(columns, "MAX_ORIGINS", 1)
    ((_, derived),) = read("SELECT a, b FROM t").columns
    assert [len(column.references) for column in derived] == [1, 0]
    problem = "Not all sources are recorded, because there are too many."
    assert [column.problem for column in derived] == ["", problem]


def test_unprintable_names_are_replaced():
    parsed = read("SELECT `a\0\u202e` FROM t", fields=("x\0",))
    ((_, (column,)),) = parsed.columns
    assert (column.name, column.references) == ("x�", (((("t",), "a��"),),))


def test_the_stored_form():
    parsed = read("SELECT a, b FROM t", "SELECT a, c AS b FROM t")
    assert [
        (column.name, column.dialects)
        for column in stored_columns.from_json(stored_columns.to_json(parsed))
    ] == [("a", ()), ("b", ()), ("b", ())]
    version = ViewVersion(
        *(1, None, 0, "", ("ws",)),
        (Representation("spark", "SELECT a, b FROM t"), Representation("trino", "SELECT a, 1 b")),
        {},
    )
    stored = stored_columns.from_json(stored_columns.to_json(sources.read(version, ("ws",))))
    assert [(column.name, column.is_copy, column.dialects) for column in stored] == [
        ("a", True, ("spark",)),
        ("b", True, ("spark",)),
        ("a", False, ("trino",)),
        ("b", False, ("trino",)),
    ]
    assert stored[0].references[0][0][1] == "a"
