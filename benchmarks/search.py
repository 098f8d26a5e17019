"""Latency of searches over HTTP on a catalog of 100,000 or 1,000,000 tables, one after another."""

import http.client
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from benchmarks import report
from benchmarks.compare import report_progress
from benchmarks.errors import BadAnswers, BenchmarkError
from benchmarks.load import DIGEST
from benchmarks.stack import API_KEY, Stack, running
from catalog.services.search import words as search_words
from server.options import PROJECT


@dataclass(frozen=True)
class Size:
    namespaces: int
    tables: int
    """Tables per namespace."""
    goal_ms: float
    """Limit for 95 % of the searches."""
    searches: int
    """Number of searches of each kind."""

    @property
    def all_tables(self) -> int:
        return self.namespaces * self.tables


QUICK = Size(namespaces=100, tables=1_000, goal_ms=50, searches=200)
FULL = Size(namespaces=1_000, tables=1_000, goal_ms=200, searches=200)

COMMON = (  # noqa: SIM905 -- as people read it
    "account address amount archive batch billing booking budget campaign carrier category channel "
    "claim click client contact contract country coupon credit currency customer daily device "
    "discount dispatch document driver email employee event export feature feedback flight forecast "
    "gateway history import income inventory invoice item journey label ledger license location "
    "margin market member message metric mobile monthly network notice offer office order outlet "
    "package page partner payment payroll period permit person phone policy portal price product "
    "profile profit project quality quota rating receipt record refund region report request "
    "return revenue review route salary sample schedule segment sensor service session shipment "
    "signal site snapshot staff statement station status stock store student subject supplier "
    "survey target tariff task tenant ticket token tour tracking trade traffic transfer trial "
    "trip usage user vehicle vendor version visit voucher wallet warehouse weather website worker"
).split()
RARE = 30_000
COLUMNS = 10


def rare_words() -> list[str]:
    """Words as a large catalog has them: each in a few names only."""
    pick = random.Random(1)
    words: set[str] = set()
    while len(words) < RARE:
        parts = (pick.choice("bcdfghklmnprstvz") + pick.choice("aeiou") for _ in range(4))
        words.add("".join(parts) + pick.choice("lnrst"))
    return sorted(words)


