"""Requests of both protocols while an object store throttles or refuses the server: true answers."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from django.db.models.functions import Now
from django.http import HttpResponse

from catalog.access import SYSTEM
from catalog.models import JobStatus, StagedFile, StorageProfile
from catalog.services.engine.commit import commit
from catalog.services.iceberg import metadata_files
from catalog.services.lance import datasets as lance_datasets
from catalog.services.maintenance import job_runner
from catalog.services.storage import profiles
from catalog.services.tables import job_operations
from catalog.storage import object_clients
from catalog.storage.outages import pools
from tests.api.client import Lance, stream
from tests.factories import files, fingerprint, make_iceberg_table, make_lance_table, make_root
from tests.stores.faults import FaultProxy
from tests.stores.fixtures import MakeProfile
from tests.stores.s3 import Proxied, S3Store, Versitygw

ROWS = pa.table({"id": [1, 2, 3]})
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "n", "type": "long", "required": False}]}
PROPERTY = {"action": "set-properties", "updates": {"a": "1"}}
WRITES: dict[str, tuple[str, Any]] = {
    "lance insert": ("/v1/table/space$rows/insert", stream(ROWS)),
    "lance merge": (
        "/v1/table/space$rows/merge_insert?on=id&when_not_matched_insert_all=true",
        stream(ROWS),
    ),
    "lance create": ("/v1/table/space$new/create", stream(ROWS)),
    "lance delete": ("/v1/table/space$rows/delete", {"predicate": "id = 1"}),
    "lance update": ("/v1/table/space$rows/update", {"updates": [["id", "id + 1"]]}),
    "iceberg create": ("/v1/namespaces/space/tables", {"name": "new", "schema": SCHEMA}),
    "iceberg commit": (
        "/v1/namespaces/space/tables/pages",
        {"requirements": [], "updates": [PROPERTY]},
    ),
}
READS: dict[str, tuple[str, Any]] = {
    "lance count": ("/v1/table/space$rows/count_rows", {"predicate": "id > 1"}),
    "lance query": ("/v1/table/space$rows/query", {"vector": {}, "k": 5, "filter": "id > 1"}),
}
REQUESTS = WRITES | READS
THROTTLED = "storage profile 'lake' is unavailable: HTTP 503 SlowDown"
DENIED = "storage profile 'lake' has no access: HTTP 403 SignatureDoesNotMatch"


@pytest.fixture
def lake(
    proxied_s3: Proxied, make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StorageProfile]:
    """A profile whose requests go through the proxy, with a Lance and an Iceberg table."""
    monkeypatch.setattr(object_clients, "RETRIES", 1)
    root = f"s3://{proxied_s3.new_bucket()}/root"
    profile: StorageProfile = make_profile(name="lake", roots=[root], **proxied_s3.profile_fields())
    namespace = make_root()
    namespace.storage_profile = profile
    namespace.save(update_fields=["storage_profile"])
    make_lance_table(("space", "rows"), ROWS)
    make_iceberg_table("space", "pages")
    lance_datasets.clear_caches()
    pools.enter(pools.Pool())  # as the threads that serve requests
    yield profile
    pools.release_all()
    pools._own.pool = None
    lance_datasets.clear_caches()


def call(lance: Lance, name: str) -> HttpResponse:
    path, body = REQUESTS[name]
    raw = body if isinstance(body, bytes) else None
    answer = lance.call("POST", path, None if raw else body, raw=raw)
    pools.release_all()  # the request has ended
    return answer


def refused(lance: Lance, name: str, text: str) -> HttpResponse:
    """The answer to a request that changes nothing. What it may have written is noted for the sweep."""
    before = fingerprint()
    answer = call(lance, name)
    # Iceberg's clients do not repeat a commit after 503, because they take its outcome as unknown.
    expected = 409 if name == "iceberg commit" else 503
    assert answer.status_code == expected, answer.content
    assert text in answer.content.decode(), answer.content
    changes = {model for (model, _) in before.items() ^ fingerprint().items()}
    has_note = name in {"lance create", "iceberg create", "iceberg commit"}
    assert changes <= ({"catalog.StagedFile"} if has_note else set())
    notes = StagedFile.objects.values_list("is_condemned", flat=True)
    assert set(notes) <= {True}
    return answer


@pytest.mark.parametrize("name", REQUESTS)
def test_a_throttled_request_is_repeated_and_bounded(
    lance: Lance, lake: StorageProfile, s3_proxy: FaultProxy, name: str
):
    s3_proxy.inject("slow_down", times=10_000)
    with s3_proxy.recording() as requests:
        answer = refused(lance, name, THROTTLED)
    assert answer.status_code == 409 or int(answer["Retry-After"]) >= 1
    assert 2 <= len(requests) <= 40
    s3_proxy._injections.clear()
    again = call(lance, name)
    assert again.status_code == 200, again.content


@pytest.mark.parametrize("name", WRITES)
def test_what_a_failed_write_left_in_the_store_is_accounted_for(
    lance: Lance,
    lake: StorageProfile,
    s3: S3Store,
    s3_proxy: FaultProxy,
    name: str,
):
    """The store carries out every write, and the server gets no answer to any of them."""
    if not isinstance(s3, Versitygw):
        pytest.skip("the time of an object cannot be changed in this store")
    before = files(lake.roots[0])
    s3_proxy.inject("lost_answer", lambda request: request.method == "PUT", times=10_000)
    refused(lance, name, "storage profile 'lake' is unavailable: ")
    s3_proxy._injections.clear()
    assert before.items() < files(lake.roots[0]).items()
    bucket = lake.roots[0].removeprefix("s3://").partition("/")[0]
    for key in s3.keys(bucket):
        s3.make_old(bucket, key, days=4)
    StagedFile.objects.update(created_at=Now() - timedelta(minutes=16))
    metadata_files.sweep()
    orphans = job_operations.StartMaintenance(
        table=("space", "rows"),
        kind_of_job="remove_orphans",
        parameters={"policy": {"orphan_age": 3 * 86_400}},
    )
    job = commit([orphans], actor=SYSTEM).results[0]
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert files(lake.roots[0]) == before
    assert not StagedFile.objects.exists()


@pytest.mark.parametrize("name", REQUESTS)
def test_a_denied_request_names_the_profile_and_no_key(
    lance: Lance,
    lake: StorageProfile,
    proxied_s3: Proxied,
    caplog: pytest.LogCaptureFixture,
    name: str,
):
    StorageProfile.objects.filter(pk=lake.pk).update(
        secret=profiles.sealed("another secret"), version=lake.version + 1
    )
    profiles.discard_cache()
    text = refused(lance, name, DENIED).content.decode()
    assert proxied_s3.access_key not in text
    assert "another secret" not in text + caplog.text
    assert "http://" not in text
