"""No object of another is read or removed by way of an Iceberg table's metadata.

A proxy before the store records the requests: a refusal precedes every request for a foreign key.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from catalog.access import SYSTEM
from catalog.models import Job, JobStatus
from catalog.privileges import Privilege
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.maintenance import job_runner
from tests.access.protocols import give, make_requester
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import files, make_iceberg_table, make_namespace, make_root, unchanged
from tests.security.foreign import COMMIT, MINE, message_of, refusal, snapshot, updates
from tests.stores.faults import FaultProxy
from tests.stores.fixtures import MakeProfile
from tests.stores.s3 import Proxied

pytestmark = pytest.mark.django_db

PATHS: dict[str, Callable[["World", str], str]] = {
    "another table": lambda w, key: f"{w.root}/secret/{key}",
    "a prefix twin": lambda w, key: f"{w.root}/mine2/{key}",
    "no table": lambda w, key: f"{w.root}/nobody/{key}",
    "missing": lambda w, key: f"{w.root}/secret/{key}-not-there",
    "another bucket": lambda w, key: f"s3://{w.other_bucket}/{key}",
    "outside the root": lambda w, key: f"s3://{w.bucket}/{key}",
    "s3a": lambda w, key: f"s3a://{w.bucket}/root/mine/{key}",
    "upper case": lambda w, key: f"S3://{w.bucket}/root/mine/{key}",
    "another provider": lambda w, key: f"gs://{w.bucket}/root/mine/{key}",
    "climbing": lambda w, key: f"{w.mine}/../secret/{key}",
    "climbing within": lambda w, key: f"{w.mine}/metadata/../{key}",
    "encoded climbing": lambda w, key: f"{w.mine}/%2e%2e/secret/{key}",
    "encoded slashes": lambda w, key: f"{w.mine}/..%2fsecret/{key}",
    "empty segment": lambda w, key: f"{w.mine}//{key}",
    "dot": lambda w, key: f"{w.mine}/./{key}",
    "backslash": lambda w, key: f"{w.mine}/..\\secret\\{key}",
    "spaces": lambda w, key: f"{w.mine}/ /{key}",
    "user": lambda w, key: f"s3://key@{w.bucket}/root/mine/{key}",
    "port": lambda w, key: f"s3://{w.bucket}:80/root/mine/{key}",
    "endpoint": lambda w, key: f"{w.endpoint}/{w.bucket}/root/secret/{key}",
    "no bucket": lambda w, key: f"s3:///{w.bucket}/root/mine/{key}",
    "one slash": lambda w, key: f"s3:/{w.bucket}/root/mine/{key}",
    "a directory": lambda w, key: f"{w.mine}/metadata/",
    "the bucket": lambda w, key: f"s3://{w.bucket}",
    "a local file": lambda w, key: "file:///etc/passwd",
    "a control character": lambda w, key: f"{w.mine}/metadata/\n{key}",
}


@dataclass(frozen=True)
class World:
    """The attacker's table, its neighbours, and copies of a neighbour's file elsewhere."""

    bucket: str
    other_bucket: str
    endpoint: str
    key: str
    """A manifest list of the neighbours, relative to their locations."""

    @property
    def root(self) -> str:
        return f"s3://{self.bucket}/root"

    @property
    def mine(self) -> str:
        return f"{self.root}/mine"

    def path(self, kind: str) -> str:
        return PATHS[kind](self, self.key)

    def victims(self) -> dict[str, dict[str, bytes]]:
        return {name: files(f"{self.root}/{name}") for name in ("secret", "mine2", "nobody")}


@pytest.fixture
def world(
    proxied_s3: Proxied, make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> World:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    settings.MONODON_TRASH_SECONDS = 0
    bucket, other_bucket = proxied_s3.new_bucket(), proxied_s3.new_bucket()
    make_profile(name="lake", roots=[f"s3://{bucket}/root"], **proxied_s3.profile_fields())
    make_root()
    for name, directory in (("t", "secret"), ("twin", "mine2")):
        make_iceberg_table("secret", name, location=f"s3://{bucket}/root/{directory}")
        open_table("secret", name).append(rows(1, 2, 3))
    make_iceberg_table(*MINE, location=f"s3://{bucket}/root/mine")
    client = proxied_s3.client()
    secret = f"s3://{bucket}/root/secret"
    key = next(name for name in files(secret) if name.startswith("metadata/snap-"))
    content = files(secret)[key]
    for target, prefix in (
        (bucket, "root/nobody/"),
        (bucket, "root/mine2/"),
        (bucket, ""),
        (other_bucket, ""),
    ):
        client.put_object(Bucket=target, Key=f"{prefix}{key}", Body=content)
    give(make_requester(), Privilege.ALL, make_namespace("mine"))
    return World(bucket, other_bucket, proxied_s3.endpoint, key)


@contextmanager
def no_foreign_request(world: World, proxy: FaultProxy) -> Iterator[None]:
    with proxy.recording() as requests:
        yield
    # The body of a bulk removal is not recorded; the files that remain are compared instead.
    foreign = [
        request
        for request in requests
        if request.bucket != world.bucket
        or not (
            (request.key or request.query.get("prefix", "")).startswith("root/mine/")
            or "delete" in request.query
        )
    ]
    assert foreign == []


@pytest.mark.parametrize("slot", ["list", "manifest"])
def test_a_commit_is_refused_without_a_request(world, attacker, s3_proxy, slot):
    for kind in PATHS:
        path = world.path(kind)
        body = {"requirements": [], "updates": updates(snapshot(slot, path))}
        with unchanged(), no_foreign_request(world, s3_proxy):
            assert message_of(attacker.call("POST", COMMIT, body)) == refusal(path), kind


def test_statistics_are_refused_without_a_request(world, attacker, s3_proxy):
    open_table(*MINE).append(rows(1))
    snapshot_id = open_table(*MINE).metadata.current_snapshot_id
    for kind in PATHS:
        path = world.path(kind)
        statistics = {
            "snapshot-id": snapshot_id,
            "statistics-path": path,
            "file-size-in-bytes": 1,
        }
        update = {"action": "set-partition-statistics", "partition-statistics": statistics}
        body = {"requirements": [], "updates": [update]}
        with unchanged(), no_foreign_request(world, s3_proxy):
            assert message_of(attacker.call("POST", COMMIT, body)) == refusal(path), kind


@pytest.mark.parametrize("kind", PATHS)
def test_a_registration_reads_no_file_of_another(world, attacker, s3_proxy, kind):
    if kind == "no table":  # the place from which a table may be registered
        return
    body = {"name": "new", "metadata-location": world.path(kind)}
    with unchanged(), s3_proxy.recording() as requests:
        response = attacker.call("POST", "namespaces/mine/register", body)
    assert response.status_code == 400, response.content
    assert requests == []


@pytest.mark.parametrize("slot", ["list", "manifest", "data"])
@pytest.mark.parametrize(
    "kind", ["another table", "a prefix twin", "no table", "another bucket", "s3a", "climbing"]
)
def test_planted_references_are_neither_read_nor_removed(world, attacker, s3_proxy, slot, kind):
    path = world.path(kind)
    added = updates(snapshot(slot, path))
    with pytest.MonkeyPatch.context() as unguarded:
        unguarded.setattr(iceberg_files, "check_updates", lambda *_: iceberg_files.References())
        change = TableChange(table=MINE, requirements=[], updates=added)
        iceberg_commits.commit_table(actor=SYSTEM, change=change)
    before = world.victims()
    with unchanged(), no_foreign_request(world, s3_proxy):
        assert message_of(attacker.call("POST", f"{COMMIT}/plan", {})) == refusal(path)
    iceberg_tables.drop_table(actor=SYSTEM, table=MINE, purge=True)
    job = Job.objects.get()
    with no_foreign_request(world, s3_proxy):
        job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == JobStatus.SUCCEEDED
    assert "left in place: 1 files" in job.error
    assert world.victims() == before
