"""Reading namespaces."""

from catalog.errors import NamespaceNotFound
from catalog.identifiers import Identifier, digest
from catalog.models import Namespace
from catalog.services import access
from catalog.services.access import Action, Principal
from catalog.services.statements import hot_cursor

PAGE_SIZE = 10_000

_LIST = """
    SELECT ARRAY(
        SELECT name FROM catalog_namespace
        WHERE parent_id = n.id AND dropped_at IS NULL AND name > %s
        ORDER BY name LIMIT %s
    )
    FROM catalog_namespace n
    WHERE n.digest = %s AND n.dropped_at IS NULL
"""


def describe_namespace(*, actor: Principal, namespace: Identifier) -> Namespace:
    """The namespace's row. Raises NamespaceNotFound. One statement."""
    access.require(actor, Action.READ)
    row = Namespace.objects.named(namespace).first()
    if row is None:
        raise NamespaceNotFound(namespace)
    return row


def list_namespaces(
    *,
    actor: Principal,
    namespace: Identifier,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[str], str | None]:
    """A page of the names of the children, and the token of the next. One statement."""
    access.require(actor, Action.READ)
    size = min(limit, PAGE_SIZE) if limit is not None else PAGE_SIZE
    cursor = hot_cursor()
    cursor.execute(_LIST, [page_token or "", size + 1, digest(namespace)])
    row = cursor.fetchone()
    if row is None:
        raise NamespaceNotFound(namespace)
    names = row[0]
    return names[:size], names[size - 1] if len(names) > size else None
