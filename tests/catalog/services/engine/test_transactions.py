"""Descriptions of transactions, and access to them."""

import uuid
from dataclasses import replace

import pytest

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import (
    InvalidInput,
    InvalidTransactionState,
    NamespaceNotFound,
    PermissionDenied,
    PropertyAlreadySet,
    TransactionNotFound,
)
from catalog.models import (
    AuditEvent,
    Grant,
    Job,
    JobStatus,
    Principal,
    Table,
    TableVersion,
    Transaction,
    TransactionStatus,
)
from catalog.privileges import NOTHING, READ_ONLY, Privilege, closure
from catalog.services.engine.transactions import (
    IfSet,
    IfUnset,
    SetProperty,
    SetStatus,
    UnsetProperty,
    _version,
    alter_transaction,
    describe_transaction,
    visible_operations,
)
from tests.factories import make_root, make_table, make_version, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


@pytest.fixture
def tables():
    """Two tables, and a transaction of 'loader' that changed the first once and the second twice."""
    make_root()
    rows = [make_table("ws", "one"), make_table("ws", "two")]
    targets = ["ws.one", "ws.two", "ws.two"]
    change = Transaction.objects.create(
        actor="loader",
        operations=[{"operation": f"Op{i}", "target": target} for i, target in enumerate(targets)],
        properties={"purpose": "test"},
    )
    for row, target in zip([*rows, rows[1]], targets, strict=True):
        AuditEvent.objects.create(
            actor="loader",
            action="a.b",
            target=target,
            table_uuid=row.uuid,
            transaction_id=change.pk,
        )
    return rows


def change():
    return Transaction.objects.get(actor="loader")


def identifier():
    return (str(change().pk),)


def principal(*grants):
    """A principal with privileges on tables."""
    row = Principal.objects.create(name="etl", kind="service")
    for table, privileges in grants:
        Grant.objects.create(principal=row, table=table, mask=closure(privileges).value)
    return access.of_row(row)


def describe(actor):
    return describe_transaction(actor=actor, transaction=identifier())


def test_a_transaction_reports_its_operations(tables):
    expected = {
        "purpose": "test",
        "monodon.operations": "Op0,Op1,Op2",
        "monodon.targets": "ws.one,ws.two",
        "monodon.actor": "loader",
        "monodon.created_at": change().created_at.isoformat(),
    }
    for actor in (SYSTEM, access.Principal("loader"), access.Principal("reader", READ_ONLY)):
        description = describe(actor)
        assert description.properties == expected
        assert description.status is TransactionStatus.SUCCEEDED


def test_operations_on_hidden_tables_are_omitted(tables):
    properties = describe(principal((tables[1], Privilege.BROWSE))).properties
    assert properties["monodon.operations"] == "Op1,Op2"
    assert properties["monodon.targets"] == "ws.two"


def test_a_transaction_of_hidden_tables_is_hidden(tables):
    with pytest.raises(TransactionNotFound) as refusal:
        describe(principal())
    assert refusal.value.message == f"Transaction '{change().pk}' does not exist"
    for name in ("x", str(uuid.uuid4())):
        with pytest.raises(TransactionNotFound) as refusal:
            describe_transaction(actor=SYSTEM, transaction=(name,))
        assert refusal.value.message == f"Transaction '{name}' does not exist"


def test_a_version_is_the_transaction_that_added_it(tables):
    version = make_version(("ws", "one"), 12)
    name = ("ws", "one", "12")
    facts = {
        "monodon.table": "ws.one",
        "monodon.version": "12",
        "monodon.manifest_path": version.manifest_path,
        "monodon.created_at": version.created_at.isoformat(),
    }
    TableVersion.objects.update(transaction=change())
    Transaction.objects.filter(actor="loader").update(status=TransactionStatus.FAILED)
    description = describe_transaction(actor=SYSTEM, transaction=name)
    assert description.status is TransactionStatus.FAILED
    assert description.properties["monodon.actor"] == "loader"
    assert facts.items() <= description.properties.items()
    TableVersion.objects.update(transaction=None)
    description = describe_transaction(actor=SYSTEM, transaction=name)
    assert (description.status, description.properties) == (TransactionStatus.SUCCEEDED, facts)
    with pytest.raises(TransactionNotFound, match=r"'ws\.one\.12'"), unchanged():
        alter_transaction(actor=SYSTEM, transaction=name, actions=[])


@pytest.mark.parametrize("number", ["", "x", "-1", "²", "13", "1" * 20, "9" * 19])
def test_other_versions_have_no_transaction(tables, number):
    make_version(("ws", "one"), 12)
    with pytest.raises(TransactionNotFound) as refusal:
        describe_transaction(actor=SYSTEM, transaction=("ws", "one", number))
    assert refusal.value.message == f"Transaction 'ws.one.{number}' does not exist"


