"""Names of tables in the SQL of views, and the identifiers that they may stand for."""

import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from catalog.formats.iceberg.describe_views import Representation, ViewVersion
from catalog.formats.iceberg.views import parsing, sources
from catalog.formats.iceberg.views.sources import MAX_CHARACTERS, MAX_NAMES, MAX_PROBLEMS, Sources

NAMESPACE = ("prod", "sales")
SLOW = "SELECT " + "INT(" * 16 + "1" + ")" * 16


def read(
    *texts: str,
    dialect: str = "spark",
    catalog: str = "",
    default: tuple[str, ...] = ("sales",),
    namespace: tuple[str, ...] = NAMESPACE,
) -> Sources:
    representations = tuple(Representation(dialect, text) for text in texts)
    version = ViewVersion(1, None, 0, catalog, default, representations, {})
    return sources.read(version, namespace)


def names(sql: str, **options: str) -> list[str]:
    parsed = read(sql, **options)
    assert parsed.problems == ()
    return [name.text for name in parsed.names]


def identifiers(sql: str, **options) -> tuple[tuple[str, ...], ...]:
    (name,) = read(sql, **options).names
    return name.identifiers


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM a JOIN b.c ON 1 = 1", ["a", "b.c"]),
        ("SELECT * FROM x.t JOIN y.t ON 1 = 1", ["x.t", "y.t"]),
        ("SELECT * FROM a UNION ALL (SELECT * FROM b EXCEPT SELECT * FROM c)", ["a", "b", "c"]),
        ("SELECT (SELECT max(x) FROM m) FROM t WHERE y IN (SELECT z FROM n)", ["m", "n", "t"]),
        ("SELECT * FROM a JOIN (b JOIN c ON 1 = 1) ON 1 = 1", ["a", "b", "c"]),
        ("WITH a AS (SELECT * FROM b) SELECT * FROM a", ["b"]),
        ("WITH a AS (SELECT * FROM a) SELECT * FROM a JOIN db.a", ["a", "db.a"]),
        ("WITH w AS (SELECT 1) SELECT * FROM (SELECT * FROM w JOIN z)", ["z"]),
        ("WITH RECURSIVE r AS (SELECT * FROM b UNION ALL SELECT * FROM r) SELECT * FROM r", ["b"]),
        ("SELECT * FROM t LATERAL VIEW explode(y) z AS w", ["t"]),
        ("SELECT * FROM range(10)", []),
        ("SELECT * FROM explode(array(1)) JOIN LATERAL sequence(1, 2)", []),
        (
            "SELECT * FROM t LATERAL VIEW explode((SELECT collect_list(x) FROM u)) z AS w",
            ["t", "u"],
        ),
        ("SELECT * FROM t LATERAL VIEW my_function(y) z AS w", ["t"]),
        ("SELECT 1 FROM x UNION SELECT 1 FROM y ORDER BY (SELECT 1 FROM z)", ["x", "y", "z"]),
        ("WITH a AS (SELECT 1), b AS (SELECT 1 FROM c) SELECT 1 FROM a, b", ["c"]),
        ("WITH a AS (SELECT 1 FROM b), b AS (SELECT 1) SELECT 1 FROM a, b", ["b"]),
        ("SELECT 1 FROM (WITH a AS (SELECT 1) SELECT 1 FROM a) JOIN a", ["a"]),
        ("WITH Recent AS (SELECT 1 FROM b) SELECT 1 FROM recent JOIN `RECENT`", ["b"]),
        ("SELECT /*+ BROADCAST(x) */ 1 FROM t AS x", ["t"]),
        ("VALUES (1)", []),
        ("VALUES ((SELECT 1 FROM u))", ["u"]),
        ("SELECT * FROM `b c`.`d``e`", ["b c.d`e"]),
        ("SELECT 'FROM hidden' /* FROM x */ FROM t -- FROM y", ["t"]),
    ],
)
def test_names_of_a_query(sql, expected):
    assert sorted(names(sql)) == expected


