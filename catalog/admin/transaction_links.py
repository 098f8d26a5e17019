"""Links to transactions, for users who may open their pages."""

from django.db.models import Q
from django.http import HttpRequest
from django.utils.safestring import SafeString

from catalog.access import Principal
from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.models import Transaction
from catalog.privileges import Privilege


def visibility(principal: Principal) -> Q:
    """All transactions for principals that browse everything, otherwise the principal's own."""
    return Q() if principal.holds_everywhere(Privilege.BROWSE) else Q(actor=principal.name)


def link(request: HttpRequest, row: Transaction | None) -> SafeString:
    """A link to the transaction's page, or only its ID if the user may not open the page."""
    if row is None:
        return cells.NOTHING
    principal = actor(request)
    if principal.holds_everywhere(Privilege.BROWSE) or row.actor == principal.name:
        return cells.link(row, cells.code(row.pk))
    return cells.code(row.pk)
