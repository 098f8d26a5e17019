"""Whom a page names for questions about access, and where it leads to request access."""

from urllib.parse import urlencode

from django.db.models import Q
from django.urls import reverse

from catalog.identifiers import spelled
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


def request_url(target: Namespace | Table) -> str:
    """The form that requests access to a namespace or table."""
    kind = "table" if isinstance(target, Table) else "namespace"
    name = spelled(target.identifier)
    return f"{reverse('my-access-request')}?{urlencode({'on': name, 'kind': kind})}"