NAMESPACES = f"""
    INSERT INTO catalog_namespace
        (path, digest, parent_id, name, properties, owner, created_at, updated_at)
    SELECT ARRAY[name], {DIGEST.format("name")}, root.id, name, '{{}}', 'benchmark', now(), now()
    FROM (SELECT id FROM catalog_namespace WHERE path = '{{}}') root,
         (SELECT 'area' || lpad(n::text, 4, '0') AS name
          FROM generate_series(0, %(namespaces)s - 1) n ORDER BY n) names
"""
_TABLES = f"""
    INSERT INTO catalog_table
        (uuid, namespace_id, name, digest, format, state, location, properties, managed_versioning,
         owner, created_at, updated_at)
    SELECT gen_random_uuid(), namespace_id, name, {DIGEST.format("namespace || chr(31) || name")}, 'lance', 'live',
        '/benchmark/' || namespace_id || '/' || name, '{{}}', true, 'benchmark', now(), now()
    FROM (
        SELECT n.id AS namespace_id, n.name AS namespace, t + n.id * 7 AS seed,
            (%(common)s::text[])[1 + (t + n.id * 7) %% cardinality(%(common)s::text[])] || '_'
            || (%(rare)s::text[])[1 + (t * 31 + n.id * 17) %% cardinality(%(rare)s::text[])] || '_'
            || (%(common)s::text[])[1 + (t * 13 + n.id * 3) %% cardinality(%(common)s::text[])]
            || '_' || lpad(t::text, 4, '0') AS name
        FROM catalog_namespace n, generate_series(0, %(tables)s - 1) t
        WHERE n.path <> '{{}}'
        ORDER BY n.id, t
    ) numbered
"""
# Of one table in twenty it is said itself; what a tenth of the namespaces says, all in them inherits.
_LABELS = """
    INSERT INTO catalog_labeldefinition
        (key, description, colour, values, is_multiple, applies_to, created_by, updated_at)
    VALUES ('pii', '', 'grey', '{yes,no}', false, '{namespace,table,column}', 'benchmark', now());
    INSERT INTO catalog_labelassignment (definition_id, table_id, "column", value, set_by)
    SELECT d.id, t.id, '', CASE WHEN t.id %% 40 = 0 THEN 'yes' ELSE 'no' END, 'benchmark'
    FROM catalog_labeldefinition d, catalog_table t WHERE t.id %% 20 = 0;
    INSERT INTO catalog_labelassignment (definition_id, namespace_id, "column", value, set_by)
    SELECT d.id, n.id, '', 'yes', 'benchmark'
    FROM catalog_labeldefinition d, catalog_namespace n WHERE n.id %% 10 = 0;
    INSERT INTO catalog_facts
        (table_id, "column", description, sensitivity, links, updated_by, updated_at)
    SELECT t.id, '', 'Everything about the ' || split_part(t.name, '_', 1) || ' since yesterday',
        CASE WHEN t.id %% 50 = 0 THEN 'restricted' ELSE '' END, '[]', 'benchmark', now()
    FROM catalog_table t WHERE t.id %% 5 = 0
"""
_DOCUMENTS = """
    INSERT INTO catalog_searchdocument (table_id, columns, schema_version, attempts, error, vector)
    SELECT t.id, c.columns, '', 0, '',
        array_to_tsvector(
            ARRAY[':d:' || t.id, ':f:lance', ':k:table', ':o:benchmark', ':e:' || t.name,
                ':e:' || n.name || '.' || t.name, ':i:' || n.name]
            || ARRAY(SELECT ':p:' || a FROM unnest(n.ancestors) a)
            || ARRAY(SELECT ':n:' || w FROM regexp_split_to_table(t.name, '_') w)
            || c.marks
            || CASE WHEN l.value IS NULL THEN '{}' ELSE ARRAY[':l:pii', ':l:pii=' || l.value] END
            || CASE WHEN f.sensitivity <> '' THEN ARRAY[':s:', ':s:' || f.sensitivity] ELSE '{}' END
        )
        || setweight(to_tsvector('simple', regexp_replace(n.name, '(\\d+)', ' \\1 ') || n.name), 'D')
        || setweight(to_tsvector('simple', replace(t.name, '_', ' ')), 'A')
        || setweight(to_tsvector('simple', 'benchmark string double bool'), 'D')
        || setweight(to_tsvector('simple', c.words || coalesce(' pii ' || l.value, '')), 'B')
        || setweight(to_tsvector('simple', coalesce(f.description, '')), 'C')
    FROM catalog_table t
    JOIN catalog_namespace n ON n.id = t.namespace_id
    LEFT JOIN catalog_labelassignment l ON l.table_id = t.id
    LEFT JOIN catalog_facts f ON f.table_id = t.id
    CROSS JOIN LATERAL (
        SELECT jsonb_agg(
                jsonb_build_array(a || '_' || b, (ARRAY['string', 'double', 'bool'])[1 + j %% 3], '')
            ) AS columns,
            string_agg(a || ' ' || b, ' ') AS words,
            array_agg(':c=' || a || '_' || b) || array_agg(':c:' || a) || array_agg(':c:' || b)
                AS marks
        FROM (
            SELECT j,
                (%(common)s::text[])[1 + (t.id * 7 + j * 19) %% cardinality(%(common)s::text[])] AS a,
                (%(common)s::text[])[1 + (t.id / 3 + j * 5) %% cardinality(%(common)s::text[])] AS b
            FROM generate_series(0, %(columns)s - 1) j
        ) picked
    ) c
    WHERE t.id BETWEEN %(first)s AND %(last)s
"""
_CHUNK = 20_000
_CHECKED = 200

Query = Callable[[random.Random, list[str]], str]


def _swapped(word: str) -> str:
    return word[0] + word[2] + word[1] + word[3:]


