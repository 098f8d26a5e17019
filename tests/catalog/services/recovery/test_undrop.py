"""Dropped objects stay in the trash, can be restored, and are purged after their retention."""

import base64
import json
from datetime import timedelta

import pyarrow as pa
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog import access
from catalog.access import SYSTEM, Principal
from catalog.errors import (
    InvalidInput,
    InvalidTableState,
    LocationTaken,
    NamespaceAlreadyExists,
    NamespaceNotFound,
    NotRecoverable,
    PermissionDenied,
    TableAlreadyExists,
    TrashItemNotFound,
    ViewAlreadyExists,
)
from catalog.models import (
    AuditEvent,
    Function,
    Grant,
    Job,
    JobStatus,
    MaterializedView,
    Namespace,
    PrincipalLevel,
    Table,
    TableState,
    Transaction,
    TrashItem,
    TrashState,
)
from catalog.privileges import Privilege, closure
from catalog.services.access import api_keys
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.engine.transactions import describe_transaction
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import functions
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg import views as iceberg_views
from catalog.services.iceberg.functions import Content
from catalog.services.lance import data as lance_data
from catalog.services.lance import queries as lance_queries
from catalog.services.lance.ledger import registration_operations
from catalog.services.lance.materialized_views import materialized_views
from catalog.services.lance.refs import tags as lance_tags
from catalog.services.maintenance import job_runner
from catalog.services.recovery import undrop as recovery_undrop
from catalog.services.tables import namespace_operations, table_operations, trash
from catalog.storage import local_directories
from tests.factories import (
    files,
    make_iceberg_table,
    make_lance_table,
    make_namespace,
    make_root,
    make_table,
    make_version,
    snapshot,
    unchanged,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]

DAY = 86_400


@pytest.fixture(autouse=True)
def sent(monkeypatch, settings) -> list[int]:
    """Ids of the jobs sent to the broker. The retention is a week."""
    settings.MONODON_TRASH_SECONDS = 7 * DAY
    ids: list[int] = []
    monkeypatch.setattr(
        "celery.current_app.send_task", lambda name, args, **options: ids.append(args[0])
    )
    return ids


def drop(*table: str) -> TrashItem:
    commit([table_operations.DropTable(table=table)], actor=SYSTEM)
    return TrashItem.objects.latest("pk")


def drop_namespace(*path: str) -> TrashItem:
    commit([namespace_operations.DropNamespace(namespace=path, cascade=True)], actor=SYSTEM)
    return recovery_undrop.last_dropped(actor=SYSTEM, name=path, is_namespace=True)


def undrop(item: TrashItem, **options: object):
    return recovery_undrop.undrop(actor=SYSTEM, item=item.pk, **options)


def make_due(item: TrashItem) -> Job:
    """End the retention of an item."""
    past = timezone.now() - timedelta(seconds=1)
    TrashItem.objects.filter(pk=item.pk).update(purge_at=past)
    Job.objects.filter(trash=item).update(lease_until=past)
    return Job.objects.get(trash=item)


def principal(name: str, *grants: tuple[Privilege, object]) -> Principal:
    """A service account with these grants."""
    key, _ = api_keys.create_api_key(actor=SYSTEM, name=name, level=PrincipalLevel.GRANTED)
    for privilege, target in grants:
        where = {"namespace" if isinstance(target, Namespace) else "table": target}
        mask = int(closure(privilege))
        Grant.objects.create(principal=key.principal, mask=mask, **where)
    principal = access.named(name)
    assert principal is not None
    return principal


# --- drop and retention --------------------------------------------------------------------------------


def test_a_dropped_table_is_purged_after_its_retention(sent, settings):
    table = make_lance_table(("ws", "t"))
    before = files(table.location)
    item = drop("ws", "t")
    assert (item.table_id, item.dropped_by, item.state) == (table.pk, "system", TrashState.WAITING)
    due = item.dropped_at + timedelta(seconds=7 * DAY + settings.MONODON_PURGE_GRACE_SECONDS)
    assert (item.purge_at, item.job.lease_until) == (due, due)
    assert sent == []
    assert jobs.send_waiting_jobs() == 0
    job_runner.run_job(item.job_id)  # no worker takes the job earlier
    assert files(table.location) == before
    job = make_due(item)
    assert jobs.send_waiting_jobs() == 1
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == JobStatus.SUCCEEDED
    assert files(table.location) == {}
    item.refresh_from_db()
    assert item.purge_begun_at is not None
    with pytest.raises(TrashItemNotFound), unchanged():
        undrop(item)


