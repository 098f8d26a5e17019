"""Writing processes of test_lance_rivals.py. Importable by name, since they are spawned."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import lance
import pyarrow as pa
from lance.namespace import RestNamespace
from lance_namespace.errors import ConcurrentModificationError
from lance_namespace_urllib3_client import models as m

# Without this metadata, two concurrent merges that insert the same new key both insert it, as in Lance.
_KEY = pa.field(
    "id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}
)
SCHEMA = pa.schema([_KEY, ("n", pa.int64()), ("writer", pa.string())])
SHARED = 5_000  # the first id of new rows that both writers merge
_PATIENCE = 120.0
# Error of pylance when its own retries are exhausted.
_CONFLICT = re.compile("conflict|concurrent", re.IGNORECASE)


@dataclass(frozen=True)
class Race:
    """Target table, start time and number of changes of a writer."""

    url: str
    key: str
    table: list[str]
    changes: int
    begin: float


@dataclass
class WriterReport:
    """Result of one writer."""

    changes: int = 0
    refused: int = 0
    """Number of conflicts after which the writer repeated its change."""


def rows(*entries: tuple[int, int, str]) -> pa.Table:
    columns = zip(*entries, strict=True)
    return pa.table(list(map(list, columns)), schema=SCHEMA)


def stream(data: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_table(data)
    return sink.getvalue().to_pybytes()


class Writer:
    """Kinds of changes, each over HTTP and as a direct write; `number` counts the changes."""

    def __init__(self, url: str, key: str, table: list[str], first: int, name: str) -> None:
        self.ns = RestNamespace(uri=url, **{"header.x-api-key": key})
        self.table, self.first, self.name = table, first, name

    def append(self, number: int) -> None:
        """Append a new row of this writer."""
        self.ns.insert_into_table(
            m.InsertIntoTableRequest(id=self.table), stream(self._own(number))
        )

    def direct_append(self, number: int) -> None:
        lance.write_dataset(
            self._own(number), namespace_client=self.ns, table_id=self.table, mode="append"
        )

    def update(self, number: int) -> None:
        """Increment a counter in the initial rows."""
        self.ns.update_table(
            m.UpdateTableRequest(id=self.table, predicate="id < 1000", updates=[["n", "n + 1"]])
        )

    def direct_update(self, number: int) -> None:
        self._open().update({"n": "n + 1"}, where="id < 1000")

    def delete(self, number: int) -> None:
        """Delete one of the initial rows."""
        self.ns.delete_from_table(
            m.DeleteFromTableRequest(id=self.table, predicate=f"id = {number}")
        )

    def direct_delete(self, number: int) -> None:
        self._open().delete(f"id = {number}")

    def merge(self, number: int) -> None:
        """Update one of the initial rows, and insert one new row of the writer."""
        self._merge(self._upserts(number))

    def direct_merge(self, number: int) -> None:
        self._direct_merge(self._upserts(number))

    def upsert(self, number: int) -> None:
        """Merge a new row that the rival merges at the same time."""
        self._merge(rows((SHARED + number, 0, self.name)))

    def direct_upsert(self, number: int) -> None:
        self._direct_merge(rows((SHARED + number, 0, self.name)))

    def _merge(self, data: pa.Table) -> None:
        self.ns.merge_insert_into_table(
            m.MergeInsertIntoTableRequest(
                id=self.table,
                on=["id"],
                when_matched_update_all=True,
                when_not_matched_insert_all=True,
            ),
            stream(data),
        )

    def _direct_merge(self, data: pa.Table) -> None:
        merge = self._open().merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all()
        merge.execute(data)

    def _open(self) -> lance.LanceDataset:
        return lance.dataset(namespace_client=self.ns, table_id=self.table)

    def _own(self, number: int) -> pa.Table:
        return rows((self.first + number, 0, self.name))

    def _upserts(self, number: int) -> pa.Table:
        return rows((number, 0, self.name), (self.first + number, 0, self.name))


def work(race: Race, kind: str, first: int) -> WriterReport:
    """Make the changes of a kind from the start of the race, and repeat each until it is
    acknowledged."""
    writer = Writer(race.url, race.key, race.table, first, kind)
    change: Callable[[int], None] = getattr(writer, kind)
    report, deadline = WriterReport(), time.monotonic() + _PATIENCE
    time.sleep(max(0.0, race.begin - time.time()))
    while report.changes < race.changes:
        try:
            change(report.changes)
            report.changes += 1
        except ConcurrentModificationError:
            report.refused += 1
        except (OSError, RuntimeError) as error:
            if not kind.startswith("direct") or not _CONFLICT.search(str(error)):
                raise
            report.refused += 1
        assert time.monotonic() < deadline, f"{kind}: {report}"
    return report
