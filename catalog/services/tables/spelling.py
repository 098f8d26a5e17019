"""Names that were joined by dots by mistake."""

from catalog import access
from catalog.access import On, Principal
from catalog.errors import InvalidIdentifier
from catalog.identifiers import Identifier, check
from catalog.models import Namespace, Table


def levels_of(*, actor: Principal, name: Identifier) -> Identifier | None:
    """The levels of a single name with dots, if a namespace or table with them is visible to the actor."""
    if len(name) != 1 or "." not in name[0]:
        return None
    try:
        levels = check(name[0].split("."))
    except InvalidIdentifier:
        return None
    for target, rows in (
        (On.table(levels), Table.objects.named(levels)),
        (On.namespace(levels), Namespace.objects.named(levels)),
    ):
        if rows.exists() and access.is_visible(actor, target):
            return levels
    return None