def test_a_drop_stays_queued_until_the_purge():
    make_lance_table(("ws", "t"))
    result = commit([table_operations.DropTable(table=("ws", "t"))], actor=SYSTEM)
    item = TrashItem.objects.get()

    def status() -> str:
        return describe_transaction(actor=SYSTEM, transaction=(result.id,)).status

    facts = describe_transaction(actor=SYSTEM, transaction=(result.id,))
    assert (facts.status, facts.properties["monodon.job_due_at"]) == (
        "Queued",
        item.purge_at.isoformat(),
    )
    job_runner.run_job(make_due(item).pk)
    assert status() == "Succeeded"


def test_undrop_cancels_the_drop():
    make_lance_table(("ws", "t"))
    result = commit([table_operations.DropTable(table=("ws", "t"))], actor=SYSTEM)
    undrop(TrashItem.objects.get())
    assert describe_transaction(actor=SYSTEM, transaction=(result.id,)).status == "Canceled"
    assert Job.objects.get().status == JobStatus.CANCELED


def test_zero_retention_purges_at_once(settings, sent):
    settings.MONODON_TRASH_SECONDS = 0
    table = make_lance_table(("ws", "t"))
    item = drop("ws", "t")
    assert sent == [item.job_id]
    job_runner.run_job(item.job_id)
    assert files(table.location) == {}


def test_retention_is_inherited_from_the_nearest_namespace():
    make_table("a", "b", "t")
    make_table("a", "u")
    recovery_undrop.set_retention(actor=SYSTEM, namespace=(), seconds=3 * DAY)
    recovery_undrop.set_retention(actor=SYSTEM, namespace=("a", "b"), seconds=DAY)

    def retention_of(*table: str) -> float:
        item = drop(*table)
        return (item.purge_at - item.dropped_at).total_seconds() - 300

    assert (retention_of("a", "b", "t"), retention_of("a", "u")) == (DAY, 3 * DAY)
    rules = recovery_undrop.rules_of(actor=SYSTEM, namespace=("a", "b")).rules
    assert (rules.seconds, rules.retention_source) == (DAY, "a.b")
    rules = recovery_undrop.rules_of(actor=SYSTEM, namespace=("a",)).rules
    assert (rules.seconds, rules.retention_source) == (3 * DAY, "(root)")
    event = AuditEvent.objects.filter(action="retention.set").latest("pk")
    assert (event.target, event.before, event.after) == (
        "a.b",
        {"retention_seconds": None},
        {"retention_seconds": DAY},
    )
    recovery_undrop.set_retention(actor=SYSTEM, namespace=("a", "b"), seconds=None)
    rules = recovery_undrop.rules_of(actor=SYSTEM, namespace=("a", "b")).rules
    assert rules.seconds == 3 * DAY


@pytest.mark.parametrize("seconds", [-1, trash.MAX_SECONDS + 1])
def test_an_invalid_retention_is_refused(seconds):
    make_namespace("a")
    with pytest.raises(InvalidInput), unchanged():
        recovery_undrop.set_retention(actor=SYSTEM, namespace=("a",), seconds=seconds)


def test_a_deregistered_table_stays_until_it_is_purged():
    table = make_lance_table(("ws", "t"))
    commit([table_operations.DeregisterTable(table=("ws", "t"))], actor=SYSTEM)
    item = TrashItem.objects.get()
    assert (item.state, item.purge_at, item.job) == (TrashState.KEPT, None, None)
    (job,) = recovery_undrop.purge_now(actor=SYSTEM, item=item.pk)
    job_runner.run_job(job.pk)
    assert files(table.location) != {}
    job_runner.run_job(make_due(item).pk)
    assert files(table.location) == {}


# --- undrop of tables ----------------------------------------------------------------------------------


