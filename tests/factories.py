"""Rows and files for tests, created through the services, and snapshots of both to compare."""

import hashlib
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import lance
import psycopg
import pyarrow as pa
from django.db import connection
from django.db.models import BinaryField, Model
from lance import write_dataset
from lance.dataset import LanceDataset

from catalog.access import SYSTEM
from catalog.formats.lance import naming as lance_naming
from catalog.formats.lance import wire as lance_wire
from catalog.formats.lance.naming import NamingScheme
from catalog.identifiers import Identifier, digest
from catalog.models import (
    ApiKey,
    ApprovalRequest,
    AuditEvent,
    Branch,
    EngineProfile,
    Facts,
    FileReference,
    FreeDirectory,
    Function,
    Grant,
    IcebergMetadata,
    IcebergPath,
    IdempotencyRecord,
    Job,
    JobEvent,
    LabelAssignment,
    LabelDefinition,
    LedgerCheck,
    MaintenancePolicy,
    MaterializedView,
    MetricsReport,
    Namespace,
    Principal,
    RemainingFiles,
    ScanPlan,
    SearchDocument,
    SearchWord,
    StagedFile,
    StorageProfile,
    StorageTest,
    Table,
    TableHealth,
    TableVersion,
    Transaction,
    TrashItem,
    UnreadSnapshot,
    ViewQuery,
    ViewSource,
    Webhook,
    WebhookDelivery,
)
from catalog.services.access import api_keys
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg.tables import LoadedTable
from catalog.services.lance import data as lance_data
from catalog.services.lance.ledger import registration_operations, version_operations
from catalog.services.tables import namespace_operations
from catalog.storage import lance_options, locations, stores

_MODELS = (
    Namespace,
    Table,
    TableVersion,
    Branch,
    Transaction,
    AuditEvent,
    Job,
    ApiKey,
    Principal,
    Grant,
    JobEvent,
    MaintenancePolicy,
    MaterializedView,
    EngineProfile,
    TableHealth,
    IcebergMetadata,
    IcebergPath,
    ViewQuery,
    ViewSource,
    StagedFile,
    StorageProfile,
    StorageTest,
    IdempotencyRecord,
    MetricsReport,
    ScanPlan,
    Function,
    Facts,
    FileReference,
    FreeDirectory,
    UnreadSnapshot,
    RemainingFiles,
    LabelAssignment,
    LabelDefinition,
    LedgerCheck,
    SearchDocument,
    SearchWord,
    TrashItem,
    ApprovalRequest,
    Webhook,
    WebhookDelivery,
)
ICEBERG_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": True},
        {"id": 2, "name": "name", "type": "string", "required": False},
    ],
    "identifier-field-ids": [],
}
_IGNORED = {"last_used_at"}  # the use of a key is not a change of the catalog


def snapshot() -> dict[str, list[str]]:
    """Every row of the catalog as JSON, by one statement, to be compared with a later snapshot."""
    function = _function(_database(), tuple(map(_rows_of, _MODELS)), "text[]")
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {function}()")
        return dict(cursor.fetchall())


def _rows_of(model: type[Model]) -> str:
    row = _json_of(model)
    for field in model._meta.fields:
        if isinstance(field, BinaryField):  # JSON would have hexadecimal digits
            text = f"encode(t.{field.column}, 'escape')"
            row = f"{row} || jsonb_build_object('{field.column}', {text})"
    return (
        f"SELECT '{model.__name__}',"
        f' ARRAY(SELECT ({row})::text FROM "{model._meta.db_table}" t ORDER BY 1)'
    )


def _json_of(model: type[Model]) -> str:
    ignored = sorted(_IGNORED & {field.name for field in model._meta.fields})
    return "to_jsonb(t)" + "".join(f" - '{name}'" for name in ignored)


def make_administrator(name: str) -> None:
    """A service account with all privileges and a valid key."""
    api_keys.create_api_key(actor=SYSTEM, name=name)


def fingerprint(models: tuple[type[Model], ...] = _MODELS) -> dict[str, str]:
    """A hash of the rows of each table, by one statement; faster than ``snapshot``."""
    if not models:
        return {}
    state = _state()
    if state is not None and _fingerprints.get(models, (None, {}))[0] == state:
        return dict(_fingerprints[models][1])
    function = _function(_database(), tuple(map(_fingerprint_of, models)), "text")
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {function}()")
        rows = dict(cursor.fetchall())
    _fingerprints[models] = (state, rows)
    return dict(rows)