KINDS: dict[str, Query] = {
    "rare name": lambda pick, rare: pick.choice(rare),
    "common name": lambda pick, rare: pick.choice(COMMON),
    "beginning": lambda pick, rare: f"{pick.choice(COMMON)} {pick.choice(COMMON)[:3]}",
    "two words": lambda pick, rare: f"{pick.choice(COMMON)} {pick.choice(rare)}",
    "column": lambda pick, rare: f"column:{pick.choice(COMMON)}",
    "column path": lambda pick, rare: f"column:{pick.choice(COMMON)}_{pick.choice(COMMON)}",
    "typo, rare": lambda pick, rare: _swapped(pick.choice(rare)),
    "typo, common": lambda pick, rare: f"{_swapped(pick.choice(COMMON))}",
    "typo, two words": lambda pick, rare: f"{_swapped(pick.choice(COMMON))} {pick.choice(COMMON)}",
    "label": lambda pick, rare: "label:pii=yes",
    "label, word": lambda pick, rare: f"label:pii=yes {pick.choice(COMMON)}",
    "sensitivity, word": lambda pick, rare: f"sensitivity:restricted {pick.choice(COMMON)}",
    "nothing": lambda pick, rare: f"qqxqq{pick.randrange(1000)}",
}
GRANTED = ("common name", "typo, common", "label")


def measure(size: Size, directory: Path | None) -> bool:
    """Fill a catalog, search it, and tell; whether the goal is reached for every kind of search."""
    with running(directory) as stack:
        url = stack.postgres.url
        stack.bootstrap(url)
        rare = rare_words()
        began = time.monotonic()
        _seed(url, size, rare)
        report_progress(f"filled {size.all_tables:,} tables in {time.monotonic() - began:.0f} s")
        _check(stack, url)
        granted = _granted_key(stack, url)
        _, port = stack.start_web(url, settings={"MONODON_WEB_WORKERS": "1"})
        figures = {
            kind: _times(port, API_KEY, query, rare, size.searches) for kind, query in KINDS.items()
        } | {
            f"{kind}, granted": _times(port, granted, KINDS[kind], rare, size.searches)
            for kind in GRANTED
        }
        with psycopg.connect(url) as connection:
            disk = connection.execute(
                "SELECT pg_total_relation_size('catalog_searchdocument'),"
                " pg_relation_size('document_vector'), pg_total_relation_size('catalog_searchword')"
            ).fetchone()
        return _show(size, figures, disk)


def _seed(url: str, size: Size, rare: list[str]) -> None:
    facts: dict[str, Any] = {
        "namespaces": size.namespaces,
        "tables": size.tables,
        "common": COMMON,
        "rare": rare,
        "columns": COLUMNS,
    }
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute("SET work_mem = '128MB'; SET maintenance_work_mem = '512MB'")
        report_progress("namespaces and tables")
        connection.execute(NAMESPACES, facts)
        # Foreign keys hold by construction; checking them row by row would take most of the time.
        connection.execute("SET session_replication_role = replica")
        connection.execute(_TABLES, facts)
        connection.execute(_LABELS, facts)
        connection.execute("ANALYZE")
        (definition,) = connection.execute(
            "SELECT pg_get_indexdef('document_vector'::regclass)"
        ).fetchone() or ("",)
        connection.execute("DROP INDEX document_vector")
        low, high = connection.execute("SELECT min(id), max(id) FROM catalog_table").fetchone()  # type: ignore[misc]
        report_progress("documents")
        for first in range(low, high + 1, _CHUNK):
            connection.execute(_DOCUMENTS, facts | {"first": first, "last": first + _CHUNK - 1})
        report_progress("their index")
        connection.execute(definition)
        pairs = sorted(
            {(key, word) for word in (*COMMON, *rare) for key in search_words.keys(word)}
        )
        command = "COPY catalog_searchword (key, word) FROM STDIN"
        with connection.cursor() as cursor, cursor.copy(command) as copy:
            for pair in pairs:
                copy.write_row(pair)
        connection.execute("INSERT INTO catalog_searchcursor VALUES (1, 9000000000000000, 0)")
        for name in (
            "namespace",
            "table",
            "facts",
            "labelassignment",
            "searchdocument",
            "searchword",
        ):
            connection.execute(
                sql.SQL("VACUUM (ANALYZE) {}").format(sql.Identifier(f"catalog_{name}"))
            )
        connection.execute("CHECKPOINT")


