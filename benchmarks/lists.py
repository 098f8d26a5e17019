"""What the admin's list of tables costs at 1,000,000 tables: orders, filters, searches, principals and pages.

The application runs in this process, so that the CPU time of a page is known beside its latency: that of the
process, and that of its session of PostgreSQL.
"""

import json
import os
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
from psycopg import sql

from benchmarks import report
from benchmarks.budget import Clock, backend_pid
from benchmarks.compare import report_progress
from benchmarks.errors import BadAnswers
from benchmarks.load import DIGEST
from benchmarks.search import COMMON, NAMESPACES, rare_words
from benchmarks.stack import Stack, running

LIST = "/admin/catalog/table/"
GOAL_MS = 200
SLOWEST = 20
LAST_PAGE = 200
"""The last page of a list with many tables; a shorter list is asked for a page that it has not."""


@dataclass(frozen=True)
class Size:
    namespaces: int
    tables: int
    """Tables per namespace."""
    requests: int
    """Requests of each case."""

    @property
    def all_tables(self) -> int:
        return self.namespaces * self.tables


QUICK = Size(namespaces=200, tables=1_000, requests=2)
FULL = Size(namespaces=1_000, tables=1_000, requests=3)

# Values of three kinds: spread over all tables, frequent but in some part of the catalog only (as if an
# engine had been used for some years), and rare. ``seed`` counts the tables.
_TABLES = f"""
    INSERT INTO catalog_table
        (uuid, namespace_id, name, digest, format, kind, state, location, properties,
         managed_versioning, owner, created_at, updated_at, dropped_at)
    SELECT gen_random_uuid(), namespace_id, name, {DIGEST.format("namespace || chr(31) || name")},
        CASE WHEN seed %% 10 < 3 THEN 'iceberg' ELSE 'lance' END,
        CASE WHEN seed %% 50 = 0 THEN 'view' ELSE 'table' END,
        CASE WHEN seed %% 25 = 7 THEN 'dropped' WHEN part < 0.05 THEN 'declared' ELSE 'live' END,
        '/benchmark/' || namespace_id || '/' || name, '{{}}', true,
        CASE WHEN part BETWEEN 0.3 AND 0.34 THEN 'team:archive' WHEN seed %% 3 = 0 THEN 'team:etl'
            WHEN seed %% 1000 = 1 THEN 'user:ada' ELSE 'user:' || seed %% 97 END,
        now(), now(), CASE WHEN seed %% 25 = 7 THEN now() END
    FROM (
        SELECT namespace_id, namespace, name, seed, seed / %(all)s::float AS part FROM (
            SELECT n.id AS namespace_id, n.name AS namespace, (n.number - 1) * %(tables)s + t AS seed,
                (%(common)s::text[])[1 + (t + n.id * 7) %% cardinality(%(common)s::text[])] || '_'
                || (%(rare)s::text[])[1 + (t * 31 + n.id * 17) %% cardinality(%(rare)s::text[])] || '_'
                || (%(common)s::text[])[1 + (t * 13 + n.id * 3) %% cardinality(%(common)s::text[])]
                || '_' || lpad(t::text, 4, '0') AS name
            FROM (
                SELECT id, name, row_number() OVER (ORDER BY id) AS number FROM catalog_namespace
                WHERE path <> '{{}}'
            ) n, generate_series(0, %(tables)s - 1) t
        ) named
        ORDER BY seed
    ) numbered
"""
_FIGURES = """
    INSERT INTO catalog_tablehealth (table_id, is_newest, score, statistics, planned, files_gone, bytes_read)
    SELECT id, true, CASE WHEN id %% 1009 = 0 THEN id %% 40 WHEN id %% 13 = 0 THEN 60 + id %% 15 ELSE 85 + id %% 15 END,
        jsonb_build_object('rows', id * 7919 %% 1000003, 'bytes', id * 104729 %% 100000007), '[]', 0, 0
    FROM catalog_table WHERE state = 'live' AND kind = 'table' AND id %% 3 <> 0 ORDER BY id;
    INSERT INTO catalog_tableversion
        (table_id, branch, version, manifest_path, created_at)
    SELECT id, '', 1, '_versions/1.manifest', now() - (id * 7919 %% 100000007) * interval '0.3 s'
    FROM catalog_table WHERE state = 'live' AND kind = 'table' ORDER BY id
"""
_LABELS = """
    INSERT INTO catalog_labeldefinition
        (key, description, colour, values, is_multiple, applies_to, created_by, updated_at)
    SELECT key, '', 'grey', '{}', false, '{table}', 'benchmark', now()
    FROM unnest(ARRAY['pii', 'gold', 'unused']) key;
    INSERT INTO catalog_labelassignment (definition_id, table_id, "column", value, set_by)
    SELECT d.id, t.id, '', CASE WHEN t.id %% 40 = 0 THEN 'yes' ELSE 'no' END, 'benchmark'
    FROM catalog_labeldefinition d, catalog_table t
    WHERE d.key = 'pii' AND t.id %% 20 = 0 OR d.key = 'gold' AND t.id %% 5003 = 0
"""
_LOADED = ("namespace", "table", "tablehealth", "tableversion", "labelassignment")