def test_undrop_restores_a_lance_table():
    table = make_lance_table(("ws", "t"))
    lance_tags.create_tag(actor=SYSTEM, table=("ws", "t"), tag="first", version=1)
    etl = principal("etl", (Privilege.READ, table))
    before = snapshot()
    on_disk = files(table.location)
    row = undrop(drop("ws", "t"))
    assert (row.pk, row.state) == (table.pk, TableState.LIVE)
    after = snapshot()
    changing = {"Transaction", "AuditEvent", "Job", "Table", "SearchDocument"}
    assert {name for name in before if before[name] != after[name]} <= changing
    old, new = (json.loads(*state["Table"]) for state in (before, after))
    assert new["restored_at"] > new["created_at"]
    assert old | {name: new[name] for name in ("restored_at", "updated_at")} == new
    assert files(table.location) == on_disk
    assert lance_queries.count_rows(actor=etl, table=("ws", "t")) == 3
    (tag,) = lance_tags.list_tags(actor=SYSTEM, table=("ws", "t"))[0]
    assert tag.name == "first"
    more = pa.table({"id": [4], "name": ["d"]}).to_reader()
    lance_data.insert(actor=SYSTEM, table=("ws", "t"), data=more)
    assert lance_queries.count_rows(actor=SYSTEM, table=("ws", "t")) == 4


def test_undrop_is_audited():
    table = make_lance_table(("ws", "t"))
    item = drop("ws", "t")
    table.refresh_from_db()
    undrop(item, new=("ws", "u"))
    event = AuditEvent.objects.latest("pk")
    assert (event.action, event.target, event.table_uuid, event.after) == (
        "table.undrop",
        "ws.u",
        table.uuid,
        {"location": table.location, "dropped_by": "system"},
    )
    assert event.before == {"name": "ws.t", "dropped_at": table.dropped_at.isoformat()}
    transaction = Transaction.objects.get(pk=event.transaction_id)
    assert transaction.operations[0]["operation"] == "UndropTable"


def test_undrop_restores_a_declared_table():
    make_table("ws", "t", properties={"k": "v"})
    row = undrop(drop("ws", "t"))
    row.refresh_from_db()
    assert (row.state, row.properties) == (TableState.DECLARED, {"k": "v"})


def test_undrop_restores_an_iceberg_table_with_its_paths(warehouse):
    outside = warehouse / "elsewhere"
    loaded = make_iceberg_table("ws", "t", properties={"write.data.path": str(outside)})
    iceberg_tables.drop_table(actor=SYSTEM, table=("ws", "t"), purge=True)
    item = TrashItem.objects.get()
    for location in (loaded.location, f"{loaded.location}/in", str(outside), str(warehouse / "x")):
        declare = registration_operations.DeclareTable(table=("ws", "u"), location=location)
        if location == str(warehouse / "x"):
            commit([declare], actor=SYSTEM)
            continue
        with pytest.raises(LocationTaken), unchanged():
            commit([declare], actor=SYSTEM)
    undrop(item)
    again = iceberg_tables.load_table(actor=SYSTEM, table=("ws", "t"))
    assert again == loaded
    assert again.document == loaded.document
    assert Table.objects.get(pk=loaded.pk).paths.get().path == str(outside)


def test_iceberg_drop_without_purge_can_be_undone():
    make_iceberg_table("ws", "t")
    iceberg_tables.drop_table(actor=SYSTEM, table=("ws", "t"))
    item = TrashItem.objects.get()
    assert item.state == TrashState.KEPT
    undrop(item)
    iceberg_tables.load_table(actor=SYSTEM, table=("ws", "t"))


def make_view(*name: str) -> None:
    schema = {"type": "struct", "schema-id": 0, "fields": []}
    version = {
        "version-id": 1,
        "schema-id": 0,
        "timestamp-ms": 1,
        "summary": {},
        "default-namespace": list(name[:-1]),
        "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
    }
    iceberg_views.create_view(actor=SYSTEM, view=name, schema=schema, view_version=version)


def test_a_view_can_be_restored_until_its_retention_ends():
    make_namespace("ws")
    make_view("ws", "v")
    make_view("ws", "w")
    iceberg_views.drop_view(actor=SYSTEM, view=("ws", "v"))
    item = TrashItem.objects.get()
    assert (item.kind, item.state, item.job) == ("view", TrashState.WAITING, None)
    assert undrop(item).kind == "view"
    iceberg_views.drop_view(actor=SYSTEM, view=("ws", "w"))
    item = TrashItem.objects.get()
    assert recovery_undrop.delete_expired_items() == 0
    TrashItem.objects.update(purge_at=timezone.now() - timedelta(seconds=1))
    assert recovery_undrop.delete_expired_items() == 1
    with pytest.raises(TrashItemNotFound), unchanged():
        undrop(item)