def test_versions_require_read(tables):
    make_version(("ws", "one"), 12)
    name = ("ws", "one", "12")
    reader = principal((tables[0], Privilege.BROWSE), (tables[1], Privilege.READ))
    with pytest.raises(PermissionDenied):
        describe_transaction(actor=reader, transaction=name)
    with pytest.raises(TransactionNotFound) as refusal:
        describe_transaction(actor=access.Principal("stranger"), transaction=name)
    assert refusal.value.message == "Transaction 'ws.one.12' does not exist"
    Grant.objects.filter(table=tables[0]).update(mask=READ_ONLY.value)
    assert describe_transaction(actor=reader, transaction=name).status is (
        TransactionStatus.SUCCEEDED
    )


# -- alterations


def alter(actor, *actions):
    return alter_transaction(actor=actor, transaction=identifier(), actions=actions)


def test_properties_are_set_and_unset_in_order(tables):
    description = alter(
        SYSTEM,
        SetProperty("a", "1"),
        SetProperty("a", "2", IfSet.SKIP),
        SetProperty("b", "1"),
        SetProperty("b", "2"),
        UnsetProperty("purpose"),
        UnsetProperty("absent"),
        UnsetProperty("b", IfUnset.FAIL),
        SetProperty("c", "3", IfSet.FAIL),
    )
    assert change().properties == {"a": "1", "c": "3"}
    assert description.properties == describe(SYSTEM).properties
    event = AuditEvent.objects.get(action="transaction.alter")
    assert (event.target, event.transaction_id) == (str(change().pk), change().pk)
    assert event.before == {"status": "Succeeded", "properties": {"purpose": "test"}}
    assert event.after == {"status": "Succeeded", "properties": {"a": "1", "c": "3"}}


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (
            SetProperty("purpose", "x", IfSet.FAIL),
            PropertyAlreadySet,
            "Property 'purpose' is set already",
        ),
        (UnsetProperty("absent", IfUnset.FAIL), InvalidInput, "Property 'absent' is not set"),
        (
            SetProperty("monodon.actor", "x"),
            InvalidInput,
            "Properties that begin with 'monodon.' cannot be set",
        ),
        (SetStatus(TransactionStatus.CANCELED), InvalidTransactionState, None),
        (SetStatus(TransactionStatus.FAILED), InvalidTransactionState, None),
    ],
)
def test_a_refused_action_undoes_all(tables, action, error, message):
    with unchanged(), pytest.raises(error) as refusal:
        alter(SYSTEM, SetProperty("a", "1"), action)
    if message is not None:
        assert refusal.value.message == message


def test_queued_work_is_canceled(tables):
    Transaction.objects.filter(actor="loader").update(status=TransactionStatus.QUEUED)
    job = Job.objects.create(kind="compact", table=tables[0], transaction=change())
    for status in (TransactionStatus.SUCCEEDED, TransactionStatus.RUNNING):
        with unchanged(), pytest.raises(InvalidTransactionState):
            alter(SYSTEM, SetStatus(status))
    assert alter(SYSTEM, SetStatus(TransactionStatus.QUEUED)).status is TransactionStatus.QUEUED
    description = alter(SYSTEM, SetStatus(TransactionStatus.CANCELED))
    assert description.status is TransactionStatus.CANCELED
    job.refresh_from_db()
    assert job.status == JobStatus.CANCELED


def test_running_work_gets_a_request_to_stop(tables):
    Transaction.objects.filter(actor="loader").update(status=TransactionStatus.RUNNING)
    job = Job.objects.create(
        kind="compact", table=tables[0], transaction=change(), status=JobStatus.RUNNING
    )
    description = alter(SYSTEM, SetStatus(TransactionStatus.CANCELED))
    assert description.status is TransactionStatus.RUNNING
    job.refresh_from_db()
    assert (job.status, job.cancel_requested) == (JobStatus.RUNNING, True)


SET, STOP = SetProperty("a", "1"), SetStatus(TransactionStatus.SUCCEEDED)


@pytest.mark.parametrize(
    ("privileges", "action", "is_allowed"),
    [
        ((Privilege.WRITE, Privilege.WRITE), SET, True),
        ((Privilege.WRITE, Privilege.READ), SET, False),
        ((Privilege.READ, Privilege.WRITE), SET, False),
        ((Privilege.MAINTAIN, Privilege.MAINTAIN), SET, False),
        ((Privilege.MAINTAIN, Privilege.MAINTAIN), STOP, True),
        ((Privilege.MAINTAIN, Privilege.WRITE), STOP, True),
        ((Privilege.MAINTAIN, Privilege.READ), STOP, False),
    ],
)
def test_altering_a_transaction_requires_a_privilege_on_every_table(
    tables, privileges, action, is_allowed
):
    actor = principal(*zip(tables, privileges, strict=True))
    if is_allowed:
        alter(actor, action)
        return
    with unchanged(), pytest.raises(PermissionDenied) as refusal:
        alter(actor, action)
    assert refusal.value.message == f"'etl' may not alter transaction '{change().pk}'"


