"""Protected objects cannot be dropped through any interface; an approval by a second person is
required."""

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from django.db import IntegrityError
from django.utils import timezone

from catalog import access
from catalog.access import SYSTEM, Principal
from catalog.errors import (
    ApprovalNotFound,
    ApprovalOutdated,
    ApprovalRequired,
    InvalidApprovalState,
    InvalidInput,
    NamespaceNotEmpty,
    NamespaceNotFound,
    PermissionDenied,
    Protected,
    ServiceUnavailable,
    TableNotFound,
    TrashItemNotFound,
)
from catalog.models import (
    ApprovalRequest,
    ApprovalStatus,
    AuditEvent,
    Grant,
    Job,
    Namespace,
    PrincipalLevel,
    Table,
    TableState,
    Transaction,
    TrashItem,
)
from catalog.privileges import Privilege, closure
from catalog.services.access import api_keys
from catalog.services.engine.commit import commit
from catalog.services.governance import approvals
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg import views as iceberg_views
from catalog.services.lance import data as lance_data
from catalog.services.lance.ledger import registration_operations
from catalog.services.recovery import undrop
from catalog.services.tables import namespace_operations, table_operations
from tests.catalog.services.recovery.test_undrop import make_view
from tests.factories import (
    files,
    make_iceberg_table,
    make_lance_table,
    make_namespace,
    make_table,
    unchanged,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch, settings) -> None:
    settings.MONODON_TRASH_SECONDS = 86_400
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)


def manager(name: str, *where: Namespace) -> Principal:
    key, _ = api_keys.create_api_key(actor=SYSTEM, name=name, level=PrincipalLevel.GRANTED)
    for namespace in where:
        mask = int(closure(Privilege.MANAGE))
        Grant.objects.create(principal=key.principal, mask=mask, namespace=namespace)
    principal = access.named(name)
    assert principal is not None
    return principal


def protect(*table: str, is_protected: bool = True) -> None:
    undrop.set_table_protection(actor=SYSTEM, table=table, is_protected=is_protected)


def protect_namespace(*path: str, **options: object):
    return undrop.set_namespace_protection(
        **{"actor": SYSTEM, "namespace": path, "is_protected": True, **options}
    )


# --- protection ------------------------------------------------------------------------------------


def test_no_interface_drops_or_overwrites_a_protected_lance_table(warehouse):
    table = make_lance_table(("ws", "t"))
    protect("ws", "t")
    elsewhere = str(warehouse / "x")
    data = lance_data_reader()
    with unchanged():
        for operation in (
            table_operations.DropTable(table=("ws", "t")),
            table_operations.DropTable(table=("ws", "t"), purge=False),
            table_operations.DeregisterTable(table=("ws", "t")),
            registration_operations.RegisterTable(
                table=("ws", "t"), location=elsewhere, overwrite=True
            ),
            namespace_operations.DropNamespace(namespace=("ws",), cascade=True),
            namespace_operations.CreateNamespace(
                namespace=("ws",), mode=namespace_operations.CreateMode.OVERWRITE
            ),
        ):
            with pytest.raises(Protected) as refused:
                commit([operation], actor=SYSTEM)
            assert refused.value.message == "Table 'ws.t' is protected"
    before = files(table.location)
    with pytest.raises(Protected):
        lance_data.create_table(actor=SYSTEM, table=("ws", "t"), data=data, mode="overwrite")
    assert files(table.location) == before
    assert Table.objects.present().get() == table
    protect("ws", "t", is_protected=False)
    commit([table_operations.DropTable(table=("ws", "t"))], actor=SYSTEM)


def lance_data_reader():
    return pa.table({"id": [1]}).to_reader()


def test_no_interface_drops_or_overwrites_a_protected_iceberg_table():
    table = make_iceberg_table("ws", "t")
    protect("ws", "t")
    with unchanged():
        for purge in (False, True):
            with pytest.raises(Protected):
                iceberg_tables.drop_table(actor=SYSTEM, table=("ws", "t"), purge=purge)
        with pytest.raises(Protected):
            iceberg_tables.unregister_table(actor=SYSTEM, table=("ws", "t"))
        with pytest.raises(Protected):
            iceberg_commits.register_table(
                actor=SYSTEM,
                table=("ws", "t"),
                metadata_location=table.metadata_location,
                overwrite=True,
            )


def test_a_protected_view_is_not_dropped():
    make_namespace("ws")
    make_view("ws", "v")
    protect("ws", "v")
    with pytest.raises(Protected, match=r"View 'ws\.v' is protected"), unchanged():
        iceberg_views.drop_view(actor=SYSTEM, view=("ws", "v"))


