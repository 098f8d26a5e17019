"""The catalog's content: rows as the commit engine writes them for registered tables, made by the database.

Generating the rows where they are stored is several times as fast as sending them. A sample is compared with
what the catalog itself would write.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.errors import BenchmarkError
from catalog.identifiers import digest


@dataclass(frozen=True)
class Size:
    namespaces: int
    tables: int
    """Tables per namespace."""
    versions: int
    """Versions per table."""

    @property
    def all_tables(self) -> int:
        return self.namespaces * self.tables

    @property
    def all_versions(self) -> int:
        return self.all_tables * self.versions

    def __str__(self) -> str:
        return (
            f"{self.namespaces:,} namespaces × {self.tables} tables × {self.versions} versions "
            f"= {self.all_versions:,} versions"
        )


DIGEST = "encode(substring(sha256(convert_to({}, 'UTF8')) FOR 16), 'hex')::uuid"
"""SQL of catalog.identifiers.digest, for a name without ``+`` or the names of a path with chr(31) between them."""

_NAMESPACES = f"""
    INSERT INTO catalog_namespace
        (path, digest, parent_id, name, properties, owner, created_at, updated_at)
    SELECT ARRAY[name], {DIGEST.format("name")}, root.id, name, '{{}}', 'benchmark', now(), now()
    FROM (SELECT id FROM catalog_namespace WHERE path = '{{}}') root,
         (SELECT 'ns' || lpad(n::text, 4, '0') AS name FROM generate_series(0, %(namespaces)s - 1) n
          ORDER BY n) names
"""

# Table n of all is given the id of its namespace and of its registering transaction by its number.
_TABLES = f"""
    INSERT INTO catalog_table
        (uuid, namespace_id, name, digest, format, state, location, properties, managed_versioning,
         owner, created_at, updated_at)
    SELECT id, namespace_id, name, {DIGEST.format("namespace || chr(31) || name")},
           'lance', 'live', %(warehouse)s || '/' || namespace || '-' || name || '-' || replace(id::text, '-', ''),
           '{{}}', true, 'benchmark', now(), now()
    FROM (
        SELECT gen_random_uuid() AS id, n.id AS namespace_id, n.name AS namespace,
               't' || lpad(t::text, 4, '0') AS name
        FROM catalog_namespace n, generate_series(0, %(tables)s - 1) t
        WHERE n.path <> '{{}}'
        ORDER BY n.id, t
    ) numbered
"""

_TRANSACTIONS = """
    INSERT INTO catalog_transaction (id, status, actor, request_id, operations, properties, created_at)
    SELECT t.uuid, 'Succeeded', 'benchmark', '',
           jsonb_build_array(jsonb_build_object(
               'operation', 'RegisterTable', 'target', n.name || '.' || t.name, 'location', t.location,
               'properties', t.properties)),
           '{}', now()
    FROM catalog_table t JOIN catalog_namespace n ON n.id = t.namespace_id
"""

_EVENTS = """
    INSERT INTO catalog_auditevent (at, actor, action, target, table_uuid, after, request_id, transaction_id)
    SELECT now(), 'benchmark', 'table.register', n.name || '.' || t.name, t.uuid,
           jsonb_build_object('location', t.location, 'properties', t.properties), '', t.uuid
    FROM catalog_table t JOIN catalog_namespace n ON n.id = t.namespace_id
    ORDER BY t.id
"""

_VERSIONS = """
    INSERT INTO catalog_tableversion
        (table_id, branch, version, manifest_path, manifest_size, e_tag, transaction_id, created_at)
    SELECT t.id, '', v,
           substring(t.location FROM 2) || '/_versions/' || (18446744073709551615 - v)::text || '.manifest',
           461, md5(v::text), t.uuid, now()
    FROM catalog_table t, generate_series(1, %(versions)s) v
    WHERE t.id BETWEEN %(first)s AND %(last)s
    ORDER BY t.id, v
"""

_LOADED = ("namespace", "table", "transaction", "auditevent", "tableversion")
_CHUNK = 20_000
"""Tables whose versions go into one statement: sorts stay in memory."""


def seed(url: str, size: Size, warehouse: Path) -> None:
    """Fill an empty, migrated database. Raises BenchmarkError when a row is not as the catalog writes it."""
    facts: dict[str, Any] = {
        "namespaces": size.namespaces,
        "tables": size.tables,
        "versions": size.versions,
        "warehouse": str(warehouse),
    }
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        # Foreign keys hold by construction; checking them row by row would take most of the time.
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        connection.execute("SET work_mem = '128MB'; SET maintenance_work_mem = '512MB'")
        rebuilt = _drop_indexes(connection) if size.all_versions > 2_000_000 else []
        for statement in (_NAMESPACES, _TABLES, _TRANSACTIONS, _EVENTS):
            connection.execute(statement, facts)
        low, high = connection.execute("SELECT min(id), max(id) FROM catalog_table").fetchone()  # type: ignore[misc]
        for first in range(low, high + 1, _CHUNK):
            chunk = {"first": first, "last": first + _CHUNK - 1}
            connection.execute(_VERSIONS, facts | chunk)
        for definition in rebuilt:
            connection.execute(definition)
        for name in _LOADED:
            connection.execute(
                sql.SQL("VACUUM (ANALYZE) {}").format(sql.Identifier(f"catalog_{name}"))
            )
        connection.execute("CHECKPOINT")
        _check(connection, size)


def _drop_indexes(connection: "psycopg.Connection[tuple[Any, ...]]") -> list[str]:
    """Drop the indexes of the big table; returns what makes them again. Its rows come in their order."""
    table = "catalog_tableversion"
    rows = connection.execute(
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conrelid = %s::regclass AND contype IN ('p', 'u')",
        [table],
    ).fetchall()
    again = []
    for name, definition in rows:
        connection.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')
        again.append(f'ALTER TABLE {table} ADD CONSTRAINT "{name}" {definition}')
    return again


def _check(connection: "psycopg.Connection[tuple[Any, ...]]", size: Size) -> None:
    counts = connection.execute(
        "SELECT (SELECT count(*) FROM catalog_table), (SELECT count(*) FROM catalog_tableversion)"
    ).fetchone()
    if counts != (size.all_tables, size.all_versions):
        raise BenchmarkError(f"The load has {counts} tables and versions, not {size}")
    sample = connection.execute(
        "SELECT n.name, t.name, t.digest FROM catalog_table t "
        "JOIN catalog_namespace n ON n.id = t.namespace_id ORDER BY t.id LIMIT 500"
    ).fetchall()
    for namespace, table, expected in sample:
        if expected != digest((namespace, table)):
            raise BenchmarkError(f"The digest of {namespace}.{table} is not the catalog's")
