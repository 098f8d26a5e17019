"""Files that a purge left in place stay those of the purged table: no stranger gets them with a location.

Files remain that no metadata names (orphans), and those that a client writes while the purge runs.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.http import HttpResponse
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.models import (
    Job,
    JobKind,
    JobStatus,
    Namespace,
    Principal,
    RemainingFiles,
    Table,
    TrashItem,
)
from catalog.privileges import Privilege
from catalog.services.access import api_keys
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.maintenance import job_runner
from catalog.services.recovery import remaining_files
from catalog.services.storage.file_owners import Belonging
from catalog.services.storage.table_files import TableFiles
from catalog.services.tables.table_operations import DropTable
from catalog.storage import locations, stores
from tasks import maintenance
from tests.access.protocols import KEY, give, make_requester
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.api.iceberg.test_views import make_view
from tests.cases import shared_cases
from tests.factories import (
    ICEBERG_SCHEMA,
    files,
    make_iceberg_table,
    make_namespace,
    make_root,
    make_table,
    unchanged,
)
from tests.security.foreign import COMMIT, World, message_of, refusal, snapshot, updates
from tests.security.location_operations import ICEBERG, LANCE, iceberg_operations, lance_operations
from tests.stores.fixtures import Storage

pytestmark = pytest.mark.django_db

VICTIM = ("secret", "t")
ORPHANS = ("place/t/data/orphan.parquet", "apart/data/orphan.parquet")
METADATA = "place/t/metadata/orphan.metadata.json"
REGISTRATIONS = {"registerTable", "registerTable overwrite", "registerView"}
PATHS = {name for name in ICEBERG if "path" in name}


@pytest.fixture(autouse=True)
def _purge_at_once(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    settings.MONODON_TRASH_SECONDS = 0
    settings.MONODON_PURGE_GRACE_SECONDS = 0


@dataclass(frozen=True)
class Stranger:
    """A principal with all privileges in the namespace ``ns``, and none elsewhere."""

    storage: Storage

    def uri(self, name: str) -> str:
        return locations.iceberg_uri(self.storage.location(name))

    def operations(self) -> dict[str, Callable[[str], HttpResponse]]:
        lance, iceberg = Lance(KEY), Iceberg(KEY)
        clients: dict[str, Callable[[str], HttpResponse]] = {
            name: lambda at, send=send: send(self.storage.location(at))
            for name, send in lance_operations(lance).items()
        }
        clients |= {
            name: lambda at, send=send: send(self.uri(at))
            for name, send in iceberg_operations(iceberg).items()
        }

        def create(at: str) -> HttpResponse:
            change = {
                "identifier": {"namespace": ["ns"], "name": "new"},
                "requirements": [{"type": "assert-create"}],
                "updates": [
                    {"action": "upgrade-format-version", "format-version": 2},
                    {"action": "add-schema", "schema": ICEBERG_SCHEMA},
                    {"action": "set-current-schema", "schema-id": -1},
                    {"action": "add-spec", "spec": {"fields": []}},
                    {"action": "set-default-spec", "spec-id": -1},
                    {"action": "set-location", "location": self.uri(at)},
                ],
            }
            body = {"table-changes": [change]}
            return iceberg.call("POST", "transactions/commit", body)

        def create_namespace(at: str) -> HttpResponse:
            body = {"namespace": ["ns", "child"], "properties": {"location": self.uri(at)}}
            return iceberg.call("POST", "namespaces", body)

        def create_lance_namespace(at: str) -> HttpResponse:
            body = {"mode": "CREATE", "properties": {"location": self.uri(at)}}
            return lance.call("POST", "/v1/namespace/ns$child/create", body)

        def move_namespace(at: str) -> HttpResponse:
            body = {"updates": {"location": self.uri(at)}}
            return iceberg.call("POST", "namespaces/ns/properties", body)

        clients["commitTransaction creation"] = create
        clients["createNamespace"] = create_namespace
        clients["CreateNamespace"] = create_lance_namespace
        clients["updateProperties"] = move_namespace
        return clients


ALL = [
    *(name for name in (*LANCE, *ICEBERG) if name not in REGISTRATIONS),
    "commitTransaction creation",
    "createNamespace",
    "CreateNamespace",
    "updateProperties",
]


@pytest.fixture
def stranger(storage: Storage) -> Stranger:
    make_root()
    requester = make_requester()
    namespace = make_namespace("ns")
    storage.bind(namespace)
    give(requester, Privilege.ALL, namespace)
    make_table("ns", "t")
    make_iceberg_table("ns", "i")
    make_view("ns", "v")
    return Stranger(storage)


def make_victim(stranger: Stranger) -> Table:
    properties = {"write.data.path": stranger.uri("apart/data")}
    make_iceberg_table(*VICTIM, location=stranger.uri("place/t"), properties=properties)
    return Table.objects.named(VICTIM).get()


def leave_orphans(stranger: Stranger, table: Table) -> None:
    for name in ORPHANS:
        stranger.storage.write(stranger.storage.location(name), b"rows")
    listed = next(name for name in files(table.location) if name.endswith(".metadata.json"))
    content = stranger.storage.read(f"{table.location}/{listed}")
    stranger.storage.write(stranger.storage.location(METADATA), content)


def purge(table: Table) -> Job:
    if table.format == "iceberg":
        iceberg_tables.drop_table(actor=SYSTEM, table=table.identifier, purge=True)
    else:
        commit([DropTable(table=table.identifier)], actor=SYSTEM)
    job = Job.objects.get(kind=JobKind.PURGE_TABLE, table=table)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == JobStatus.SUCCEEDED, job.error
    TrashItem.objects.filter(table=table).delete()  # as a periodic task does later
    return job


@pytest.fixture
def purged(stranger: Stranger) -> Table:
    """A purged table with two directories, in which files remain that no metadata names."""
    table = make_victim(stranger)
    leave_orphans(stranger, table)
    purge(table)
    table.refresh_from_db()
    return table


def status_of(stranger: Stranger, name: str, at: str) -> int:
    return stranger.operations()[name](at).status_code


# --- what strangers may not choose ----------------------------------------------------------------


@shared_cases("name", ALL)
@shared_cases("at", ["place/t", "place/t/data", "place/t/new", "apart/data", "apart/data/new"])
def test_a_stranger_gets_no_directory_with_remaining_files(stranger, purged, name, at):
    before = files(stranger.storage.root)
    with unchanged():
        response = stranger.operations()[name](at)
    assert response.status_code == 409, response.content
    assert "secret" not in response.content.decode()
    assert files(stranger.storage.root) == before


@shared_cases("name", [name for name in ALL if name not in PATHS])
@shared_cases("at", ["place", "apart"])
def test_a_stranger_gets_no_location_around_remaining_files(stranger, purged, name, at):
    before = files(stranger.storage.root)
    with unchanged():
        response = stranger.operations()[name](at)
    assert response.status_code == 409, response.content
    assert files(stranger.storage.root) == before


@shared_cases("name", sorted(REGISTRATIONS))
def test_a_stranger_registers_no_remaining_metadata(stranger, purged, name):
    before = files(stranger.storage.root)
    with unchanged():
        response = stranger.operations()[name](METADATA)
    assert response.status_code == 400, response.content
    assert "does not belong to table 'ns." in response.json()["error"]["message"]
    assert files(stranger.storage.root) == before


def test_a_stranger_registers_no_metadata_that_names_the_location(stranger, purged):
    content = stranger.storage.read(stranger.storage.location(METADATA))
    stranger.storage.write(stranger.storage.location("mine/x.metadata.json"), content)
    with unchanged():
        assert status_of(stranger, "registerTable", "mine/x.metadata.json") == 409


@pytest.mark.parametrize("name", sorted(PATHS))
def test_a_path_around_remaining_files_does_not_own_them(stranger, purged, name):
    """A path may contain directories of other tables: the deepest directory decides."""
    assert status_of(stranger, name, "place") == 200
    table = Table.objects.named(("ns", "i" if name.startswith("update") else "new")).get()
    orphan = stranger.storage.location(ORPHANS[0])
    owner = TableFiles(table).classify([orphan])[orphan]
    assert (owner.belonging, owner.table_ids) == (Belonging.OTHER, {purged.pk})
    assert TableFiles(table).prefixes()[1] == [stranger.storage.location("place/t")]


def test_a_table_in_a_namespace_around_the_location_does_not_own_remaining_files(stranger, purged):
    """The namespace was there first, so its tables are created; the location of each is new."""
    row = Namespace.objects.named(("ns",)).get()
    path = stranger.storage.location("place")
    Namespace.objects.filter(pk=row.pk).update(
        location=path, properties={"location": stranger.uri("place")}
    )
    body = {"name": "new", "schema": ICEBERG_SCHEMA}
    answer = Iceberg(KEY).send("POST", "namespaces/ns/tables", body)
    assert answer["metadata"]["location"].startswith(stranger.uri("place/new-"))
    assert status_of(stranger, "createTable", "place/t") == 409


@pytest.mark.parametrize("when", ["dropped", "purging", "failed", "canceled"])
def test_files_are_not_free_before_the_purge_has_succeeded(stranger, when):
    table = make_victim(stranger)
    leave_orphans(stranger, table)
    iceberg_tables.drop_table(actor=SYSTEM, table=VICTIM, purge=True)
    status = {"dropped": "queued", "purging": "running"}.get(when, when)
    lease = timezone.now() + timedelta(hours=1)
    Job.objects.filter(table=table).update(status=status, lease_until=lease)
    for name in ALL:
        for at in ("place/t", "apart/data"):
            with unchanged():
                assert status_of(stranger, name, at) == 409, (name, at)


def test_a_renamed_table_keeps_what_its_purge_left(stranger):
    table = make_victim(stranger)
    leave_orphans(stranger, table)
    make_namespace("other")
    iceberg_tables.rename_table(actor=SYSTEM, table=VICTIM, new=("other", "renamed"))
    table = Table.objects.select_related("namespace").get(pk=table.pk)
    purge(table)
    with unchanged():
        assert status_of(stranger, "createTable", "place/t") == 409


def test_a_moved_table_keeps_what_remains_in_its_former_location(stranger):
    table = make_victim(stranger)
    leave_orphans(stranger, table)
    move = {"action": "set-location", "location": stranger.uri("moved/t")}
    Iceberg(_administrator()).send(
        "POST", "namespaces/secret/tables/t", {"requirements": [], "updates": [move]}
    )
    purge(Table.objects.select_related("namespace").get(pk=table.pk))
    for name in ("createTable", "createTable write.data.path", "DeclareTable", "createNamespace"):
        with unchanged():
            assert status_of(stranger, name, "place/t") == 409, name


def test_what_is_written_while_a_lance_table_is_purged_is_not_free(stranger, monkeypatch):
    table = make_table(*VICTIM, location=stranger.storage.location("place/t"))
    remove = job_runner._purge_directory

    def write_meanwhile(job: Job, row: Table) -> None:
        remove(job, row)
        stranger.storage.write(f"{row.location}/data/late.lance", b"rows")

    monkeypatch.setattr(job_runner, "_purge_directory", write_meanwhile)
    purge(table)
    for name in ("DeclareTable", "RegisterTable", "createTable", "updateTable write.data.path"):
        with unchanged():
            assert status_of(stranger, name, "place/t") == 409, name


@pytest.mark.parametrize("is_orphan", [True, False])
def test_remaining_files_are_not_readable_as_those_of_no_table(
    world: World, attacker: Iceberg, tmp_path: Path, settings: Any, is_orphan: bool
) -> None:
    settings.MONODON_TRASH_SECONDS = 0
    settings.MONODON_ALLOWED_ROOTS = [str(tmp_path / "lake")]
    path = tmp_path / "lake" / "x" / "data" / "orphan.parquet"
    path.parent.mkdir(parents=True)
    if is_orphan:
        make_iceberg_table("other", "t", location=f"file://{tmp_path}/lake/x")
        path.write_bytes(b"rows")
        purge(Table.objects.named(("other", "t")).get())
    path.write_bytes(b"rows")
    body = {"requirements": [], "updates": updates(snapshot("data", f"file://{path}"))}
    attacker.send("POST", COMMIT, body)  # data files are checked when a scan is planned
    if is_orphan:
        with unchanged():
            answer = attacker.call("POST", f"{COMMIT}/plan", {})
        assert message_of(answer) == refusal(f"file://{path}")
    else:
        attacker.send("POST", f"{COMMIT}/plan", {})


# --- who may, and when ------------------------------------------------------------------------------


def _administrator() -> str:
    return api_keys.create_api_key(actor=SYSTEM, name="administrator")[1]


def _requester() -> Any:
    return Principal.objects.get(name="who")


CREATIONS = [
    ("DeclareTable", "place/t"),
    ("RegisterTable", "place/t"),
    ("createTable", "place/t"),
    ("createTable staged", "place/t"),
    ("createTable write.data.path", "apart/data"),
    ("updateTable write.metadata.path", "place/t"),
    ("updateTable", "place/t/data"),
    ("commitTransaction creation", "place"),
    ("createView", "place/t"),
    ("registerTable", METADATA),
    ("createNamespace", "place"),
    ("updateProperties", "apart"),
]


@pytest.mark.parametrize(("name", "at"), CREATIONS)
def test_a_manager_of_the_former_namespace_may_take_over_the_files(stranger, purged, name, at):
    namespace = Namespace.objects.named(("secret",)).get()
    requester = _requester()
    requester.grants.create(mask=Privilege.ALL.value, namespace=namespace)
    response = stranger.operations()[name](at)
    assert response.status_code in {200, 204}, response.content


def test_less_than_manage_is_not_enough(stranger, purged):
    namespace = Namespace.objects.named(("secret",)).get()
    requester = _requester()
    mask = Privilege.BROWSE | Privilege.READ | Privilege.WRITE | Privilege.CREATE
    requester.grants.create(mask=mask.value, namespace=namespace)
    for name in ("DeclareTable", "createTable", "createTable write.data.path"):
        with unchanged():
            response = stranger.operations()[name]("place/t")
        assert response.status_code == 409
        assert "secret.t" in response.content.decode()  # it may browse the table


def test_an_administrator_may_take_over_the_files(stranger, purged):
    iceberg = Iceberg(_administrator())
    body = {"name": "new", "schema": ICEBERG_SCHEMA, "location": stranger.uri("place/t")}
    iceberg.send("POST", "namespaces/secret/tables", body)
    table = Table.objects.named(("secret", "new")).get()
    orphan = stranger.storage.location(ORPHANS[0])
    assert TableFiles(table).may_change(orphan)


@pytest.mark.parametrize(("name", "at"), [c for c in CREATIONS if c[1] != METADATA])
def test_a_location_without_remaining_files_is_free(stranger, name, at):
    purge(make_victim(stranger))
    assert not RemainingFiles.objects.exists()
    response = stranger.operations()[name](at)
    assert response.status_code in {200, 204}, response.content


def test_files_that_were_written_after_the_purge_do_not_count(stranger):
    purge(make_victim(stranger))
    for name in ORPHANS:
        stranger.storage.write(stranger.storage.location(name), b"rows")
    assert status_of(stranger, "createTable", "place/t") == 200
    assert status_of(stranger, "updateTable write.data.path", "apart/data") == 200


def test_the_name_can_be_used_again_at_once(stranger, purged):
    """By a principal that may only create tables there. The location of the new table is new."""
    give(_requester(), Privilege.CREATE, Namespace.objects.named(("secret",)).get())
    body = {"name": "t", "schema": ICEBERG_SCHEMA}
    answer = Iceberg(KEY).send("POST", "namespaces/secret/tables", body)
    assert answer["metadata"]["location"] != stranger.uri("place/t")
    Lance(KEY).post("/v1/table/secret$u/declare", {})


def test_files_of_another_table_in_a_shared_directory_do_not_count(stranger):
    table = make_victim(stranger)
    properties = {"write.data.path": stranger.uri("apart/data")}
    make_iceberg_table("secret", "second", properties=properties)
    stranger.storage.write(stranger.storage.location(ORPHANS[1]), b"rows")
    job = purge(table)
    assert (job.error, RemainingFiles.objects.exists()) == ("", False)
    with unchanged():
        assert status_of(stranger, "createTable", "apart/data") == 409  # of the second table


# --- what the server remembers ----------------------------------------------------------------------


def test_the_job_says_that_files_remain(stranger, purged):
    job = Job.objects.get(table=purged)
    assert job.error == "files remain in its directories"


def test_a_location_becomes_free_after_the_files_were_removed(stranger, purged):
    for name in (*ORPHANS, METADATA):
        with unchanged():
            assert status_of(stranger, "createTable", "place/t") == 409
        stranger.storage.remove(stranger.storage.location(name))
        assert RemainingFiles.objects.filter(table=purged).exists()
        _review(later=True)
    assert not RemainingFiles.objects.exists()
    assert status_of(stranger, "createTable", "place/t") == 200


def _review(*, later: bool = False) -> int:
    if later:
        RemainingFiles.objects.update(checked_at=timezone.now() - timedelta(days=1))
    return maintenance.review_remaining_files()


def test_directories_are_listed_only_once_an_hour(stranger, purged):
    for name in (*ORPHANS, METADATA):
        stranger.storage.remove(stranger.storage.location(name))
    assert _review() == 0
    assert RemainingFiles.objects.exists()
    RemainingFiles.objects.update(checked_at=timezone.now() - timedelta(minutes=61))
    assert _review() == 1
    assert not RemainingFiles.objects.exists()


def test_what_was_written_since_the_purge_does_not_delay_the_end(stranger, purged):
    yesterday = timezone.now() - timedelta(days=1)
    Table.objects.filter(pk=purged.pk).update(dropped_at=yesterday)
    Job.objects.filter(table=purged).update(finished_at=yesterday)
    assert _review(later=True) == 1
    assert not RemainingFiles.objects.exists()


def test_nothing_becomes_free_while_the_storage_fails(stranger, purged, monkeypatch):
    def fail(self: Any, directory: str, **options: Any) -> Any:
        raise OSError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(type(stores.store_of(purged.location)), "list_tree", fail)
        assert _review(later=True) == 1
    assert RemainingFiles.objects.filter(table=purged).exists()
    with unchanged():
        assert status_of(stranger, "createTable", "place/t") == 409


@pytest.mark.parametrize("storage", ["local"], indirect=True)
def test_nothing_becomes_free_while_a_link_hides_the_files(stranger, purged):
    Path(stranger.storage.location("apart/data/orphan.parquet")).unlink()
    location = Path(purged.location)
    hidden = location.rename(location.with_name("hidden"))
    (location.parent / "empty").mkdir()
    location.symlink_to(location.parent / "empty")
    _review(later=True)
    location.unlink()
    hidden.rename(location)
    assert RemainingFiles.objects.filter(table=purged).exists()
    with unchanged():
        assert status_of(stranger, "createTable", "place/t") == 409


def test_a_purge_that_cannot_list_the_directories_leaves_them_taken(stranger, monkeypatch):
    table = make_victim(stranger)

    def fail(self: Any, directory: str, **options: Any) -> Any:
        raise OSError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(type(stores.store_of(table.location)), "list_tree", fail)
        purge(table)
    with unchanged():
        assert status_of(stranger, "createTable", "place/t") == 409
    _review(later=True)
    assert status_of(stranger, "createTable", "place/t") == 200


def test_files_are_recorded_before_the_purge_ends(stranger, monkeypatch):
    """Otherwise the location would be free in between."""
    table = make_victim(stranger)
    leave_orphans(stranger, table)
    finish = jobs.finish
    recorded = []

    def check(job: Job, *arguments: Any) -> None:
        recorded.append(RemainingFiles.objects.filter(table=job.table_id).exists())
        finish(job, *arguments)

    monkeypatch.setattr(jobs, "finish", check)
    purge(table)
    assert recorded == [True]


@pytest.mark.parametrize("has_orphans", [True, False])
def test_directories_of_former_purges_are_taken_until_they_are_reviewed(stranger, has_orphans):
    """Servers of older releases have not looked for remaining files."""
    table = make_victim(stranger)
    if has_orphans:
        leave_orphans(stranger, table)
    purge(table)
    RemainingFiles.objects.all().delete()
    make_iceberg_table("secret", "present", location=stranger.uri("present"))
    iceberg_tables.unregister_table(actor=SYSTEM, table=("secret", "present"))
    migration = importlib.import_module("catalog.migrations.0051_former_purges")
    with connection.cursor() as cursor:
        cursor.execute(migration.RECORD)
        cursor.execute(migration.RECORD)
    assert list(RemainingFiles.objects.values_list("table", "checked_at")) == [(table.pk, None)]
    with unchanged():
        assert status_of(stranger, "createTable", "place/t") == 409
    assert _review() == 1
    assert status_of(stranger, "createTable", "place/t") == (409 if has_orphans else 200)


def test_too_many_files_to_list_count_as_remaining(stranger, monkeypatch):
    """Such as in a directory that contains those of many other tables."""
    monkeypatch.setattr(remaining_files, "_MAX_FILES", 2)
    table = make_victim(stranger)
    properties = {"write.data.path": stranger.uri("apart/data")}
    make_iceberg_table("secret", "second", properties=properties)
    for number in range(3):
        path = stranger.storage.location(f"apart/data/{number}.parquet")
        stranger.storage.write(path, b"rows")
    purge(table)
    assert RemainingFiles.objects.filter(table=table).exists()
