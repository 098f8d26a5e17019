"""Materialized views: refreshes, and concurrent changes."""

from datetime import timedelta

import pyarrow as pa
import pytest
from django.utils import timezone

from catalog import access, models
from catalog.access import SYSTEM, On, Principal
from catalog.errors import CommitConflict, InvalidTableState, VersionNotFound
from catalog.models import (
    ApiKey,
    Grant,
    Job,
    JobStatus,
    MaterializedView,
    PrincipalLevel,
    Table,
)
from catalog.privileges import Privilege
from catalog.services.access import api_keys, principals
from catalog.services.access.grant_operations import SetGrant
from catalog.services.engine.commit import commit
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance import ledger_namespace
from catalog.services.lance.data import insert
from catalog.services.lance.ledger import version_operations
from catalog.services.lance.materialized_views import materialized_views, refreshes
from catalog.services.lance.materialized_views.refreshes import Refresh
from catalog.services.maintenance import job_runner
from catalog.services.tables import table_operations
from tasks import maintenance as tasks
from tests.api.client import encoded_schema
from tests.factories import fingerprint, make_administrator, make_lance_table, make_namespace

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
SOURCE, VIEW = ("ws", "t"), ("ws", "v")
ADA = Principal("ada", Privilege.ALL)


@pytest.fixture(autouse=True)
def _ada_is_a_principal(db: None) -> None:
    make_administrator("ada")


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


@pytest.fixture
def source() -> Table:
    return make_lance_table(SOURCE, ids(1, 2, 3))


def make_view(name: str = "v", *, filter: str = "true", auto_refresh: bool = True, **more) -> None:
    text = f"SELECT id FROM ws.t WHERE {filter}"
    materialized_views.create_view(
        actor=ADA,
        table=("ws", name),
        kind="query",
        source_query=text,
        output_schema=encoded_schema(ids().schema),
        auto_refresh=auto_refresh,
        **more,
    )


def append(*numbers: int) -> None:
    insert(actor=SYSTEM, table=SOURCE, data=ids(*numbers).to_reader())


def run() -> list[Job]:
    """Run the queued jobs."""
    jobs = list(Job.objects.filter(status=JobStatus.QUEUED).order_by("pk"))
    for job in jobs:
        job_runner.run_job(job.pk)
        job.refresh_from_db()
    return jobs


def rows(name: str = "v") -> list[int]:
    table = lance_datasets.read(actor=SYSTEM, table=("ws", name)).to_table()
    return table["id"].to_pylist()


def let_pause_pass() -> None:
    """Let the pause after a refresh pass."""
    MaterializedView.objects.update(refreshed_at=timezone.now() - timedelta(minutes=2))


def test_an_auto_refreshed_view_follows_its_source(source):
    make_view("v")
    make_view("w", auto_refresh=False)
    assert tasks.refresh_views() == 1
    assert tasks.refresh_views() == 0  # the job is queued
    (job,) = run()
    assert (job.status, job.transaction.actor) == ("succeeded", "ada")
    assert (rows("v"), rows("w")) == ([1, 2, 3], [])
    let_pause_pass()
    assert tasks.refresh_views() == 0  # no new version
    append(4)
    assert tasks.refresh_views() == 1
    run()
    assert rows("v") == [1, 2, 3, 4]


def test_refreshes_are_separated_by_a_pause(source):
    make_view()
    tasks.refresh_views()
    run()
    append(4)
    assert tasks.refresh_views() == 0
    let_pause_pass()
    assert tasks.refresh_views() == 1


def test_the_pause_grows_after_a_failure(source):
    make_view()
    commit([table_operations.DropTable(table=SOURCE, purge=False)], actor=SYSTEM)
    assert tasks.refresh_views() == 1
    (job,) = run()
    assert job.status == "failed"
    assert tasks.refresh_views() == 0
    MaterializedView.objects.update(failed_at=timezone.now() - timedelta(hours=2))
    assert tasks.refresh_views() == 1


def test_a_refresh_requires_that_the_owner_may_read(source):
    make_view()
    ApiKey.objects.update(revoked_at=timezone.now())
    assert tasks.refresh_views() == 0
    assert run() == []
    assert MaterializedView.objects.get().error == (
        "The automatic refresh was refused: Namespace 'ws' does not exist"
    )


