"""Tables in an object store beside tables in local files: versitygw on loopback, moto as the token service.

Everything runs in this process, without HTTP. Times are medians; CPU is that of this process alone.
"""

import itertools
import os
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.compare import report_progress
from benchmarks.stack import API_KEY, running

if TYPE_CHECKING:
    from django.test import Client

MAX_PUTS, MAX_PLANNING_RATIO, MIN_VENDING_RATIO, MAX_SIGNING_MS = 2, 3.0, 0.8, 3.0
_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "type": "long", "required": True}],
}
_TURNS = 20
_DELEGATED = {"X-Iceberg-Access-Delegation": "vended-credentials"}


@dataclass(frozen=True)
class Size:
    commits: int
    manifests: int
    plans: int
    requests: int


QUICK = Size(commits=30, manifests=100, plans=3, requests=200)
FULL = Size(commits=200, manifests=1000, plans=7, requests=2000)


@dataclass(frozen=True)
class Figure:
    """Milliseconds of one operation."""

    wall: float
    """The median."""
    cpu: float
    """The mean."""


def measure(size: Size, directory: Path | None) -> bool:
    """Print the figures; whether the goals are reached."""
    with running(directory) as stack:
        stack.bootstrap(stack.postgres.url)
        os.environ.update(stack.environment(stack.postgres.url))
        os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
        os.environ["MONODON_WAREHOUSE"] = str(stack.warehouse)
        import django

        django.setup()
        from tests.stores.s3 import Moto, Versitygw

        with Versitygw() as gateway, Moto() as tokens:
            _create("local")
            root = _create("objects", gateway, client_access="none")
            _create("signed", gateway, client_access="signing")
            _create("vended", tokens, client_access="sts", role=tokens.role)
            _create("plain", tokens, client_access="none")
            goals = [_commits(size, root), _planning(size), _vending(size), _signing(size)]
    return all(goals)


def _create(namespace: str, store: Any = None, **fields: Any) -> str:
    """A namespace with an Iceberg table `t`, in a store with a profile; returns the profile's root."""
    from catalog.access import SYSTEM
    from catalog.models import Namespace, StorageProfile
    from catalog.services.engine.commit import commit
    from catalog.services.iceberg import commits
    from catalog.services.storage import profiles
    from catalog.services.tables.namespace_operations import CreateNamespace

    commit([CreateNamespace(namespace=(namespace,))], actor=SYSTEM)
    root = ""
    if store is not None:
        root = f"s3://{store.new_bucket()}/root"
        values = store.profile_fields() | {"name": namespace, "roots": [root]} | fields
        values["secret"] = profiles.sealed(values["secret"], "")
        profile = StorageProfile.objects.create(**values)
        Namespace.objects.filter(path=[namespace]).update(storage_profile=profile)
        profiles.discard_cache()
    commits.create_table(actor=SYSTEM, table=(namespace, "t"), schema=_SCHEMA)
    return root