def test_a_view_is_not_restored_over_a_table():
    make_namespace("ws")
    make_view("ws", "v")
    iceberg_views.drop_view(actor=SYSTEM, view=("ws", "v"))
    item = TrashItem.objects.get()
    make_table("ws", "v")
    with pytest.raises(TableAlreadyExists), unchanged():
        undrop(item)
    make_view("ws", "w")
    with pytest.raises(ViewAlreadyExists), unchanged():
        undrop(item, new=("ws", "w"))
    assert undrop(item, new=("ws", "z")).kind == "view"


def test_a_materialized_view_keeps_its_query():
    make_lance_table(("ws", "t"))
    schema = pa.schema([("id", pa.int64())])
    materialized_views.create_view(
        actor=SYSTEM,
        table=("ws", "v"),
        kind="query",
        source_query="SELECT id FROM ws.t WHERE true",
        output_schema=base64.b64encode(schema.serialize().to_pybytes()).decode(),
        auto_refresh=True,
    )
    (before,) = MaterializedView.objects.values()
    item = drop("ws", "v")
    assert MaterializedView.objects.count() == 0
    undrop(item)
    (after,) = MaterializedView.objects.values()
    assert after == before


def test_undrop_reports_a_taken_name_and_accepts_another():
    old = make_lance_table(("ws", "t"))
    item = drop("ws", "t")
    new = make_lance_table(("ws", "t"))
    with pytest.raises(TableAlreadyExists) as refused, unchanged():
        undrop(item)
    assert refused.value.detail == "Restore it under another name."
    row = undrop(item, new=("ws", "t2"))
    assert (row.pk, row.identifier) == (old.pk, ("ws", "t2"))
    assert Table.objects.named(("ws", "t")).get() == new
    assert Table.objects.named(("ws", "t2")).get() == old


def test_undrop_reports_or_restores_a_dropped_namespace():
    table = make_lance_table(("a", "b", "t"))
    namespace = table.namespace
    recovery_undrop.set_retention(actor=SYSTEM, namespace=("a", "b"), seconds=DAY)
    item = drop("a", "b", "t")
    commit([namespace_operations.DropNamespace(namespace=("a",), cascade=True)], actor=SYSTEM)
    with pytest.raises(NamespaceNotFound) as refused, unchanged():
        undrop(item)
    assert "with_parents" in refused.value.detail
    with pytest.raises(NamespaceNotFound), unchanged():
        undrop(item, new=("x", "t"), with_parents=True)
    row = undrop(item, with_parents=True)
    assert row.pk == table.pk
    restored_namespace = Namespace.objects.named(("a", "b")).get()
    assert (restored_namespace.pk, restored_namespace.retention_seconds) == (namespace.pk, DAY)
    assert Namespace.objects.named(("a",)).count() == 1
    assert lance_queries.count_rows(actor=SYSTEM, table=("a", "b", "t")) == 3
    targets = AuditEvent.objects.filter(action="table.undrop").values_list("target", flat=True)
    assert list(targets)[-1:] == ["a.b.t"]


def test_undrop_uses_a_new_namespace_of_the_same_name():
    table = make_lance_table(("a", "t"))
    item = drop("a", "t")
    commit([namespace_operations.DropNamespace(namespace=("a",))], actor=SYSTEM)
    new = make_namespace("a")
    row = undrop(item)
    assert (row.pk, row.namespace_id) == (table.pk, new.pk)


def test_undrop_is_refused_once_the_purge_has_begun(monkeypatch):
    make_lance_table(("ws", "t"))
    item = drop("ws", "t")
    job = make_due(item)

    class Killed(BaseException):
        pass

    def die(_directory):
        raise Killed

    monkeypatch.setattr(local_directories, "remove_tree", die)
    with pytest.raises(Killed):
        job_runner.run_job(job.pk)
    item.refresh_from_db()
    assert item.state == TrashState.PURGING
    with pytest.raises(NotRecoverable, match="its purge has begun"), unchanged():
        undrop(item)
    for call in (recovery_undrop.stop_purge, recovery_undrop.purge_now):
        with pytest.raises(InvalidTableState), unchanged():
            call(actor=SYSTEM, item=item.pk)
    monkeypatch.undo()
    Job.objects.filter(pk=job.pk).update(lease_until=timezone.now() - timedelta(seconds=1))
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == JobStatus.SUCCEEDED
    assert Table.objects.get().state == TableState.DROPPED


