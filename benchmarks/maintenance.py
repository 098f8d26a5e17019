"""Compaction: how fast it is in the worker and on Spark, and whether the plan's promise is kept.

Each round creates a table of many small files and compacts it by a job, as the worker would. Tables
of Lance have a vector of 64 numbers in each row, and one row in twenty is deleted. ``pylance`` is the
compaction of Lance itself, in a process without the catalog: the best that a job in the worker could do.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import urllib3
from lance.namespace import RestNamespace
from pyiceberg.catalog.rest import RestCatalog

from benchmarks import report
from benchmarks.compare import report_progress
from benchmarks.errors import BenchmarkError
from benchmarks.stack import API_KEY, Stack, free_port, running
from server.options import PROJECT
from server.processes import Child

NAMESPACE = "bench"
DIMENSIONS = 64
TARGET_ROWS, TARGET_BYTES = 128 * 1024, 64 * 1024**2
"""Limits of a file after compaction, chosen so that two cores have work."""
DELETED_RATIO = 0.1
"""Lance's own default, and that of policies."""
LOOPBACK = "spark.driver.host=127.0.0.1 spark.driver.bindAddress=127.0.0.1"
# The worker's code for jobs, without a worker.
_JOB = """
import json
from catalog.models import JobEvent, TableFormat
from catalog.access import SYSTEM
from catalog.services.engine.commit import commit
from catalog.services.maintenance import job_runner
from catalog.services.tables import job_operations as ops
from tasks import spark
for table in {tables!r}:
    start = ops.StartMaintenance(
        table=table, format=TableFormat({format!r}), kind_of_job="compact",
        parameters={{"policy": {policy!r}}},
    )
    job = commit([start], actor=SYSTEM).results[0]
    job_runner.run_job(job.pk, spark=spark.run)
    job.refresh_from_db()
    up = JobEvent.objects.filter(job=job, message__startswith="Spark ").order_by("pk").first()
    print("JOB " + json.dumps({{
        "status": job.status,
        "error": job.error,
        "result": job.result,
        "seconds": (job.finished_at - job.started_at).total_seconds(),
        "start": (up.at - job.started_at).total_seconds() if up else 0.0,
    }}))
"""

_PYLANCE = """
import json, time
import lance
dataset = lance.dataset({location!r})
before, rows = len(dataset.get_fragments()), dataset.count_rows()
began = time.perf_counter()
metrics = dataset.optimize.compact_files(
    target_rows_per_fragment={target_rows}, materialize_deletions_threshold={deleted_ratio}
)
seconds = time.perf_counter() - began
size = sum(
    file.file_size_bytes or 0 for fragment in lance.dataset({location!r}, version={version}).get_fragments()
    for file in fragment.metadata.files
)
after = len(dataset.get_fragments())
print("JOB " + json.dumps({{
    "status": "succeeded", "error": "", "seconds": seconds, "start": 0.0,
    "result": {{
        "plan": {{"bytes": size, "files": metrics.fragments_removed, "new_files": metrics.fragments_added}},
        "before": {{"files": before, "rows": rows}},
        "after": {{"files": after, "rows": dataset.count_rows()}},
    }},
}}))
"""


@dataclass(frozen=True)
class Size:
    lance_files: int
    lance_rows: int
    """Rows per file."""
    iceberg_files: int
    iceberg_rows: int
    rounds: int

    def tenth(self) -> "Size":
        """Tables with a tenth of the files."""
        return replace(
            self, lance_files=self.lance_files // 10, iceberg_files=self.iceberg_files // 10
        )


FULL = Size(lance_files=400, lance_rows=10_000, iceberg_files=60, iceberg_rows=50_000, rounds=3)
QUICK = Size(lance_files=100, lance_rows=2_000, iceberg_files=20, iceberg_rows=10_000, rounds=1)


@dataclass(frozen=True)
class Case:
    format: str
    executor: str
    """A master of Spark, the worker itself, or Lance without the catalog."""
    is_warm: bool = False
    """Whether the driver compacts a small table before."""

    @property
    def name(self) -> str:
        executor = "2 workers" if self.executor.startswith("spark:") else self.executor
        return f"{self.format}, {executor}{', warm' if self.is_warm else ''}"


@dataclass(frozen=True)
class Run:
    """One compaction."""

    seconds: float
    start: float
    """Seconds of them until Spark had started."""
    megabytes: float
    rows: int
    before: int
    promised: int
    """Files, as the plan said."""
    after: int

    @property
    def at_work(self) -> float:
        return self.seconds - self.start


