"""Credentials of a staged creation, which outlast it, open no table that another principal creates later."""

import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.http import HttpResponse
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.errors import LocationTaken
from catalog.models import (
    AuditEvent,
    IcebergPath,
    Job,
    JobKind,
    JobStatus,
    Namespace,
    PrincipalLevel,
    RemainingFiles,
    StagedLocation,
    StorageProfile,
    Table,
    TrashItem,
)
from catalog.privileges import Privilege
from catalog.services.access import api_keys, authentication
from catalog.services.audit import issued_credentials
from catalog.services.engine import audit_records
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.maintenance import job_runner
from catalog.services.recovery import remaining_files
from catalog.services.storage import credentials, profiles
from catalog.services.storage.client_sessions import staged_locations
from catalog.services.storage.file_owners import Belonging
from catalog.services.storage.table_files import TableFiles
from tasks import maintenance
from tests import vending
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.api.iceberg.test_idempotency import new_key
from tests.factories import ICEBERG_SCHEMA, make_namespace, unchanged
from tests.security.location_operations import iceberg_operations, lance_operations, view_body
from tests.stores.fixtures import MakeProfile
from tests.stores.s3 import Moto
from tests.vending import DELEGATED

CREATOR = Privilege.BROWSE | Privilege.CREATE
pytestmark = pytest.mark.django_db


@dataclass
class Lake:
    store: Moto
    base: str
    """The location of the namespace ``ns``, in which two tenants may create tables."""
    ann: str
    """The key of a tenant that stages creations."""
    bob: str

    def stage(self, location: str, key: str = "", **headers: str) -> HttpResponse:
        body = {"name": "t", "schema": ICEBERG_SCHEMA, "stage-create": True, "location": location}
        client = Iceberg(key or self.ann)
        return client.call("POST", "namespaces/ns/tables", body, headers=DELEGATED | headers)

    def principal(self, key: str) -> Any:
        return authentication.authenticate(key)


def make_tenant(name: str, privileges: Privilege) -> str:
    row, key = api_keys.create_api_key(actor=SYSTEM, name=name, level=PrincipalLevel.GRANTED)
    grants = vending.principal_of(row).grants
    grants.create(mask=privileges.value, namespace=Namespace.objects.get(name="ns"))
    return key


@pytest.fixture
def lake(moto_s3: Moto, make_profile: MakeProfile) -> Lake:
    fields = moto_s3.profile_fields() | {"client_access": "sts", "role": moto_s3.role}
    profile = make_profile(name="lake", roots=[f"s3://{moto_s3.new_bucket()}/root"], **fields)
    namespace = make_namespace("ns")
    Namespace.objects.filter(pk=namespace.pk).update(storage_profile=profile)
    bob = make_tenant("bob", Privilege.ALL)
    client = Iceberg(bob)
    made = client.post("namespaces/ns/tables", {"name": "i", "schema": ICEBERG_SCHEMA})
    client.post("namespaces/ns/views", view_body("v"))
    base = made["metadata"]["location"].rpartition("/")[0]
    return Lake(moto_s3, base, make_tenant("ann", CREATOR), bob)


def expire() -> None:
    """As if the lifetime of all credentials had passed."""
    StagedLocation.objects.update(until=timezone.now() - timedelta(seconds=1))
    credentials.discard_cache()


@pytest.mark.parametrize("place", ["at", "inside", "around"])
def test_no_other_principal_gets_the_location_before_they_expire(lake: Lake, place: str):
    location = f"{lake.base}/dir/orders"
    staged = lake.stage(location)
    assert staged.status_code == 200, staged.content
    other = {"at": location, "inside": f"{location}/x", "around": f"{lake.base}/dir"}[place]
    operations = {**iceberg_operations(Iceberg(lake.bob)), **lance_operations(Lance(lake.bob))}
    put = lake.store.client().put_object
    bucket, _, key = other.removeprefix("s3://").partition("/")
    table = Table.objects.get(name="i")
    metadata = f"{other}/v1.metadata.json"
    document = table.iceberg_metadata.metadata_location.removeprefix(f"s3://{bucket}/")
    content = lake.store.client().get_object(Bucket=bucket, Key=document)["Body"].read()
    moved = content.replace(table.location.encode(), other.encode())
    put(Bucket=bucket, Key=f"{key}/v1.metadata.json", Body=moved)
    refused = 0
    for name, send in operations.items():
        if "View" in name and "register" in name:
            continue  # a view's file is another format, and is refused for that
        form = metadata if name.startswith("registerTable") else other
        with unchanged():
            answer = send(form)
        assert answer.status_code in {400, 409}, (name, answer.content)
        if answer.status_code == 409:
            assert b"belongs to another" in answer.content, (name, answer.content)
            assert b"has staged the creation" in answer.content, (name, answer.content)
            refused += 1
        else:
            assert "Batch" in name or "RegisterTable" in name, (name, answer.content)
    assert refused >= 10
    with unchanged():
        answer = lake.stage(other, lake.bob)
    assert answer.status_code == 409
    assert b"storage-credentials" not in answer.content


