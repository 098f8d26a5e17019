"""Describe and list namespaces."""

from collections.abc import Iterable
from typing import NamedTuple

from catalog import access
from catalog.access import On, Principal
from catalog.errors import NamespaceNotFound
from catalog.identifiers import Identifier, digest
from catalog.models import Namespace
from catalog.postgresql.cursors import hot_cursor
from catalog.postgresql.pipeline import are_small
from catalog.privileges import Privilege
from catalog.services.engine.prepared import selects

PAGE_SIZE = 10_000

_LIST = """
    SELECT n.path, ARRAY(
        SELECT name FROM catalog_namespace
        WHERE parent_id = n.id AND dropped_at IS NULL AND name > %s
        ORDER BY name LIMIT %s
    )
    FROM catalog_namespace n
    WHERE n.digest = %s AND n.dropped_at IS NULL
"""


def describe_namespace(*, actor: Principal, namespace: Identifier) -> Namespace:
    """Return the row of a namespace. Raises NamespaceNotFound. One statement."""
    access.require(actor, Privilege.BROWSE, On.namespace(namespace))
    rows = selects.select_namespaces([digest(namespace)])
    if not rows:
        raise NamespaceNotFound(namespace)
    return rows[0]


FEW_PROPERTIES = access.NamespaceRead(
    "n.properties::text", name="namespace properties", condition=are_small("n.properties")
)
EXISTS = access.NamespaceRead("true", name="namespace exists")


def require_namespace(*, actor: Principal, namespace: Identifier) -> None:
    """Require that a namespace exists. Raises NamespaceNotFound. One statement, or two (``access.NamespaceRead``)."""
    target, values = On.namespace(namespace), {"digest": digest(namespace)}
    _, row = EXISTS.fetch(actor, Privilege.BROWSE, target, values)
    if row is None:
        raise NamespaceNotFound(namespace)


class Children(NamedTuple):
    """A page of the child namespaces of a namespace."""

    parent: Identifier
    names: list[str]
    next_page: str | None
    """Token of the next page."""


def first_namespace(*, actor: Principal, paths: Iterable[Identifier]) -> Namespace | None:
    """Return the first of these namespaces that exists and is visible to the actor."""
    for path in paths:
        row = Namespace.objects.named(path).filter(access.visible_namespaces(actor)).first()
        if row is not None:
            return row
    return None


def list_children(
    *,
    actor: Principal,
    namespace: Identifier,
    limit: int | None = None,
    page_token: str | None = None,
) -> Children:
    """Return the child namespaces after ``page_token``, by name; all of them without a limit.

    Raises NamespaceNotFound. One statement.
    """
    if not access.sees_all_in(actor, namespace):
        return _visible_children(actor, namespace, limit, page_token or "")
    cursor = hot_cursor()
    cursor.execute(
        _LIST, [page_token or "", None if limit is None else limit + 1, digest(namespace)]
    )
    row = cursor.fetchone()
    if row is None:
        raise NamespaceNotFound(namespace)
    return _page(tuple(row[0]), row[1], limit)


def _page(path: Identifier, names: list[str], limit: int | None) -> Children:
    if limit is None or len(names) <= limit:
        return Children(path, names, None)
    return Children(path, names[:limit], names[limit - 1])


def _visible_children(
    actor: Principal, namespace: Identifier, limit: int | None, after: str
) -> Children:
    """Return the children that the actor may browse, if it may not browse all of them."""
    parent = Namespace.objects.named(namespace).get()
    rows = Namespace.objects.live().filter(
        access.visible_namespaces(actor), parent=parent, name__gt=after
    )
    names = rows.order_by("name").values_list("name", flat=True)
    more = None if limit is None else limit + 1
    return _page(parent.identifier, list(names[:more]), limit)


def list_namespaces(
    *,
    actor: Principal,
    namespace: Identifier,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[str], str | None]:
    """Return a page of the names of the children, and the token of the next page.

    One statement.
    """
    size = min(limit, PAGE_SIZE) if limit is not None else PAGE_SIZE
    page = list_children(actor=actor, namespace=namespace, limit=size, page_token=page_token)
    return page.names, page.next_page