def test_a_failed_purge_can_be_requested_again(monkeypatch):
    table = make_lance_table(("ws", "t"))
    item = drop("ws", "t")
    job = make_due(item)
    Job.objects.filter(pk=job.pk).update(attempts=jobs.MAX_ATTEMPTS - 1)

    def fail(_directory):
        raise OSError("storage is away")

    with monkeypatch.context() as patch:
        patch.setattr(local_directories, "remove_tree", fail)
        job_runner.run_job(job.pk)
    item.refresh_from_db()
    assert item.state == TrashState.FAILED
    with pytest.raises(NotRecoverable), unchanged():
        undrop(item)
    (again,) = recovery_undrop.purge_now(actor=SYSTEM, item=item.pk)
    assert again.pk != job.pk
    job_runner.run_job(make_due(item).pk)
    assert files(table.location) == {}


def test_undrop_is_refused_if_the_location_is_taken():
    table = make_lance_table(("ws", "t"))
    commit([table_operations.DeregisterTable(table=("ws", "t"))], actor=SYSTEM)
    item = TrashItem.objects.get()
    register = registration_operations.RegisterTable(table=("ws", "u"), location=table.location)
    commit([register], actor=SYSTEM)
    with pytest.raises(LocationTaken), unchanged():
        undrop(item)
    other = drop("ws", "u")
    job_runner.run_job(make_due(other).pk)
    with pytest.raises(NotRecoverable, match=r"also belonged to table 'ws\.u'"), unchanged():
        undrop(item)


def test_undrop_is_refused_if_a_directory_was_purged_with_another_table(warehouse):
    make_iceberg_table("ws", "t", location=f"{warehouse}/table")
    iceberg_tables.drop_table(actor=SYSTEM, table=("ws", "t"))
    item = TrashItem.objects.get()
    make_iceberg_table("ws", "u", properties={"write.data.path": f"{warehouse}/table/data"})
    iceberg_tables.drop_table(actor=SYSTEM, table=("ws", "u"), purge=True)
    job_runner.run_job(make_due(TrashItem.objects.latest("pk")).pk)
    with pytest.raises(NotRecoverable, match=r"also belonged to table 'ws\.u'"), unchanged():
        undrop(item)


def test_undrop_is_possible_after_a_canceled_purge():
    make_lance_table(("ws", "t"))
    item = drop("ws", "t")
    jobs.cancel_jobs_of(item.transaction)
    item.refresh_from_db()
    assert TrashItem.objects.get().state == TrashState.KEPT
    undrop(item)
    assert lance_queries.count_rows(actor=SYSTEM, table=("ws", "t")) == 3


def test_a_second_drop_starts_a_new_retention():
    table = make_lance_table(("ws", "t"))
    first = drop("ws", "t")
    undrop(first)
    second = drop("ws", "t")
    assert (second.table_id, second.pk != first.pk) == (table.pk, True)
    job_runner.run_job(make_due(second).pk)
    assert files(table.location) == {}


def test_purge_keeps_files_of_other_tables_in_the_trash():
    """A table registered from an Iceberg table's metadata shares its files."""
    first = make_iceberg_table("ws", "t")
    iceberg_tables.drop_table(actor=SYSTEM, table=("ws", "t"))
    iceberg_commits.register_table(
        actor=SYSTEM, table=("ws", "u"), metadata_location=first.metadata_location
    )
    iceberg_tables.drop_table(actor=SYSTEM, table=("ws", "u"), purge=True)
    old = TrashItem.objects.get(table=first.pk)
    recovery_undrop.purge_now(actor=SYSTEM, item=old.pk)
    before = files(first.location)
    job = make_due(old)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, files(first.location)) == (JobStatus.CANCELED, before)
    undrop(recovery_undrop.last_dropped(actor=SYSTEM, name=("ws", "u")))
    iceberg_tables.load_table(actor=SYSTEM, table=("ws", "u"))


# --- undrop of namespaces -------------------------------------------------------------------------


