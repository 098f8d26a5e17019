"""Writers of tables during maintenance.

Each writer has its own range of ids, and stores the acknowledged state of its rows. At the end, the rows of
a table must be exactly those of its writers. Importable by name, because the processes are spawned.
"""

import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.namespace import RestNamespace
from lance_namespace.errors import ConcurrentModificationError
from lance_namespace_urllib3_client import models as m
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import And, GreaterThanOrEqual, In, LessThan

from tests.clients import pyice

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("text", pa.string())])
OWN = 1_000_000
"""Number of ids reserved for each writer."""
_MOST_ROWS = 400
_PATIENCE = 120.0
Rows = dict[int, int]
"""``n`` by ``id``."""
# Errors that mean that nothing was changed.
_REFUSALS = (ConcurrentModificationError, CommitFailedException)


@dataclass(frozen=True)
class Task:
    """Identity of a writer."""

    kind: str
    url: str
    key: str
    table: tuple[str, ...]
    number: int
    """Number of the writer within the table."""
    stop: Path
    """Writers continue until this file exists."""
    pause: float
    seed: str

    @property
    def begun(self) -> Path:
        """A file that exists once the writer has tried its first change."""
        return self.stop.with_name(f"begun {self.seed}")


@dataclass
class WriterReport:
    """Outcome of a writer."""

    table: tuple[str, ...]
    rows: Rows
    changes: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    unknown: list[str] = field(default_factory=list)
    """Errors with an unknown outcome, after which the writer read its rows and continued."""


def table_of(rows: Rows) -> pa.Table:
    ids = list(rows)
    texts = [f"row {id_} " + "x" * 200 for id_ in ids]
    return pa.table([ids, [rows[id_] for id_ in ids], texts], schema=SCHEMA)


def rows_of(data: pa.Table) -> Rows:
    """Rows by id. Raises if an id occurs twice, or if a row has the text of another."""
    ids = data["id"].to_pylist()
    assert len(set(ids)) == len(ids), [id_ for id_, count in Counter(ids).items() if count > 1]
    texts = data["text"].to_pylist()
    assert all(text.startswith(f"row {id_} ") for id_, text in zip(ids, texts, strict=True))
    return dict(zip(ids, data["n"].to_pylist(), strict=True))


def stream(data: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_table(data)
    return sink.getvalue().to_pybytes()


def write(tasks: Sequence[Task]) -> list[WriterReport]:
    """Run these writers, each in its own thread, until stopped."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(lambda task: _KINDS[task.kind](task).run(), tasks))


class Writer(ABC):
    """A writer, which makes one change after the other."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.first = task.number * OWN
        self._next = self.first
        self._dice = random.Random(task.seed)
        self.report = WriterReport(task.table, {})

    def run(self) -> WriterReport:
        while not self.task.stop.exists():
            self._step()
            self.task.begun.touch()
            time.sleep(self._dice.uniform(0, 2 * self.task.pause))
        return self.report

    def _step(self) -> None:
        before = self.report.rows
        kind = self._dice.choices(("append", "update", "delete"), (60, 20, 20))[0]
        if len(before) > _MOST_ROWS:
            kind = "delete"
        if kind == "append" or not before:
            ids: Collection[int] = range(self._next, self._next + self._dice.randint(1, 20))
            self._next += len(ids)
            kind, new = "append", dict.fromkeys(ids, 0)
            after = before | new
        else:
            most = len(before) // 4 if kind == "delete" else 5
            ids = self._dice.sample(
                sorted(before), self._dice.randint(1, min(len(before), most or 1))
            )
            new = {id_: before[id_] + 1 for id_ in ids} if kind == "update" else {}
            after = {id_: n for id_, n in before.items() if id_ not in set(ids)} | new
        self._change(kind, before, after, new, ids)

    def _change(
        self, kind: str, before: Rows, after: Rows, new: Rows, ids: Collection[int]
    ) -> None:
        try:
            match kind:
                case "append":
                    self.append(table_of(new))
                case "update":
                    self.update(table_of(new))
                case _:
                    self.delete(list(ids))
        except _REFUSALS:
            self.report.refused += 1
            assert self.present_rows() == before, (self.task, kind)
        except Exception as error:  # noqa: BLE001 - whatever it is, the table is looked at
            self.report.unknown.append(f"{kind}: {type(error).__name__}: {error}")
            self.report.rows = self._either(before, after)
        else:
            self.report.changes[kind] += 1
            self.report.rows = after

    def _either(self, before: Rows, after: Rows) -> Rows:
        result = self.present_rows()
        assert result in (before, after), (self.task, self.report.unknown[-1])
        return result

    def present_rows(self) -> Rows:
        """Read the writer's current rows. Maintenance may remove a version during the read, which
        is then repeated."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return rows_of(self.read())
            except (OSError, RuntimeError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    @abstractmethod
    def append(self, data: pa.Table) -> None: ...

    @abstractmethod
    def update(self, data: pa.Table) -> None:
        """Give existing rows a new ``n``."""

    @abstractmethod
    def delete(self, ids: list[int]) -> None: ...

    @abstractmethod
    def read(self) -> pa.Table:
        """Read the writer's rows."""


class LanceRest(Writer):
    """Sends its rows to the server."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.ns = RestNamespace(uri=task.url, **{"header.x-api-key": task.key})
        self.id = list(task.table)

    def append(self, data: pa.Table) -> None:
        self.ns.insert_into_table(m.InsertIntoTableRequest(id=self.id), stream(data))

    def update(self, data: pa.Table) -> None:
        change = m.UpdateTableRequest(
            id=self.id, predicate=_in(data["id"].to_pylist()), updates=[["n", "n + 1"]]
        )
        self.ns.update_table(change)

    def delete(self, ids: list[int]) -> None:
        self.ns.delete_from_table(m.DeleteFromTableRequest(id=self.id, predicate=_in(ids)))

    def read(self) -> pa.Table:
        own = f"id >= {self.first} AND id < {self.first + OWN}"
        return self.open().to_table(filter=own)

    def open(self) -> lance.LanceDataset:
        return lance.dataset(namespace_client=self.ns, table_id=self.id)


class LanceDirect(LanceRest):
    """Writes files itself, and only commits through the server."""

    def append(self, data: pa.Table) -> None:
        lance.write_dataset(data, namespace_client=self.ns, table_id=self.id, mode="append")

    def update(self, data: pa.Table) -> None:
        self.open().update({"n": "n + 1"}, where=_in(data["id"].to_pylist()))

    def delete(self, ids: list[int]) -> None:
        self.open().delete(_in(ids))


class Iceberg(Writer):
    """PyIceberg."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._table = pyice.connect(task.url, token=task.key).load_table(task.table)

    def append(self, data: pa.Table) -> None:
        self._table.refresh().append(data)

    def update(self, data: pa.Table) -> None:
        ids = data["id"].to_pylist()
        self._table.refresh().overwrite(data, overwrite_filter=In("id", ids))

    def delete(self, ids: list[int]) -> None:
        self._table.refresh().delete(In("id", ids))

    def read(self) -> pa.Table:
        own: Any = And(GreaterThanOrEqual("id", self.first), LessThan("id", self.first + OWN))
        return self._table.refresh().scan(row_filter=own).to_arrow()


def _in(ids: list[int]) -> str:
    return f"id IN ({', '.join(map(str, ids))})"


_KINDS: dict[str, type[Writer]] = {
    "lance rest": LanceRest,
    "lance direct": LanceDirect,
    "iceberg": Iceberg,
}