def test_protection_allows_writes_and_renames():
    make_lance_table(("ws", "t"))
    protect("ws", "t")
    lance_data.insert(
        actor=SYSTEM,
        table=("ws", "t"),
        data=pa.table({"id": [9], "name": ["x"]}).to_reader(),
    )
    commit([table_operations.RenameTable(table=("ws", "t"), new=("ws", "u"))], actor=SYSTEM)
    assert Table.objects.get().is_protected


def test_a_protected_namespace_and_its_parents_are_not_dropped():
    make_table("a", "b", "t")
    protect_namespace("a", "b")
    protect("a", "b", "t")
    with unchanged():
        for path in (("a",), ("a", "b")):
            for operation in (
                namespace_operations.DropNamespace(namespace=path, cascade=True),
                namespace_operations.CreateNamespace(
                    namespace=path, mode=namespace_operations.CreateMode.OVERWRITE
                ),
            ):
                with pytest.raises(Protected) as refused:
                    commit([operation], actor=SYSTEM)
                assert refused.value.message == ("Namespace 'a.b', table 'a.b.t' are protected")
    make_namespace("c")
    protect_namespace("c")
    with pytest.raises(Protected), unchanged():
        commit([namespace_operations.DropNamespace(namespace=("c",))], actor=SYSTEM)
    with pytest.raises(NamespaceNotEmpty), unchanged():
        commit([namespace_operations.DropNamespace(namespace=("a",))], actor=SYSTEM)


def test_namespace_protection_does_not_cover_single_tables():
    make_table("a", "t")
    protect_namespace("a")
    commit([table_operations.DropTable(table=("a", "t"))], actor=SYSTEM)
    assert Table.objects.get().state == TableState.DROPPED


def test_protection_requires_the_privilege_and_is_audited():
    table = make_table("a", "t")
    ada = manager("ada", table.namespace)
    bob = manager("bob", make_namespace("b"))
    with pytest.raises((NamespaceNotFound, TableNotFound)), unchanged():
        undrop.set_table_protection(actor=bob, table=("a", "t"), is_protected=True)
    undrop.set_table_protection(actor=ada, table=("a", "t"), is_protected=True)
    with unchanged():  # it is protected already
        undrop.set_table_protection(actor=ada, table=("a", "t"), is_protected=True)
    event = AuditEvent.objects.latest("pk")
    assert (event.action, event.actor, event.target, event.before, event.after) == (
        "protection.set",
        "ada",
        "a.t",
        {"is_protected": False},
        {"is_protected": True},
    )


def test_undrop_restores_the_protection_state():
    make_table("a", "t")
    make_table("a", "u")
    commit([namespace_operations.DropNamespace(namespace=("a",), cascade=True)], actor=SYSTEM)
    item = undrop.last_dropped(actor=SYSTEM, name=("a",), is_namespace=True)
    undrop.undrop(actor=SYSTEM, item=item.pk)
    assert not Table.objects.filter(is_protected=True).exists()


# --- approvals -------------------------------------------------------------------------------------


@pytest.fixture
def guarded() -> tuple[Principal, Principal]:
    """Ada and Bob, who manage ``a``, in which all guarded actions require approval."""
    namespace = make_namespace("a")
    undrop.set_approval_rule(actor=SYSTEM, namespace=("a",), actions=["purge", "drop_protected"])
    return manager("ada", namespace), manager("bob", namespace)


def ask_to_purge(ada: Principal) -> tuple[TrashItem, ApprovalRequest]:
    make_lance_table(("a", "t"))
    commit([table_operations.DropTable(table=("a", "t"))], actor=ada)
    item = TrashItem.objects.get()
    with pytest.raises(ApprovalRequired) as refused:
        undrop.purge_now(actor=ada, item=item.pk, reason="disk is full")
    request = ApprovalRequest.objects.get()
    assert refused.value.request == request.pk
    assert refused.value.message == (
        f"Purging table 'a.t' needs the approval of a second person: request {request.pk} waits"
        " for it"
    )
    return item, request


