"""Example catalogs that each process builds once: later tests copy their rows and files.

Paths are part of rows and of files. Therefore the tests that share a catalog have their warehouse at
the same path, one after the other.
"""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from django.conf import settings as django_settings
from django.db import connection, transaction

from catalog.identifiers import digest
from tests.undo import empty_caches

T = TypeVar("T")
_PLACE = "recalled"
_SETTINGS = ("MONODON_WAREHOUSE", "MONODON_ALLOWED_ROOTS", "MONODON_TRASH_SECONDS")


@dataclass(frozen=True)
class _Table:
    name: str
    rows: bytes
    """In the format of COPY."""
    replaced: list[str]
    """The keys of its rows, if the table had other rows before."""


@dataclass(frozen=True)
class _Catalog:
    result: Any
    tables: list[_Table]
    files: Path


_catalogs: dict[tuple[Any, ...], _Catalog] = {}


@pytest.fixture
def recalled_warehouse(tmp_path_factory: pytest.TempPathFactory, settings: Any) -> Iterator[Path]:
    """An empty warehouse for each test, always at the same path.

    The directory around it is the test's own too; ``recall`` also copies the files there.
    """
    base = tmp_path_factory.getbasetemp() / _PLACE
    shutil.rmtree(base, ignore_errors=True)
    directory = base / "warehouse"
    directory.mkdir(parents=True)
    settings.MONODON_WAREHOUSE = str(directory)
    settings.MONODON_ALLOWED_ROOTS = []
    settings.MONODON_MANIFEST_PATHS = ["elsewhere/", "x/"]
    yield directory
    shutil.rmtree(base)


def recall(name: str, build: Callable[[], T]) -> T:
    """Call ``build``, or write the rows and files that it wrote in an earlier test.

    Returns a copy of its result. ``build`` may change rows of a migrated database, but no row of the
    test, which differs each time, and may delete none. Without ``recalled_warehouse``, and in tests
    that commit, it is called each time.
    """
    base = Path(django_settings.MONODON_WAREHOUSE).parent
    if base.name != _PLACE or not connection.in_atomic_block or not _may_copy():
        return build()
    key = (name, *_foundation(), *(repr(getattr(django_settings, name)) for name in _SETTINGS))
    if key in _catalogs:
        catalog = _catalogs[key]
        copy_files(catalog.files, base)
        with connection.cursor() as cursor:
            _write(cursor, catalog.tables)
        empty_caches()
        return deepcopy(catalog.result)
    if _has_files(base):  # which the test itself has made
        return build()
    with connection.cursor() as cursor, transaction.atomic():
        populated = set(_populated(cursor))
        cursor.execute(_FIRST)
        (first,) = cursor.fetchone()
        result = build()
        tables = [_read(cursor, name, first, name in populated) for name in _populated(cursor)]
    files = base.with_name(f"{_PLACE}-{len(_catalogs)}")
    copy_files(base, files)
    _catalogs[key] = _Catalog(deepcopy(result), [table for table in tables if table.rows], files)
    return result


def _foundation() -> tuple[int | None, ...]:
    """The keys of rows to which a catalog refers, and which are others after a flush."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT min(id) FROM catalog_namespace WHERE digest = %s),"
            " (SELECT min(id) FROM django_content_type), (SELECT min(id) FROM auth_permission)",
            [digest(())],
        )
        return cursor.fetchone()


_FIRST = """
    UPDATE django_migrations SET app = app WHERE id = (SELECT min(id) FROM django_migrations)
    RETURNING xmin::text::bigint
"""
"""The number of the subtransaction. Those of later rows are the same or higher."""


@cache
def _may_copy() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT has_parameter_privilege('session_replication_role', 'SET')")
        return bool(cursor.fetchone()[0])


@cache
def _keys() -> dict[str, str]:
    """The columns of each table's primary key, as SQL."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname, string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum)"
            " FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary"
            " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey)"
            " WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace"
            " AND c.relname <> 'django_migrations' GROUP BY c.relname"
        )
        return dict(cursor.fetchall())


def _populated(cursor: Any) -> list[str]:
    """The names of the tables that have rows."""
    parts = (f"SELECT '{name}' WHERE EXISTS (SELECT FROM \"{name}\")" for name in _keys())
    cursor.execute(" UNION ALL ".join(parts))
    return [name for (name,) in cursor.fetchall()]


def _read(cursor: Any, name: str, first: int, had_rows: bool) -> _Table:
    """The rows that this transaction has written since the subtransaction ``first``."""
    where = f'FROM "{name}" WHERE xmin::text::bigint >= {first}'
    cursor.execute(f"SELECT array_agg(ROW({_keys()[name]})::text) {where}")
    (keys,) = cursor.fetchone()
    if keys is None:
        return _Table(name, b"", [])
    with cursor.copy(f"COPY (SELECT * {where}) TO STDOUT") as copy:
        return _Table(name, b"".join(copy), keys if had_rows else [])


def _write(cursor: Any, tables: list[_Table]) -> None:
    # Without triggers: they would write more rows, and refuse changes of the audit trail.
    cursor.execute("SET LOCAL session_replication_role = replica")
    for table in tables:
        if table.replaced:
            keys = _keys()[table.name]
            cursor.execute(
                f'DELETE FROM "{table.name}" WHERE ROW({keys})::text = ANY(%s)', [table.replaced]
            )
        with cursor.copy(f'COPY "{table.name}" FROM STDIN') as copy:
            copy.write(table.rows)
    cursor.execute("SET LOCAL session_replication_role = origin")


def _has_files(base: Path) -> bool:
    return any(not path.is_dir() for path in base.rglob("*"))


def copy_files(source: Path, target: Path) -> None:
    """Copy a directory with its links and pipes, which are not followed."""
    shutil.copytree(source, target, symlinks=True, copy_function=_copy_file, dirs_exist_ok=True)


def _copy_file(source: str, target: str) -> None:
    if stat.S_ISFIFO(os.lstat(source).st_mode):
        os.mkfifo(target)
    else:
        shutil.copy2(source, target, follow_symlinks=False)