PRINCIPALS = ("superuser", "one namespace", "1,000 grants", "nothing")


def measure(size: Size, directory: Path | None) -> bool:
    """Fill a catalog and measure its list; whether 95 % of the requests of each case reach the goal."""
    with running(directory) as stack:
        stack.bootstrap(stack.postgres.url)
        with psycopg.connect(stack.postgres.url, autocommit=True) as connection:
            # The CPU time of parallel workers would not be counted.
            connection.execute("ALTER DATABASE monodon SET max_parallel_workers_per_gather = 0")
        prepare(stack)
        seed(stack.postgres.url, size)
        return show(measured(cases(), size.requests), size)


def prepare(stack: Stack) -> None:
    """Set up Django in this process."""
    os.environ.update(stack.environment(stack.postgres.url))
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()


def seed(url: str, size: Size) -> None:
    """Fill an empty, migrated database. Needs Django for the summaries and terms of the tables."""
    from catalog.services.tables import summaries, terms

    facts: dict[str, Any] = {
        "namespaces": size.namespaces,
        "tables": size.tables,
        "all": size.all_tables,
        "common": COMMON,
        "rare": rare_words(),
    }
    began = time.monotonic()
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute("SET synchronous_commit = off; SET work_mem = '128MB'")
        connection.execute(NAMESPACES, facts)
        # Foreign keys hold by construction; checking them row by row would take most of the time.
        connection.execute("SET session_replication_role = replica")
        for statement in (_TABLES, _FIGURES, _LABELS):
            connection.execute(statement, facts)
        for name in _LOADED:
            connection.execute(
                sql.SQL("VACUUM (ANALYZE) {}").format(sql.Identifier(f"catalog_{name}"))
            )
        report_progress(f"tables after {time.monotonic() - began:.0f} s")
        while not summaries.are_complete():
            summaries.update()
        while not terms.are_complete():
            terms.update()
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")
    report_progress(f"filled {size.all_tables:,} tables in {time.monotonic() - began:.0f} s")


@dataclass(frozen=True)
class Case:
    principal: str
    order: str
    filters: str
    """The name of the filters or the search."""
    parameters: tuple[tuple[str, str], ...]
    page: int

    @property
    def url(self) -> str:
        order = [("o", self.order)] if self.order else []
        page = [("p", str(self.page))] if self.page > 1 else []
        return f"{LIST}?{urlencode([*self.parameters, *order, *page])}"


