"""Compare what writers report with a table in an object store: its rows, versions and objects."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import lance
from psycopg.rows import dict_row
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from tests.chaos.harness import ledger
from tests.chaos.object_writers import ROWS, Report
from tests.clients import pyice
from tests.live import LiveServer
from tests.stores.s3 import S3Store

_WITH_VERSION = {"version.create", "table.insert", "table.create", "table.commit"}
"""The actions of the audit rows of versions."""
Rows = Counter[tuple[str, int]]


@dataclass(frozen=True)
class Lake:
    """A live server with one table in a bucket of a store, which is read without the proxy."""

    server: LiveServer
    store: S3Store
    root: str
    table: tuple[str, str]

    def facts(self) -> tuple[str, list[dict[str, Any]]]:
        """The location of the table, and its versions in the ledger."""
        with self.server.database() as connection:
            versions = (
                connection.cursor(row_factory=dict_row)
                .execute(
                    "SELECT t.location, v.version, v.manifest_path, v.staged_path, v.deleted_at"
                    " FROM catalog_tableversion v JOIN catalog_table t ON t.id = v.table_id"
                    " WHERE t.name = %s ORDER BY v.version",
                    [self.table[1]],
                )
                .fetchall()
            )
        (location,) = {row["location"] for row in versions}
        return location, versions

    def objects(self) -> set[str]:
        """The objects below the root, as URLs, without the marks of directories.

        pyarrow writes such a mark, an empty object, when it removes a file.
        """
        bucket, _, prefix = self.root.removeprefix("s3://").partition("/")
        keys = self.store.keys(bucket, f"{prefix}/")
        return {f"s3://{bucket}/{key}" for key in keys if not key.endswith("/")}

    def notes(self) -> set[str]:
        """The metadata files that the server has recorded as written, and not as current."""
        with self.server.database() as connection:
            return {row[0] for row in connection.execute("SELECT path FROM catalog_stagedfile")}

    def uploads(self) -> list[str]:
        """The keys of multipart uploads that were neither completed nor aborted."""
        bucket = self.root.removeprefix("s3://").partition("/")[0]
        answer = self.store.client().list_multipart_uploads(Bucket=bucket)
        return [upload["Key"] for upload in answer.get("Uploads", ())]

    def storage_options(self) -> dict[str, str]:
        """Options for Lance to open the bucket without the catalog and the proxy."""
        return {
            "aws_endpoint": self.store.endpoint,
            "aws_region": self.store.region,
            "aws_access_key_id": self.store.access_key,
            "aws_secret_access_key": self.store.secret_key,
            "allow_http": "true",
        }

    def catalog(self) -> RestCatalog:
        return pyice.connect(self.server.url, token=self.server.key)


# --- rows and versions -------------------------------------------------------------------------


def require_each_once(reports: Sequence[Report], rows: Rows, append_count: int) -> None:
    """No append is lost or doubled, and none is there of which the client said that it is not."""
    done = [name for report in reports for name in report.acknowledged + report.landed]
    refused = [name for report in reports for name in report.refused]
    unknown = [name for report in reports for name in report.unknown]
    assert len(done) == len(reports) * append_count
    assert {name: _counts(rows, name) for name in done} == {name: {1} for name in done}
    assert [name for name in refused if _counts(rows, name) != {0}] == []
    assert [name for name in unknown if _counts(rows, name) not in ({0}, {1})] == []
    assert {name for name, _ in rows} <= {*done, *unknown}


def _counts(rows: Rows, name: str) -> set[int]:
    return {rows[name, row] for row in range(ROWS)}


def require_trail(lake: Lake, rows: Rows) -> None:
    """The ledger has a version for each append and one for the creation, and each its audit row."""
    _, versions = lake.facts()
    numbers = [row["version"] for row in versions]
    assert numbers == list(range(numbers[0], numbers[0] + 1 + len({name for name, _ in rows})))
    assert all(row["deleted_at"] is None for row in versions)
    with lake.server.database() as connection:
        state = ledger.load(connection)
    entered = Counter(row.transaction for row in state.versions)
    recorded = Counter(row.transaction for row in state.audit if row.action in _WITH_VERSION)
    assert entered == recorded
    assert entered.total() == len(versions)


# --- Lance -------------------------------------------------------------------------------------


def lance_rows(lake: Lake) -> Rows:
    dataset = lance.dataset(namespace_client=lake.server.client(), table_id=list(lake.table))
    return _count(dataset.to_table())


def lance_references(lake: Lake) -> set[str]:
    """The objects that the versions of the ledger refer to. Each version has one more append.

    Lance keeps the transaction of a version in its manifest as well. A client that repeats a commit
    after a conflict removes the file of the transaction and writes it again under the same name. So
    a removal that arrives late may remove the second one, which nobody misses.
    """
    location, versions = lake.facts()
    referenced = set()
    objects = lake.objects()
    for index, row in enumerate(versions):
        assert row["staged_path"] is None
        bucket = lake.root.removeprefix("s3://").partition("/")[0]
        referenced.add(f"s3://{bucket}/{row['manifest_path']}")
        dataset = lance.dataset(
            location, version=row["version"], storage_options=lake.storage_options()
        )
        assert dataset.count_rows() == ROWS * index
        for fragment in dataset.get_fragments():
            referenced.update(f"{location}/data/{file.path}" for file in fragment.data_files())
            assert fragment.deletion_file() is None
        transaction = dataset.read_transaction(row["version"])
        name = f"{transaction.read_version}-{transaction.uuid}.txn"
        referenced.update({f"{location}/_transactions/{name}"} & objects)
    return referenced


# --- Iceberg -----------------------------------------------------------------------------------


def iceberg_rows(lake: Lake) -> Rows:
    return _count(lake.catalog().load_table(lake.table).scan().to_arrow())


def iceberg_references(lake: Lake) -> set[str]:
    """The objects that the versions of the ledger refer to. Each snapshot has one more append."""
    _, versions = lake.facts()
    referenced = {row["manifest_path"] for row in versions}
    table: Table = lake.catalog().load_table(lake.table)
    assert table.metadata_location == versions[-1]["manifest_path"]
    snapshots = sorted(table.metadata.snapshots, key=lambda row: row.sequence_number or 0)
    for index, snapshot in enumerate(snapshots, 1):
        assert snapshot.summary is not None
        assert snapshot.summary["total-records"] == str(ROWS * index)
        referenced.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                referenced.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io)
                referenced.update(entry.data_file.file_path for entry in entries)
    return referenced


def _count(table: Any) -> Rows:
    return Counter(zip(table["attempt"].to_pylist(), table["row"].to_pylist(), strict=True))


def by_kind(objects: Iterable[str]) -> dict[str, int]:
    """The number of objects by directory and ending, for messages."""
    kinds = Counter(_KIND.sub(r"\1/*\2", path) for path in objects)
    return dict(sorted(kinds.items()))


_KIND = re.compile(r"^.*/([^/]+)/[^/]*?(\.manifest-|\.metadata\.json|\.[^./]*|)[^./]*$")