def test_a_purge_runs_after_another_principal_approves(guarded):
    ada, bob = guarded
    item, request = ask_to_purge(ada)
    assert (request.requester, request.reason, request.target, request.status) == (
        "ada",
        "disk is full",
        "a.t",
        ApprovalStatus.PENDING,
    )
    job = Job.objects.get()
    due = job.lease_until
    assert approvals.list_approvals(actor=bob, waiting_for_me=True)[0] == [request]
    assert approvals.list_approvals(actor=ada, waiting_for_me=True)[0] == []
    approved = approvals.approve(actor=bob, request=request.pk, reason="fine")
    assert (approved.status, approved.decided_by, approved.decision_reason) == (
        "done",
        "bob",
        "fine",
    )
    job.refresh_from_db()
    assert job.lease_until < due
    assert approved.transaction == Transaction.objects.latest("created_at")
    assert approved.transaction.actor == "ada"
    assert approved.transaction.properties == {"monodon.approved_by": "bob"}
    events = AuditEvent.objects.filter(target="a.t").order_by("-pk")[:3]
    assert [(event.actor, event.action) for event in reversed(events)] == [
        ("ada", "approval.request"),
        ("ada", "trash.purge"),
        ("bob", "approval.approve"),
    ]
    assert approvals.list_approvals(actor=bob, waiting_for_me=True)[0] == []
    with pytest.raises(InvalidApprovalState, match="is done"), unchanged():
        approvals.approve(actor=bob, request=request.pk)
    item.refresh_from_db()
    assert item.purge_at == job.lease_until


def test_a_purge_of_a_namespace_needs_the_approvals_of_those_below():
    """Dropped with the namespace above it, a table could be purged there without a second person."""
    above, below = make_namespace("a"), make_namespace("a", "b")
    ada, bob = manager("ada", above), manager("bob", above)
    undrop.set_approval_rule(actor=SYSTEM, namespace=tuple(below.path), actions=["purge"])
    make_lance_table(("a", "b", "t"))
    commit([namespace_operations.DropNamespace(namespace=("a",), cascade=True)], actor=ada)
    item = TrashItem.objects.get(namespace=above)
    with pytest.raises(ApprovalRequired):
        undrop.purge_now(actor=ada, item=item.pk)
    job = Job.objects.get()
    due = job.lease_until
    approvals.approve(actor=bob, request=ApprovalRequest.objects.get().pk)
    job.refresh_from_db()
    assert job.lease_until < due


def test_a_repeated_request_returns_the_pending_one(guarded):
    ada, bob = guarded
    item, request = ask_to_purge(ada)
    with pytest.raises(ApprovalRequired) as refused, unchanged():
        undrop.purge_now(actor=ada, item=item.pk)
    assert refused.value.request == request.pk
    with pytest.raises(ApprovalRequired) as refused:
        undrop.purge_now(actor=bob, item=item.pk)
    assert refused.value.request != request.pk


@pytest.mark.parametrize("failures", [1, 3])
def test_a_request_is_saved_while_another_one_is_decided(guarded, monkeypatch, failures):
    ada, _ = guarded
    saved, remaining = ApprovalRequest.save, [IntegrityError()] * failures

    def save(request: ApprovalRequest, **options: Any) -> None:
        if remaining:
            raise remaining.pop()  # of a request that is decided before it is looked up
        saved(request, **options)

    monkeypatch.setattr(ApprovalRequest, "save", save)
    if failures == 1:
        ask_to_purge(ada)
        return
    with pytest.raises(ServiceUnavailable, match="try again"):
        ask_to_purge(ada)
    assert not ApprovalRequest.objects.exists()
    assert TrashItem.objects.count() == 1


def test_requesters_may_not_approve_their_own_request(guarded):
    ada, _ = guarded
    _, request = ask_to_purge(ada)
    key, _ = api_keys.add_key(actor=SYSTEM, principal="ada", name="ada-2")
    by_another_key = access.of_row(key.principal, key)
    with unchanged():
        for call in (approvals.approve, approvals.refuse):
            with pytest.raises(PermissionDenied, match="another principal must decide"):
                call(actor=ada, request=request.pk, reason="me")
        with pytest.raises(PermissionDenied):
            approvals.approve(actor=by_another_key, request=request.pk)


def test_approval_requires_the_manage_privilege(guarded):
    ada, bob = guarded
    _, request = ask_to_purge(ada)
    outsider = manager("outsider", make_namespace("b"))
    key, _ = api_keys.create_api_key(actor=SYSTEM, name="reader", level=PrincipalLevel.READ)
    reader = access.of_row(key.principal, key)
    with unchanged():
        for call in (approvals.approve, approvals.refuse):
            with pytest.raises(ApprovalNotFound):
                call(actor=outsider, request=request.pk, reason="x")
            with pytest.raises(PermissionDenied):
                call(actor=reader, request=request.pk, reason="x")
        with pytest.raises(ApprovalNotFound):
            approvals.find_approval(actor=outsider, request=request.pk)
        with pytest.raises(PermissionDenied):
            approvals.withdraw(actor=bob, request=request.pk)
        with pytest.raises(ApprovalNotFound):
            approvals.approve(actor=bob, request=request.pk + 1)
    assert approvals.list_approvals(actor=outsider) == ([], None)
    assert approvals.list_approvals(actor=reader)[0] == [request]