def measure(size: Size, directory: Path | None) -> None:
    """Print the figures and keep them in ``results``. Raises BenchmarkError."""
    with running(directory) as stack, contextlib.ExitStack() as exits:
        url = stack.postgres.url
        stack.bootstrap(url)
        _, port = stack.start_web(url)
        server = f"http://127.0.0.1:{port}"
        _create_namespace(server)
        jar = iceberg_runtime()
        formats = ["lance", *(["iceberg"] if jar else [])]
        if not jar:
            report_progress(
                "Iceberg is left out: set MONODON_SPARK_JARS to the path of its runtime's jar"
            )
        cluster = exits.enter_context(_cluster(stack))
        places = ["pylance", "in the worker", "local[1]", "local[2]", cluster]
        cases = [Case(f, p) for f in formats for p in places if p not in places[:2] or f == "lance"]
        cases += [Case(format_, "local[2]", is_warm=True) for format_ in formats]
        bench = _Bench(stack, url, server, jar, size)
        runs: dict[str, list[Run]] = {case.name: [] for case in cases}
        for number in range(size.rounds):
            report_progress(f"round {number + 1}/{size.rounds}")
            for case in cases:
                name = f"t{number}_{cases.index(case)}"
                runs[case.name].append(bench.run(case, name))
        _show(size, cases, runs)


@dataclass(frozen=True)
class _Bench:
    stack: Stack
    database: str
    server: str
    jar: str
    size: Size

    def run(self, case: Case, name: str) -> Run:
        """Make a table, compact it, remove it. Raises BenchmarkError."""
        make = _make_lance if case.format == "lance" else _make_iceberg
        location, rows = make(self.server, name, self.size)
        tables, locations = [(NAMESPACE, name)], [location]
        if case.is_warm:
            small = make(self.server, f"{name}_small", self.size.tenth())
            tables.insert(0, (NAMESPACE, f"{name}_small"))
            locations.append(small[0])
        policy = {
            "target_rows": TARGET_ROWS,
            "target_bytes": TARGET_BYTES,
            "spark_above": 2**53 if case.executor == "in the worker" else 0,
        }
        if case.executor == "pylance":
            code = _PYLANCE.format(
                location=str(location),
                version=lance.dataset(location).version,
                target_rows=TARGET_ROWS,
                deleted_ratio=DELETED_RATIO,
            )
        else:
            code = _JOB.format(tables=tables, format=case.format, policy=policy)
        outcome = self._job(case, code)
        for path in locations:
            shutil.rmtree(path)
        result = outcome["result"]
        if outcome["status"] != "succeeded" or result is None:
            raise BenchmarkError(f"{case.name}: {outcome['error']}")
        if case.format == "lance":
            plan = result["plan"]
            read, read_files, new_files = plan["bytes"], plan["files"], plan["new_files"]
        else:
            plan = result["planned"]
            read, read_files = plan["rewritten_bytes_count"], plan["rewritten_data_files_count"]
            new_files = plan["added_data_files_count"]
        before, after = result["before"], result["after"]
        if not before["rows"] == after["rows"] == rows:
            raise BenchmarkError(f"{case.name}: {before['rows']} rows became {after['rows']}")
        promised = before["files"] - read_files + new_files
        return Run(
            outcome["seconds"],
            outcome["start"],
            read / 1e6,
            rows,
            before["files"],
            promised,
            after["files"],
        )

    def _job(self, case: Case, code: str) -> dict[str, Any]:
        """Run it in a process that has Django. Raises BenchmarkError."""
        lines: list[str] = []
        child = Child(
            "job",
            [sys.executable, "-c", f"import django\ndjango.setup()\n{code}"],
            sink=lines.append,
            environment={
                **self.stack.environment(self.database),
                "DJANGO_SETTINGS_MODULE": "config.settings",
                "MONODON_URL": self.server,
                "SPARK_MASTER": case.executor,
                "MONODON_SPARK_CONF": LOOPBACK,
                "MONODON_SPARK_JARS": self.jar if case.format == "iceberg" else "",
            },
            directory=PROJECT,
        )
        child.start()
        try:
            child.wait(900.0)
        finally:
            child.kill_group()
            child.wait(5.0)
            child.drain()
        outcomes = [facts for line in lines if (facts := line.partition("JOB ")[2]).startswith("{")]
        if not outcomes:
            raise BenchmarkError("The job reported nothing:\n" + "\n".join(lines[-20:]))
        values: dict[str, Any] = json.loads(outcomes[-1])
        return values


# --- tables --------------------------------------------------------------------------------------


def _create_namespace(server: str) -> None:
    answer = urllib3.request(
        "POST", f"{server}/v1/namespace/{NAMESPACE}/create", json={}, headers={"x-api-key": API_KEY}
    )
    if answer.status != 200:
        raise BenchmarkError(f"No namespace: {answer.data.decode()}")


def _make_lance(server: str, name: str, size: Size) -> tuple[Path, int]:
    catalog = RestNamespace(uri=server, **{"header.x-api-key": API_KEY})
    total, dice = size.lance_files * size.lance_rows, np.random.default_rng(0)

    def batches() -> Iterator[pa.RecordBatch]:
        for begin in range(0, total, size.lance_rows):
            numbers = dice.random(size.lance_rows * DIMENSIONS, np.float32)
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(numbers), DIMENSIONS)
            ids = pa.array(range(begin, begin + size.lance_rows), pa.int64())
            yield pa.record_batch([ids, vectors], names=["id", "vector"])

    schema = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), DIMENSIONS))])
    reader = pa.RecordBatchReader.from_batches(schema, batches())
    dataset = lance.write_dataset(
        reader,
        namespace_client=catalog,
        table_id=[NAMESPACE, name],
        mode="create",
        max_rows_per_file=size.lance_rows,
    )
    dataset.delete("id % 20 = 3")
    return Path(dataset.uri.removeprefix("file://")), total - total // 20