def test_the_author_may_alter_a_transaction_with_a_key_that_may_write(tables):
    loader = access.Principal("loader")
    alter(loader, SET)
    alter(access.Principal("writer", Privilege.WRITE | READ_ONLY), SetProperty("b", "2"))
    for ceiling, action in ((READ_ONLY, SET), (Privilege.MAINTAIN, STOP), (Privilege.WRITE, STOP)):
        limited = replace(loader, ceiling=ceiling)
        if ceiling == READ_ONLY:
            with unchanged(), pytest.raises(PermissionDenied):
                alter(limited, action)
        else:
            alter(limited, action)
    with unchanged(), pytest.raises(PermissionDenied):
        alter(replace(loader, ceiling=READ_ONLY), STOP)


def test_a_transaction_without_tables_requires_global_write(tables):
    row = Transaction.objects.create(actor="other")
    reader = access.Principal("reader", READ_ONLY)
    with unchanged(), pytest.raises(PermissionDenied, match="the catalog as a whole"):
        alter_transaction(actor=reader, transaction=(str(row.pk),), actions=[SET])
    writer = access.Principal("writer", Privilege.WRITE | READ_ONLY)
    alter_transaction(actor=writer, transaction=(str(row.pk),), actions=[SET])
    row.refresh_from_db()
    assert row.properties == {"a": "1"}


def test_altering_a_version_requires_access_to_the_table(tables):
    make_version(("ws", "one"), 12)
    TableVersion.objects.update(transaction=change())
    name = ("ws", "one", "12")
    with unchanged(), pytest.raises(TransactionNotFound, match=r"'ws\.one\.12'"):
        alter_transaction(actor=access.Principal("x"), transaction=name, actions=[SET])
    writer = principal(*((table, Privilege.WRITE) for table in tables))
    alter_transaction(actor=writer, transaction=name, actions=[SET])
    assert change().properties == {"purpose": "test", "a": "1"}
    blind = replace(writer, ceiling=NOTHING)
    with unchanged(), pytest.raises((TransactionNotFound, NamespaceNotFound)):
        alter_transaction(actor=blind, transaction=name, actions=[SET])


# -- jobs


def job_facts(actor=SYSTEM):
    facts = describe(actor).properties
    return {k.removeprefix("monodon."): v for k, v in facts.items() if k.startswith("monodon.job")}


def test_a_transaction_reports_the_decisive_job(tables):
    assert job_facts() == {}
    queued = JobStatus.QUEUED
    make = [
        Job.objects.create(kind="compact", table=table, transaction=change()) for table in tables
    ]
    due = "2026-01-01T00:00:00+00:00"
    Job.objects.filter(pk=make[1].pk).update(
        status=queued, progress=3, total=9, attempts=2, lease_until=due
    )
    Job.objects.filter(pk=make[0].pk).update(status=JobStatus.SUCCEEDED, result={"a": 1})
    assert job_facts() == {
        "jobs": "2",
        "jobs_over": "1",
        "job_id": str(make[1].pk),
        "job_kind": "compact",
        "job_status": "queued",
        "job_progress": "3",
        "job_unit": make[1].unit,
        "job_attempts": "2",
        "job_due_at": due,
        "job_total": "9",
    }
    Job.objects.filter(pk=make[1].pk).update(status=JobStatus.RUNNING)
    assert "job_due_at" not in job_facts()
    Job.objects.filter(pk=make[0].pk).update(status=JobStatus.FAILED, error="no space")
    facts = job_facts()
    assert (facts["job_id"], facts["job_error"]) == (str(make[0].pk), "no space")
    assert facts["job_result"] == '{"a": 1}'
    Job.objects.update(status=JobStatus.SUCCEEDED)
    assert job_facts()["job_id"] == str(make[1].pk)
    assert job_facts()["jobs_over"] == "2"
    assert job_facts(principal((tables[0], Privilege.BROWSE)))["jobs"] == "1"
    Table.objects.filter(pk=tables[0].pk).update(owner="loader")
    assert job_facts(access.Principal("loader"))["jobs"] == "2"


def test_own_operations_and_those_of_others_are_visible_to_administrators(
    db, django_assert_num_queries
):
    """Also those on namespaces, which others do not see."""
    operations = [{"operation": "CreateNamespace", "target": "a"}]
    row = Transaction(actor="etl", operations=operations)
    with django_assert_num_queries(0):
        for actor in (SYSTEM, access.Principal("etl")):
            assert visible_operations(actor, [row]) == {row.pk: operations}
    assert visible_operations(access.Principal("other"), [row]) == {row.pk: []}


def test_a_version_belongs_to_its_table(db):
    make_root()
    for name in ("a", "b"):
        make_table("other", name)
        make_version(("other", name), 1)
    for name in ("a", "b"):
        assert _version(("other", name, "1")).table.name == name
