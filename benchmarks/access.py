"""Cost of lists for principals with partial access to 100,000 tables: ``python -m
benchmarks.access``.

Uses a separate database, created by SQL and dropped afterwards, with a tenth of the tables in each
namespace.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_TABLES = 100_000
_NAMESPACES = 10
_ROUNDS = 3

_FILL = """
    INSERT INTO catalog_namespace (path, digest, parent_id, name, properties, owner, updated_at,
        is_protected)
    SELECT ARRAY['n' || n], md5('n' || n)::uuid, root.id, 'n' || n, '{}', '', now(), false
    FROM generate_series(1, %(namespaces)s) n, catalog_namespace root WHERE root.parent_id IS NULL;

    INSERT INTO catalog_table (uuid, namespace_id, name, digest, format, kind, state, location,
        properties, managed_versioning, is_materialized, owner, updated_at, is_protected)
    SELECT gen_random_uuid(), n.id, 't' || i, md5('t' || i)::uuid,
        CASE WHEN i %% 2 = 0 THEN 'iceberg' ELSE 'lance' END, 'table', 'live', '/w/t' || i, '{}',
        true, false, CASE WHEN i %% 10 = 0 THEN 'owner' ELSE '' END, now(), false
    FROM generate_series(1, %(tables)s) i
    JOIN catalog_namespace n ON n.name = 'n' || (i %% %(namespaces)s + 1);
"""


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()
    from django.test.utils import setup_databases, teardown_databases

    made = setup_databases(verbosity=0, interactive=False)
    try:
        _measure()
    finally:
        teardown_databases(made, verbosity=0)


def _measure() -> None:
    from django.db import connection

    from catalog import access
    from catalog.identifiers import digest
    from catalog.models import Grant, Namespace, Principal, Table
    from catalog.privileges import Privilege, closure
    from catalog.services.iceberg import tables as iceberg_tables
    from catalog.services.tables import namespaces, tables

    with connection.cursor() as cursor:
        text = _FILL % {"tables": _TABLES, "namespaces": _NAMESPACES}
        cursor.execute(text)
    for row in Namespace.objects.exclude(parent=None):
        row.digest = digest(row.path)
        row.save(update_fields=["digest"])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    mask = closure(Privilege.READ).value
    first = Namespace.objects.named(("n1",)).get()
    principals: dict[str, access.Principal] = {}
    for name in ("tables", "namespace", "owner", "everything"):
        level = "read" if name == "everything" else "granted"
        row = Principal.objects.create(name=name, kind="service", level=level)
        if name == "tables":
            chosen = Table.objects.filter(namespace=first).order_by("pk")[:1000]
            Grant.objects.bulk_create(Grant(principal=row, table=t, mask=mask) for t in chosen)
        if name == "namespace":
            Grant.objects.create(principal=row, namespace=first, mask=mask)
        principals[name] = access.of_row(row)
    lists: dict[str, Callable[[access.Principal], Any]] = {
        "tables of a namespace": lambda a: tables.list_tables(actor=a, namespace=("n1",)),
        "Iceberg tables of it": lambda a: iceberg_tables.list_tables(actor=a, namespace=("n2",)),
        "all Lance tables": lambda a: tables.list_all_tables(actor=a),
        "namespaces": lambda a: namespaces.list_children(actor=a, namespace=()),
        "one table": lambda a: access.is_visible(a, access.On.namespace(("n1",))),
    }
    print(f"{'':24}" + "".join(f"{name:>12}" for name in principals))
    for title, call in lists.items():
        line = f"{title:24}"
        for actor in principals.values():
            best = min(_seconds(call, actor) for _ in range(_ROUNDS))
            line += f"{best * 1000:>9.0f} ms"
        print(line, flush=True)


def _seconds(call: Callable[[Any], Any], actor: Any) -> float:
    from catalog.errors import CatalogError

    began = time.perf_counter()
    with suppress(CatalogError):  # a principal that may browse nothing there gets this refusal
        call(actor)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
