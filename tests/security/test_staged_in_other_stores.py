"""Staged creations in Google Cloud Storage and Azure: what their credentials open, and for how long they are reserved."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest
from django.http import HttpResponse
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.models import (
    Job,
    JobKind,
    JobStatus,
    Namespace,
    RemainingFiles,
    StagedLocation,
    Table,
)
from catalog.privileges import Privilege
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.maintenance import job_runner
from catalog.services.storage import credentials
from tasks import maintenance
from tests.api.iceberg.client import Iceberg
from tests.factories import ICEBERG_SCHEMA, make_namespace, unchanged
from tests.security.test_staged_locations import CREATOR, expire, make_tenant
from tests.stores.directory_signatures import DirectoryGate
from tests.stores.emulators import Azurite, FakeGcs
from tests.stores.fixtures import MakeProfile
from tests.stores.google_tokens import GoogleTokens
from tests.vending import DELEGATED

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)
ACTIONS = ("get", "create", "list")


@dataclass
class Lake:
    base: str
    ann: str
    bob: str
    permits: Callable[[dict[str, str], str, str], bool]
    """Whether the credentials of a config permit an action on an object, or on a prefix."""

    def create(self, at: str, key: str = "", *, stage: bool = True, name: str = "t") -> Any:
        body = {"name": name, "schema": ICEBERG_SCHEMA, "location": f"{self.base}/{at}"}
        return Iceberg(key or self.ann).call(
            "POST", "namespaces/ns/tables", body | {"stage-create": stage}, headers=DELEGATED
        )


@pytest.fixture
def gcs(fake_gcs: FakeGcs, make_profile: MakeProfile) -> Iterator[Lake]:
    with GoogleTokens() as google:
        bucket = fake_gcs.new_bucket()
        fields = fake_gcs.profile_fields() | {
            "secret": json.dumps(
                json.loads(fake_gcs.profile_fields()["secret"])
                | json.loads(google.service_account())
            ),
            "sts_endpoint": f"{google.url}/exchange",
        }

        def permits(config: dict[str, str], action: str, key: str) -> bool:
            return google.permits(config["gcs.oauth2.token"], action, bucket, key)

        yield make_lake(make_profile, f"gs://{bucket}/root", fields, permits)


@pytest.fixture
def azure(azurite: Azurite, make_profile: MakeProfile) -> Iterator[Lake]:
    with DirectoryGate(azurite) as gate:
        container = azurite.new_container()
        root = f"abfss://{container}@{azurite.account}.dfs.core.windows.net/root"

        def permits(config: dict[str, str], action: str, key: str) -> bool:
            signature = config[f"adls.sas-token.{azurite.account}"]
            url = f"{gate.endpoint}/{container}"
            if action == "list":
                query = f"restype=container&comp=list&prefix={key}"
                return httpx.get(f"{url}?{query}&{signature}").is_success
            if action == "create":
                headers = {"x-ms-blob-type": "BlockBlob"}
                answer = httpx.put(f"{url}/{key}?{signature}", headers=headers, content=b"x")
                return answer.is_success
            return httpx.get(f"{url}/{key}?{signature}").status_code in {200, 404}

        fields = azurite.profile_fields() | {"endpoint": gate.endpoint}
        yield make_lake(make_profile, root, fields, permits)


def make_lake(make_profile: MakeProfile, root: str, fields: dict[str, Any], permits: Any) -> Lake:
    credentials.discard_cache()
    profile = make_profile(name="lake", roots=[root], **fields, client_access="sts")
    namespace = make_namespace("ns")
    Namespace.objects.filter(pk=namespace.pk).update(storage_profile=profile)
    bob = make_tenant("bob", Privilege.ALL)
    made = Iceberg(bob).post("namespaces/ns/tables", {"name": "i", "schema": ICEBERG_SCHEMA})
    base = made["metadata"]["location"].rpartition("/")[0]
    return Lake(base, make_tenant("ann", CREATOR), bob, permits)


@pytest.fixture(params=["gcs", "azure"])
def lake(request: pytest.FixtureRequest, monkeypatch: Any, settings: Any) -> Lake:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    settings.MONODON_TRASH_SECONDS = settings.MONODON_PURGE_GRACE_SECONDS = 0
    made: Lake = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def late(request: pytest.FixtureRequest) -> timedelta:
    """How long after the end of credentials something may be written with them."""
    return 7 * DAY if "gcs" in request.node.callspec.params.values() else timedelta(0)


def config(answer: HttpResponse) -> dict[str, str]:
    assert answer.status_code == 200, answer.content
    fields: dict[str, str] = answer.json()["config"]
    return fields


def key_of(lake: Lake, at: str) -> str:
    return f"{lake.base}/{at}".partition("://")[2].partition("/")[2]


def test_credentials_open_the_staged_location_alone(lake: Lake):
    opened = config(lake.create("orders"))
    for action in ACTIONS:
        slash = "/" if action == "list" else "/data/1"
        assert lake.permits(opened, action, key_of(lake, "orders") + slash), action
        for foreign in ("orders2", "order", "other", "orders-x"):
            assert not lake.permits(opened, action, key_of(lake, foreign) + slash), foreign
    assert not lake.permits(opened, "list", key_of(lake, "orders"))
    assert not lake.permits(opened, "list", key_of(lake, "x").removesuffix("x"))


def test_others_get_the_location_when_nothing_can_be_written_any_more(lake: Lake, late):
    config(lake.create("dir/orders"))
    until = StagedLocation.objects.get().until
    assert timedelta(0) < until - timezone.now() - late <= timedelta(minutes=61, seconds=1)
    for at in ("dir/orders", "dir/orders/x", "dir"):
        for stage in (True, False):
            with unchanged():
                answer = lake.create(at, lake.bob, stage=stage)
            assert answer.status_code == 409, (at, answer.content)
            assert b"has staged the creation" in answer.content
    expire()
    assert lake.create("dir/orders", lake.bob, stage=False).status_code == 200
    with unchanged():
        assert lake.create("dir/orders").status_code == 409


def test_a_purged_location_is_taken_until_nothing_can_be_written_any_more(
    lake: Lake, late, monkeypatch: pytest.MonkeyPatch
):
    config(lake.create("orders", stage=False))
    StagedLocation.objects.all().delete()
    iceberg_tables.drop_table(actor=SYSTEM, table=("ns", "t"), purge=True)
    job = Job.objects.get(kind=JobKind.PURGE_TABLE)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    carl = make_tenant("carl", CREATOR)
    hour = timedelta(hours=1)
    for age in (hour - timedelta(minutes=2), hour + late - timedelta(minutes=2)):
        assert review(monkeypatch, age)
        with unchanged():
            assert lake.create("orders", carl).status_code == 409
    assert not review(monkeypatch, hour + late + timedelta(minutes=2))
    assert lake.create("orders", carl).status_code == 200


def review(monkeypatch: pytest.MonkeyPatch, age: timedelta) -> bool:
    """Review the directories after this time; returns True if they are taken."""
    now = timezone.now() + age
    monkeypatch.setattr("catalog.services.recovery.remaining_files.read_clock", lambda: now)
    RemainingFiles.objects.update(checked_at=timezone.now() - 2 * timedelta(hours=1))
    maintenance.review_remaining_files()
    return RemainingFiles.objects.filter(table=Table.objects.get(name="t")).exists()