def _make_iceberg(server: str, name: str, size: Size) -> tuple[Path, int]:
    catalog = RestCatalog("bench", uri=server, token=API_KEY)
    table, dice = None, np.random.default_rng(0)
    for begin in range(size.iceberg_files):
        first = begin * size.iceberg_rows
        columns = {"id": pa.array(range(first, first + size.iceberg_rows), pa.int64())}
        columns |= {f"x{n}": dice.random(size.iceberg_rows) for n in range(16)}
        rows = pa.table(columns)
        table = table or catalog.create_table((NAMESPACE, name), rows.schema)
        table.append(rows)
    assert table is not None
    location = Path("/" + table.location().removeprefix("file:").lstrip("/"))
    return location, size.iceberg_files * size.iceberg_rows


# --- Spark ---------------------------------------------------------------------------------------


def iceberg_runtime() -> str:
    """The path of the jar, or empty."""
    if chosen := os.environ.get("MONODON_SPARK_JARS"):
        return chosen
    jars = os.environ.get("MONODON_JARS") or "~/.cache/monodon/jars"
    return next(map(str, Path(jars).expanduser().glob("iceberg-spark-runtime-*.jar")), "")


@contextlib.contextmanager
def _cluster(stack: Stack) -> Iterator[str]:
    """A master and two workers of one core each; gives the master's URL."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise BenchmarkError("This needs PySpark: pip install -r requirements.txt")
    home, port = Path(spec.origin).parent, free_port()
    lines: list[str] = []
    children: list[Child] = []

    def start(name: str, *arguments: str) -> None:
        child = Child(
            f"spark-{name}",
            [
                str(home / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{arguments[0]}",
                *("--host", "127.0.0.1", "--webui-port", "0"),
                *arguments[1:],
            ],
            sink=lines.append,
            environment=os.environ
            | {
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_DAEMON_MEMORY": "256m",
            },
            directory=stack.root,
        )
        children.append(child)
        child.start()

    def wait(words: str, times: int) -> None:
        for _ in range(600):
            if sum(words in line for line in lines) >= times:
                return
            if children[-1].wait(0.1):
                break
        raise BenchmarkError("Spark's cluster did not start:\n" + "\n".join(lines[-20:]))

    url = f"spark://127.0.0.1:{port}"
    try:
        start("master", "master.Master", "--port", str(port))
        wait("I have been elected leader", 1)
        for number in (1, 2):
            directory = str(stack.root / f"spark-worker-{number}")
            size = ("--cores", "1", "--memory", "1g")
            start(f"worker-{number}", "worker.Worker", *size, "--work-dir", directory, url)
        wait("Successfully registered with master", 2)
        yield url
    finally:
        for child in reversed(children):
            child.kill_group()
            child.wait(5.0)
            child.drain()


# --- figures -------------------------------------------------------------------------------------


def _show(size: Size, cases: list[Case], runs: Mapping[str, list[Run]]) -> None:
    print(f"\n{report.machine()}, load {os.getloadavg()[0]:.1f}; medians of {size.rounds}")
    rows, facts = [], {}
    for case in cases:
        of_case = runs[case.name]
        first = of_case[0]

        def median(name: str, of_case: list[Run] = of_case) -> float:
            return statistics.median(getattr(run, name) for run in of_case)

        seconds, at_work = median("seconds"), median("at_work")
        figures = {
            "seconds": seconds,
            "spark_start_seconds": median("start"),
            "megabytes": first.megabytes,
            "rows": first.rows,
            "megabytes_per_second": first.megabytes / at_work,
            "rows_per_second": first.rows / at_work,
            "files_before": first.before,
            "files_promised": [run.promised for run in of_case],
            "files_after": [run.after for run in of_case],
        }
        facts[case.name] = figures
        rows.append(
            [
                case.name,
                f"{first.megabytes:,.0f}",
                f"{seconds:.1f}",
                f"{figures['spark_start_seconds']:.1f}",
                f"{figures['megabytes_per_second']:,.0f}",
                f"{figures['rows_per_second']:,.0f}",
                str(first.before),
                ", ".join(str(n) for n in sorted({run.promised for run in of_case})),
                ", ".join(str(n) for n in sorted({run.after for run in of_case})),
            ]
        )
    head = ["compaction", "MB", "s", "start s", "MB/s", "rows/s", "files", "promised", "after"]
    print("\n" + report.columns(head, rows, left_aligned={0}))
    report.RESULTS.mkdir(exist_ok=True)
    raw = {"machine": report.machine(), "load_average": os.getloadavg(), "compaction": facts}
    (report.RESULTS / "maintenance.json").write_text(json.dumps(raw, indent=1) + "\n")
