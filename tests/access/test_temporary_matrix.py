"""No operation turns privileges that end into privileges that last, for whomever."""

from collections import defaultdict
from datetime import UTC, datetime

import pytest
from django.http import HttpResponse

from catalog.models import ApiKey, Grant, IcebergPath, Namespace, Principal, Table
from catalog.privileges import Privilege
from tests.access.protocols import EVERY, PROTOCOLS

pytestmark = pytest.mark.usefixtures("warehouse")
SOON = datetime(2100, 1, 1, tzinfo=UTC)

Holders = dict[str, int]


def _lasting() -> dict[tuple[str, int], Holders]:
    """The privileges without an end on each object, dropped ones too, by the name of the principal."""
    on_namespace: dict[int, Holders] = defaultdict(lambda: defaultdict(int))
    on_table: dict[int, Holders] = defaultdict(lambda: defaultdict(int))
    for grant in Grant.objects.filter(expires_at=None).select_related("principal"):
        holders = on_table[grant.table_id] if grant.table_id else on_namespace[grant.namespace_id]
        holders[grant.principal.name] |= grant.mask
    lasting: dict[tuple[str, int], Holders] = {}
    namespaces = {row.pk: row for row in Namespace.objects.all()}
    for row in namespaces.values():
        holders = defaultdict(int)
        for pk in row.ancestors:
            holders[namespaces[pk].owner] |= Privilege.ALL.value
            for name, mask in on_namespace[pk].items():
                holders[name] |= mask
        lasting["namespace", row.pk] = holders
    for table in Table.objects.all():
        holders = defaultdict(int, lasting["namespace", table.namespace_id])
        holders[table.owner] |= Privilege.ALL.value
        for name, mask in on_table[table.pk].items():
            holders[name] |= mask
        lasting["table", table.pk] = holders
    for holders in lasting.values():
        holders.pop("", None)
    return lasting


def _directories() -> set[tuple[int, str]]:
    tables = Table.objects.values_list("pk", "location")
    return {*tables, *IcebergPath.objects.values_list("table", "path")}


def _meets(path: str, held: str) -> bool:
    return f"{path}/".startswith(f"{held}/") or f"{held}/".startswith(f"{path}/")


@pytest.mark.parametrize(("interface", "operation"), EVERY)
def test_what_ends_gives_nothing_that_lasts(interface, operation):
    """The requester holds everything everywhere until then. What it creates may belong to it, but nothing that exists."""
    protocol = PROTOCOLS[interface]
    request = protocol.requests[operation].with_words(protocol.make_catalog(operation))
    requester = Principal.objects.get(name="who")
    Grant.objects.filter(principal=requester).delete()
    for row in Namespace.objects.all():
        Grant.objects.create(
            principal=requester, mask=Privilege.ALL.value, namespace=row, expires_at=SOON
        )
    before, directories = _lasting(), _directories()
    keys = set(ApiKey.objects.exclude(principal=requester).values_list("pk", flat=True))
    response: HttpResponse = protocol.send(request)
    assert response.status_code in {request.status, 403, 404}, response.content
    after = _lasting()
    gains = {
        (target, name): Privilege(mask & ~before[target].get(name, 0))
        for target in before
        for name, mask in after[target].items()
        if mask & ~before[target].get(name, 0)
    }
    assert not gains
    assert not [
        (pk, path, held)
        for pk, path in _directories() - directories
        for holder, held in directories
        if holder != pk and _meets(path, held)
    ]
    assert set(ApiKey.objects.exclude(principal=requester).values_list("pk", flat=True)) == keys
    assert not Grant.objects.filter(expires_at=None, granted_by="who").exists()
