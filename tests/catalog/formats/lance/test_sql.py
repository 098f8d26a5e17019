"""Expressions that would end the process are refused, and no others."""

import threading

import pyarrow as pa
import pytest

from catalog.errors import InvalidInput
from catalog.formats.lance import sql as lance_sql


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "id = 1",
        "id IN (" + ", ".join(map(str, range(50_000))) + ")",
        "id IN (" + ", ".join(f"-{number}" for number in range(50_000)) + ")",
        "s IN (" + ", ".join(f"'it''s + {number} + or'" for number in range(20_000)) + ")",
        "t IN (" + ", ".join(["cast('2020-01-01' as date)"] * 20_000) + ")",
        " OR ".join(f"id = {number}" for number in range(9_000)),
        " AND ".join(["id BETWEEN 1 AND 2 AND NOT `a b` IS NULL"] * 3_000),
        "coalesce(" + ", ".join(["id"] * 5_000) + ") > 1",
        "s = '" + "+ " * 5_000 + "'",
        "(" * 40 + "id > 1" + ")" * 40 + " " * 1_000,
        "(" * 40 + "id > 1" + ")" * 40,
        "(" * 299 + "id > 1" + ")" * 299,
        "(" * 40 + "id = 1" + " OR id = 2)" * 40,
        "(" * 20 + "id" + "+1)" * 20 + " > 1",
        " AND ".join(["lower(s) = 'a(b'"] * 40),
        "CASE " + "WHEN id BETWEEN 1 AND 2 THEN abs(id) " * 40 + "END > 1",
        " AND ".join(["t > now() - interval '1 day'"] * 20),
        "abs(" * 10 + "id" + ")" * 10 + " > 1",
        "s = '" + "cast(" * 40 + "'",
        "id > 1 -- abs(id)",
    ],
)
def test_long_lists_and_chains_are_accepted(expression):
    lance_sql.check(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "id" + "+id" * 1_000 + " > 1",
        "id" + "+1" * 1_000 + " > 1",
        "id" + " * id" * 500 + " > 1",
        "b" + " IS TRUE" * 400,
        "b" + " IS NULL" * 400,
        "id" + "::bigint" * 400,
        "id" + " BETWEEN 1 AND 2" * 400,
        "coalesce(id, 1)" + " + coalesce(id, 1)" * 400 + " > 1",
        "coalesce(1, " + "id" + "+id" * 400 + ", 1) > 1",
        "(" * 20 + "id" + ("+id" * 20 + ")") * 20 + " > 1",
        "(" * 20 + "id" + ("+id" * 20 + ")") * 20 + " = 1 or id > 1",
        "s = '' " + "+ s " * 400,
        "s = 'a\\' " + "+ s " * 400,
        " or ".join(["id = 1"] * 20_000),
        "id > 1 /* ' */ " + "+ 1 " * 400 + "/* ' */",
        "id > 1 -- '\n" + "+ 1 " * 400 + " -- '",
        "id = 1\x00",
        "cast(" * 22,
        "CAST (" * 40 + "id" + " AS bigint)" * 40 + " > 1",
        "coalesce(" * 20 + "id" + ", 1)" * 20 + " > 1",
        "position(" * 14,
        "`abs`(" * 14,
        "not (" * 24,
        "array[" * 24,
        "interval " * 24,
        "substring(interval " * 8,
        "(" * 16 + "id" + " BETWEEN 1 AND 2)::bigint" * 16 + " > 1",
        "id > 1 AND (s = 'a' OR " + "nvl(" * 16 + "id" + ", 1)" * 16 + " > 1)",
        "/* ' */" + "position(" * 14 + "/* ' */",
        "cast/**/(" * 22,
        "s = $$'$$ OR " + "position(" * 14 + "$$'$$",
        "(" * 301 + "id" + ")" * 301 + " > 1",
        "repeat(s, 1)" + "[" * 301,
    ],
)
def test_too_deep_expressions_are_refused(expression):
    with pytest.raises(InvalidInput):
        lance_sql.check(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "id" + "+id" * 149 + " > 1",
        "id" + "+1" * 290 + " > 1",
        "b" + " IS TRUE" * 149,
        "id" + "::bigint" * 95 + " > 1",
        "coalesce(id, 1)" + " + coalesce(id, 1)" * 95 + " > 1",
        "(" * 20 + "id" + ("+id" * 7 + ")") * 20 + " > 1",
        " or ".join(["id = 1"] * 9_999),
        " and ".join(["id" + "+1" * 290 + " > 1"] * 30),
        "coalesce(" * 10 + "id" + ",1)" * 10 + " > 1",
        "(" * 10 + "id" + " between 1 and 2)::bigint" * 10 + " > 1",
    ],
)
def test_accepted_expressions_fit_a_small_stack(tmp_path, expression):
    import lance

    lance_sql.check(expression)
    data = pa.table({"id": pa.array([1, 2], pa.int64()), "b": [True, False]})
    dataset = lance.write_dataset(data, str(tmp_path / "t"))
    counts = []
    usual = threading.stack_size(2 << 20)
    try:
        thread = threading.Thread(target=lambda: counts.append(dataset.count_rows(expression)))
        thread.start()
    finally:
        threading.stack_size(usual)
    thread.join()
    assert len(counts) == 1
