"""Deferred work in a principal's name: an unknown name never has a privilege."""

from dataclasses import replace

import pyarrow as pa
import pytest

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import ApprovalRequired, InvalidTableState, PermissionDenied
from catalog.models import (
    ApprovalRequest,
    Job,
    JobKind,
    JobStatus,
    MaterializedView,
    Principal,
    PrincipalKind,
    PrincipalLevel,
    Table,
    Transaction,
)
from catalog.privileges import NOTHING, READ_ONLY, Privilege
from catalog.services.access import grants, principals
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.governance import annotation_operations, approvals
from catalog.services.lance.materialized_views import materialized_views, refreshes
from catalog.services.maintenance import job_runner
from catalog.services.recovery import rule_operations
from catalog.services.tables import job_operations, table_operations
from tasks import maintenance as tasks
from tests.api.client import encoded_schema
from tests.cases import shared_cases
from tests.factories import (
    make_administrator,
    make_lance_table,
    make_namespace,
    make_table,
    unchanged,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
SOURCE, VIEW = ("ws", "t"), ("ws", "v")
UNKNOWN = [
    "",
    " ",
    "etl",
    "key:etl",
    "System",
    "system ",
    "SYSTEM",
    "command",
    "user:ada",
    "group:a",
]


@pytest.fixture
def view() -> MaterializedView:
    """An automatically refreshed view of ``ws.t`` that is behind its source."""
    make_lance_table(SOURCE, pa.table({"id": pa.array([1, 2], pa.int64())}))
    materialized_views.create_view(
        actor=SYSTEM,
        table=VIEW,
        kind="query",
        source_query="SELECT id FROM ws.t",
        output_schema=encoded_schema(pa.schema([("id", pa.int64())])),
        auto_refresh=True,
    )
    return MaterializedView.objects.get()


def make_principal(name: str, kind: PrincipalKind, level: PrincipalLevel) -> access.Principal:
    principals.create_principal(actor=SYSTEM, name=name, kind=kind, level=level)
    principal = access.named(name)
    assert principal is not None
    return principal


@shared_cases("name", UNKNOWN)
def test_an_unknown_name_is_an_error(name):
    with pytest.raises(PermissionDenied, match="Nothing is done on behalf of"):
        access.on_behalf_of(name)


def test_the_system_principal_is_the_only_one_without_a_row():
    assert access.on_behalf_of("system") is SYSTEM
    assert access.on_behalf_of("anonymous").everywhere == NOTHING


@pytest.mark.parametrize("name", ["", "key:gone", "etl"])
def test_a_view_whose_owner_is_unknown_is_not_refreshed(view, name):
    Table.objects.filter(name="v").update(owner=name)
    assert tasks.refresh_views() == 0
    assert not Job.objects.exists()
    view.refresh_from_db()
    reason = "View 'ws.v' has no owner" if not name else f"Nothing is done on behalf of '{name}'"
    assert view.error.startswith(f"The automatic refresh was refused: {reason}")
    assert view.failed_at is not None


def test_a_view_without_owner_is_refreshed_with_the_requesters_rights(view):
    make_administrator("root")
    make_principal("user:ann", PrincipalKind.USER, PrincipalLevel.GRANTED)
    grants.set_grant(
        actor=SYSTEM, on=access.On.table(VIEW), principal="user:ann", privileges=Privilege.WRITE
    )
    Table.objects.filter(name="v").update(owner="")
    ann = access.named("user:ann")
    with unchanged(), pytest.raises(InvalidTableState, match="may not read it"):
        refreshes.start_refresh(actor=ann, table=VIEW, refresh=refreshes.Refresh())
    root = access.named("root")
    refreshes.start_refresh(actor=root, table=VIEW, refresh=refreshes.Refresh())
    job = Job.objects.latest("pk")
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")


@pytest.mark.parametrize("name", ["", "etl", "key:etl"])
def test_a_job_of_an_unknown_principal_fails_with_the_reason(view, name):
    commit([job_operations.StartRefresh(table=VIEW)], actor=SYSTEM)
    Transaction.objects.filter(jobs__isnull=False).update(actor=name)
    job = Job.objects.get()
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == JobStatus.FAILED
    assert job.error.startswith("Nothing is done on behalf of")
    view.refresh_from_db()
    assert view.source_version is None


def test_a_job_without_a_transaction_has_no_privilege(view):
    job = Job.objects.create(kind=JobKind.REFRESH_VIEW, table=view.table)
    with pytest.raises(PermissionDenied, match="so nobody requested it"):
        jobs.principal(job)


@pytest.mark.parametrize("actor", ["system", "root"])
def test_a_job_may_only_read_outside_its_own_table(view, actor):
    make_administrator("root")
    make_table("ws", "other")
    commit([job_operations.StartRefresh(table=VIEW)], actor=access.on_behalf_of(actor))
    job = Job.objects.select_related("transaction", "table__namespace").get()
    principal = jobs.principal(job)
    assert (principal.name, principal.everywhere, principal.tables) == (
        actor,
        READ_ONLY,
        (view.table_id,),
    )
    access.require(principal, Privilege.ALL, access.On.table(VIEW))
    with pytest.raises(PermissionDenied):
        access.require(principal, Privilege.WRITE, access.On.table(("ws", "other")))
    with pytest.raises(PermissionDenied):
        access.require(principal, Privilege.ALL)


def test_an_approval_for_an_unknown_requester_is_refused():
    make_table("ws", "t")
    make_administrator("root")
    root = access.named("root")
    protect = rule_operations.SetProtection(
        identifier=("ws",), is_namespace=True, is_protected=True
    )
    rule = rule_operations.SetApprovalRule(namespace=("ws",), actions=["drop_protected"])
    commit([protect, rule], actor=SYSTEM)
    with pytest.raises(ApprovalRequired):
        commit([replace(protect, is_protected=False)], actor=root)
    ApprovalRequest.objects.update(requester="")
    request = ApprovalRequest.objects.get()
    with unchanged(), pytest.raises(PermissionDenied, match="on behalf of nobody"):
        approvals.approve(actor=root, request=request.pk)


def test_only_administrators_change_the_owner_of_a_view(view):
    make_administrator("root")
    make_principal("group:team", PrincipalKind.GROUP, PrincipalLevel.GRANTED)
    make_principal("user:ann", PrincipalKind.USER, PrincipalLevel.GRANTED)
    principals.add_member(actor=SYSTEM, group="group:team", member="user:ann")
    Table.objects.filter(name="v").update(owner="user:ann")
    ann = access.named("user:ann")

    def give(owner: str, actor: access.Principal) -> None:
        commit(
            [annotation_operations.SetOwner(target=VIEW, is_table=True, owner=owner)], actor=actor
        )

    with unchanged(), pytest.raises(PermissionDenied, match="with the privileges of its owner"):
        give("root", ann)
    give("group:team", ann)
    assert Table.objects.get(name="v").owner == "group:team"
    give("root", SYSTEM)
    assert Table.objects.get(name="v").owner == "root"


@pytest.mark.parametrize("reads", ["source", "nothing"])
def test_a_limited_key_makes_nobody_owner_of_a_view_of_what_it_may_not_read(view, reads):
    """The refreshes have the rights of the owner, without the limits of the key."""
    make_principal("user:ann", PrincipalKind.USER, PrincipalLevel.GRANTED)
    limit = make_namespace("views").pk
    commit([table_operations.RenameTable(table=VIEW, new=("views", "v"))], actor=SYSTEM)
    everything = access.On.namespace(("views",))
    grants.set_grant(actor=SYSTEM, on=everything, principal="user:ann", privileges=Privilege.ALL)
    if reads == "source":
        source = access.On.table(SOURCE)
        grants.set_grant(actor=SYSTEM, on=source, principal="user:ann", privileges=Privilege.READ)
    ann = access.named("user:ann")
    own = annotation_operations.SetOwner(target=("views", "v"), is_table=True, owner="user:ann")
    with unchanged(), pytest.raises(PermissionDenied, match="with a key that is limited"):
        commit([own], actor=ann.through(within=limit))
    assert tasks.refresh_views() == 1  # as its former owner
    Job.objects.all().delete()
    commit([own], actor=ann)
    assert tasks.refresh_views() == (reads == "source")


def test_a_limited_key_makes_its_principal_owner_of_a_view_of_what_it_may_read(view):
    make_principal("user:ann", PrincipalKind.USER, PrincipalLevel.GRANTED)
    everything = access.On.namespace(("ws",))
    grants.set_grant(actor=SYSTEM, on=everything, principal="user:ann", privileges=Privilege.ALL)
    own = annotation_operations.SetOwner(target=VIEW, is_table=True, owner="user:ann")
    limited = access.named("user:ann").through(within=view.table.namespace_id)
    commit([own], actor=limited)
    assert Table.objects.get(name="v").owner == "user:ann"


@shared_cases("name", UNKNOWN)
@shared_cases("counts_inactive", [False, True])
def test_an_unknown_committer_does_not_exist(name, counts_inactive):
    assert access.committer(name, counts_inactive=counts_inactive) is None


def test_an_inactive_committer_counts_only_if_requested():
    committer = make_principal("etl", PrincipalKind.SERVICE, PrincipalLevel.READ)
    Principal.objects.filter(name="etl").update(is_active=False)
    inactive = access.committer("etl")
    assert inactive is not None
    assert (inactive.everywhere, inactive.ceiling, inactive.ids) == (NOTHING, NOTHING, ())
    assert access.committer("etl", counts_inactive=True) == committer


@pytest.mark.parametrize(("setting", "held"), [("none", NOTHING), ("read", READ_ONLY)])
def test_anonymous_commits_have_the_level_of_the_setting(settings, setting, held):
    settings.MONODON_ANONYMOUS = setting
    for counts_inactive in (False, True):
        committer = access.committer("anonymous", counts_inactive=counts_inactive)
        assert committer is not None
        assert (committer.everywhere, committer.ceiling) == (held, held)
