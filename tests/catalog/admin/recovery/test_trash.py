"""The trash, approvals and protection in the web admin."""

import pytest
from django.contrib.messages import get_messages

from catalog.access import SYSTEM, Principal
from catalog.models import ApprovalRequest, Job, Namespace, Table, TableState, TrashItem
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.recovery import undrop
from catalog.services.tables import namespace_operations, table_operations
from tests.factories import (
    make_administrator,
    make_lance_table,
    make_namespace,
    make_table,
    unchanged,
)

ADA = Principal("user:ada", Privilege.ALL)
BOB = Principal("bob", Privilege.ALL)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch, settings):
    settings.MONODON_TRASH_SECONDS = 3600
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)


def told(answer) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


def url(row, action: str = "change") -> str:
    return f"/admin/catalog/{row._meta.model_name}/{row.pk}/{action}/"


def dropped(*name: str) -> TrashItem:
    make_lance_table(name)
    commit([table_operations.DropTable(table=name)], actor=BOB)
    return TrashItem.objects.latest("pk")


def test_the_trash_lists_what_was_dropped(browser, django_assert_num_queries):
    item = dropped("ws", "t")
    other = dropped("x", "u")
    make_namespace("gone")
    commit([namespace_operations.DropNamespace(namespace=("gone",))], actor=SYSTEM)
    page = browser.get("/admin/catalog/trashitem/").content.decode()
    for text in ("ws.t", "x.u", "gone", "bob", "system", "waiting"):
        assert text in page
    assert page.index("gone") < page.index("x.u") < page.index("ws.t")
    page = browser.get("/admin/catalog/trashitem/?in=ws").content.decode()
    assert url(item) in page
    assert url(other) not in page
    page = browser.get("/admin/catalog/trashitem/?by=nobody").content.decode()
    assert url(item) not in page


def test_bringing_back_asks_for_another_name_where_it_is_taken(browser):
    item = dropped("ws", "t")
    make_table("ws", "t")
    form = browser.get(url(item, "undrop"))
    assert 'value="ws$t"' in form.content.decode()
    with unchanged():
        answer = browser.post(url(item, "undrop"), {"name": "ws$t"})
    assert told(answer) == ["Table 'ws.t' exists already. Restore it under another name."]
    with unchanged():
        answer = browser.post(url(item, "undrop"), {"name": "ws$$"})
    assert answer.context["form"].errors
    answer = browser.post(url(item, "undrop"), {"name": "ws$old"})
    assert told(answer) == ["Table 'ws.old' was undropped"]
    assert Table.objects.named(("ws", "old")).get().pk == item.table_id


def test_bringing_a_namespace_back(browser):
    make_table("a", "b", "t")
    commit([namespace_operations.DropNamespace(namespace=("a",), cascade=True)], actor=SYSTEM)
    item = undrop.last_dropped(actor=SYSTEM, name=("a",), is_namespace=True)
    assert "1 namespaces, 1 tables and views" in browser.get(url(item)).content.decode()
    browser.post(url(item, "undrop"), {"name": "a"})
    assert Table.objects.present().count() == 1


def test_purging_and_keeping(browser):
    item = dropped("ws", "t")
    browser.post(url(item, "purge"), {"reason": "old"})
    item.refresh_from_db()
    assert item.purge_at == Job.objects.get().lease_until
    page = browser.get(url(item)).content.decode()
    assert url(item, "keep") in page
    browser.post(url(item, "keep"))
    item.refresh_from_db()
    assert item.purge_at is None
    TrashItem.objects.update(purge_begun_at=item.dropped_at)
    page = browser.get(url(item)).content.decode()
    assert url(item, "undrop") not in page
    with unchanged():
        answer = browser.post(url(item, "undrop"), {"name": "ws$t"})
    assert told(answer) == ["'ws.t' cannot be restored: its purge has begun"]


def test_what_is_not_in_the_trash(browser):
    item = dropped("ws", "t")
    undrop.undrop(actor=SYSTEM, item=item.pk)
    for action in ("change", "undrop", "purge", "keep"):
        with unchanged():
            assert browser.post(url(item, action)).status_code == 404