def test_undrop_restores_a_namespace_with_its_tables():
    make_namespace("a", "b", properties={"k": "v"})
    first = make_lance_table(("a", "b", "one"))
    make_iceberg_table("a", "two")
    make_view("a", "three")
    earlier = make_lance_table(("a", "earlier"))
    content = Content(
        definitions=[
            {
                "definition-id": "int",
                "parameters": [{"name": "x", "type": "int"}],
                "return-type": "int",
                "versions": [
                    {
                        "version-id": 1,
                        "representations": [{"type": "sql", "dialect": "spark", "sql": "1"}],
                        "timestamp-ms": 1,
                    }
                ],
                "current-version-id": 1,
            }
        ]
    )
    functions.create_function(actor=SYSTEM, function=("a", "b", "f"), content=content)
    (function,) = Function.objects.values("name", "metadata", "owner", "created_at", "namespace")
    drop("a", "earlier")
    before = {row.pk: row.identifier for row in Namespace.objects.live()}
    item = drop_namespace("a")
    assert recovery_undrop.count_contents(actor=SYSTEM, item=item.pk)[1:] == (2, 3)
    assert Function.objects.count() == 0
    row = undrop(item)
    assert row.identifier == ("a",)
    assert {row.pk: row.identifier for row in Namespace.objects.live()} == before
    assert Namespace.objects.named(("a", "b")).get().properties == {"k": "v"}
    assert lance_queries.count_rows(actor=SYSTEM, table=("a", "b", "one")) == 3
    iceberg_tables.load_table(actor=SYSTEM, table=("a", "two"))
    assert Table.objects.named(("a", "three")).get().kind == "view"
    assert Table.objects.get(pk=earlier.pk).state == TableState.DROPPED
    assert Function.objects.values(*function).get() == function
    assert TrashItem.objects.get().table == earlier
    assert Job.objects.exclude(table=earlier).exclude(status=JobStatus.CANCELED).count() == 0
    assert Table.objects.get(pk=first.pk).namespace.ancestors[-1] == first.namespace_id


def test_undrop_restores_a_namespace_under_another_name():
    make_lance_table(("a", "b", "t"))
    item = drop_namespace("a")
    make_namespace("a")
    with pytest.raises(NamespaceAlreadyExists) as refused, unchanged():
        undrop(item)
    assert refused.value.detail == "Restore it under another name."
    make_namespace("x")
    row = undrop(item, new=("x", "y"))
    assert row.identifier == ("x", "y")
    below = Namespace.objects.named(("x", "y", "b")).get()
    root = Namespace.objects.named(()).get()
    x = Namespace.objects.named(("x",)).get()
    assert below.ancestors == [root.pk, x.pk, row.pk, below.pk]
    assert lance_queries.count_rows(actor=SYSTEM, table=("x", "y", "b", "t")) == 3


def test_history_covers_the_time_in_the_trash():
    make_lance_table(("a", "b", "t"))
    before_drop = timezone.now()
    item = drop_namespace("a")
    away = timezone.now()
    undrop(item, new=("z",))

    tells = AuditEvent.objects.filter(action__in=["namespace.undrop", "table.undrop"])
    assert sorted((event.target, event.before["name"]) for event in tells) == [
        ("z", "a"),
        ("z.b.t", "a.b.t"),
    ]
    assert all(
        before_drop.isoformat() < event.before["dropped_at"] < away.isoformat() for event in tells
    )


def test_undrop_of_a_namespace_can_skip_purged_tables():
    lost = make_lance_table(("a", "lost"))
    table = make_lance_table(("a", "kept"))
    item = drop_namespace("a")
    job_runner.run_job(make_due(TrashItem.objects.get(table=lost)).pk)
    with pytest.raises(NotRecoverable, match=r"'a\.lost'"), unchanged():
        undrop(item)
    undrop(item, without_purged=True)
    assert list(Table.objects.present()) == [table]


def test_undrop_restores_a_dropped_parent_namespace():
    make_table("a", "b", "t")
    item = drop_namespace("a", "b")
    commit([namespace_operations.DropNamespace(namespace=("a",))], actor=SYSTEM)
    with pytest.raises(NamespaceNotFound), unchanged():
        undrop(item)
    assert undrop(item, with_parents=True).identifier == ("a", "b")
    assert Table.objects.named(("a", "b", "t")).exists()


def test_an_empty_namespace_is_restored_or_expires():
    make_namespace("a")
    commit([namespace_operations.DropNamespace(namespace=("a",))], actor=SYSTEM)
    item = TrashItem.objects.get()
    undrop(item)
    commit([namespace_operations.DropNamespace(namespace=("a",))], actor=SYSTEM)
    TrashItem.objects.update(purge_at=timezone.now() - timedelta(seconds=1))
    assert recovery_undrop.delete_expired_items() == 1


