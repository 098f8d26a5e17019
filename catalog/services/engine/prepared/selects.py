"""Reading and locking tables and namespaces, by prepared statements.

Their texts are compiled once, from Django's queries, as in ``engine.statements``.
"""

import uuid
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import orjson
from django.db import DEFAULT_DB_ALIAS, connection, models
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from catalog.models import Namespace, StorageProfile, Table, TableState
from catalog.postgresql.cursors import hot_cursor
from catalog.services.engine.statements import fields_of

_M = TypeVar("_M", bound=models.Model)
_MOST_SEPARATE = 2
"""A statement has a parameter for each of this many digests, such as the names of a renamed table."""


def select_tables_for_update(digests: Collection[uuid.UUID]) -> list[Table]:
    """Lock the tables of these digests that are not dropped, by primary key.

    Each row holds the transaction's time in ``database_now``, which saves another query.
    """
    return _read_tables(digests, lock=True)


def select_tables(digests: Collection[uuid.UUID]) -> list[Table]:
    """Read the tables of these digests that are not dropped, without locks."""
    return _read_tables(digests, lock=False)


def _read_tables(digests: Collection[uuid.UUID], *, lock: bool) -> list[Table]:
    rows = []
    for *values, now in _select(_tables_text, digests, lock=lock):
        row = _instance(Table, values)
        row.database_now = now  # type: ignore[attr-defined]
        rows.append(row)
    return rows


@lru_cache(maxsize=8)
def _tables_text(*, count: int, lock: bool) -> str:
    """The SQL that Django compiles for the query."""
    rows = Table.objects.present().filter(_has_digest(Table, count=count))
    rows = rows.annotate(database_now=Now()).order_by("pk")
    if lock:
        rows = rows.select_for_update(of=("self",), no_key=True)
    return _with_state(rows)


def _with_state(rows: models.QuerySet[Table]) -> str:
    """The SQL of a query of tables that are not dropped, without the parameter of their state."""
    text, parameters = rows.query.get_compiler(connection=connection).as_sql()
    if parameters[0] != TableState.DROPPED or any(parameters[1:]):
        raise AssertionError(f"unexpected parameters {parameters}")
    # The state is a literal: only then can a prepared plan use the partial index on tables that are
    # not dropped. Otherwise PostgreSQL would plan each execution, which takes four times as long as
    # running it.
    return str(text).replace("%s", f"'{TableState.DROPPED}'", 1)


def select_tables_in_for_update(namespaces: Collection[int]) -> list[Table]:
    """Lock the tables of these namespaces that are not dropped, by primary key."""
    cursor = hot_cursor()
    cursor.execute(_tables_in_text(), [",".join(map(str, namespaces))])
    return [_instance(Table, values) for values in cursor.fetchall()]


@lru_cache(maxsize=1)
def _tables_in_text() -> str:
    condition = "catalog_table.namespace_id = ANY(string_to_array(%s, ',')::bigint[])"
    selected = RawSQL(condition, [""], output_field=models.BooleanField())  # noqa: S611 -- fixed
    rows = Table.objects.present().filter(selected).order_by("pk")
    return _with_state(rows.select_for_update(of=("self",), no_key=True))


def select_namespaces_for_update(digests: Collection[uuid.UUID]) -> list[Namespace]:
    """Lock the live namespaces of these digests, by primary key.

    Each row holds ``has_object_storage``, and the transaction's time in ``database_now``.
    """
    return _read_namespaces(digests, lock=True)


def select_namespaces_in_storage(digests: Collection[uuid.UUID]) -> list[Namespace]:
    """Read the live namespaces of these digests, with ``has_object_storage``, without locks."""
    return _read_namespaces(digests, lock=False)


