"""What a principal learns is the same with and without a tenant that is hidden from it.

Every operation of every protocol and every page of the web admin is requested in the example catalog, and
again beside a tenant whose every name contains a canary. No answer has a canary or the number of one of
the tenant's rows, and both answers are equal except for times and new numbers.
"""

import re

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from catalog import models
from catalog.access import SYSTEM
from catalog.models import ApiKey, Grant, LabelDefinition, Namespace, Principal
from catalog.privileges import Privilege, closure
from catalog.services.governance import annotations
from tests.access import hidden_tenant, iceberg_examples
from tests.access.admin_pages import PAGES, RULES, Page, Shown, make_catalog
from tests.access.protocols import PROTOCOLS, Protocol, Request, give
from tests.recall import recall
from tests.shares import daily
from tests.undo import undone

pytestmark = pytest.mark.usefixtures("warehouse", "_plain_static_files")

_PERIOD = "from=2020-01-01&to=NOW"
_SEARCHES = [
    "canary",
    "canarydat",
    "canarycolum",
    "canry",
    "t",
    "system",
    "id",
    "label:known",
    "in:canaryns",
    "label:known%3Dcanarylabel",
    "owner:user:canaryuser",
    "column:canarycolumn",
    "column:id",
    "4711",
]
PROBES = [
    *f"""
        trash
        trash?namespace=canaryns
        trash?dropped_by=system
        approvals
        labels/known
        approvals?status=pending
        approvals?waiting_for_me=true
        health?namespace=canaryns
        health?max_score=100
        jobs?table=canaryns$canarydata
        jobs?status=failed
        keys/canarykey
        jobs?since=2020-01-01T00:00:00Z
        keys?principal=canaryprincipal
        governance?namespace=ws
        history?at=NOW
        history?at=NOW&namespace=canaryns
        history/changes?{_PERIOD}&limit=2
        history/counts?{_PERIOD}
        history/counts?{_PERIOD}&namespace=canaryns
        events?after=0-0&types=table.*
        events?after=0-0&namespace=canaryns
        events?after=0-0&limit=1
        tables/ws$t/lineage?hops=10
        tables/ws$t/lineage?direction=downstream
        tables/ws$t/health?points=9
        tables/ws$t/grants?principal=canaryprincipal
        tables/canaryns$canarydata/lineage
        tables/canaryns$canarydata/grants
        namespaces/canaryns/annotations
        namespaces/ws/access
    """.split(),
    *(f"search?q={text}" for text in _SEARCHES),
]
"""Paths of the management API with parameters. NOW is the beginning of the test."""
_WHO = ("owner", "key of an administrator")


@pytest.mark.parametrize("who", _WHO)
@pytest.mark.parametrize("interface", PROTOCOLS)
def test_operations_reveal_nothing(interface, who, warehouse):
    protocol = PROTOCOLS[interface]
    words = recall(f"access-{interface}", protocol._make)
    words["NOW"] = timezone.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    _limit_requester(who)
    if not LabelDefinition.objects.exists():
        annotations.create_label(actor=SYSTEM, key="known")
    hidden_tenant.refresh()
    with hidden_tenant.ids_restored():
        before = _answers(protocol, words, warehouse)
        assert sum(text.startswith("2") for text in before.values()) > len(before) / 2
        assert [text for text in before.values() if text.startswith("5")] == []
        hidden_tenant.make_hidden_tenant()
        assert hidden_tenant.leaks(before, _answers(protocol, words, warehouse)) == {}


def _limit_requester(who: str) -> None:
    """Let the requester hold all privileges on ``ws``: by a grant, or as an administrator by a narrow key."""
    requester, ws = Principal.objects.get(name="who"), Namespace.objects.named(("ws",)).get()
    give(requester, Privilege.ALL, ws)
    if who == "key of an administrator":
        Principal.objects.filter(pk=requester.pk).update(level="admin")
        ApiKey.objects.filter(principal=requester).update(namespace=ws)


def _answers(protocol: Protocol, words: dict[str, str], warehouse) -> dict[str, str]:
    """The answer of each operation and probe, each in the same catalog."""
    answers = {}
    for operation, request in protocol.requests.items():
        if operation not in iceberg_examples.EMPTY and operation in protocol.operations:
            with undone(warehouse):
                hidden_tenant.skip_ids(hidden_tenant.LATER_ID)
                present = words | protocol.prepare(operation)
                answers[operation] = hidden_tenant.comparable(
                    protocol.send(request.with_words(present))
                )
    for path in PROBES if protocol.name == "management" else ():
        request = Request("GET", path.replace("NOW", words["NOW"]))
        answers[path] = hidden_tenant.comparable(protocol.send(request))
    return answers


# --- the web admin -------------------------------------------------------------------------------

