"""Stock clients that append to one table in an object store, and continue after every fault."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import lance
import pyarrow as pa
import urllib3
from lance.namespace import RestNamespace
from pyiceberg.exceptions import (
    CommitFailedException,
    ServiceUnavailableError,
    ValidationException,
)
from pyiceberg.table import Table

from tests.clients import lancedb_client, pyice, rivals
from tests.live import LiveServer

ROWS = 3
"""Rows of each append."""
SCHEMA = pa.schema({"attempt": pa.string(), "row": pa.int64()})
_PATIENCE = 600.0
TIME_OUT_SECONDS = 4
"""How long a client waits for the store, before it repeats a request."""
_LANCE_OPTIONS = {"timeout": f"{TIME_OUT_SECONDS}s"}
_REFUSALS = ("Too many concurrent writers", "Too many concurrent writes")


@dataclass
class Report:
    """Result of one writer, by the names of its attempts."""

    acknowledged: list[str] = field(default_factory=list)
    """Attempts that the client reported as done."""
    landed: list[str] = field(default_factory=list)
    """Attempts that failed, and whose rows the writer then saw in the table."""
    refused: list[str] = field(default_factory=list)
    """Attempts of which the client says that they changed nothing."""
    unknown: list[str] = field(default_factory=list)
    """Attempts that failed otherwise, and whose rows the writer did not see by then."""
    errors: list[str] = field(default_factory=list)


class Writer:
    """Appends with one client. A new connection for each call, as of a program that starts again."""

    def __init__(self, server: LiveServer, table: Sequence[str]) -> None:
        self.server, self.table = server, list(table)

    def append(self, name: str) -> None:
        """Append the rows of an attempt, each of them with its name. Raises what the client raises."""
        raise NotImplementedError

    def has_landed(self, name: str) -> bool:
        """True if the table has the rows of an attempt. Raises what the client raises."""
        raise NotImplementedError

    def is_refusal(self, error: Exception) -> bool:
        """True if the client says that nothing was changed."""
        raise NotImplementedError


class Pylance(Writer):
    def append(self, name: str) -> None:
        lance.write_dataset(
            rows(name),
            namespace_client=self._namespace(),
            table_id=self.table,
            mode="append",
            storage_options=_LANCE_OPTIONS,
        )

    def has_landed(self, name: str) -> bool:
        dataset = lance.dataset(namespace_client=self._namespace(), table_id=self.table)
        return bool(dataset.count_rows(f"attempt = '{name}'"))

    def is_refusal(self, error: Exception) -> bool:
        return any(text in str(error) for text in _REFUSALS)

    def _namespace(self) -> RestNamespace:
        return self.server.client()


class LanceDb(Pylance):
    def append(self, name: str) -> None:
        *namespace, table = self.table
        database = lancedb_client.connect(self.server)
        opened = database.open_table(
            table, namespace_path=namespace, storage_options=_LANCE_OPTIONS
        )
        opened.add(rows(name))


class HttpInsert(Pylance):
    """The server writes the rows (InsertIntoTable)."""

    def append(self, name: str) -> None:
        answer = urllib3.request(
            "POST",
            f"{self.server.url}/v1/table/{'$'.join(self.table)}/insert?mode=append",
            body=rivals.stream(rows(name)),
            headers={
                "x-api-key": self.server.key,
                "content-type": "application/vnd.apache.arrow.stream",
            },
            timeout=120,
            retries=False,
        )
        if answer.status != 200:
            raise NotInserted(answer.status, answer.data.decode())

    def is_refusal(self, error: Exception) -> bool:
        # 500 is for an unknown outcome; the other statuses say that nothing was changed.
        return isinstance(error, NotInserted) and error.status in {409, 503}


class NotInserted(Exception):
    """The server's answer to an insert that it did not acknowledge."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status = status


class PyIceberg(Writer):
    """The name of an attempt is a property of its snapshot, too, by which it is looked up."""

    def append(self, name: str) -> None:
        self._load().append(rows(name), snapshot_properties={"attempt": name})

    def has_landed(self, name: str) -> bool:
        snapshots = self._load().metadata.snapshots
        return any(
            snapshot.summary is not None
            and snapshot.summary.additional_properties.get("attempt") == name
            for snapshot in snapshots
        )

    def is_refusal(self, error: Exception) -> bool:
        # A 503 of this server says that nothing was changed.
        return isinstance(
            error, CommitFailedException | ValidationException | ServiceUnavailableError
        )

    def _load(self) -> Table:
        catalog = pyice.connect(
            self.server.url,
            token=self.server.key,
            **{"s3.request-timeout": TIME_OUT_SECONDS, "s3.connect-timeout": TIME_OUT_SECONDS},
        )
        return catalog.load_table(tuple(self.table))


def rows(name: str) -> pa.Table:
    return pa.table({"attempt": [name] * ROWS, "row": list(range(ROWS))}, schema=SCHEMA)


def append_all(writer: Writer, number: int, count: int) -> Report:
    """Append `count` times; an append that failed and is not there is repeated with another name."""
    report = Report()
    for append in range(count):
        deadline = time.monotonic() + _PATIENCE
        attempt = 0
        while not _append(writer, f"{number}/{append}/{attempt}", report, deadline):
            attempt += 1
            assert time.monotonic() < deadline, report.errors[-3:]
    return report


def _append(writer: Writer, name: str, report: Report, deadline: float) -> bool:
    """Append once. True if the rows are there."""
    try:
        writer.append(name)
    except Exception as error:  # noqa: BLE001 -- whatever a client raises, the rows may be there
        report.errors.append(f"{name}: {type(error).__name__}: {error}")
        if writer.is_refusal(error):
            report.refused.append(name)
            return False
        has_landed = _until_answered(lambda: writer.has_landed(name), deadline)
        (report.landed if has_landed else report.unknown).append(name)
        return has_landed
    report.acknowledged.append(name)
    return True


def _until_answered(question: Callable[[], bool], deadline: float) -> bool:
    """Ask until server and store are available again."""
    while True:
        try:
            return question()
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