# --- purging -------------------------------------------------------------------------------------------


def test_purge_now_leaves_time_to_stop_it(settings):
    table = make_lance_table(("ws", "t"))
    item = drop("ws", "t")
    (job,) = recovery_undrop.purge_now(actor=SYSTEM, item=item.pk, reason="GDPR")
    assert job.pk == item.job_id
    soon = timezone.now() + timedelta(seconds=settings.MONODON_PURGE_GRACE_SECONDS)
    job.refresh_from_db()
    assert abs(job.lease_until - soon) < timedelta(seconds=60)
    job_runner.run_job(job.pk)
    assert files(table.location) != {}
    item_ = recovery_undrop.stop_purge(actor=SYSTEM, item=item.pk)
    assert (item_.state, item_.purge_at) == (TrashState.KEPT, None)
    job.refresh_from_db()
    assert job.status == JobStatus.CANCELED
    job_runner.run_job(job.pk)
    undrop(item)
    events = AuditEvent.objects.filter(action__startswith="trash.").order_by("pk")
    assert [(event.action, event.target) for event in events] == [
        ("trash.purge", "ws.t"),
        ("trash.keep", "ws.t"),
    ]
    assert events[0].after["reason"] == "GDPR"


def test_purge_now_of_a_namespace_covers_all_its_tables(settings):
    settings.MONODON_PURGE_GRACE_SECONDS = 0
    first, two = make_lance_table(("a", "one")), make_lance_table(("a", "b", "two"))
    item = drop_namespace("a")
    for job in recovery_undrop.purge_now(actor=SYSTEM, item=item.pk):
        job_runner.run_job(job.pk)
    assert files(first.location) == files(two.location) == {}
    assert (
        recovery_undrop.delete_expired_items() == 2
    )  # the namespaces; purged tables remain in the list for a day


def test_purge_now_refuses_a_running_purge(monkeypatch):
    make_lance_table(("ws", "t"))
    item = drop("ws", "t")
    taken = jobs.take(make_due(item).pk)
    assert taken is not None
    with pytest.raises(InvalidTableState), unchanged():
        recovery_undrop.purge_now(actor=SYSTEM, item=item.pk)


# --- access --------------------------------------------------------------------------------------------


def test_managers_of_a_table_may_undrop_it():
    table = make_lance_table(("ws", "t"))
    manager = principal("manager", (Privilege.MANAGE, table.namespace))
    writer = principal("writer", (Privilege.WRITE, table.namespace))
    stranger = principal("stranger")
    item = drop("ws", "t")
    with unchanged():
        for call in (recovery_undrop.undrop, recovery_undrop.purge_now, recovery_undrop.stop_purge):
            with pytest.raises(TrashItemNotFound):
                call(actor=stranger, item=item.pk)
            with pytest.raises(PermissionDenied):
                call(actor=writer, item=item.pk)
        for actor in (writer, stranger):
            with pytest.raises((PermissionDenied, NamespaceNotFound)):
                recovery_undrop.set_retention(actor=actor, namespace=("ws",), seconds=0)
            with pytest.raises((PermissionDenied, NamespaceNotFound)):
                recovery_undrop.set_approval_rule(actor=actor, namespace=("ws",), actions=["purge"])
    assert [row.pk for row in recovery_undrop.list_trash(actor=writer)[0]] == [item.pk]
    assert recovery_undrop.list_trash(actor=stranger) == ([], None)
    assert recovery_undrop.undrop(actor=manager, item=item.pk).pk == table.pk


def test_managers_of_a_dropped_namespace_may_undrop_it():
    namespace = make_namespace("a", "b")
    above = principal("above", (Privilege.MANAGE, namespace.parent))
    beside = principal("beside", (Privilege.MANAGE, make_namespace("c")))
    item = drop_namespace("a", "b")
    with pytest.raises(TrashItemNotFound), unchanged():
        recovery_undrop.undrop(actor=beside, item=item.pk)
    recovery_undrop.undrop(actor=above, item=item.pk)


def drop_twice(*path: str) -> TrashItem:
    """Drop a table and then its namespaces, in two transactions. Return the item of the table."""
    item = drop(*path)
    commit([namespace_operations.DropNamespace(namespace=path[:1], cascade=True)], actor=SYSTEM)
    return item