@pytest.fixture
def bob(source) -> access.Principal:
    """Bob, who may read the source of the view ``mine.v``, which he owns."""
    make_namespace("mine")
    api_keys.create_api_key(actor=SYSTEM, name="bob", level=PrincipalLevel.GRANTED)
    reading = SetGrant(on=On.table(SOURCE), principal="bob", privileges=Privilege.READ)
    own = SetGrant(on=On.namespace(("mine",)), principal="bob", privileges=Privilege.ALL)
    commit([reading, own], actor=SYSTEM)
    bob = access.named("bob")
    assert bob is not None
    materialized_views.create_view(
        actor=bob,
        table=("mine", "v"),
        kind="query",
        source_query="SELECT id FROM ws.t",
        output_schema=encoded_schema(ids().schema),
        auto_refresh=True,
    )
    Table.objects.filter(name="v").update(owner="bob")
    return bob


@pytest.fixture
def bobs_view(source, bob) -> access.Principal:
    """Bob, who may no longer read the source of his view."""
    assert tasks.refresh_views() == 1
    assert [job.status for job in run()] == ["succeeded"]
    Grant.objects.filter(table=source).delete()
    let_pause_pass()
    return bob


def test_commits_to_a_source_that_the_owner_may_not_read_leave_no_trace(bobs_view):
    """A job, or the time of an error, after each commit would show them to the owner of the view."""
    before = fingerprint((Job, MaterializedView))
    append(4)
    assert tasks.refresh_views() == 0
    assert fingerprint((Job, MaterializedView)) == before


def test_views_of_hidden_sources_do_not_keep_others_from_being_refreshed(bobs_view, monkeypatch):
    monkeypatch.setattr(refreshes, "_AT_ONCE", 1)
    make_view()
    append(4)
    assert tasks.refresh_views() == 1
    assert [job.table.name for job in run()] == ["v"]
    assert (rows(), Job.objects.filter(table__namespace__name="mine").count()) == ([1, 2, 3, 4], 1)


def test_a_hidden_source_is_refused_alike_if_it_was_dropped(bobs_view):
    def refused(**options) -> str:
        with pytest.raises(InvalidTableState) as error:
            refreshes.start_refresh(
                actor=bobs_view, table=("mine", "v"), refresh=Refresh(**options)
            )
        return error.value.message

    before = [refused(), refused(src_version=1)]
    commit([table_operations.DropTable(table=SOURCE, purge=False)], actor=SYSTEM)
    assert [refused(), refused(src_version=1)] == before


@pytest.mark.parametrize("loss", ["grant", "principal"])
def test_a_refresh_requires_that_its_requester_may_still_read(source, bob, monkeypatch, loss):
    """A long refresh would copy rows hours after the requester has lost the right to read them."""
    refreshes.start_refresh(actor=bob, table=("mine", "v"), refresh=Refresh())
    real = refreshes.result_schema

    def withdraw(*arguments):
        schema = real(*arguments)  # after the source was opened
        if loss == "grant":
            Grant.objects.filter(table=source).delete()
        else:
            models.Principal.objects.filter(name="bob").update(is_active=False)
        return schema

    monkeypatch.setattr(refreshes, "result_schema", withdraw)
    (job,) = run()
    assert job.status != "succeeded"
    assert "may not read it" in job.error
    view = lance_datasets.read(actor=SYSTEM, table=("mine", "v"))
    assert view.count_rows() == 0


def test_a_view_of_one_version_is_not_behind(source):
    materialized_views.create_view(
        actor=ADA,
        table=VIEW,
        kind="query",
        source_query='{"source": ["ws", "t"], "version": 1}',
        output_schema=encoded_schema(ids().schema),
        auto_refresh=True,
    )
    append(4)
    assert tasks.refresh_views() == 1
    run()
    let_pause_pass()
    assert rows() == [1, 2, 3]
    assert tasks.refresh_views() == 0


def test_lag_counts_source_versions(source):
    make_view()
    view = MaterializedView.objects.with_lag().get()
    assert (view.newest, view.behind) == (1, 1)
    tasks.refresh_views()
    run()
    view = MaterializedView.objects.with_lag().get()
    assert (view.newest, view.behind, view.behind_since) == (1, 0, None)
    append(4)
    append(5)
    view = MaterializedView.objects.with_lag().get()
    assert (view.newest, view.behind) == (3, 2)
    assert view.behind_since == source.versions.get(version=2).created_at