def test_common_table_expressions_are_compared_as_the_dialect_compares_names():
    sql = 'WITH Recent AS (SELECT 1 FROM b) SELECT 1 FROM recent JOIN "{}"'
    assert names(sql.format("recent"), dialect="postgres") == ["b"]
    assert names(sql.format("Recent"), dialect="postgres") == ["b", "Recent"]
    assert names(sql.format("Recent"), dialect="trino") == ["b"]


@pytest.mark.parametrize(
    ("dialect", "sql"),
    [
        ("trino", "SELECT * FROM t JOIN TABLE(f(input => TABLE(a.u)))"),
        ("spark", "SELECT * FROM t JOIN my.f(1)"),
        ("spark", "SELECT * FROM t JOIN LATERAL f(t.x)"),
        ("snowflake", "SELECT * FROM t JOIN TABLE(f(1))"),
    ],
)
def test_functions_that_may_read_tables_are_a_problem(dialect, sql):
    parsed = read(sql, dialect=dialect)
    assert [name.text for name in parsed.names] == ["t"]
    reason = "it calls functions that may read tables"
    assert parsed.problems == (f"The SQL of dialect '{dialect}' cannot be parsed: {reason}.",)


def test_a_name_without_a_namespace_is_in_the_default_namespace():
    assert identifiers("SELECT * FROM t") == (("prod", "sales", "t"),)


def test_names_are_relative_to_any_namespace_above_the_view_unless_the_default_tells():
    assert identifiers("SELECT * FROM t", default=("raw",)) == (
        ("raw", "t"),
        ("prod", "raw", "t"),
        ("prod", "sales", "raw", "t"),
    )
    assert identifiers("SELECT * FROM raw.t", default=("prod", "sales")) == (("raw", "t"),)


def test_a_catalog_is_left_out():
    default = ("prod", "sales")
    both = (("c", "d", "t"), ("d", "t"))
    assert identifiers("SELECT * FROM c.d.t", default=default) == both
    assert identifiers("SELECT * FROM c.d.t", default=default, catalog="c") == (("d", "t"),)


def test_metadata_tables_and_branches_are_parts_of_their_table():
    default = ("prod", "sales")
    assert ("d", "t") in identifiers("SELECT * FROM d.t.snapshots", default=default)
    assert ("d", "t") in identifiers("SELECT * FROM d.t.branch_x", default=default)
    trino = identifiers('SELECT * FROM "D"."T$files"', dialect="trino", default=default)
    assert trino == (("d", "t$files"), ("d", "t"))


def test_names_of_all_dialects_count():
    parsed = read("SELECT * FROM a", "SELECT * FROM b JOIN a")
    assert [name.text for name in parsed.names] == ["a", "b"]
    assert names("SELECT * FROM t", dialect="of my own") == ["t"]


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELEC 1 FROM", "line 1, column 7"),
        ("SELECT 1; DROP TABLE t", "it is not a single query"),
        ("DELETE FROM t", "it is not a single query"),
        ("", "it is not a single query"),
        ("SELECT " + "(" * 50 + "1" + ")" * 50, "it is nested too deeply"),
        ("SELECT " + "ARRAY<" * 1000, "it is nested too deeply"),
        ("SELECT '", "it is not valid SQL"),
    ],
)
def test_sql_that_cannot_be_parsed_is_a_problem(sql, reason):
    parsed = read(sql)
    assert parsed.names == ()
    assert parsed.problems == (f"The SQL of dialect 'spark' cannot be parsed: {reason}.",)


def test_the_other_dialects_count_if_one_cannot_be_parsed():
    parsed = read("SELECT * FROM", "SELECT * FROM b")
    assert [name.text for name in parsed.names] == ["b"]
    assert len(parsed.problems) == 1