def _timed(call: Callable[[], object], rounds: int) -> Figure:
    for _ in range(max(1, rounds // 10)):  # until modules are imported and statements are prepared
        call()
    walls = []
    cpu = time.process_time()
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        walls.append(time.perf_counter() - began)
    cpu = time.process_time() - cpu
    return Figure(statistics.median(walls) * 1e3, cpu / rounds * 1e3)


def _timed_in_turns(
    first: Callable[[], object], second: Callable[[], object], rounds: int
) -> tuple[Figure, Figure]:
    """Alternate, so that other work on the machine slows both alike; the medians of the turns."""
    turns = [
        (_timed(first, rounds // _TURNS), _timed(second, rounds // _TURNS)) for _ in range(_TURNS)
    ]
    firsts, seconds = zip(*turns, strict=True)
    return _median(firsts), _median(seconds)


def _median(figures: Sequence[Figure]) -> Figure:
    return Figure(
        statistics.median(figure.wall for figure in figures),
        statistics.median(figure.cpu for figure in figures),
    )


def _show(name: str, figure: Figure) -> None:
    report_progress(f"{name:44} {figure.wall:9.2f} ms {figure.cpu:9.2f} ms CPU")


def _goal(is_reached: bool, text: str) -> bool:
    report_progress(f"  {'reached' if is_reached else 'MISSED'}: {text}")
    return is_reached


# --- commits -------------------------------------------------------------------------------------


def _commits(size: Size, root: str) -> bool:
    from catalog.access import SYSTEM
    from catalog.services.iceberg import commits, tables
    from catalog.services.iceberg.changes import TableChange
    from catalog.storage import stores

    numbers = itertools.count()

    def commit(namespace: str) -> None:
        updates = [{"action": "set-properties", "updates": {"turn": str(next(numbers))}}]
        change = TableChange(table=(namespace, "t"), requirements=[], updates=updates)
        commits.commit_table(actor=SYSTEM, change=change)

    local = _timed(lambda: commit("local"), size.commits)
    objects = _timed(lambda: commit("objects"), size.commits)
    loaded = tables.load_table(actor=SYSTEM, table=("objects", "t"))
    store, content = stores.store_of(root), loaded.answer
    put = _timed(lambda: store.write_new(f"{root}/elsewhere/{uuid.uuid4()}", content), size.commits)
    _show("Iceberg commit, local", local)
    _show("Iceberg commit, versitygw", objects)
    _show("a put of a metadata file's size", put)
    puts = (objects.wall - local.wall) / put.wall
    text = f"a commit costs {puts:.1f} puts more than a local one, at most {MAX_PUTS}"
    return _goal(puts <= MAX_PUTS, text)


# --- scan planning -------------------------------------------------------------------------------


def _planning(size: Size) -> bool:
    from catalog.access import SYSTEM
    from catalog.services.iceberg import manifest_cache, scans

    def plan(table: tuple[str, ...]) -> None:
        planned = scans.plan_scan(actor=SYSTEM, table=table, request={})
        for task in planned.plan_tasks:
            scans.fetch_tasks(actor=SYSTEM, table=table, plan_task=task)

    def plan_first() -> None:
        manifest_cache.cache.clear()
        plan(("objects", "t"))

    for namespace in ("local", "objects"):
        _add_manifests((namespace, "t"), size.manifests)
    subject = f"scan planning, {size.manifests:,} manifests"
    local = _timed(lambda: plan(("local", "t")), size.plans)
    first = _timed(plan_first, size.plans)
    again = _timed(lambda: plan(("objects", "t")), size.plans)
    _show(f"{subject}, local", local)
    _show(f"{subject}, versitygw, first", first)
    _show(f"{subject}, versitygw, repeated", again)
    is_reached = True
    for label, figure in (("first", first), ("repeated", again)):
        ratio = figure.wall / local.wall
        text = (
            f"the {label} planning takes {ratio:.1f} times as long as locally, at most"
            f" {MAX_PLANNING_RATIO}"
        )
        is_reached &= _goal(ratio <= MAX_PLANNING_RATIO, text)
    return is_reached


def _add_manifests(table: tuple[str, ...], count: int) -> None:
    """A snapshot with as many manifests, each of which names one data file."""
    from pyiceberg.io import load_file_io
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestEntry,
        ManifestEntryStatus,
        write_manifest,
        write_manifest_list,
    )
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.schema import Schema
    from pyiceberg.typedef import Record

    from catalog.access import SYSTEM
    from catalog.services.iceberg import commits, tables
    from catalog.services.iceberg.changes import TableChange
    from tests.catalog.services.iceberg.writing import io_properties

    loaded = tables.load_table(actor=SYSTEM, table=table)
    location = loaded.location if "://" in loaded.location else f"file://{loaded.location}"
    io = load_file_io(io_properties(loaded.location), location)
    schema = Schema.model_validate(_SCHEMA)
    manifests = []
    for number in range(count):
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{location}/data/{number}.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=1,
            file_size_in_bytes=1000,
            spec_id=0,
        )
        output = io.new_output(f"{location}/metadata/{number}.avro")
        with write_manifest(
            2, UNPARTITIONED_PARTITION_SPEC, schema, output, 1, "deflate"
        ) as writer:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=1, data_file=file
            )
            writer.add_entry(entry)
        manifests.append(writer.to_manifest_file())
    listed = f"{location}/metadata/list.avro"
    with write_manifest_list(2, io.new_output(listed), 1, None, 1, "deflate") as writer:
        writer.add_manifests(manifests)
    snapshot = {
        "snapshot-id": 1,
        "sequence-number": 1,
        "timestamp-ms": int(time.time() * 1000),
        "manifest-list": listed,
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    reference = {"ref-name": "main", "type": "branch", "snapshot-id": 1}
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", **reference},
    ]
    change = TableChange(table=table, requirements=[], updates=updates)
    commits.commit_table(actor=SYSTEM, change=change)


# --- access of clients ---------------------------------------------------------------------------


def _client() -> "Client":
    from django.test import Client

    return Client(headers={"x-api-key": API_KEY}, SERVER_NAME="127.0.0.1")


def _vending(size: Size) -> bool:
    """Answers with cached credentials, and the same for a table whose clients get none."""
    from catalog.access import SYSTEM
    from catalog.services.engine.commit import commit
    from catalog.services.lance.ledger.registration_operations import DeclareTable

    client = _client()

    def load(namespace: str) -> None:
        answer = client.get(f"/v1/namespaces/{namespace}/tables/t", headers=_DELEGATED)
        assert answer.status_code == 200, answer.content

    def describe(namespace: str) -> None:
        answer = client.post(
            f"/v1/table/{namespace}$l/describe", "{}", content_type="application/json"
        )
        assert answer.status_code == 200, answer.content

    is_reached = True
    for namespace in ("vended", "plain"):
        commit([DeclareTable(table=(namespace, "l"))], actor=SYSTEM)
    for name, call in (("load table", load), ("describe table", describe)):
        plain, vended = _timed_in_turns(
            lambda call=call: call("plain"), lambda call=call: call("vended"), size.requests
        )
        _show(f"{name}, without credentials", plain)
        _show(f"{name}, with cached credentials", vended)
        ratio = plain.cpu / vended.cpu
        text = f"{name}: {ratio:.2f} times the rate with credentials, at least {MIN_VENDING_RATIO}"
        is_reached &= _goal(ratio >= MIN_VENDING_RATIO, text)
    return is_reached


def _signing(size: Size) -> bool:
    from catalog.access import SYSTEM
    from catalog.services.iceberg import tables
    from catalog.storage import stores

    location = tables.load_table(actor=SYSTEM, table=("signed", "t")).location
    configuration = stores.configuration_of(location)
    assert configuration is not None
    uri = f"{configuration.endpoint}/{location.removeprefix('s3://')}/data/1.parquet"
    body = {
        "region": configuration.region,
        "method": "PUT",
        "uri": uri,
        "headers": {"Content-Length": ["100"], "x-amz-checksum-crc32": ["AAAAAA=="]},
    }
    client = _client()

    def sign() -> None:
        path = "/v1/namespaces/signed/tables/t/sign"
        answer = client.post(path, body, content_type="application/json")
        assert answer.status_code == 200, answer.content

    figure = _timed(sign, size.requests)
    _show("sign a request", figure)
    text = f"a signature takes {figure.cpu:.1f} ms of CPU, at most {MAX_SIGNING_MS:.0f}"
    return _goal(figure.cpu <= MAX_SIGNING_MS, text)