def test_an_overtaken_refresh_writes_nothing(source, monkeypatch):
    """Otherwise its rows would exist twice."""
    make_view()
    job_id = refreshes.start_refresh(actor=ADA, table=VIEW, refresh=Refresh())
    job = Job.objects.get(transaction=job_id)
    real = ledger_namespace.commit

    def overtake(operations, *, actor):
        MaterializedView.objects.update(source_version=1)
        return real(operations, actor=actor)

    monkeypatch.setattr(ledger_namespace, "commit", overtake)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == ("queued", "View 'ws.v' was refreshed by others meanwhile")
    assert rows() == []


def test_a_committed_but_unrecorded_refresh_is_not_repeated(source):
    """The worker died between the commit and the record."""
    make_view()
    job_id = refreshes.start_refresh(actor=ADA, table=VIEW, refresh=Refresh())
    job = Job.objects.get(transaction=job_id)
    job_runner.run_job(job.pk)
    Job.objects.update(status=JobStatus.RUNNING, lease_until=timezone.now() - timedelta(seconds=1))
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.result["mode"]) == ("succeeded", "none")
    assert rows() == [1, 2, 3]


def test_a_source_replaced_during_creation_is_refused(source, monkeypatch):
    real = ledger_namespace.commit

    def replace(operations, *, actor):
        if operations[0].name == "CreateMaterializedView":
            commit([table_operations.DropTable(table=SOURCE, purge=False)], actor=SYSTEM)
            monkeypatch.setattr(ledger_namespace, "commit", real)
            make_lance_table(SOURCE, ids(9))
        return real(operations, actor=actor)

    monkeypatch.setattr(ledger_namespace, "commit", replace)
    with pytest.raises(CommitConflict, match="was replaced meanwhile"):
        make_view()
    assert not MaterializedView.objects.exists()
    assert not Table.objects.named(VIEW).exists()


def test_clients_may_not_create_versions_of_a_view(source):
    make_view()
    version = version_operations.CreateVersion(
        table=VIEW, version=2, manifest_path="elsewhere/2.manifest"
    )
    for _ in range(2):  # with the fast path, and without
        with pytest.raises(InvalidTableState, match="is a materialized view"):
            commit([version], actor=SYSTEM)


def test_a_missing_source_version_causes_a_full_refresh(source):
    make_view()
    tasks.refresh_views()
    run()
    append(4)
    commit([version_operations.DeleteVersions(table=SOURCE, ranges=((1, 2),))], actor=SYSTEM)
    let_pause_pass()
    tasks.refresh_views()
    (job,) = run()
    assert job.result["mode"] == "rebuild"
    assert rows() == [1, 2, 3, 4]


def _drop() -> None:
    commit([table_operations.DropTable(table=("ws", "secret"), purge=False)], actor=SYSTEM)


def _forbid() -> None:
    make_administrator("root")  # there must be one
    principals.update_principal(actor=SYSTEM, name="ada", level=PrincipalLevel.GRANTED)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_drop, "The source of the view was dropped"),
        (
            _forbid,
            "The source of the view was dropped, or the principal of the refresh may not read it",
        ),
    ],
)
def test_a_failed_refresh_does_not_reveal_the_sources_new_name(source, spoil, message):
    """Principals that may only browse the view could see that."""
    make_view()
    run()
    refreshes.start_refresh(actor=ADA, table=VIEW, refresh=Refresh())
    commit([table_operations.RenameTable(table=SOURCE, new=("ws", "secret"))], actor=SYSTEM)
    spoil()
    (job,) = run()
    assert (job.status, job.error) == (JobStatus.FAILED, message)
    view = MaterializedView.objects.get()
    assert (view.error, view.source_version) == (message, None)
    assert rows() == []


def test_a_missing_version_does_not_reveal_the_sources_new_name(source):
    make_view()
    commit([table_operations.RenameTable(table=SOURCE, new=("ws", "secret"))], actor=SYSTEM)
    with pytest.raises(VersionNotFound) as caught:
        refreshes.start_refresh(actor=ADA, table=VIEW, refresh=Refresh(src_version=9))
    assert caught.value.message == "The source of the view has no version 9"
    assert not Job.objects.exists()
