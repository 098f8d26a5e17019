"""Compare tables after a maintenance storm with files, the ledger and the audit trail."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import lance
import psycopg
import pyarrow as pa
from psycopg.rows import dict_row
from pyiceberg.table import Table

from tests.chaos.upkeep_writers import Rows, WriterReport, rows_of
from tests.clients import pyice
from tests.live import LiveServer

Name = tuple[str, ...]


def expected(reports: Sequence[WriterReport]) -> dict[Name, Rows]:
    """The rows of each table, according to its writers' reports."""
    rows_by_table: dict[Name, Rows] = {}
    for report in reports:
        rows = rows_by_table.setdefault(report.table, {})
        assert not rows.keys() & report.rows.keys()
        rows.update(report.rows)
    return rows_by_table


def query(server: LiveServer, statement: str, *values: Any) -> list[dict[str, Any]]:
    with (
        psycopg.connect(server.database_url, autocommit=True) as connection,
        connection.cursor(row_factory=dict_row) as cursor,
    ):
        return cursor.execute(statement, values).fetchall()


# --- Lance ---------------------------------------------------------------------------------------


def lance_is_right(server: LiveServer, name: Name, rows: Rows) -> int:
    """Check rows, index and every version of the ledger. Return the number of versions."""
    catalog, table = server.client(), list(name)
    newest = lance.dataset(namespace_client=catalog, table_id=table)
    assert rows_of(newest.to_table()) == rows, name
    for id_ in sorted(rows)[:: max(len(rows) // 7, 1)]:
        row = newest.to_table(filter=f"id = {id_}")  # by the index
        assert row["n"].to_pylist() == [rows[id_]], (name, id_)
    versions = lance_versions(server, name)
    assert newest.version == versions[-1]
    for version in versions:
        dataset = lance.dataset(namespace_client=catalog, table_id=table, version=version)
        data = dataset.to_table()
        assert data.num_rows == dataset.count_rows(), (name, version)
        rows_of(data)
        dataset.validate()
    return len(versions)


def lance_versions(server: LiveServer, name: Name) -> list[int]:
    versions = query(
        server,
        "SELECT version FROM catalog_tableversion v JOIN catalog_table t ON t.id = table_id"
        " WHERE t.name = %s AND deleted_at IS NULL ORDER BY version",
        name[-1],
    )
    return [row["version"] for row in versions]


def lance_orphans(server: LiveServer, name: Name) -> set[str]:
    """Files below a table that no manifest of a version in the ledger names."""
    newest = lance.dataset(namespace_client=server.client(), table_id=list(name))
    location = Path(newest.uri.removeprefix("file://"))
    needed = {"_versions/latest_version_hint.json"}
    for version in lance_versions(server, name):
        dataset = lance.dataset(location, version=version)
        needed.add(f"_versions/{2**64 - 1 - version:020d}.manifest")
        for fragment in dataset.get_fragments():
            metadata = fragment.metadata
            needed.update(f"data/{file.path}" for file in metadata.files)
            if metadata.deletion_file is not None:
                needed.add(metadata.deletion_file.path(metadata.id))
        for index in dataset.describe_indices():
            needed.update(f"_indices/{segment.uuid}" for segment in index.segments)
    files = set()
    for path in location.rglob("*"):
        parts = path.relative_to(location).parts
        # Lance's own record of a commit is not needed afterwards.
        if path.is_file() and parts[0] in {"data", "_deletions", "_versions", "_indices"}:
            files.add("/".join(parts[:2]))
    assert needed <= files, (name, needed - files)
    return files - needed


# --- Iceberg -------------------------------------------------------------------------------------


def iceberg_is_right(server: LiveServer, name: Name, rows: Rows) -> int:
    """Check rows and every snapshot. Return the number of snapshots."""
    table = pyice.connect(server.url, token=server.key).load_table(name)
    assert rows_of(_read(table, None)) == rows, name
    for snapshot in table.snapshots():
        data = _read(table, snapshot.snapshot_id)
        rows_of(data)
        assert snapshot.summary is not None
        assert data.num_rows == int(snapshot.summary["total-records"] or 0) - int(
            snapshot.summary["total-position-deletes"] or 0
        )
    return len(table.snapshots())


def _read(table: Table, snapshot: int | None) -> pa.Table:
    return table.scan(snapshot_id=snapshot).to_arrow()


def iceberg_orphans(server: LiveServer, name: Name) -> set[str]:
    """Files below a table that neither its metadata nor the ledger names."""
    table = pyice.connect(server.url, token=server.key).load_table(name)
    needed = {table.metadata_location, *(log.metadata_file for log in table.metadata.metadata_log)}
    ledger = query(
        server,
        "SELECT manifest_path FROM catalog_tableversion WHERE deleted_at IS NULL"
        " AND starts_with(manifest_path, %s)",
        table.location(),
    )
    needed.update(row["manifest_path"] for row in ledger)
    needed.update(statistics.statistics_path for statistics in table.metadata.statistics)
    for snapshot in table.snapshots():
        needed.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            needed.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            needed.update(entry.data_file.file_path for entry in entries)
    paths = {"/" + path.removeprefix("file:").lstrip("/") for path in needed}
    location = Path("/" + table.location().removeprefix("file:").lstrip("/"))
    files = {
        str(path)
        for path in location.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
    assert paths <= files, (name, paths - files)
    return files - paths


def commits_of_jobs(server: LiveServer, name: Name) -> set[str]:
    """The metadata files by which jobs added snapshots, as far as the metadata log goes back."""
    table = pyice.connect(server.url, token=server.key).load_table(name)
    by_jobs = {
        snapshot.snapshot_id
        for snapshot in table.snapshots()
        if snapshot.summary is not None and snapshot.summary["monodon.job-id"]
    }
    log = [entry.metadata_file for entry in table.metadata.metadata_log]
    ids, before = set(), by_jobs  # snapshots of the oldest file may be older
    for location in [*log, table.metadata_location]:
        document = json.loads(Path("/" + location.removeprefix("file:").lstrip("/")).read_bytes())
        snapshot_ids = {snapshot["snapshot-id"] for snapshot in document.get("snapshots", ())}
        if by_jobs & snapshot_ids - before:
            ids.add(location)
        before = snapshot_ids
    return ids


# --- jobs and the audit trail --------------------------------------------------------------------


def jobs_have_ended(server: LiveServer) -> Mapping[str, Counter[str]]:
    """Assert that no job is active. Return the results by kind."""
    rows = query(server, "SELECT * FROM catalog_job ORDER BY id")
    active = [row for row in rows if row["status"] in {"queued", "running"}]
    assert not active, (active, server.log)
    events_by_job: dict[str, Counter[str]] = {}
    for row in rows:
        events_by_job.setdefault(row["kind"], Counter())[row["status"]] += 1
    return events_by_job


def commits_are_audited(server: LiveServer, files: Collection[str]) -> Counter[str]:
    """Each version has its audit row, and each version in a job's events names the job."""
    unknown = query(
        server,
        "SELECT v.id, v.version FROM catalog_tableversion v JOIN catalog_table t ON t.id = table_id"
        " WHERE NOT EXISTS (SELECT FROM catalog_auditevent e WHERE e.table_uuid = t.uuid"
        " AND e.transaction_id = v.transaction_id)",
    )
    assert not unknown, unknown
    events = query(
        server, "SELECT * FROM catalog_auditevent WHERE action LIKE 'maintenance.%%' ORDER BY id"
    )
    job_events = query(server, "SELECT job_id, message, data FROM catalog_jobevent ORDER BY id")
    audited = {
        (row["after"].get("job"), row["after"].get("version"))
        for row in events
        if row["after"] is not None
    }
    for row in job_events:
        if row["message"].startswith("committed version "):
            version = int(row["message"].removeprefix("committed version "))
            assert (row["job_id"], version) in audited, row
    for file in files:
        statement = (
            "SELECT FROM catalog_auditevent WHERE action = 'table.commit'"
            " AND after->>'metadata_location' = %s"
        )
        assert len(query(server, statement, file)) == 1, file
    return Counter(row["action"] for row in events)
