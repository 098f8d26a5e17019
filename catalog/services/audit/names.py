"""Names in the audit trail: an event keeps the name that its object had at that time."""

from collections.abc import Iterable

from catalog import access
from catalog.access import Principal
from catalog.identifiers import digest
from catalog.models import Namespace
from catalog.privileges import Privilege


def visible_names(actor: Principal, names: Iterable[str]) -> set[str]:
    """Those of these names of tables whose namespace the actor may browse. One statement at most."""
    distinct = set(names)
    if not distinct or actor.holds_everywhere(Privilege.BROWSE):
        return distinct
    namespaces = {name: digest(name.split(".")[:-1]) for name in distinct}
    rows = Namespace.objects.filter(
        access.visible_contents(actor, ""), digest__in=namespaces.values()
    )
    browsed = set(rows.values_list("digest", flat=True))
    return {name for name, namespace in namespaces.items() if namespace in browsed}