def test_protecting_a_table(browser):
    row = make_table("ws", "t")
    assert url(row, "protect") in browser.get(url(row)).content.decode()
    browser.post(url(row, "protect"))
    row.refresh_from_db()
    assert row.is_protected
    with unchanged():
        answer = browser.post(url(row, "drop"))
    assert told(answer) == [
        "Table 'ws.t' is now protected",
        "Table 'ws.t' is protected. Who may manage it has to take the protection off first.",
    ]
    browser.post(url(row, "protect"))
    browser.post(url(row, "drop"))
    row.refresh_from_db()
    assert row.state == TableState.DROPPED
    with unchanged():
        browser.post(url(row, "protect"))


def test_the_rules_of_a_namespace(browser):
    row = make_namespace("ws")
    page = browser.get(url(row, "rules")).content.decode()
    assert "retention 1 hour (default)" in page
    browser.post(url(row, "rules"), {"retention": "14 days", "purge": "on"})
    row.refresh_from_db()
    assert (row.retention_seconds, row.guarded) == (14 * 86_400, ["purge"])
    page = browser.get(url(row, "rules")).content.decode()
    assert 'value="14 days"' in page
    with unchanged():
        answer = browser.post(url(row, "rules"), {"retention": "soon", "purge": "on"})
    assert answer.context["form"].errors
    answer = browser.post(url(row, "rules"), {"retention": "", "reason": "too slow"})
    (request,) = ApprovalRequest.objects.all()
    assert (request.requester, request.reason) == ("user:ada", "too slow")
    assert f"request {request.pk} waits for it" in told(answer)[0]


@pytest.fixture
def asked(db, warehouse) -> ApprovalRequest:
    make_namespace("ws", "in")
    undrop.set_approval_rule(actor=SYSTEM, namespace=("ws",), actions=["drop_protected"])
    undrop.set_namespace_protection(actor=SYSTEM, namespace=("ws", "in"), is_protected=True)
    with pytest.raises(Exception, match="second person"):
        commit([namespace_operations.DropNamespace(namespace=("ws", "in"))], actor=BOB)
    return ApprovalRequest.objects.get()


def test_what_needs_me_is_approved(browser, asked):
    make_administrator("bob")
    page = browser.get("/admin/catalog/approvalrequest/?waiting=me").content.decode()
    assert url(asked) in page
    page = browser.get(url(asked)).content.decode()
    assert url(asked, "approve") in page
    assert url(asked, "withdraw") not in page
    answer = browser.post(url(asked, "approve"), {"reason": "yes"})
    assert told(answer) == [f"Request {asked.pk} is done"]
    assert not Namespace.objects.named(("ws", "in")).exists()
    page = browser.get("/admin/catalog/approvalrequest/?waiting=me").content.decode()
    assert url(asked) not in page
    with unchanged():
        answer = browser.post(url(asked, "approve"))
    assert told(answer) == [f"Approval request {asked.pk} is done and cannot be approved"]


def test_what_is_refused_needs_a_reason(browser, asked):
    with unchanged():
        answer = browser.post(url(asked, "refuse"), {"reason": ""})
    assert told(answer) == ["A refusal requires a reason"]
    browser.post(url(asked, "refuse"), {"reason": "no"})
    asked.refresh_from_db()
    assert (asked.status, asked.decided_by) == ("refused", "user:ada")


def test_ones_own_request_is_withdrawn_not_approved(browser, asked):
    with pytest.raises(Exception, match="second person"):
        commit([namespace_operations.DropNamespace(namespace=("ws", "in"))], actor=ADA)
    own = ApprovalRequest.objects.latest("pk")
    page = browser.get(url(own)).content.decode()
    assert url(own, "approve") not in page
    with unchanged():
        assert browser.post(url(own, "approve")).status_code == 403
    browser.post(url(own, "withdraw"))
    own.refresh_from_db()
    assert own.status == "withdrawn"