def test_reusing_a_dropped_namespace_name_gives_no_approval_right(guarded):
    ada, bob = guarded
    make_namespace("a", "b")
    commit([namespace_operations.DropNamespace(namespace=("a", "b"), cascade=True)], actor=ada)
    item = undrop.last_dropped(actor=ada, name=("a", "b"), is_namespace=True)
    with pytest.raises(ApprovalRequired):
        undrop.purge_now(actor=ada, item=item.pk)
    request = ApprovalRequest.objects.get()
    mallory = manager("mallory")
    above = Namespace.objects.named(("a",)).get()
    mask, row = int(closure(Privilege.CREATE)), mallory.ids[0]
    Grant.objects.create(principal_id=row, mask=mask, namespace=above)
    commit([namespace_operations.CreateNamespace(namespace=("a", "b"))], actor=mallory)
    with unchanged():
        for call in (approvals.approve, approvals.refuse):
            with pytest.raises(PermissionDenied):
                call(actor=mallory, request=request.pk, reason="x")
    assert approvals.approve(actor=bob, request=request.pk).status == "done"


def test_the_requester_must_still_hold_the_privilege(guarded):
    ada, bob = guarded
    _, request = ask_to_purge(ada)
    Grant.objects.filter(principal__name="ada").delete()
    with pytest.raises(TrashItemNotFound, match="Trash item"), unchanged():
        approvals.approve(actor=bob, request=request.pk)
    assert approvals.find_approval(actor=bob, request=request.pk).status == "pending"


def test_closed_requests_cannot_be_approved(guarded):
    ada, bob = guarded
    item, first = ask_to_purge(ada)
    with pytest.raises(InvalidInput), unchanged():
        approvals.refuse(actor=bob, request=first.pk, reason=" ")
    approvals.refuse(actor=bob, request=first.pk, reason="no")

    def ask() -> int:
        with pytest.raises(ApprovalRequired) as refused:
            undrop.purge_now(actor=ada, item=item.pk)
        return refused.value.request

    second = ask()
    approvals.withdraw(actor=ada, request=second)
    third = ask()
    ApprovalRequest.objects.filter(pk=third).update(
        expires_at=timezone.now() - timedelta(seconds=1)
    )
    for request, status in ((first.pk, "refused"), (second, "withdrawn"), (third, "expired")):
        with unchanged():
            with pytest.raises(InvalidApprovalState, match=f"is {status}"):
                approvals.approve(actor=bob, request=request)
            with pytest.raises(InvalidApprovalState, match=f"is {status}"):
                approvals.refuse(actor=bob, request=request, reason="no")
    expired, _ = approvals.list_approvals(actor=bob, status=ApprovalStatus.EXPIRED)
    assert [row.pk for row in expired] == [third]
    assert approvals.list_approvals(actor=bob, status=ApprovalStatus.PENDING)[0] == []
    assert approvals.expire() == 1
    assert ask() not in {first.pk, second, third}
    actions = AuditEvent.objects.filter(action__startswith="approval.").order_by("pk")
    assert [event.action for event in actions] == [
        "approval.request",
        "approval.refuse",
        "approval.request",
        "approval.withdraw",
        "approval.request",
        "approval.request",
    ]


def test_a_short_retention_does_not_bypass_purge_approval(guarded, settings):
    ada, _ = guarded
    undrop.set_retention(actor=ada, namespace=("a",), seconds=0)
    make_lance_table(("a", "t"))
    commit([table_operations.DropTable(table=("a", "t"))], actor=ada)
    item = TrashItem.objects.get()
    assert (item.purge_at - item.dropped_at).total_seconds() == pytest.approx(86_400 + 300)


def test_a_protected_namespace_is_dropped_after_approval(guarded):
    ada, bob = guarded
    make_table("a", "b", "t")
    protect_namespace("a", "b")
    drop = namespace_operations.DropNamespace(namespace=("a", "b"), cascade=True)
    with pytest.raises(ApprovalRequired) as refused:
        commit([drop], actor=ada)
    assert Namespace.objects.named(("a", "b")).exists()
    approvals.approve(actor=bob, request=refused.value.request)
    assert not Namespace.objects.named(("a", "b")).exists()
    assert TrashItem.objects.filter(dropped_by="ada").count() == 2