def test_long_sql_and_many_names_are_limited():
    long = read("SELECT 1 -- " + "x" * MAX_CHARACTERS)
    assert "only 65,536 characters are" in long.problems[0]
    many = read("SELECT 1 FROM " + ", ".join(f"t{n}" for n in range(MAX_NAMES + 1)))
    assert len(many.names) == MAX_NAMES
    assert "more than 500 tables" in many.problems[0]
    assert read().problems == ("The view has no SQL.",)
    deep = read("SELECT * FROM t", default=("x",) * 101)
    assert deep == Sources(problems=("The default namespace has more than 100 levels.",))


@pytest.mark.parametrize(
    ("dialect", "sql"),
    [
        ("spark", SLOW),
        ("spark", "SELECT * FROM a " + "JOIN b " * 20),
        ("trino", "SELECT " + "a" + "[1]" * 800),
    ],
)
def test_the_parser_ends_after_its_time(dialect, sql, monkeypatch):
    monkeypatch.setattr(sources, "MAX_SECONDS", 0.1)
    started = time.thread_time()
    parsed = read("SELECT * FROM t", sql, dialect=dialect)
    assert time.thread_time() - started < 3
    assert [name.text for name in parsed.names] == ["t"]
    assert parsed.problems == (
        "The SQL takes more than 0.1 seconds to parse; the rest was not parsed.",
    )
    assert sys.getprofile() is None
    assert names("SELECT * FROM t") == ["t"]


def test_the_time_is_limited_in_any_thread(monkeypatch):
    monkeypatch.setattr(sources, "MAX_SECONDS", 0.1)
    with ThreadPoolExecutor(1) as executor:
        parsed = executor.submit(read, SLOW).result()
    assert len(parsed.problems) == 1


def test_identifiers_are_limited(monkeypatch):
    deep = read("SELECT * FROM t", namespace=("x",) * 101)
    assert deep == Sources(problems=("The namespace has more than 100 levels.",))
    monkeypatch.setattr(sources, "MAX_IDENTIFIERS", 5)
    options = {"default": ("raw",), "namespace": ("a", "b", "c")}  # four identifiers a name
    many = read("SELECT * FROM t, u, v", **options)
    assert [len(name.identifiers) for name in many.names] == [4, 1]
    assert many.problems == ("More than 5 tables may be meant; others do not count.",)
    assert read("SELECT * FROM t", **options).problems == ()


def test_problems_are_limited():
    parsed = read(*["SELECT FROM FROM"] * 15)
    assert len(parsed.problems) == MAX_PROBLEMS
    parsed = read(*["SELECT FROM FROM"] * 20, "SELECT * FROM t")
    assert parsed.names == ()
    assert parsed.problems[0] == "Only 20 representations of the view are parsed."


def test_names_with_the_same_text_are_different_names():
    parsed = read("SELECT * FROM `a.b` JOIN a.b", default=("prod", "sales"))
    assert [(name.text, name.identifiers[0]) for name in parsed.names] == [
        ('"a.b"', ("prod", "sales", "a.b")),
        ("a.b", ("a", "b")),
    ]


def test_names_with_very_many_parts():
    parsed = read("SELECT * FROM " + ".".join("x" * 20_000))
    assert len(parsed.names) + len(parsed.problems) == 1


def test_unprintable_characters_are_replaced():
    parsed = read("SELECT * FROM `evil\u202egnp`, `a\0b`", dialect="spark")
    assert sorted(name.text for name in parsed.names) == ["a�b", "evil�gnp"]
    assert [name.identifiers for name in parsed.names] == [(), ()]
    (problem,) = read("SELECT FROM FROM", dialect="\u202ex\n").problems
    assert "dialect '�x�'" in problem


class Finalized:
    """Calls functions when the garbage collector removes it. Exceptions are ignored there."""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        for _ in range(1_000):
            len("")


def test_the_limit_ends_work_whose_finalizers_call_functions():
    def work() -> None:
        while True:
            Finalized()

    began = time.thread_time()
    with pytest.raises(parsing.TooSlow):
        parsing.within(0.1, work)
    assert time.thread_time() - began < 30
    assert gc.isenabled()
    assert sys.getprofile() is None
