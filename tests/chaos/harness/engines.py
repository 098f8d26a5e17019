"""Real clients, pylance and PyIceberg. Each appends its own rows, and reads the rows of all."""

import contextlib
import random
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import lance
import lance.namespace
import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException

from tests.chaos.harness.history import FAIL, OK, UNKNOWN, History, Operation
from tests.chaos.harness.judges import Anomaly

SPACE = "engines"
SCHEMA = pa.schema([("id", pa.int64())])


class Shared:
    """The table to which the engines of one format append. It is replaced before it grows large.

    Nobody appends before the table exists: pylance's ``write_dataset``, which creates it, looks for a version of the
    table and commits afterwards. If another client commits in between, it replaces the rows by a new version.
    """

    def __init__(self, prefix: str, lifetime: int = 40) -> None:
        self._prefix, self._lifetime = prefix, lifetime
        self._lock = threading.Lock()
        self._appends = 0
        self.tables: list[str] = []
        self.created: set[str] = set()

    def choose(self) -> tuple[str, bool]:
        """The table, and whether the caller must create it."""
        with self._lock:
            is_new = self._appends % self._lifetime == 0
            if is_new:
                self.tables.append(f"{self._prefix}{len(self.tables)}")
            self._appends += 1
            return self.tables[-1], is_new


class Engine:
    """Appends one row at a time to a table that it shares with the other engines of its format.

    ``pause`` are the seconds between its operations, on average.
    """

    def __init__(
        self,
        number: int,
        url: str,
        key: str,
        history: History,
        shared: Shared,
        *,
        seed: int,
        pause: float = 0.3,
    ) -> None:
        self.number, self._url, self._key = number, url, key
        self._history, self.shared, self._pause = history, shared, pause
        self._dice = random.Random(f"{seed} engine {number}")
        self._rows = 0
        self.table = ""

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            if not self.table or self._dice.random() < 0.6:
                self.table, is_new = self.shared.choose()
                if is_new:
                    self._create(stop)
                if self.table in self.shared.created:
                    self._append()
            else:
                self.read()
            stop.wait(self._dice.uniform(0, 2 * self._pause))

    def _create(self, stop: threading.Event) -> None:
        """Create the table, and try again until it exists."""
        while not stop.is_set():
            # Whatever a client raises, the table may be there.
            with contextlib.suppress(Exception):
                self.create()
            with contextlib.suppress(Exception):
                self.rows()
                self.shared.created.add(self.table)
                return
            time.sleep(0.2)

    def _append(self) -> None:
        self._rows += 1
        row = self.number * 1_000_000 + self._rows
        operation = self._begin("append")
        operation.version = row
        try:
            self.append(pa.table({"id": [row]}, schema=SCHEMA))
            operation.outcome = OK
        except CommitFailedException as error:
            operation.outcome, operation.message = FAIL, str(error)
        except Exception as error:  # noqa: BLE001 - whatever a client raises, the row may be there
            operation.outcome, operation.message = UNKNOWN, f"{type(error).__name__}: {error}"
            time.sleep(0.2)
        self._history.end(operation)

    def read_all(self) -> None:
        """Read every table that the engines of the format have used."""
        for table in self.shared.tables:
            self.table = table
            self.read()

    def read(self) -> Operation:
        operation = self._begin("rows")
        try:
            operation.output = {"rows": sorted(self.rows())}
            operation.outcome = OK
        except Exception as error:  # noqa: BLE001 - a read that fails says nothing
            operation.outcome, operation.message = FAIL, f"{type(error).__name__}: {error}"
            time.sleep(0.2)
        self._history.end(operation)
        return operation

    def _begin(self, kind: str) -> Operation:
        identity = f"e{self.number}-{time.monotonic_ns()}"
        return self._history.begin(Operation(identity, self.number, SPACE, kind, name=self.table))

    def create(self) -> None:
        raise NotImplementedError

    def append(self, rows: pa.Table) -> None:
        raise NotImplementedError

    def rows(self) -> list[int]:
        raise NotImplementedError


class LanceEngine(Engine):
    def _arguments(self) -> dict[str, Any]:
        catalog = lance.namespace.RestNamespace(uri=self._url, **{"header.x-api-key": self._key})
        return {"namespace_client": catalog, "table_id": [SPACE, self.table]}

    def create(self) -> None:
        lance.write_dataset(SCHEMA.empty_table(), **self._arguments())

    def append(self, rows: pa.Table) -> None:
        lance.write_dataset(rows, mode="append", **self._arguments())

    def rows(self) -> list[int]:
        return lance.dataset(**self._arguments()).to_table()["id"].to_pylist()


class IcebergEngine(Engine):
    def _catalog(self) -> RestCatalog:
        return RestCatalog("harness", uri=self._url, token=self._key)

    def create(self) -> None:
        self._catalog().create_table((SPACE, self.table), SCHEMA)

    def append(self, rows: pa.Table) -> None:
        self._catalog().load_table((SPACE, self.table)).append(rows)

    def rows(self) -> list[int]:
        table = self._catalog().load_table((SPACE, self.table))
        return table.scan().to_arrow()["id"].to_pylist()


def judge(operations: Iterable[Operation]) -> list[Anomaly]:
    """Acknowledged rows exist once from then on, refused rows never, and no other rows exist."""
    ours = [operation for operation in operations if operation.space == SPACE]
    appends = [operation for operation in ours if operation.kind == "append"]
    anomalies = []
    for reading in (op for op in ours if op.kind == "rows" and op.outcome == OK):
        same = [append for append in appends if append.name == reading.name]
        anomalies += _judge_reading(reading, same)
    return anomalies


def _judge_reading(reading: Operation, appends: Sequence[Operation]) -> list[Anomaly]:
    rows = reading.output["rows"]
    row_set = set(rows)
    before = {a.version for a in appends if a.outcome == OK and a.returned < reading.call}
    possible = {a.version for a in appends if a.outcome != FAIL and a.call < reading.returned}
    anomalies = []
    if lost := before - row_set:
        anomalies.append(
            Anomaly("lost acknowledgement", f"{reading.id} {reading.name}: rows {lost}")
        )
    if stray := row_set - possible:
        anomalies.append(Anomaly("false failure", f"{reading.id} {reading.name}: rows {stray}"))
    if len(rows) != len(row_set):
        anomalies.append(
            Anomaly("done twice", f"{reading.id} {reading.name}: rows are there twice")
        )
    return anomalies