def test_impossible_operations_create_no_request(guarded):
    ada, _ = guarded
    make_table("a", "b", "t")
    protect_namespace("a", "b")
    protect("a", "b", "t")
    with pytest.raises(Protected, match=r"Table 'a\.b\.t' is protected"), unchanged():
        commit([namespace_operations.DropNamespace(namespace=("a", "b"), cascade=True)], actor=ada)


@pytest.mark.parametrize("change", ["more", "less", "other", "unprotected"])
def test_a_change_since_the_request_invalidates_it(guarded, change):
    ada, bob = guarded
    make_table("a", "b", "t")
    protect_namespace("a", "b")
    with pytest.raises(ApprovalRequired) as refused:
        commit([namespace_operations.DropNamespace(namespace=("a", "b"), cascade=True)], actor=ada)
    if change == "more":
        make_table("a", "b", "u")
    elif change == "less":
        commit([table_operations.DropTable(table=("a", "b", "t"))], actor=SYSTEM)
    else:
        Namespace.objects.filter(name="b").update(is_protected=False)
    if change == "other":
        commit(
            [namespace_operations.DropNamespace(namespace=("a", "b"), cascade=True)], actor=SYSTEM
        )
        make_table("a", "b", "t")
        protect_namespace("a", "b")
    with pytest.raises(ApprovalOutdated), unchanged():
        approvals.approve(actor=bob, request=refused.value.request)


def test_undrop_invalidates_a_purge_request(guarded):
    ada, bob = guarded
    item, request = ask_to_purge(ada)
    undrop.undrop(actor=ada, item=item.pk)
    with pytest.raises(TrashItemNotFound, match="Trash item"), unchanged():
        approvals.approve(actor=bob, request=request.pk)


def test_unprotect_requires_approval(guarded):
    ada, bob = guarded
    make_namespace("a", "b")
    protect_namespace("a", "b", actor=ada)
    with pytest.raises(ApprovalRequired) as refused:
        protect_namespace("a", "b", actor=ada, is_protected=False, reason="over")
    assert Namespace.objects.named(("a", "b")).get().is_protected
    approvals.approve(actor=bob, request=refused.value.request)
    assert not Namespace.objects.named(("a", "b")).get().is_protected


def test_weaker_rules_require_approval_and_stronger_do_not(guarded):
    ada, bob = guarded
    make_namespace("a", "b")
    rule = {"actor": ada, "namespace": ("a", "b")}
    undrop.set_approval_rule(**rule, actions=["purge"])
    undrop.set_approval_rule(**rule, actions=[])  # the rule is inherited
    above = {"actor": ada, "namespace": ("a",)}
    with pytest.raises(ApprovalRequired) as refused:
        undrop.set_approval_rule(**above, actions=["purge"], reason="too slow")
    assert set(Namespace.objects.named(("a",)).get().guarded) == {"purge", "drop_protected"}
    approvals.approve(actor=bob, request=refused.value.request)
    assert Namespace.objects.named(("a",)).get().guarded == ["purge"]
    with pytest.raises(InvalidInput, match="Action 'x' cannot require an approval"), unchanged():
        undrop.set_approval_rule(**above, actions=["x"])


def test_rules_are_inherited_and_name_their_source(guarded):
    make_namespace("a", "b")
    rules = undrop.rules_of(actor=SYSTEM, namespace=("a", "b")).rules
    assert rules.guarded == {"purge": ("a",), "drop_protected": ("a",)}


def test_requests_are_paged(guarded):
    ada, bob = guarded
    item, _ = ask_to_purge(ada)
    with pytest.raises(ApprovalRequired):
        undrop.purge_now(actor=bob, item=item.pk)
    first, token = approvals.list_approvals(actor=SYSTEM, limit=1)
    second_page, end = approvals.list_approvals(actor=SYSTEM, limit=1, page_token=token)
    assert ([row.requester for row in first + second_page], end) == (["bob", "ada"], None)
    with pytest.raises(InvalidInput):
        approvals.list_approvals(actor=SYSTEM, page_token="x")


def test_a_batch_that_requires_approval_is_refused(guarded):
    ada, _ = guarded
    make_namespace("a", "b")
    protect_namespace("a", "b")
    with pytest.raises(ApprovalRequired) as refused, unchanged():
        commit(
            [
                namespace_operations.CreateNamespace(namespace=("a", "c")),
                namespace_operations.DropNamespace(namespace=("a", "b")),
            ],
            actor=ada,
        )
    assert refused.value.request is None
