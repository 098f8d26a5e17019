"""Describe and list tables."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet

from catalog import access
from catalog.access import On, Principal
from catalog.errors import CatalogError, InvalidInput, NamespaceNotFound, TableNotFound
from catalog.identifiers import Identifier, digest
from catalog.models import Namespace, Table, TableFormat, TableKind, TableState
from catalog.postgresql.cursors import hot_cursor
from catalog.postgresql.pipeline import are_small
from catalog.privileges import Privilege

PAGE_SIZE = 10_000


@dataclass(frozen=True, slots=True)
class TableDescription:
    """The properties of a Lance table that a client needs to open it."""

    identifier: Identifier
    pk: int
    uuid: uuid.UUID
    location: str
    properties: dict[str, str]
    is_only_declared: bool
    managed_versioning: bool
    held: Privilege
    """The privileges that the check of access found (``access.require``)."""
    format: TableFormat = TableFormat.LANCE


_DESCRIPTION = "t.id, t.uuid, t.location, t.properties, t.state, t.managed_versioning, t.format"
_DESCRIBE = access.TableRead(_DESCRIPTION)
DESCRIBE_LOCAL = access.TableRead(
    _DESCRIPTION,
    name="lance describe",
    condition=f"t.format = 'lance' AND t.location ^@ '/' AND {are_small('t.properties')}",
)
"""The columns of ``description_of`` for a Lance table in local files with few properties."""
KIND = access.TableRead("t.format, t.kind", name="kind")
_MOST_NAMES, _MOST_BYTES = 1_000, 50_000
# The number of rows is bounded, not that of the names: the statement also skips tables of the other format.
FEW_NAMES = access.NamespaceRead(
    "few.names",
    name="names",
    join=f"""CROSS JOIN LATERAL (
        SELECT CASE WHEN count(*) <= {_MOST_NAMES} AND coalesce(sum(octet_length(name)), 0) <= {_MOST_BYTES}
            THEN coalesce(
                array_agg(name ORDER BY name) FILTER (WHERE format = %(format)s AND kind = 'table'), '{{}}'
            ) END AS names
        FROM (
            SELECT name, format, kind FROM catalog_table
            WHERE namespace_id = n.id AND state <> 'dropped'
            ORDER BY name LIMIT {_MOST_NAMES + 1}
        ) t
    ) few""",  # noqa: S608 -- a constant
    parameters=("digest", "format"),
)
"""The names of the tables of a namespace in a format; NULL if it has more tables and views, or longer names."""
_LIST = """
    SELECT ARRAY(
        SELECT name FROM catalog_table
        WHERE namespace_id = n.id AND state <> 'dropped' AND format = %s AND name > %s
          AND (%s OR state = 'live')
        ORDER BY name LIMIT %s
    )
    FROM catalog_namespace n
    WHERE n.digest = %s AND n.dropped_at IS NULL