def test_undrop_restores_parents_that_the_actor_could_undrop():
    table = make_table("top", "a", "b", "t")
    of_table = (Privilege.MANAGE, table)
    at_root = (Privilege.CREATE, make_root())
    namespace = table.namespace
    owner = principal("owner", of_table, at_root)
    of_lower = principal("of_lower", of_table, at_root, (Privilege.MANAGE, namespace))
    of_upper = principal("of_upper", at_root, (Privilege.MANAGE, namespace.parent.parent))
    item = drop_twice("top", "a", "b", "t")
    for actor, lacking in ((owner, "top.a.b"), (of_lower, "top.a")):
        with (
            pytest.raises(PermissionDenied, match=rf"manage '{lacking}'$"),
            unchanged(),
        ):
            recovery_undrop.undrop(actor=actor, item=item.pk, with_parents=True)
    assert recovery_undrop.undrop(actor=of_upper, item=item.pk, with_parents=True).pk == table.pk


def test_undrop_restores_a_parent_that_the_actor_could_undrop():
    namespace = make_namespace("top", "a", "b")
    at_root = (Privilege.CREATE, make_root())
    manager = principal("manager", at_root, (Privilege.MANAGE, namespace))
    item = drop_namespace("top", "a", "b")
    commit([namespace_operations.DropNamespace(namespace=("top",), cascade=True)], actor=SYSTEM)
    with pytest.raises(PermissionDenied, match=r"manage 'top\.a'$"), unchanged():
        recovery_undrop.undrop(actor=manager, item=item.pk, with_parents=True)


def test_undrop_does_not_restore_a_parent_to_gain_privileges():
    """The actor could not restore the namespace alone."""
    table = make_table("top", "a", "t")
    keeper = principal("keeper", (Privilege.MANAGE, table.namespace))
    item = drop_twice("top", "a", "t")
    new = make_namespace("top")
    Grant.objects.create(principal_id=keeper.ids[0], namespace=new, mask=int(Privilege.ALL))
    with pytest.raises(PermissionDenied, match=r"'top\.a' to 'top', .*: grant"), unchanged():
        recovery_undrop.undrop(actor=keeper, item=item.pk, with_parents=True)


def test_undrop_requires_the_create_privilege():
    table = make_lance_table(("ws", "t"))
    manager = principal("manager", (Privilege.MANAGE, table.namespace))
    make_namespace("other")
    item = drop("ws", "t")
    with pytest.raises(NamespaceNotFound), unchanged():
        recovery_undrop.undrop(actor=manager, item=item.pk, new=("other", "t"))


def test_the_list_is_paged_and_filtered():
    for name in ("a", "b", "c"):
        make_table("x", "y", name)
        drop("x", "y", name)
    make_table("z", "d")
    drop("z", "d")
    first, token = recovery_undrop.list_trash(actor=SYSTEM, limit=3)
    second_page, end = recovery_undrop.list_trash(actor=SYSTEM, limit=3, page_token=token)
    assert [str(row) for row in first + second_page] == ["z.d", "x.y.c", "x.y.b", "x.y.a"]
    assert end is None
    inside, _ = recovery_undrop.list_trash(actor=SYSTEM, namespace=("x",))
    assert [str(row) for row in inside] == ["x.y.c", "x.y.b", "x.y.a"]
    assert recovery_undrop.list_trash(actor=SYSTEM, dropped_by="ada")[0] == []
    with pytest.raises(InvalidInput):
        recovery_undrop.list_trash(actor=SYSTEM, page_token="x")
    with CaptureQueriesContext(connection) as queries:
        rows, _ = recovery_undrop.list_trash(actor=SYSTEM)
        assert (str(rows[0]), rows[0].state, rows[0].size) == ("z.d", "waiting", None)
    assert len(queries) == 1


def test_missing_objects_are_refused():
    for call in (
        recovery_undrop.undrop,
        recovery_undrop.purge_now,
        recovery_undrop.stop_purge,
        recovery_undrop.find_item,
    ):
        with pytest.raises(TrashItemNotFound), unchanged():
            call(actor=SYSTEM, item=12345)
    with pytest.raises(TrashItemNotFound):
        recovery_undrop.last_dropped(actor=SYSTEM, name=("x",))


def test_version_numbers_continue_after_undrop():
    make_table("ws", "t")
    make_version(("ws", "t"), 1)
    undrop(drop("ws", "t"))
    make_version(("ws", "t"), 2)
    assert Table.objects.get().versions.count() == 2