ORDERS = ("", *(f"{s}{key}" for key in ("name", "rows", "committed", "owner") for s in ("", "-")))
MORE_ORDERS = tuple(f"{s}{key}" for key in ("size", "health", "created") for s in ("", "-"))
FILTERS: dict[str, dict[str, str]] = {
    "none": {},
    "format": {"format__exact": "iceberg"},
    "kind": {"kind__exact": "view"},
    "old part": {"state": "declared"},
    "dropped": {"state": "dropped"},
    "all states": {"state": "all"},
    "frequent owner": {"owner": "team:etl"},
    "owner of a part": {"owner": "team:archive"},
    "rare owner": {"owner": "user:ada"},
    "no such owner": {"owner": "user:nobody"},
    "namespace": {"in": "area0007"},
    "poor": {"health": "poor"},
    "fair": {"health": "fair"},
    "good": {"health": "good"},
    "not measured": {"health": "unknown"},
    "label": {"label": "pii"},
    "rare label": {"label": "gold"},
    "unused label": {"label": "unused"},
    "value of a label": {"label": "pii=yes"},
    "two": {"format__exact": "iceberg", "health": "fair"},
    "two, disjoint": {"kind__exact": "view", "health": "good"},
    "two parts, disjoint": {"state": "declared", "owner": "team:archive"},
    "four": {"format__exact": "lance", "owner": "team:etl", "health": "good", "label": "pii"},
    "search: all": {"q": "_"},
    "search: a letter": {"q": "q"},
    "search: a frequent letter": {"q": "e"},
    "search: no such letter": {"q": "ß"},
    "search: two letters": {"q": "zu"},
    "search: no such two": {"q": "qq"},
    "search: a word": {"q": "invoice"},
    "search: a part of a word": {"q": "voice_"},
    "search: a name": {"q": "address_bad"},
    "search: digits": {"q": "0042"},
    "search: nothing": {"q": "zzqxnothing"},
    "search: frequent parts, nothing": {"q": "invoice_e_address"},
    "search: a full name": {"q": "area0007.none"},
    "search: a location": {"q": "/benchmark/7"},
    "search: no such location": {"q": "/nowhere"},
    "search and filter": {"q": "invoice", "format__exact": "iceberg"},
    "search nothing, filter": {"q": "zzqx", "owner": "team:etl"},
}


def cases() -> list[Case]:
    """The cases: all filters and searches, each with some orders and pages."""
    result = []
    for principal, (name, parameters) in product(PRINCIPALS, FILTERS.items()):
        orders = (*ORDERS, *MORE_ORDERS) if name in {"none", "format"} else ORDERS
        for order, page in product(orders, (1, 2, LAST_PAGE)):
            if principal in {"nothing", "one namespace"} and (page > 1 or order not in ORDERS[:5]):
                continue
            result.append(Case(principal, order, name, tuple(parameters.items()), page))
    return result