"""


def describe_table(
    *, actor: Principal, table: Identifier, privilege: Privilege = Privilege.READ
) -> TableDescription:
    """Describe a Lance table on which the actor holds ``privilege``.

    Raises NamespaceNotFound, TableNotFound. One statement, or two (``access.TableRead``).
    """
    held, row = _DESCRIBE.fetch(actor, privilege, On.table(table), {"digest": digest(table)})
    description = None if row is None else description_of(table, row, held)
    if description is None:
        raise not_found(table)
    return description


def description_of(
    table: Identifier, columns: Sequence[Any], held: Privilege
) -> TableDescription | None:
    """The description in these columns; None for a table of another format."""
    pk, uuid_, location, properties, state, managed_versioning, format_ = columns
    if format_ != TableFormat.LANCE:
        return None
    if isinstance(properties, str):
        properties = json.loads(properties)
    is_declared = state == TableState.DECLARED
    return TableDescription(
        table, pk, uuid_, location, properties, is_declared, managed_versioning, held
    )


def not_found(table: Identifier) -> CatalogError:
    """Return the error for a missing Lance table: no namespace, no table, or another format."""
    if not Namespace.objects.named(table[:-1]).exists():
        return NamespaceNotFound(table[:-1])
    other = Table.objects.named(table).exclude(format=TableFormat.LANCE).first()
    detail = None
    if other is not None:
        detail = (
            f"A {other.kind} of this name exists, but its format is {other.format}: use the Iceberg"
            " protocol"
        )
    return TableNotFound(table, detail=detail)


def find_any(*, actor: Principal, table: Identifier) -> Table:
    """Return a table of either format with its namespace.

    Raises NamespaceNotFound, TableNotFound.
    """
    access.require(actor, Privilege.BROWSE, On.table(table))
    row = (
        Table.objects.named(table).filter(kind=TableKind.TABLE).select_related("namespace").first()
    )
    if row is None:
        require_namespace(table[:-1])
        raise TableNotFound(table)
    return row


def at_or_below(namespace: Identifier, path: str = "namespace__path") -> Q:
    """Return a filter for objects in a namespace or below it.

    ``path`` is the lookup of the path of an object's namespace.
    """
    return Q(**{f"{path}__0_{len(namespace)}": list(namespace)}) if namespace else Q()


def require_namespace(namespace: Identifier) -> None:
    """Require that a namespace exists. Raises NamespaceNotFound."""
    if not Namespace.objects.named(namespace).exists():
        raise NamespaceNotFound(namespace)


def list_tables(
    *,
    actor: Principal,
    namespace: Identifier,
    include_declared: bool = True,
    limit: int | None = None,
    page_token: str | None = None,
    format: TableFormat = TableFormat.LANCE,
) -> tuple[list[str], str | None]:
    """Return a page of the names of a namespace's tables, and the token of the next page.

    One statement.
    """
    size = min(limit, PAGE_SIZE) if limit is not None else PAGE_SIZE
    if not access.sees_all_in(actor, namespace):
        visible = _visible_names(actor, namespace, format, page_token or "", include_declared)
        return page_of(list(visible[: size + 1]), size)
    cursor = hot_cursor()
    cursor.execute(_LIST, [format, page_token or "", include_declared, size + 1, digest(namespace)])
    row = cursor.fetchone()
    if row is None:
        raise NamespaceNotFound(namespace)
    return page_of(row[0], size)


def page_of(names: list[str], size: int) -> tuple[list[str], str | None]:
    """The first names, and the token of the next page if there are more."""
    return names[:size], names[size - 1] if len(names) > size else None


def _visible_names(
    actor: Principal, namespace: Identifier, format: TableFormat, after: str, include_declared: bool
) -> QuerySet[Table, str]:
    """Return the table names that the actor may browse, if it may not browse all of them."""
    rows = Table.objects.present().filter(
        access.visible_tables(actor),
        namespace__digest=digest(namespace),
        namespace__dropped_at=None,
        format=format,
        name__gt=after,
    )
    if not include_declared:
        rows = rows.filter(state=TableState.LIVE)
    return rows.order_by("name").values_list("name", flat=True)


def list_all_tables(
    *,
    actor: Principal,
    include_declared: bool = True,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[Identifier], str | None]:
    """Return a page of the identifiers of all Lance tables, oldest first, and the next token.

    One statement.
    """
    size = min(limit, PAGE_SIZE) if limit is not None else PAGE_SIZE
    if page_token and not (page_token.isascii() and page_token.isdigit() and len(page_token) < 19):
        raise InvalidInput(f"Page token {page_token!r} is not one of this list")
    rows = Table.objects.present().filter(
        access.visible_tables(actor), format=TableFormat.LANCE, pk__gt=int(page_token or 0)
    )
    if not include_declared:
        rows = rows.filter(state=TableState.LIVE)
    page = list(rows.order_by("pk").values_list("pk", "namespace__path", "name")[: size + 1])
    identifiers = [(*path, name) for _, path, name in page[:size]]
    return identifiers, str(page[size - 1][0]) if len(page) > size else None