PARTS = 5
"""The pages are divided, so that no test takes much longer than others."""
_TABS = re.compile(r"[?&](?:amp;)?tab=([\w-]+)")
_TABLES = "/admin/catalog/table/"
_FILTERS = {
    models.ApprovalRequest: "waiting=me status__exact=pending",
    models.Function: "namespace=canaryns namespace=ws owner=user:canaryuser owner=system",
    models.Job: "status__exact=failed kind__exact=compact dry_run=no since=hour"
    " table=canaryns.canarydata table=ws.t",
    models.MaterializedView: "condition=behind",
    models.Table: "state=all state=dropped format__exact=lance kind__exact=view health=poor"
    " in=canaryns in=ws owner=user:canaryuser owner=system label=known label=known%3Dcanarylabel",
    models.TableHealth: "score=poor work=any format=lance in=canaryns in=ws",
    models.Transaction: "status__exact=Succeeded",
    models.TrashItem: "in=canaryns in=ws by=canaryprincipal by=system purged=soon",
}
"""Arguments of each filter of a list: a choice, or a text of the tenant and one of the example catalog.

A filter by choice ignores any other word.
"""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("privilege", daily([Privilege.ALL, Privilege.BROWSE], Privilege.ALL))
def test_pages_reveal_nothing(privilege, part):
    make_catalog()
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.set(Permission.objects.all())
    Grant.objects.create(
        principal=Principal.objects.get(name="user:bob"),
        namespace=Namespace.objects.named(("ws",)).get(),
        mask=closure(privilege).value,
    )
    client = Client(raise_request_exception=False)
    client.force_login(user)
    hidden_tenant.refresh()
    urls = _with_tabs(client, _urls()[part::PARTS])
    with hidden_tenant.ids_restored():
        before = {url: _page(client, url) for url in urls}
        assert sum(text.startswith("200") for text in before.values()) > len(urls) / 2
        hidden_tenant.make_hidden_tenant()
        after = {url: _page(client, url) for url in urls}
        assert hidden_tenant.leaks(before, after) == {}
    assert [url for url, text in after.items() if text.startswith("5")] == []


def test_lists_are_requested_with_each_filter():
    for model, model_admin in admin.site._registry.items():
        if RULES[model] is not Shown.ADMINISTRATORS:
            filters = {
                getattr(item, "parameter_name", None) or f"{item[0]}__exact"
                for item in model_admin.list_filter
            }
            arguments = _FILTERS.get(model, "").split()
            assert {argument.partition("=")[0] for argument in arguments} == filters, model


def _page(client: Client, url: str) -> str:
    answer: HttpResponse = client.get(url)
    return hidden_tenant.comparable(answer)


def _urls() -> list[str]:
    """Every page with rows of the example catalog, lists with each of their filters, and searches."""
    pages = [page for page in PAGES if RULES.get(page.model) is not Shown.ADMINISTRATORS]
    urls = [url for page in pages for url in (page.url(), *_of_rows(page))]
    for model in admin.site._registry:
        if RULES[model] is not Shown.ADMINISTRATORS:
            base = f"/admin/catalog/{model._meta.model_name}/"
            arguments = ["q=canary", "q=known", *_FILTERS.get(model, "").split()]
            urls += [f"{base}?{argument}" for argument in arguments]
    urls += [f"{_TABLES}?o={order}" for order in ("size", "-rows", "health", "-owner")]
    urls.append(f"{_TABLES}?export=csv")
    urls += [f"/admin/suggest/objects/?q={word}" for word in ("", "c", "canaryns.", "ws.")]
    urls += [f"/admin/search/?s={word}" for word in ("canary", "canarydat", "known", "t", "system")]
    urls += [f"/admin/catalog/labeldefinition/search/?q={word}" for word in _SEARCHES]
    urls.append("/admin/catalog/namespace/history/?at=2020-01-01&to=2021-01-01&namespace=canaryns")
    return list(dict.fromkeys(urls))


def _of_rows(page: Page) -> list[str]:
    """The pages of the second table and of ``ws``; ``Page.url`` is that of the first row."""
    if not page.is_of_a_row or page.model not in (models.Table, models.Namespace):
        return []
    if page.model is models.Table:
        row = models.Table.objects.order_by("pk")[1]
    else:
        row = models.Namespace.objects.named(("ws",)).get()
    return ["/" + re.sub(r"<[^>]*>", str(row.pk), page.route)]


def _with_tabs(client: Client, urls: list[str]) -> list[str]:
    """These pages, and each other tab of the pages of rows."""
    tabs = []
    for url in urls:
        if url.endswith("/change/"):
            names = set(_TABS.findall(client.get(url).content.decode()))
            tabs += [f"{url}?tab={name}" for name in sorted(names)]
    return [*urls, *tabs]
