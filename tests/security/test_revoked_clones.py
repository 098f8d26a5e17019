"""A principal whose right on the source of its clone was revoked reads no file of the source, whatever it requests.

All operations of both dialects, the management API, the pages of the admin, and the jobs. The operating system reports
no file of the source that is opened.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from django.contrib.auth.models import User
from django.test import Client

from catalog import access
from catalog.access import SYSTEM
from catalog.models import Grant, Job, JobStatus, Namespace, Principal, Table
from catalog.privileges import Privilege, closure
from catalog.services.access import known_keys
from catalog.services.engine.commit import commit
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import registration_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.maintenance import job_runner
from catalog.services.tables import job_operations
from tests.access.protocols import KEY, give, make_requester
from tests.api.client import Lance, encoded_schema
from tests.api.lance import examples as lance_examples
from tests.api.lance.example import Example
from tests.api.lancedb import examples as lancedb_examples
from tests.api.lancedb.client import Database
from tests.api.management.client import Management
from tests.factories import files, make_lance_table, make_namespace, make_root
from tests.security.inotify import watched

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
CLONE = ("ws", "data")
ROWS = pa.table(
    {
        "id": pa.array(range(8), pa.int64()),
        "text": ["hidden words"] * 8,
        "v": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(16, dtype="f4")), 2),
    }
)
WITHOUT_FILES = {
    "ListTableTags",
    "GetTableTagVersion",
    "ListTableBranches",
    "ListTableVersions",
    "DescribeTableVersion",
    "DescribeTable",
    "TableExists",
    "CreateTableTag",
    "UpdateTableTag",
    "DeleteTableTag",
    "DeleteTableBranch",
    "RefreshMaterializedView",  # it starts a job, which fails
}
"""Operations that succeed without opening a file of the source."""
JOBS = (
    "compact",
    "clean_up",
    "remove_orphans",
    "optimize_indexes",
    "rebuild_indexes",
    "create_indexes",
    "measure_recall",
)
TABS = (
    "schema",
    "fragments",
    "indexes",
    "preview",
    "profile",
    "refs",
    "versions",
    "transactions",
    "lineage",
    "jobs",
)


SOURCE = ("secret", "t")
COMPUTED = {"new_columns": [{"name": "twice", "computed": "id * 2"}]}
VIEW = {
    "kind": "query",
    "source_query": json.dumps({"source": list(CLONE), "columns": ["id"]}),
    "output_schema": encoded_schema(pa.schema({"id": pa.int64()})),
}


@pytest.fixture
def source(warehouse: Path, db: None) -> Iterator[Table]:
    """A hidden table. The requester has a clone of it with a tag, a branch, a computed column and a view."""
    make_root()
    make_namespace("secret")
    requester = make_requester()
    give(requester, Privilege.ALL, make_namespace("ws"))
    row = make_lance_table(SOURCE, ROWS)
    dataset = lance.dataset(row.location)
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("text", "INVERTED")
    client = Lance(KEY)
    register = registration_operations.RegisterTable(
        table=SOURCE, location=row.location, overwrite=True
    )
    commit([register], actor=SYSTEM)
    row = Table.objects.named(SOURCE).get()
    requester.grants.create(mask=closure(Privilege.READ).value, table=row)
    location = Path(row.location).with_name("clone")
    lance.dataset(row.location).shallow_clone(str(location), 3)
    client.post("/v1/table/ws$data/register", {"location": str(location)})
    client.post("/v1/table/ws$data/add_columns", COMPUTED)
    client.post("/v1/table/ws$data/tags/create", {"tag": "v1", "version": 3})
    client.post("/v1/table/ws$data/branches/create", {"name": "dev"})
    client.post("/v1/materialized_view/ws$view/create", VIEW, status=201)
    lance_versions.settle_pending()
    yield row
    lance_datasets.clear_caches()


def _calls() -> Iterator[tuple[str, Lance, Example]]:
    """The operations on the clone, those that remove it last."""
    details = {"load_detailed_metadata": True}
    yield "Details", Lance(KEY), Example("/v1/table/ws$data/describe", details)
    yield (
        "Details of 3",
        Lance(KEY),
        Example("/v1/table/ws$data/describe", details | {"version": 3}),
    )
    from_main = {"name": "new", "from_version": 3}
    yield "Branch of 3", Lance(KEY), Example("/v1/table/ws$data/branches/create", from_main)
    for name in ("CloneTable", "QueryTable", "PrewarmTableIndex", "ListTableVersions"):
        yield f"{name} of LanceDB", Database(KEY), lancedb_examples.EXAMPLES[name]
    last = {"DropTable", "DeregisterTable", "RenameTable", "DeleteTableBranch", "DeleteTableTag"}
    for name, example in sorted(lance_examples.EXAMPLES.items(), key=lambda item: item[0] in last):
        if "ws$data" in example.path or "ws$view" in example.path:
            yield name, Lance(KEY), example


def _call(client: Lance, example: Example, location: str) -> Any:
    text = json.dumps(example.body).replace("LOCATION", location)
    body = json.loads(text.replace('"version": 1', '"version": 3'))  # the first one of the clone
    return client.call(example.method, example.path, body, **example.options)


def _revoke() -> None:
    Grant.objects.filter(table=Table.objects.named(SOURCE).get()).delete()
    known_keys.forget_keys()


def _run_jobs() -> list[Job]:
    jobs = []
    for kind in JOBS:
        parameters = {"policy": {"keep_for": 0, "keep_versions": 1, "orphan_age": 0}}
        start = job_operations.StartMaintenance(
            table=CLONE, kind_of_job=kind, parameters=parameters
        )
        job = commit([start], actor=access.on_behalf_of("who")).results[0]
        job_runner.run_job(job.pk)
        job.refresh_from_db()
        jobs.append(job)
    return jobs


def test_no_operation_reads_a_file_of_a_source_that_is_hidden_again(source):
    """The server has the clone open, for readers and writers, and its answers in its caches."""
    clone = Table.objects.named(CLONE).get()
    reads = [
        (name, client, example)
        for name, client, example in _calls()
        if name.startswith(("Query", "Explain", "Analyze", "ListTableInd", "DescribeTableIndex"))
    ]
    for name, client, example in reads:
        answer = _call(client, example, clone.location)
        assert answer.status_code == 200, (name, answer.content)
    Lance(KEY).post("/v1/table/ws$data/delete", {"predicate": "id = 5"})
    before = files(source.location)
    _revoke()
    faults = []
    with watched(source.location) as touched:
        for name, client, example in reads:
            answer = _call(client, example, clone.location)
            if answer.status_code != 400 or touched.take():
                faults.append((name, answer.status_code, answer.content[:200]))
        for name, client, example in _calls():
            answer = _call(client, example, clone.location)
            is_expected = 400 <= answer.status_code < 500 or (
                answer.status_code < 300 and name.removesuffix(" of LanceDB") in WITHOUT_FILES
            )
            if touched.take() or not is_expected:
                faults.append((name, answer.status_code, answer.content[:200]))
    assert faults == []
    assert files(source.location) == before


def test_no_job_reads_a_file_of_a_source_that_is_hidden_again(source):
    client = Lance(KEY)
    transactions = [
        client.post(path, body, status=202)["job_id"]
        for path, body in (
            ("/v1/table/ws$data/backfill_column", {"column": "twice"}),
            ("/v1/materialized_view/ws$view/refresh", {}),
        )
    ]
    before = files(source.location)
    _revoke()
    with watched(source.location) as touched:
        jobs = _run_jobs()
        for transaction in transactions:
            job = Job.objects.get(transaction=transaction)
            job_runner.run_job(job.pk)
            job.refresh_from_db()
            jobs.append(job)
    assert touched.events == []
    succeeded = {job.kind for job in jobs if job.status == JobStatus.SUCCEEDED}
    assert succeeded <= {"clean_up", "remove_orphans", "create_indexes", "rebuild_indexes"}
    assert files(source.location) == before


def test_no_page_reads_a_file_of_a_source_that_is_hidden_again(source, settings):
    storage = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STORAGES = {**settings.STORAGES, "staticfiles": storage}
    user = User.objects.create_user("who", password="x", is_staff=True)
    give(Principal.objects.get(user=user), Privilege.READ, Namespace.objects.named(("ws",)).get())
    browser, clone = Client(), Table.objects.named(CLONE).get()
    browser.force_login(user)
    page = f"/admin/catalog/table/{clone.pk}/change/"
    assert b"hidden words" in browser.get(f"{page}?tab=preview").content
    _revoke()
    faults = []
    queries = ("version=3", "branch=dev", "tag=v1", "sort=id", "columns=text")
    with watched(source.location) as touched:
        for query in (*TABS, *(f"preview&{query}" for query in queries)):
            answer = browser.get(f"{page}?tab={query}")
            if touched.take() or answer.status_code >= 500 or b"hidden words" in answer.content:
                faults.append((query, answer.status_code))
        for path in ("health", "plan", "lineage", "dependents", "measure", "repair"):
            for method in ("GET", "POST"):
                answer = Management(KEY).call(method, f"tables/ws$data/{path}", {})
                if answer.status_code >= 500 or touched.take():
                    faults.append((method, path, answer.status_code, answer.content))
    assert faults == []
