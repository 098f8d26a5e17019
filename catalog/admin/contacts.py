"""The people whom a page names for questions about access."""

from django.db.models import Q

from catalog.models import Namespace, Principal, PrincipalKind, PrincipalLevel, Table

_NAMED = 3


def administrators() -> list[str]:
    """Names of the first administrators who can sign in. One statement."""
    rows = Principal.objects.filter(
        Q(level=PrincipalLevel.ADMIN) | Q(user__is_superuser=True),
        Q(user=None) | Q(user__is_active=True),
        kind=PrincipalKind.USER,
        is_active=True,
    )
    return list(rows.order_by("name").values_list("name", flat=True)[:_NAMED])


def of(target: Namespace | Table) -> list[str]:
    """The owner of a namespace or table, or else the first administrators."""
    return [target.owner] if target.owner else administrators()