_fingerprints: dict[tuple[type[Model], ...], tuple[Any, dict[str, str]]] = {}
"""The last fingerprint, and the state of the database then."""

_STATE = """
    SELECT pg_backend_pid(), transaction_timestamp(), sum(
        pg_stat_get_xact_tuples_inserted(oid) + pg_stat_get_xact_tuples_updated(oid)
        + pg_stat_get_xact_tuples_deleted(oid)
    )
    FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
    HAVING 1 = (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database())
"""
"""The transaction and the number of rows that it has written, also those rolled back. No row if other
sessions may write too."""


def _state() -> tuple[Any, ...] | None:
    """A value that is the same as before only if no row has been written; None if unknown."""
    if not connection.in_atomic_block or connection.needs_rollback:
        return None
    # Past Django, whose list of statements some tests examine.
    with connection.connection.cursor() as cursor:
        row = cursor.execute(_STATE).fetchone()
    # A rollback to a savepoint also changes rows.
    return None if row is None else (*row, *connection.savepoint_ids)


def _database() -> str:
    return str(connection.settings_dict["NAME"])


@cache
def _function(database: str, selects: tuple[str, ...], type: str) -> str:
    """A function in the test database that returns the rows of some statements: PostgreSQL plans them once, also
    if the test rolls back, when psycopg forgets prepared statements."""
    union = " UNION ALL ".join(selects)
    name = f"tests.rows_{hashlib.md5(union.encode()).hexdigest()}"
    # By another connection, because the test rolls back.
    with psycopg.connect(**connection.get_connection_params(), autocommit=True) as other:
        other.execute("CREATE SCHEMA IF NOT EXISTS tests")
        other.execute(
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS TABLE (_model text, _rows {type})"
            f" LANGUAGE plpgsql AS $$BEGIN RETURN QUERY {union}; END$$"
        )
    return name


def _fingerprint_of(model: type[Model]) -> str:
    json = _json_of(model)
    row = "t::text" if json == "to_jsonb(t)" else f"({json})::text"
    return (
        f"SELECT '{model._meta.label}', coalesce(md5(string_agg({row}, ' ' ORDER BY {row})), '')"
        f' FROM "{model._meta.db_table}" t'
    )


@contextmanager
def unchanged(others: tuple[type[Model], ...] = ()) -> Iterator[None]:
    """Assert that the block changes no row of the catalog, nor of other models."""
    before = fingerprint(), fingerprint(others)
    yield
    assert (fingerprint(), fingerprint(others)) == before


