"""Writing processes of test_concurrent_writers.py. Importable by name, since they are spawned."""

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

import lance
import pyarrow as pa
from lance.namespace import RestNamespace
from lance_namespace.errors import LanceNamespaceError

ROWS = 3  # in each append
# Errors of pylance for an unreachable server and for commits with an unknown outcome.
FAULTS = (OSError, RuntimeError, LanceNamespaceError)
_PATIENCE = 120.0


@dataclass
class AppendReport:
    """Result of one writer, by the names of its attempts."""

    acknowledged: list[str] = field(default_factory=list)
    """Attempts whose write_dataset returned."""
    landed: list[str] = field(default_factory=list)
    """Attempts that failed and whose rows the writer then saw in the table."""
    failed: list[str] = field(default_factory=list)
    """Attempts that failed and whose rows the writer did not see."""
    errors: list[str] = field(default_factory=list)


def append(url: str, key: str, table: list[str], writer: int, count: int) -> AppendReport:
    """Append `count` batches of rows, each row with a unique id, and continue after faults."""
    report = AppendReport()
    for number in range(count):
        deadline = time.monotonic() + _PATIENCE
        attempt = 0
        while True:
            name = f"{writer}/{number}/{attempt}"
            try:
                lance.write_dataset(
                    pa.table({"attempt": [name] * ROWS, "row": list(range(ROWS))}),
                    namespace_client=_client(url, key),
                    table_id=table,
                    mode="append",
                )
                report.acknowledged.append(name)
                break
            except FAULTS as error:
                report.errors.append(f"{name}: {error!r}")
                if _landed(url, key, table, name, deadline):
                    report.landed.append(name)
                    break
                report.failed.append(name)
                attempt += 1
    return report


def _client(url: str, key: str) -> RestNamespace:
    return RestNamespace(uri=url, **{"header.x-api-key": key})


def _landed(url: str, key: str, table: list[str], name: str, deadline: float) -> bool:
    """True if the table holds the attempt's rows; retries until the server is available again."""
    while True:
        try:
            dataset = lance.dataset(namespace_client=_client(url, key), table_id=table)
            return dataset.count_rows(f"attempt = '{name}'") > 0
        except FAULTS:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def pool(processes: int) -> ProcessPoolExecutor:
    """Processes that are spawned, not forked, because Lance has threads."""
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