def test_the_principal_itself_creates_the_table(lake: Lake):
    location = f"{lake.base}/orders"
    content = lake.stage(location).json()
    client = vending.client_of(lake.store, content["config"])
    bucket, _, directory = location.removeprefix("s3://").partition("/")
    client.put_object(Bucket=bucket, Key=f"{directory}/data/1", Body=b"x")
    metadata = content["metadata"]
    updates = [
        {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": metadata["format-version"]},
        {"action": "add-schema", "schema": metadata["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": metadata["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": metadata["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": location},
    ]
    body = {"requirements": [{"type": "assert-create"}], "updates": updates}
    answer = Iceberg(lake.ann).call("POST", "namespaces/ns/tables/t", body)
    assert answer.status_code == 200, answer.content
    assert Table.objects.get(name="t").location == location


def test_others_get_the_location_when_they_have_expired(lake: Lake):
    location = f"{lake.base}/orders"
    repeated = {"Idempotency-Key": new_key()}
    assert lake.stage(location, **repeated).status_code == 200
    expire()
    body = {"name": "orders", "schema": ICEBERG_SCHEMA, "location": location}
    Iceberg(lake.bob).post("namespaces/ns/tables", body)
    for headers in ({}, repeated):
        with unchanged():
            answer = lake.stage(location, **headers)
        assert answer.status_code == 409, answer.content
        assert b"storage-credentials" not in answer.content


def test_a_repeated_creation_gets_none_without_the_right_to_create(lake: Lake):
    location = f"{lake.base}/orders"
    repeated = {"Idempotency-Key": new_key()}
    assert lake.stage(location, **repeated).status_code == 200
    expire()
    grants = lake.principal(lake.ann)
    Namespace.objects.get(name="ns").grants.filter(principal__in=grants.ids).delete()
    with unchanged():
        answer = lake.stage(location, **repeated)
    assert answer.status_code in {403, 404}, answer.content
    assert b"storage-credentials" not in answer.content
    assert AuditEvent.objects.filter(action="credentials.issue").count() == 1


def test_a_location_is_reserved_only_if_no_other_table_has_files_there(lake: Lake):
    """A table may be created between the answer to the request and its credentials."""
    ann = lake.principal(lake.ann)
    table = Table.objects.get(name="i")
    IcebergPath.objects.create(table=table, path=f"{lake.base}/path")
    for location in (table.location, f"{table.location}/x", f"{lake.base}/path/x", lake.base):
        with unchanged((StagedLocation,)), pytest.raises(LocationTaken):
            staged_locations.reserve(ann, location, timedelta(seconds=60))
    staged_locations.reserve(ann, f"{lake.base}/free", timedelta(seconds=60))
    staged_locations.reserve(ann, f"{lake.base}/free", timedelta(seconds=30))
    row = StagedLocation.objects.get()
    assert row.until > timezone.now() + timedelta(seconds=45)


def test_expired_reservations_are_removed(lake: Lake):
    ann = lake.principal(lake.ann)
    staged_locations.reserve(ann, f"{lake.base}/old", timedelta(seconds=60))
    expire()
    staged_locations.reserve(ann, f"{lake.base}/new", timedelta(seconds=60))
    assert [row.location for row in StagedLocation.objects.all()] == [f"{lake.base}/new"]


@pytest.mark.django_db(transaction=True)
def test_one_of_two_principals_gets_a_location(lake: Lake):
    barrier, results = threading.Barrier(2), []

    def reserve(key: str) -> None:
        try:
            principal = lake.principal(key)
            barrier.wait(10)
            staged_locations.reserve(principal, f"{lake.base}/orders", timedelta(seconds=60))
            results.append("reserved")
        except LocationTaken:
            results.append("taken")
        finally:
            connection.close()

    threads = [threading.Thread(target=reserve, args=(key,)) for key in (lake.ann, lake.bob)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == ["reserved", "taken"]
    assert StagedLocation.objects.count() == 1


@pytest.fixture
def _purge_at_once(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    settings.MONODON_TRASH_SECONDS = settings.MONODON_PURGE_GRACE_SECONDS = 0


@pytest.mark.usefixtures("_purge_at_once")
def test_credentials_of_a_purged_table_open_no_table_that_takes_its_location(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
):
    carl = make_tenant("carl", CREATOR)
    body = {"name": "t", "schema": ICEBERG_SCHEMA, "location": f"{lake.base}/orders"}
    made = Iceberg(lake.ann).call("POST", "namespaces/ns/tables", body, headers=DELEGATED)
    assert made.status_code == 200, made.content
    client = vending.client_of(lake.store, made.json()["config"])
    iceberg_tables.drop_table(actor=SYSTEM, table=("ns", "t"), purge=True)
    job = Job.objects.get(kind=JobKind.PURGE_TABLE)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    TrashItem.objects.all().delete()  # as a periodic task does later

    def create() -> HttpResponse:
        return Iceberg(carl).call("POST", "namespaces/ns/tables", body)

    def review() -> None:
        RemainingFiles.objects.update(checked_at=timezone.now() - timedelta(hours=2))
        maintenance.review_remaining_files()

    review()
    with unchanged():
        assert create().status_code == 409
    bucket, _, directory = f"{lake.base}/orders".removeprefix("s3://").partition("/")
    client.put_object(Bucket=bucket, Key=f"{directory}/data/late", Body=b"x")  # they still write

    lake.store.client().delete_object(Bucket=bucket, Key=f"{directory}/data/late")
    monkeypatch.setattr(remaining_files, "read_clock", lambda: timezone.now() + timedelta(days=1))
    review()
    assert not RemainingFiles.objects.exists()
    assert create().status_code == 200


def test_an_administrator_may_set_the_location_of_a_namespace_around_it(lake: Lake):
    """Otherwise a tenant that stages creations would prevent it for as long as it likes."""
    assert lake.stage(f"{lake.base}/dir/orders").status_code == 200

    def create(at: str, key: str, name: str = "child") -> HttpResponse:
        body = {"namespace": ["ns", name], "properties": {"location": at}}
        return Iceberg(key).call("POST", "namespaces", body)

    _, admin = api_keys.create_api_key(actor=SYSTEM, name="admin")
    around, at = f"{lake.base}/dir", f"{lake.base}/dir/orders"
    for place, key in ((around, lake.bob), (at, admin), (f"{at}/x", admin)):
        with unchanged():
            answer = create(place, key)
        assert answer.status_code == 409, answer.content
        assert (b"'ann'" in answer.content) == (key == admin), answer.content
    assert create(around, admin).status_code == 200
    body = {"name": "t", "schema": ICEBERG_SCHEMA, "location": at}
    with unchanged():
        assert Iceberg(admin).call("POST", "namespaces/ns%1Fchild/tables", body).status_code == 409


def purged(lake: Lake, *, events: int = 0) -> Table:
    """A table at ``orders`` for which a client got credentials; it has been purged."""
    body = {"name": "t", "schema": ICEBERG_SCHEMA, "location": f"{lake.base}/orders"}
    made = Iceberg(lake.ann).call("POST", "namespaces/ns/tables", body, headers=DELEGATED)
    assert made.status_code == 200, made.content
    table = Table.objects.get(name="t")
    for _ in range(events):
        audit_records.record(SYSTEM, "table.commit", "ns.t", table=table)
    iceberg_tables.drop_table(actor=SYSTEM, table=("ns", "t"), purge=True)
    job = Job.objects.get(kind=JobKind.PURGE_TABLE)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    table.refresh_from_db()
    return table


def review(table: Table, dropped_ago: timedelta) -> bool:
    """Review the directories as if the table had been dropped earlier; returns True if they are taken."""
    Table.objects.filter(pk=table.pk).update(dropped_at=timezone.now() - dropped_ago)
    RemainingFiles.objects.update(checked_at=timezone.now() - timedelta(hours=2))
    maintenance.review_remaining_files()
    return RemainingFiles.objects.filter(table=table).exists()


@pytest.mark.usefixtures("_purge_at_once")
def test_many_commits_do_not_hide_credentials(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    """Only the newest events of the table are read. Its owner could add as many as it takes."""
    monkeypatch.setattr(issued_credentials, "_MAX_EVENTS", 3)
    table = purged(lake, events=3)
    assert review(table, timedelta(hours=1))
    assert review(table, timedelta(hours=11))
    assert not review(table, timedelta(hours=13))


@pytest.mark.usefixtures("_purge_at_once")
@pytest.mark.parametrize(("client_access", "minutes"), [("sts", 0), ("signing", 31), ("none", 0)])
def test_access_of_which_there_is_no_record_keeps_the_location_taken(
    lake: Lake, client_access: str, minutes: int
):
    """Signatures are not recorded, and stores accept them before their time, too."""
    StorageProfile.objects.update(client_access=client_access)
    profiles.discard_cache()
    body = {"name": "t", "schema": ICEBERG_SCHEMA, "location": f"{lake.base}/orders"}
    assert Iceberg(lake.ann).call("POST", "namespaces/ns/tables", body).status_code == 200
    table = Table.objects.get(name="t")
    iceberg_tables.drop_table(actor=SYSTEM, table=("ns", "t"), purge=True)
    job_runner.run_job(Job.objects.get(kind=JobKind.PURGE_TABLE).pk)
    is_taken = RemainingFiles.objects.filter(table=table).exists()
    assert is_taken == bool(minutes)
    if minutes:
        assert review(table, timedelta(minutes=minutes, seconds=-10))
        assert not review(table, timedelta(minutes=minutes, seconds=10))


@pytest.mark.usefixtures("_purge_at_once")
def test_files_that_were_written_with_late_credentials_keep_the_location_taken(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
):
    end = timezone.now() + timedelta(hours=5)
    monkeypatch.setattr(issued_credentials, "last_end", lambda table: end)
    table = purged(lake)
    Job.objects.update(finished_at=timezone.now() - timedelta(hours=4))
    bucket, _, directory = f"{lake.base}/orders".removeprefix("s3://").partition("/")
    late = {"Bucket": bucket, "Key": f"{directory}/data/late"}
    lake.store.client().put_object(Body=b"x", **late)
    # The file may have been written before the end, by another clock.
    end = timezone.now() - timedelta(minutes=30)
    assert review(table, timedelta(hours=9))
    lake.store.client().delete_object(**late)
    assert not review(table, timedelta(hours=9))


def register_from(lake: Lake, directory: str) -> Table:
    """Another principal registers a table with a location elsewhere, from a file in a directory of no table."""
    table = Table.objects.get(name="i")
    bucket, _, prefix = lake.base.removeprefix("s3://").partition("/")
    client = lake.store.client()
    key = table.iceberg_metadata.metadata_location.removeprefix(f"s3://{bucket}/")
    content = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    moved = content.replace(table.location.encode(), f"{lake.base}/other".encode())
    client.put_object(Bucket=bucket, Key=f"{prefix}/{directory}/v1.metadata.json", Body=moved)
    body = {"name": "legacy", "metadata-location": f"{lake.base}/{directory}/v1.metadata.json"}
    answer = Iceberg(lake.bob).call("POST", "namespaces/ns/register", body)
    assert answer.status_code == 200, answer.content
    return Table.objects.get(name="legacy")


def test_a_registered_table_gets_no_directory_around_the_location(lake: Lake):
    """A metadata file lies above it that no table has; otherwise the staged files would be the registered table's."""
    location = f"{lake.base}/dir/orders"
    assert lake.stage(location).status_code == 200
    legacy = register_from(lake, "dir")
    assert not IcebergPath.objects.filter(table=legacy).exists()
    staged_file = f"{location}/data/1.parquet"
    assert TableFiles(legacy).classify([staged_file])[staged_file].belonging is Belonging.OUTSIDE
    metadata = {"name": "t", "schema": ICEBERG_SCHEMA, "location": location}
    created = Iceberg(lake.ann).call("POST", "namespaces/ns/tables", metadata)
    assert created.status_code == 200, created.content


def test_a_registered_table_gets_its_directory_when_the_reservation_has_ended(lake: Lake):
    assert lake.stage(f"{lake.base}/dir/orders").status_code == 200
    expire()
    legacy = register_from(lake, "dir")
    assert IcebergPath.objects.filter(table=legacy, path=f"{lake.base}/dir").exists()