def files(directory: str | Path) -> dict[str, bytes]:
    """The files below a directory with their content. Links are listed, but not followed."""
    if locations.is_object(str(directory)):
        store = stores.store_of(str(directory))
        names = sorted(file.name for file in store.list_tree(str(directory)))
        return {name: store.read(f"{directory}/{name}", 1 << 30)[0] for name in names}
    root = Path(directory)
    return {
        str(path.relative_to(root)): b"-> link" if path.is_symlink() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def wait_for_readers(within: float = 120.0) -> None:
    """Wait until readers of events can see all committed events.

    Transactions in other databases of the server delay them too, such as those of parallel tests.
    """
    deadline = time.monotonic() + within
    while AuditEvent.objects.extra(
        where=["xid >= pg_snapshot_xmin(pg_current_snapshot())"]
    ).exists():
        assert time.monotonic() < deadline, "some transaction does not end"
        time.sleep(0.02)


def make_root() -> Namespace:
    """The root namespace, which a flushed database does not contain."""
    root, _ = Namespace.objects.get_or_create(digest=digest(()), defaults={"path": [], "name": ""})
    return root


def make_namespace(*path: str, properties: dict[str, str] | None = None) -> Namespace:
    """A namespace, with all its ancestors."""
    for depth in range(1, len(path)):
        create = namespace_operations.CreateNamespace(
            namespace=path[:depth], mode=namespace_operations.CreateMode.EXIST_OK
        )
        commit([create], actor=SYSTEM)
    create = namespace_operations.CreateNamespace(
        namespace=path, mode=namespace_operations.CreateMode.EXIST_OK, properties=properties or {}
    )
    return commit([create], actor=SYSTEM).results[0]


def make_table(
    *identifier: str, location: str | None = None, properties: dict[str, str] | None = None
) -> Table:
    """A declared table, with all its namespaces."""
    make_namespace(*identifier[:-1])
    declare = registration_operations.DeclareTable(
        table=identifier, location=location, properties=properties or {}
    )
    return commit([declare], actor=SYSTEM).results[0]


def make_iceberg_table(*identifier: str, **create: Any) -> LoadedTable:
    """An Iceberg table with all its namespaces, and by default with a schema."""
    make_namespace(*identifier[:-1])
    return iceberg_commits.create_table(
        actor=SYSTEM, table=identifier, **{"schema": ICEBERG_SCHEMA, **create}
    )


def make_version(
    table: Identifier, version: int, manifest_path: str | None = None, branch: str = ""
) -> TableVersion:
    """A version. By default, its manifest is recorded but has no file."""
    create = version_operations.CreateVersion(
        table=table,
        version=version,
        branch=branch,
        manifest_path=manifest_path or f"elsewhere/{version}.manifest",
    )
    commit([create], actor=SYSTEM)
    return TableVersion.objects.get(
        table__in=Table.objects.named(table), branch=branch, version=version
    )


def stage(
    table: Table,
    version: int,
    *,
    scheme: NamingScheme = NamingScheme.V2,
    branch: str = "",
    content: bytes | None = None,
) -> Path:
    """A staged manifest as a Lance client writes it: the final name, a dash, a UUID."""
    final = lance_naming.final_manifest_path(branch, version, scheme)
    path = Path(f"{table.location}/{final}-{uuid.uuid4()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(manifest(version, branch, content))
    return path


def manifest(
    version: int,
    branch: str = "",
    text: bytes | None = None,
    *,
    bases: Sequence[tuple[str, bool]] = (),
    files: Sequence[tuple[str, int | None]] = (),
) -> bytes:
    """The content of a small Lance manifest; ``text`` makes it differ from others of its version.

    ``bases`` are pairs of a base path and True if it has the layout of a table. ``files`` are pairs of
    the path of a data file and the number of its base path.
    """
    message = b"".join(_field(2, _fragment(number, *file)) for number, file in enumerate(files))
    message += _number(3, version)
    message += _field(12, text if text is not None else f"manifest {version}".encode())
    for number, (path, is_root) in enumerate(bases):
        message += _field(
            18, _number(1, number) + _number(3, int(is_root)) + _field(4, path.encode())
        )
    if branch:
        message += _field(20, branch.encode())
    footer = (0).to_bytes(8, "little") + b"\0\0\2\0LANC"
    return len(message).to_bytes(4, "little") + message + footer


def _fragment(number: int, path: str, base: int | None) -> bytes:
    file = _field(1, path.encode()) + (b"" if base is None else _number(7, base))
    return _number(1, number) + _field(2, file)


def _number(field: int, value: int) -> bytes:
    return lance_wire.encode_varint(field << 3) + lance_wire.encode_varint(value)


def _field(field: int, content: bytes) -> bytes:
    head = lance_wire.encode_varint(field << 3 | 2)
    return head + lance_wire.encode_varint(len(content)) + content


def final_path(
    table: Table, version: int, *, scheme: NamingScheme = NamingScheme.V2, branch: str = ""
) -> Path:
    """The final path of a version's manifest."""
    return Path(table.location) / lance_naming.final_manifest_path(branch, version, scheme)


def relative(path: Path) -> str:
    """A path in the form of clients and the catalog: relative to the store, without a leading slash."""
    return str(path).lstrip("/")


def make_lance_table(table: Identifier, data: pa.Table | None = None) -> Table:
    """A Lance table with this data (by default ids 1 to 3), with all its namespaces."""
    for depth in range(1, len(table)):
        if not Namespace.objects.named(table[:depth]).exists():
            commit([namespace_operations.CreateNamespace(namespace=table[:depth])], actor=SYSTEM)
    data = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}) if data is None else data
    lance_data.create_table(actor=SYSTEM, table=table, data=data.to_reader())
    return Table.objects.named(table).get()


def open_lance(location: str, version: int | str | None = None) -> LanceDataset:
    """A table as Lance sees it in storage, past the catalog."""
    return lance.dataset(location, version, storage_options=lance_options.storage_options(location))


def register_lance_table(table: Identifier, data: pa.Table) -> Table:
    """A Lance table that was written without the catalog, and therefore may have data that the
    catalog refuses to write."""
    make_namespace(*table[:-1])
    location = locations.new_location("written-by-hand")
    write_dataset(data, location)
    return commit(
        [registration_operations.RegisterTable(table=table, location=location)], actor=SYSTEM
    ).results[0]