def _check(stack: Stack, url: str) -> None:
    """Let the catalog create some documents itself. Raises BenchmarkError on differences."""
    sample = sql.SQL(
        "SELECT table_id, strip(vector)::text FROM catalog_searchdocument"
        " WHERE table_id %% 997 = 0 ORDER BY table_id LIMIT %s"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        made = connection.execute(sample, [_CHECKED]).fetchall()
        connection.execute(
            "UPDATE catalog_searchdocument SET due_at = now() WHERE table_id = ANY(%s)",
            [[pk for pk, _ in made]],
        )
        _run(stack, url, "from catalog.services.search import documents as s; s.update(seconds=60)")
        remaining = connection.execute(
            "SELECT count(*) FROM catalog_searchdocument WHERE due_at IS NOT NULL"
        ).fetchone()
        if remaining != (0,):
            raise BenchmarkError(f"The catalog left {remaining} documents unmade")
        again = connection.execute(sample, [_CHECKED]).fetchall()
    for (pk, ours), (_, theirs) in zip(made, again, strict=True):
        if ours != theirs:
            raise BenchmarkError(
                f"The document of table {pk} is not as the catalog makes it:\n{ours}\n{theirs}"
            )


def _granted_key(stack: Stack, url: str) -> str:
    """A key of a principal that may browse one namespace."""
    return _run(
        stack,
        url,
        "from catalog import models as m;"
        "from catalog import access; from catalog.services.access import api_keys;"
        "row, key = api_keys.create_api_key("
        "    actor=access.SYSTEM, name='granted', level=m.PrincipalLevel.GRANTED);"
        "n = m.Namespace.objects.filter(parent__isnull=False).order_by('pk')[7];"
        "m.Grant.objects.create(principal=row.principal, namespace=n, mask=1);"
        "print(key)",
    ).split()[-1]


def _run(stack: Stack, url: str, code: str) -> str:
    completed = subprocess.run(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", code],
        env=stack.environment(url),
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode != 0:
        raise BenchmarkError(f"The catalog failed:\n{completed.stdout}{completed.stderr}")
    return completed.stdout


def _times(port: int, key: str, query: Query, rare: list[str], number: int) -> list[float]:
    """Milliseconds of each search; the first ones warm up. Raises BadAnswers."""
    pick = random.Random(7)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    times = []
    for _ in range(number + number // 10):
        path = f"/management/v1/search?q={quote(query(pick, rare))}"
        began = time.perf_counter()
        connection.request("GET", path, headers={"x-api-key": key})
        answer = connection.getresponse()
        content = answer.read()
        times.append((time.perf_counter() - began) * 1000)
        if answer.status != 200:
            raise BadAnswers(f"{path}: {answer.status} {content[:500]!r}")
    connection.close()
    return times[number // 10 :]


def _show(size: Size, figures: dict[str, list[float]], disk: Any) -> bool:
    print(f"\n{report.machine()}, {size.all_tables:,} tables of {COLUMNS} columns, one client")
    documents, index, words = (value / 1e6 for value in disk)
    print(f"  documents {documents:,.0f} MB, of it {index:,.0f} MB index; words {words:,.0f} MB")
    rows = [list(_row(kind, times, size.goal_ms)) for kind, times in figures.items()]
    head = ["search", "p50 ms", "p95 ms", f"goal ≤ {size.goal_ms:.0f}"]
    print("\n" + report.columns(head, rows, left_aligned={0}))
    report.RESULTS.mkdir(exist_ok=True)
    raw = {
        "machine": report.machine(),
        "tables": size.all_tables,
        "megabytes": {"documents": documents, "index": index, "words": words},
        "milliseconds": {
            kind: {"p50": statistics.median(times), "p95": _p95(times)}
            for kind, times in figures.items()
        },
    }
    (report.RESULTS / "search.json").write_text(json.dumps(raw, indent=1) + "\n")
    return all(_p95(times) <= size.goal_ms for times in figures.values())


def _row(kind: str, times: list[float], goal: float) -> Iterator[str]:
    yield kind
    yield f"{statistics.median(times):.1f}"
    yield f"{_p95(times):.1f}"
    yield "reached" if _p95(times) <= goal else "MISSED"


def _p95(times: list[float]) -> float:
    return sorted(times)[len(times) * 95 // 100]
