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


def messages_of(answer) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


def url(row, action: str = "change") -> str:
    return f"/admin/catalog/{row._meta.model_name}/{row.pk}/{action}/"


def dropped(*name: str) -> TrashItem:
    make_lance_table(name)
    commit([table_operations.DropTable(table=name)], actor=BOB)
    return TrashItem.objects.latest("pk")


def test_the_trash_lists_dropped_objects(browser, django_assert_num_queries):
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


def test_undrop_requires_another_name_if_the_name_exists(browser):
    item = dropped("ws", "t")
    make_table("ws", "t")
    form = browser.get(url(item, "undrop"))
    assert 'value="ws.t"' in form.content.decode()
    with unchanged():
        answer = browser.post(url(item, "undrop"), {"name": "ws$t"})
    assert messages_of(answer) == ["Table 'ws.t' exists already. Restore it under another name."]
    with unchanged():
        answer = browser.post(url(item, "undrop"), {"name": "ws$$"})
    assert answer.context["form"].errors
    answer = browser.post(url(item, "undrop"), {"name": "ws$old"})
    assert messages_of(answer) == ["Table 'ws.old' was undropped"]
    assert Table.objects.named(("ws", "old")).get().pk == item.table_id


def test_a_namespace_is_undropped(browser):
    make_table("a", "b", "t")
    commit([namespace_operations.DropNamespace(namespace=("a",), cascade=True)], actor=SYSTEM)
    item = undrop.last_dropped(actor=SYSTEM, name=("a",), is_namespace=True)
    assert "1 namespace, 1 table or view" in browser.get(url(item)).content.decode()
    browser.post(url(item, "undrop"), {"name": "a"})
    assert Table.objects.present().count() == 1


def test_an_item_is_purged_or_kept(browser):
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
    assert messages_of(answer) == ["'ws.t' cannot be restored: its purge has begun"]


def test_items_that_left_the_trash_get_404(browser):
    item = dropped("ws", "t")
    undrop.undrop(actor=SYSTEM, item=item.pk)
    for action in ("change", "undrop", "purge", "keep"):
        with unchanged():
            assert browser.post(url(item, action)).status_code == 404


def test_a_second_click_does_not_undo_a_protection(browser):
    row = make_table("ws", "t")
    assert 'name="change" value="protect"' in browser.get(url(row, "protect")).content.decode()
    for _ in range(2):
        assert browser.post(url(row, "protect"), {"change": "protect"}).status_code == 302
    row.refresh_from_db()
    assert row.is_protected
    browser.post(url(row, "protect"), {"change": "remove"})
    row.refresh_from_db()
    assert not row.is_protected


def test_a_table_is_protected(browser):
    row = make_table("ws", "t")
    assert url(row, "protect") in browser.get(url(row)).content.decode()
    browser.post(url(row, "protect"))
    row.refresh_from_db()
    assert row.is_protected
    with unchanged():
        answer = browser.post(url(row, "drop"))
    assert messages_of(answer) == [
        "Table 'ws.t' is now protected",
        "Table 'ws.t' is protected. Remove the protection first, which requires the privilege manage.",
    ]
    browser.post(url(row, "protect"))
    browser.post(url(row, "drop"))
    row.refresh_from_db()
    assert row.state == TableState.DROPPED
    with unchanged():
        browser.post(url(row, "protect"))


def test_the_rules_of_a_namespace_are_saved(browser):
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
    assert f"request {request.pk} waits for it" in messages_of(answer)[0]


@pytest.fixture
def request_of_bob(db, warehouse) -> ApprovalRequest:
    make_namespace("ws", "in")
    undrop.set_approval_rule(actor=SYSTEM, namespace=("ws",), actions=["drop_protected"])
    undrop.set_namespace_protection(actor=SYSTEM, namespace=("ws", "in"), is_protected=True)
    with pytest.raises(Exception, match="second person"):
        commit([namespace_operations.DropNamespace(namespace=("ws", "in"))], actor=BOB)
    return ApprovalRequest.objects.get()


def test_a_request_is_approved(browser, request_of_bob):
    make_administrator("bob")
    page = browser.get("/admin/catalog/approvalrequest/?waiting=me").content.decode()
    assert url(request_of_bob) in page
    page = browser.get(url(request_of_bob)).content.decode()
    assert url(request_of_bob, "approve") in page
    assert url(request_of_bob, "withdraw") not in page
    answer = browser.post(url(request_of_bob, "approve"), {"reason": "yes"})
    assert messages_of(answer) == [f"Request {request_of_bob.pk} is done"]
    assert not Namespace.objects.named(("ws", "in")).exists()
    page = browser.get("/admin/catalog/approvalrequest/?waiting=me").content.decode()
    assert url(request_of_bob) not in page
    with unchanged():
        answer = browser.post(url(request_of_bob, "approve"))
    assert messages_of(answer) == [
        f"Approval request {request_of_bob.pk} is done and cannot be approved"
    ]


def test_a_refusal_requires_a_reason(browser, request_of_bob):
    with unchanged():
        answer = browser.post(url(request_of_bob, "refuse"), {"reason": ""})
    assert messages_of(answer) == ["A refusal requires a reason"]
    browser.post(url(request_of_bob, "refuse"), {"reason": "no"})
    request_of_bob.refresh_from_db()
    assert (request_of_bob.status, request_of_bob.decided_by) == ("refused", "user:ada")


def test_the_requester_may_withdraw_but_not_approve(browser, request_of_bob):
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
