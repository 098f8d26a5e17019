"""No field of any operation leads to files that the principal may not touch.

The principal has all privileges on one namespace. Every field of every operation that accepts text gets the
paths of files of a hidden table, of a dropped one, of a table whose location has the same prefix, of the
system, and links, pipes and devices. Whatever is accepted is then used: all tables are read, and, for some paths of
each field, every kind of job runs on the tables that the request changed, and their files are removed. The
operating system reports no foreign file that is opened, linked, changed or removed, and no answer contains
a foreign row. `make test` gives each field a third of the paths, and `make engines` the others.
``test_foreign_files_iceberg_use`` and ``test_foreign_files_lance`` run every kind of job on tables whose files
already lead to each kind of foreign file.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pytest
import yaml
from django.db import transaction
from django.db.models import Max
from django.http import HttpResponse

from catalog import access, maintenance_actions
from catalog.access import SYSTEM
from catalog.errors import CatalogError
from catalog.formats.iceberg.scans import planning as scan_planning
from catalog.models import (
    Job,
    JobKind,
    JobStatus,
    Principal,
    Table,
    TableFormat,
    TableKind,
    TableState,
)
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import registration_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.maintenance import job_runner, measurements
from catalog.services.recovery import purge
from catalog.services.storage.location_checks import LocationChecks
from catalog.services.tables import job_operations, table_operations
from tests.access.protocols import EVERY, KEY, PROTOCOLS, Protocol, Request, give
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.factories import fingerprint, make_lance_table, make_namespace
from tests.long_sessions import remove_dead_rows
from tests.recall import copy_files, recall
from tests.security.fields import Field, fields
from tests.security.foreign import write_table
from tests.security.inotify import watched
from tests.shares import daily
from tests.undo import empty_caches

_PATH = re.compile(
    r"path|location|uri|url|manifest|-file$|root|base_|director|storage_options|\*$", re.IGNORECASE
)
_OTHERS = 1
"""Number of paths for a field whose name does not suggest a path."""
_MAINTAINED = 1
"""Number of accepted paths of a field, of one share, after which jobs run."""
_SHARES = 3
"""A test of an operation gives each field with a path one of this many shares of the paths."""
_SECRET = "a row of the hidden table"


@dataclass(frozen=True)
class World:
    """Paths that the principal may not use, in its notation, and the files to which they lead."""

    paths: list[str]
    canaries: list[str]


def make_world() -> World:
    """Neighbours of the example tables, and links to them in the directories of these tables."""
    make_namespace("hidden")
    rows = pa.table({"id": [7, 8], "name": [_SECRET, _SECRET]})
    own = [Path(location) for location in _locations("ws") if location.startswith("/")]
    warehouse = own[0].parent
    victims = {
        "hidden": write_table("hidden", "t"),
        "dropped": write_table("hidden", "dropped"),
        "twin": write_table("hidden", "twin", location=f"file://{own[0]}2"),
    }
    hidden = make_lance_table(("hidden", "lance"), rows)
    dropped = make_lance_table(("hidden", "dropped_lance"), rows)
    lance_versions.settle_pending()
    lance_datasets.clear_caches()
    canaries = {victim.list.parents[1] for victim in victims.values()}
    canaries |= {Path(hidden.location), Path(dropped.location)}
    iceberg_tables.unregister_table(actor=SYSTEM, table=("hidden", "dropped"))
    drop = table_operations.DropTable(table=("hidden", "dropped_lance"))
    commit([drop], actor=SYSTEM)
    outside = warehouse.parent / "outside"
    outside.mkdir()
    for path in victims["hidden"].all():
        shutil.copyfile(path, outside / path.name)
    canaries.add(outside)
    metadata = max(victims["hidden"].list.parent.glob("*.metadata.json"))
    manifest = next(Path(hidden.location).glob("_versions/*.manifest"))
    data = next(Path(hidden.location).glob("data/*.lance"))
    for directory in own:
        directory.mkdir(exist_ok=True)
        (directory / "link").symlink_to(manifest)
        (directory / "link.metadata.json").symlink_to(metadata)
        (directory / "directory").symlink_to(hidden.location)
        os.mkfifo(directory / "pipe")
        (directory / "device").symlink_to("/dev/zero")
    files = [
        *victims["hidden"].all(),
        metadata,
        manifest,
        data,
        victims["dropped"].list,
        victims["twin"].data,
        outside / victims["hidden"].list.name,
    ]
    first = own[0]
    paths = [
        *(f"file://{path}" for path in files),
        hidden.location,
        str(manifest),
        str(data),
        str(metadata.parents[1]),
        dropped.location,
        str(victims["dropped"].list.parents[1]),
        f"{victims['dropped'].data.parent}/new",
        f"{first}2",
        *(f"file://{first}/{name}" for name in ("link", "link.metadata.json", "pipe", "device")),
        f"file://{first}/directory",
        f"file://{first}/directory/data/{data.name}",
        f"{first}/../{Path(hidden.location).name}",
        f"../{Path(hidden.location).name}/_versions/{manifest.name}",
        f"file://{first}/..%2f{Path(hidden.location).name}%2f_versions%2f{manifest.name}",
        "/etc/passwd",
        "file:///proc/self/environ",
    ]
    return World(paths, sorted(map(str, canaries)))


def _locations(*namespace: str) -> list[str]:
    rows = Table.objects.present().filter(namespace__path=list(namespace)).order_by("pk")
    return [
        location.removeprefix("file://") for location in rows.values_list("location", flat=True)
    ]


@pytest.fixture
def warehouse(db, recalled_warehouse: Path, monkeypatch) -> Iterator[Path]:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    monkeypatch.setattr("catalog.services.events.feed._horizon", lambda: 1 << 62)
    monkeypatch.setattr(scan_planning, "FILES_AT_ONCE", 1)  # so that a plan has tasks to fetch
    yield recalled_warehouse
    lance_datasets.clear_caches()


def set_up(protocol: Protocol, operation: str, settings: Any) -> tuple[Request, World]:
    def make() -> tuple[dict[str, str], World]:
        words = protocol._make()
        return words, make_world()

    words, world = recall(f"paths-{protocol.name}", make)
    words = words | protocol.prepare(operation)
    requester = Principal.objects.get(name="who")
    give(requester, Privilege.ALL, make_namespace("ws"))
    settings.MONODON_MANIFEST_PATHS = []
    settings.MONODON_TRASH_SECONDS = 0
    empty_caches()
    return protocol.requests[operation].with_words(words), world


_SPECIFICATIONS = {"lance": "lance-namespace.yaml", "iceberg": "iceberg-rest-catalog.yaml"}


@cache
def document(protocol: str) -> dict[str, Any]:
    """The specification of a protocol if it is here, or the document of the server.

    The latter does not describe the updates of Iceberg's metadata; ``test_foreign_files_iceberg`` has their paths.
    """
    directory = os.environ.get("MONODON_SPEC_DIR")
    if directory and protocol in _SPECIFICATIONS:
        return dict(yaml.safe_load(Path(directory, _SPECIFICATIONS[protocol]).read_text()))
    response = Lance().call("GET", f"/schema/{protocol}", headers={"accept": "application/json"})
    assert response.status_code == 200
    return dict(response.json())


def sent(request: Request, field: Field, path: str) -> Request:
    """The example request with a path in one field."""
    if field.container == "body":
        body = field.make(path)
        if isinstance(body, dict):
            body = (request.body or {}) | body
        return replace(request, body=body)
    (name,) = field.names
    if field.container == "query":
        mark = "&" if "?" in request.path else "?"
        return replace(request, path=f"{request.path}{mark}{urlencode({name: path})}")
    headers = {**request.options.get("headers", {}), name: quote(path)}
    return replace(request, options={**request.options, "headers": headers})


def use() -> Iterator[HttpResponse]:
    """Read all tables and views of the principal."""
    lance, iceberg = Lance(KEY), Iceberg(KEY)
    for table in Table.objects.present().filter(namespace__path=["ws"]):
        if table.format == TableFormat.LANCE:
            path = f"/v1/table/ws${quote(table.name)}"
            yield lance.call("POST", f"{path}/describe", {"load_detailed_metadata": True})
            yield lance.call("POST", f"{path}/count_rows", {})
            yield lance.call("POST", f"{path}/query", {"k": 3, "vector": {"single_vector": []}})
            yield lance.call("POST", f"{path}/version/list")
        elif table.kind == "table":
            path = f"namespaces/ws/tables/{quote(table.name)}"
            yield iceberg.call("GET", path)
            yield iceberg.call("POST", f"{path}/plan", {})
        else:
            yield iceberg.call("GET", f"namespaces/ws/views/{quote(table.name)}")


States = dict[int, list[Any]]


def states() -> States:
    """What a request may change about each table of the principal."""
    rows = Table.objects.present().filter(namespace__path=["ws"])
    values = rows.values_list("pk", "location", "properties", "state", Max("versions__pk"))
    return {pk: state for pk, *state in values}


def maintain(before: States) -> Iterator[str]:
    """Start each kind of job on the tables that differ from ``before``, and remove their files.

    Returns a line for each job that does not end. Without Spark, a job that needs a driver fails
    after its checks.
    """
    requester = access.on_behalf_of("who")
    policy = {"keep_for": 0, "keep_versions": 1, "orphan_age": 0}
    changed = [pk for pk, state in states().items() if before.get(pk) != state]
    for row in Table.objects.filter(pk__in=changed, kind=TableKind.TABLE):
        table = ("ws", row.name)
        with suppress(CatalogError):
            measurements.measure(actor=SYSTEM, table=table)
        starts = [
            job_operations.StartMaintenance(
                table=table,
                format=row.format,
                kind_of_job=action.key,
                parameters={"policy": policy},
            )
            for action in maintenance_actions.of_format(row.format)
            if row.state == TableState.LIVE
        ]
        for start in starts:
            yield from run(commit([start], actor=requester).results[0])
        if row.format == TableFormat.ICEBERG:
            iceberg_tables.drop_table(actor=requester, table=table, purge=True)
        else:
            commit([table_operations.DropTable(table=table)], actor=requester)
        for job in Job.objects.filter(table=row, kind=JobKind.PURGE_TABLE):
            yield from run(job)


def run(job: Job) -> Iterator[str]:
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    if job.status not in {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELED}:
        yield f"job {job.kind} is {job.status}: {job.error}"


def content_of(response: HttpResponse) -> bytes:
    return b"".join(response.streaming_content) if response.streaming else response.content


def problems(response: HttpResponse) -> Iterator[str]:
    content = content_of(response)
    if response.status_code >= 500 and response.status_code != 501:
        yield f"{response.status_code} {content[:300]!r}"
    if _SECRET.encode() in content:
        yield "the answer contains a foreign row"


def is_path(field: Field) -> bool:
    return _PATH.search(".".join(field.names)) is not None


def faults(
    interface: str, operation: str, settings: Any, name: str = "", share: int | None = None
) -> list[str]:
    """Send an operation with each path in each of its fields, use what is accepted, and undo it.

    ``name`` limits it to fields with this name, and ``share`` to a share of the paths, which is another for
    the next field and for the next operation. Returns a line for each foreign file that is touched, and for each
    wrong answer.
    """
    remove_dead_rows()  # each request is rolled back
    protocol = PROTOCOLS[interface]
    request, world = set_up(protocol, operation, settings)
    copies = Path(settings.MONODON_WAREHOUSE).with_name("copies")
    own = {Path(location) for location in _locations("ws") if Path(location).is_dir()}
    for directory in own:
        copy_files(directory, copies / directory.name)
    before, tables = fingerprint(), states()
    some = cycle(world.paths)
    maintained: Counter[Field] = Counter()
    lines = []
    shares = 1 if share is None else _SHARES
    first = (share or 0) + EVERY.index((interface, operation))
    cases = [
        (field, path)
        for number, field in enumerate(fields(document(interface), operation), first)
        if name in ("", *field.names)
        for path in (
            world.paths[number % shares :: shares] if is_path(field) else islice(some, _OTHERS)
        )
    ]
    with watched(*world.canaries) as seen:
        for field, path in cases:
            with transaction.atomic():
                response = protocol.send(sent(request, field, path))
                answers = [response]
                wrong = []
                is_changed = fingerprint() != before
                if is_changed:
                    answers += use()
                    if is_path(field) and states() != tables and maintained[field] < _MAINTAINED:
                        maintained[field] += 1
                        wrong += maintain(tables)
                transaction.set_rollback(True)
            touched = {f"{event} of {file}" for file, event in seen.take()}
            wrong += [problem for answer in answers for problem in problems(answer)]
            lines += [
                f"{field} = {path}: {response.status_code}, {text}"
                for text in (*sorted(touched), *wrong)
            ]
            if response.status_code < 400:
                for directory in own:
                    shutil.rmtree(directory, ignore_errors=True)
                    copy_files(copies / directory.name, directory)
                lance_datasets.clear_caches()
            if is_changed or response.status_code < 400:
                empty_caches()
    return lines


@pytest.mark.parametrize("share", daily(range(_SHARES), 0))
@pytest.mark.parametrize(("interface", "operation"), EVERY)
def test_no_field_leads_to_foreign_files(warehouse, settings, interface, operation, share):
    lines = faults(interface, operation, settings, share=share)
    assert not lines, "\n".join(lines)


def test_a_map_is_filled_with_known_names_and_the_path(db):
    (field,) = [
        field for field in fields(document("iceberg"), "createNamespace") if "*" in field.names
    ]
    properties = field.make("/p")["properties"]
    assert {"location", "write.data.path", "/p"} <= set(properties)
    assert set(properties.values()) == {"/p"}


@pytest.mark.parametrize(
    ("interface", "operation", "expected"),
    [
        ("lance", "RegisterTable", {"location"}),
        ("lance", "CreateTableVersion", {"manifest_path"}),
        ("lance", "BatchCommitTables", {"location", "manifest_path"}),
        ("iceberg", "registerTable", {"metadata-location"}),
        ("iceberg", "createTable", {"location", "*"}),
        ("iceberg", "signRequest", {"uri"}),
        ("lancedb", "CloneTable", {"source_location"}),
    ],
)
def test_the_fields_with_paths_are_among_those_of_the_documents(db, interface, operation, expected):
    names = {field.names[-1] for field in fields(document(interface), operation) if field.names}
    assert expected - names == set()


def test_a_missing_check_is_noticed(warehouse, settings, monkeypatch):
    monkeypatch.setattr(registration_operations, "_require_no_hidden_table", lambda *_: None)
    lines = faults("lance", "RegisterTable", settings)
    assert any("manifest" in line and "409, open of" in line for line in lines)


def test_a_missing_check_is_noticed_when_files_are_removed(warehouse, settings, monkeypatch):
    monkeypatch.setattr(table_operations, "require_free_location", lambda *_, **__: None)
    monkeypatch.setattr(LocationChecks, "is_free", lambda *_: True)
    monkeypatch.setattr(purge, "holder", lambda _: None)
    lines = faults("lance", "DeclareTable", settings, "location")
    assert any("200, delete of" in line for line in lines)