@dataclass(frozen=True)
class Figures:
    case: Case
    status: int
    total: str
    ms: Sequence[float]
    web_ms: float
    database_ms: float

    @property
    def p95(self) -> float:
        return sorted(self.ms)[-1 - len(self.ms) // 20]


def measured(chosen: Sequence[Case], requests: int) -> list[Figures]:
    from django.db import connection

    clients = {name: client_of(name) for name in PRINCIPALS}
    for client in clients.values():
        for _ in range(5):  # imports, templates, caches and plans
            client.get(LIST)
    results = []
    for number, case in enumerate(chosen):
        if number % 100 == 0:
            report_progress(f"case {number} of {len(chosen)}")
        connection.ensure_connection()
        clock, client = Clock(backend_pid()), clients[case.principal]
        times, web, database = [], [], []
        for _ in range(requests):
            before, began = clock.read(), time.perf_counter()
            answer = client.get(case.url)
            times.append((time.perf_counter() - began) * 1000)
            after = clock.read()
            web.append((after[0] - before[0]) * 1000)
            database.append((after[1] - before[1]) * 1000)
        is_beyond = answer.status_code == 302 and case.page > 1
        if answer.status_code != 200 and not is_beyond:
            raise BadAnswers(f"{case.url}: {answer.status_code}")
        text = answer.content.decode()
        total = re.search('id="m-total">([^<]*)<', text)
        results.append(
            Figures(
                case,
                answer.status_code,
                total[1] if total else "",
                times,
                statistics.median(web),
                statistics.median(database),
            )
        )
    return results


def client_of(name: str) -> Any:
    """A browser that is signed in as a principal."""
    from django.contrib.auth import get_user_model
    from django.test import Client

    client = Client(HTTP_HOST="127.0.0.1")
    client.get("/admin/login/")  # the first request of a process sets up the sessions
    login = re.sub("[^a-z0-9]+", "-", name)
    user, is_new = get_user_model().objects.get_or_create(
        username=login, defaults={"is_staff": True, "is_superuser": name == "superuser"}
    )
    client.force_login(user)
    if is_new and name in {"one namespace", "1,000 grants"}:
        client.get("/admin/")  # creates the principal
        _grant(f"user:{login}", name)
    return client


def _grant(principal: str, name: str) -> None:
    from catalog import models
    from catalog.privileges import parse

    row, _ = models.Principal.objects.get_or_create(name=principal)
    namespaces = models.Namespace.objects.filter(parent__isnull=False).order_by("pk")
    every = max(namespaces.count() // 100, 1)
    keys = list(namespaces.values_list("pk", flat=True))
    chosen = keys[7:8] if name == "one namespace" else keys[::every][:100]
    targets: list[dict[str, int]] = [{"namespace_id": pk} for pk in chosen]
    if name == "1,000 grants":
        tables = list(models.Table.objects.order_by("pk").values_list("pk", flat=True)[::997][:900])
        targets += [{"table_id": pk} for pk in tables]
    mask = parse(["read"]).value
    models.Grant.objects.bulk_create(
        models.Grant(principal=row, mask=mask, **target) for target in targets
    )


def show(results: Sequence[Figures], size: Size) -> bool:
    slowest = sorted(results, key=lambda figures: figures.p95, reverse=True)
    print(f"\n{report.machine()}, {size.all_tables:,} tables, {len(results)} cases")
    print(f"the slowest {SLOWEST}:\n")
    print(report.columns(_HEAD, list(_rows(slowest[:SLOWEST])), left_aligned={0, 1, 2, 4}))
    by_name: dict[str, list[Figures]] = {}
    for figures in results:
        by_name.setdefault(figures.case.filters, []).append(figures)
    worst = [max(group, key=lambda figures: figures.p95) for group in by_name.values()]
    print("\nthe slowest case of each filter and search:\n")
    print(report.columns(_HEAD, list(_rows(worst)), left_aligned={0, 1, 2, 4}))
    within = sum(figures.p95 <= GOAL_MS for figures in results)
    print(f"\n{within} of {len(results)} cases within {GOAL_MS} ms")
    report.RESULTS.mkdir(exist_ok=True)
    raw = {
        "machine": report.machine(),
        "tables": size.all_tables,
        "load_average": os.getloadavg(),
        "cases": [
            {
                "principal": figures.case.principal,
                "url": figures.case.url,
                "status": figures.status,
                "total": figures.total,
                "ms": figures.ms,
                "web_ms": figures.web_ms,
                "database_ms": figures.database_ms,
            }
            for figures in results
        ],
    }
    (report.RESULTS / "lists.json").write_text(json.dumps(raw, indent=1) + "\n")
    return within == len(results)


_HEAD = ["principal", "filter", "order", "page", "total", "p95 ms", "web CPU", "database CPU"]


def _rows(results: Sequence[Figures]) -> Iterator[list[str]]:
    for figures in results:
        case = figures.case
        yield [
            case.principal,
            case.filters,
            case.order or "-created",
            str(case.page),
            figures.total,
            f"{figures.p95:.0f}",
            f"{figures.web_ms:.0f}",
            f"{figures.database_ms:.0f}",
        ]