def _read_namespaces(digests: Collection[uuid.UUID], *, lock: bool) -> list[Namespace]:
    rows = []
    for *values, has_object_storage, now in _select(_namespaces_text, digests, lock=lock):
        row = _instance(Namespace, values)
        row.has_object_storage = has_object_storage
        row.database_now = now  # type: ignore[attr-defined]
        rows.append(row)
    return rows


@lru_cache(maxsize=8)
def _namespaces_text(*, count: int, lock: bool) -> str:
    rows = Namespace.objects.live().filter(_has_digest(Namespace, count=count))
    rows = rows.with_object_storage().annotate(database_now=Now()).order_by("pk")
    if lock:
        rows = rows.select_for_update(of=("self",), no_key=True)
    return str(rows.query.get_compiler(connection=connection).as_sql()[0])


def select_namespaces(digests: Collection[uuid.UUID]) -> list[Namespace]:
    """Read the live namespaces of these digests, with their storage profiles without secrets."""
    rows = []
    own = len(fields_of(Namespace))
    for values in _select(_profiles_text, digests):
        row = _instance(Namespace, values[:own])
        if row.storage_profile_id is not None:
            row.storage_profile = StorageProfile.from_db(
                DEFAULT_DB_ALIAS, _profile_fields(), values[own:]
            )
        rows.append(row)
    return rows


def select_namespace(pk: int) -> Namespace:
    """Read a namespace by its primary key, dropped or not. Raises Namespace.DoesNotExist."""
    cursor = hot_cursor()
    cursor.execute(_namespace_text(), [pk])
    row = cursor.fetchone()
    if row is None:
        raise Namespace.DoesNotExist
    return _instance(Namespace, row)


@lru_cache(maxsize=1)
def _namespace_text() -> str:
    rows = Namespace.objects.filter(pk=0)
    return str(rows.query.get_compiler(connection=connection).as_sql()[0]).replace(
        "%s", "%s::bigint"
    )


@lru_cache(maxsize=4)
def _profiles_text(*, count: int) -> str:
    rows = Namespace.objects.live().filter(_has_digest(Namespace, count=count))
    rows = rows.select_related("storage_profile").defer("storage_profile__secret")
    return str(rows.query.get_compiler(connection=connection).as_sql()[0])


@lru_cache(maxsize=1)
def _profile_fields() -> list[str]:
    return [name for name, _ in fields_of(StorageProfile) if name != "secret"]


def _select(
    text: Callable[..., str], digests: Collection[uuid.UUID], **options: bool
) -> list[tuple[Any, ...]]:
    cursor = hot_cursor()
    values = [str(digest) for digest in digests]
    # For a list of unknown length PostgreSQL would plan each execution again. As text, because
    # psycopg takes 30 µs to build an array.
    if len(values) <= _MOST_SEPARATE and values:
        cursor.execute(text(count=len(values), **options), values)
    else:
        cursor.execute(text(count=0, **options), [",".join(values)])
    rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def _has_digest(model: type[models.Model], *, count: int) -> RawSQL:
    """The condition that a row has one of ``count`` digests, or of any number if that is 0.

    Its parameters are the digests, or a text that lists them.
    """
    separate = ", ".join(["%s::uuid"] * count)
    values = f"IN ({separate})" if count else "= ANY(string_to_array(%s, ',')::uuid[])"
    condition = f'"{model._meta.db_table}"."digest" {values}'
    return RawSQL(condition, [""] * (count or 1), output_field=models.BooleanField())  # noqa: S611 -- no input


def _instance(model: type[_M], values: Sequence[Any]) -> _M:
    """An instance of a model from all of its columns."""
    names = _names(model)
    # Django decodes JSON in its compiler, which these reads bypass.
    decoded = [
        orjson.loads(value) if name == "properties" else value
        for name, value in zip(names, values, strict=True)
    ]
    return model.from_db(DEFAULT_DB_ALIAS, names, decoded)


@lru_cache(maxsize=4)
def _names(model: type[models.Model]) -> list[str]:
    return [name for name, _ in fields_of(model)]
