"""Maintenance of one Iceberg table by Iceberg's own procedures, over the catalog's REST endpoint.

Started by the worker (``tasks.spark``), or by hand; ``--help`` tells the rest:

    MONODON_API_KEY=mnd_... spark-submit --packages \
        org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 tasks/jobs/iceberg.py \
        compact sales.orders --url http://127.0.0.1:2333

The worker sends one line of JSON on standard input and then holds that open: when it ends, so does
this process, with all that it started. What happens is told on standard output, a JSON object a line.
"""

import argparse
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

CATALOG = "monodon"
JOB_PROPERTY = "monodon.job-id"
_SHOWN = 1000  # files of a list
_FOUND = "monodon_orphans"
_DELETED_AT_ONCE = 500
_EXPIRED = {
    "DATA": "deleted_data_files_count",
    "POSITION_DELETES": "deleted_position_delete_files_count",
    "EQUALITY_DELETES": "deleted_equality_delete_files_count",
    "Manifest": "deleted_manifest_files_count",
    "Manifest List": "deleted_manifest_lists_count",
    "Statistics Files": "deleted_statistics_files_count",
}
_SIZED = 10_000  # files whose sizes are asked for, one by one
_GROUP = re.compile(r"Rewriting (\d+) (?:position delete )?files")
_CONFLICTS = ("CommitFailedException", "ValidationException", "CommitStateUnknownException")
_STOPPED = ("NotAuthorizedException", "Not authorized")
_REFUSALS = (
    "ForbiddenException",
    "NoSuchTableException",
    "IllegalArgumentException",
    "TABLE_OR_VIEW_NOT_FOUND",
    "and may not be read for it",
)
_one_at_a_time = threading.Lock()


class Failed(Exception):
    """``kind`` tells what to do: ``refused`` is the same again, ``conflict`` may heal."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def tell(event: str, **facts: Any) -> None:
    with _one_at_a_time:
        print(json.dumps({"event": event, **facts}), flush=True)


# --- what is asked -----------------------------------------------------------------------------


def from_worker() -> dict[str, Any]:
    """The request on standard input; from then on this process ends when that does."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 65536)
        if not more:
            os._exit(3)
        line += more

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.killpg(0, signal.SIGKILL)  # of our own: the worker has made the group

    threading.Thread(target=watch, daemon=True).start()
    request: dict[str, Any] = json.loads(line)
    return request


def from_command_line() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description="Maintain an Iceberg table of the catalog.")
    parser.add_argument("action", choices=sorted(ACTIONS))
    parser.add_argument("table", help="such as sales.orders; a JSON list where a name has a dot")
    parser.add_argument("--url", default=os.environ.get("MONODON_URL", "http://127.0.0.1:2333"))
    parser.add_argument(
        "--catalog", help="a catalog of the session, instead of --url and MONODON_API_KEY"
    )
    parser.add_argument(
        "--option", action="append", default=[], help="of the procedure, such as min-input-files=2"
    )
    parser.add_argument("--older-than-days", type=float, default=7.0)
    parser.add_argument("--retain-last", type=int, default=10)
    parser.add_argument("--dry-run", action="store_true", help="of remove_orphans only")
    arguments = parser.parse_args()
    if arguments.dry_run and arguments.action != "remove_orphans":
        parser.error("only remove_orphans can tell what it would do")
    table = (
        json.loads(arguments.table)
        if arguments.table.startswith("[")
        else arguments.table.split(".")
    )
    return {
        "action": arguments.action,
        "table": table,
        "url": arguments.url,
        "token": os.environ.get("MONODON_API_KEY", ""),
        "catalog": arguments.catalog,
        "options": dict(option.split("=", 1) for option in arguments.option),
        "older_than_ms": int((time.time() - arguments.older_than_days * 86_400) * 1000),
        "retain_last": arguments.retain_last,
        "is_dry_run": arguments.dry_run,
    }


# --- the procedures ----------------------------------------------------------------------------


class Procedures:
    def __init__(self, spark: SparkSession, request: dict[str, Any]) -> None:
        self._spark = spark
        self._catalog = _quoted(request.get("catalog") or CATALOG)
        parts = [self._catalog, *map(_quoted, request["table"])]
        self._table = _text(".".join(parts))
        self._request = request

    def compact(self) -> dict[str, Any]:
        result = self._one("rewrite_data_files", options=self._options())
        if result.get("failed_data_files_count"):
            raise Failed(
                "conflict",
                f"{result['failed_data_files_count']} files were not rewritten, because others changed"
                f" them; {result['rewritten_data_files_count']} were",
            )
        return result

    def clean_up(self) -> dict[str, Any]:
        """Expire snapshots, then delete those of their files that are the table's own.

        The procedure expire_snapshots deletes whatever the metadata names, wherever it lies.
        """
        guard = self._guard()
        tell("log", message=f"expire_snapshots({self._table}), files below {guard.shown}")
        action = (
            self._actions()
            .expireSnapshots(self._load())
            .expireOlderThan(int(self._request["older_than_ms"]))
            .retainLast(int(self._request["retain_last"]))
        )
        expired = action.expireFiles()
        counts = dict.fromkeys(_EXPIRED.values(), 0)
        deleted: list[str] = []
        spared: list[str] = []
        for batch in _batches(expired.toLocalIterator(), _DELETED_AT_ONCE):
            own = []
            for path, kind in batch:
                if guard.is_own(path):
                    own.append(path)
                    name = _EXPIRED.get(kind, "deleted_other_files_count")
                    counts[name] = counts.get(name, 0) + 1
                else:
                    spared.append(path)
            self._delete(own)
            deleted += own[: max(_SHOWN - len(deleted), 0)]
        return {**counts, "deleted_files": deleted, **_spared(spared)}

    def remove_orphans(self) -> dict[str, Any]:
        """Lists first, to tell how large the files are, and to leave those that the ledger names."""
        guard = self._guard()
        listed = [file for file in self._orphans(is_dry_run=True) if not self._is_kept(file)]
        orphans = [file for file in listed if guard.is_own(file)]
        spared_files_count = len(listed) - len(orphans)
        bytes_found = self._sizes(orphans[:_SIZED])
        if not self._request["is_dry_run"] and orphans:
            tell("log", message=f"{len(orphans)} orphans were found")
            # Of a view it takes what begins with the location, which listed files spell otherwise.
            orphans = self._orphans(
                is_dry_run=False,
                file_list_view=self._view(orphans),
                location=_text(os.path.commonprefix(orphans)),  # noqa: RUF071 -- to the letter
            )
        result = {
            "orphan_files_count": len(orphans),
            "orphan_bytes": bytes_found,
            "orphan_files": orphans[:_SHOWN],
        }
        if spared_files_count:
            # Without their names: a link may lead to files that the table's owner may not list.
            result["spared_files_count"] = spared_files_count
        return result

    def _guard(self) -> "Guard":
        """Whose files are whose: as the worker says, else only those below the table's location."""
        own = self._request.get("own_prefixes")
        if own is None:
            own = [str(self._load().location())]
        return Guard(own, self._request.get("foreign_prefixes") or [])

    def _actions(self) -> Any:
        return self._jvm.org.apache.iceberg.spark.actions.SparkActions.get(self._session)

    def _load(self) -> Any:
        """The Iceberg table, as Java has it."""
        parts = [self._catalog, *map(_quoted, self._request["table"])]
        return self._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self._session, ".".join(parts)
        )

    @property
    def _jvm(self) -> Any:
        return self._spark.sparkContext._jvm  # noqa: SLF001

    @property
    def _session(self) -> Any:
        return self._spark._jsparkSession  # noqa: SLF001

    def _delete(self, paths: list[str]) -> None:
        if not paths:
            return
        io = self._load().io()
        java_paths = self._jvm.java.util.ArrayList()
        for path in paths:
            java_paths.add(path)
        util = self._jvm.org.apache.iceberg.CatalogUtil
        util.deleteFiles(io, java_paths, "expired", True)

    def _is_kept(self, file: str) -> bool:
        """Metadata files are the catalog's, which may name them when their log does not any more.

        By hand nobody tells which it names.
        """
        kept_metadata = self._request.get("kept_metadata")
        name = file.rpartition("/")[2]
        return ".metadata.json" in name and (kept_metadata is None or name in kept_metadata)

    def _view(self, files: list[str]) -> str:
        """A view of files to choose from, which the procedure looks at once more."""
        rows = [(file, datetime.fromtimestamp(0, UTC)) for file in files]
        columns = "file_path string, last_modified timestamp"
        self._spark.createDataFrame(rows, columns).createOrReplaceTempView(_FOUND)
        return _text(_FOUND)

    def rewrite_manifests(self) -> dict[str, Any]:
        return self._one("rewrite_manifests", use_caching="false")

    def rewrite_position_deletes(self) -> dict[str, Any]:
        return self._one("rewrite_position_delete_files", options=self._options())

    def compute_statistics(self) -> dict[str, Any]:
        return self._one("compute_table_stats")

    def _orphans(self, *, is_dry_run: bool, **arguments: str) -> list[str]:
        rows = self._call(
            "remove_orphan_files",
            older_than=self._moment(),
            dry_run=str(is_dry_run).lower(),
            **arguments,
        )
        return sorted(row["orphan_file_location"] for row in rows)

    def _sizes(self, files: list[str]) -> int:
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001
        conf = self._spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        total = 0
        for file in files:
            try:
                path = jvm.org.apache.hadoop.fs.Path(file)
                total += path.getFileSystem(conf).getFileStatus(path).getLen()
            except Py4JError:  # gone meanwhile
                continue
        return total

    def _moment(self) -> str:
        moment = datetime.fromtimestamp(self._request["older_than_ms"] / 1000, UTC)
        return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S}Z'"

    def _options(self) -> str:
        options = self._request.get("options") or {}
        pairs = ", ".join(f"{_text(name)}, {_text(value)}" for name, value in options.items())
        return f"map({pairs})" if pairs else ""

    def _one(self, procedure: str, **arguments: str) -> dict[str, Any]:
        """The result of a procedure that answers with one row, or none: nothing was to be done."""
        rows = self._call(procedure, **arguments)
        return rows[0] if rows else {}

    def _call(self, procedure: str, **arguments: str) -> list[dict[str, Any]]:
        named = {"table": self._table} | {name: value for name, value in arguments.items() if value}
        text = ", ".join(f"{name} => {value}" for name, value in named.items())
        tell("log", message=f"{procedure}({text})")
        rows = self._spark.sql(f"CALL {self._catalog}.system.{procedure}({text})").collect()
        return [row.asDict(recursive=True) for row in rows]


class Guard:
    """Tells the table's own files from those of others, without asking anybody.

    A file is its own if it really lies below a directory of the table, and no deeper one, nor the
    same one, is another's. Links are followed, as the file systems do. In an object store there are
    none, and its URIs are compared as they are.
    """

    def __init__(self, own: Sequence[str], foreign: Sequence[str]) -> None:
        self._own = [_real(prefix) for prefix in own]
        self._foreign = [_real(prefix) for prefix in foreign]
        self._directories: dict[str, bool] = {}
        self.shown = ", ".join(self._own)

    def is_own(self, path: str) -> bool:
        if not _is_plain(path):
            return False
        local = _local(path)
        if local is not None and Path(local).is_symlink():
            return False
        directory = path.rpartition("/")[0]
        if directory not in self._directories:
            self._directories[directory] = self._is_own(_real(directory))
        return self._directories[directory]

    def _is_own(self, directory: str) -> bool:
        own = max(
            (len(location) for location in self._own if _is_in(directory, location)), default=-1
        )
        foreign = max(
            (len(location) for location in self._foreign if _is_in(directory, location)), default=-1
        )
        return own > foreign


def _is_in(directory: str, prefix: str) -> bool:
    return f"{directory}/".startswith(prefix.rstrip("/") + "/")


def _is_plain(path: str) -> bool:
    """Whether nothing of a path means another one: ``..`` and the like are never deleted."""
    parts = path.partition(":")[2] or path
    names = parts.lstrip("/").split("/")
    return not any(name in {"", ".", ".."} for name in names)


def _local(path: str) -> str | None:
    """The local path that Hadoop reads for a text; None for another storage's."""
    for prefix in ("file://localhost/", "file:///", "file:/"):
        if path.startswith(prefix):
            local_path = "/" + path.removeprefix(prefix)
            return None if local_path.startswith("//") else local_path
    return path if path.startswith("/") and not path.startswith("//") else None


def _real(path: str) -> str:
    local = _local(path)
    return path.rstrip("/") if local is None else os.path.realpath(local)


def _spared(paths: list[str]) -> dict[str, Any]:
    """What was left because it is not the table's own."""
    return {"spared_files_count": len(paths), "spared_files": paths[:_SHOWN]} if paths else {}


def _batches(rows: Any, size: int) -> Iterator[list[tuple[str, str]]]:
    """The path and the kind of each file that Java lists."""
    batch: list[tuple[str, str]] = []
    while rows.hasNext():
        row = rows.next()
        batch.append((row.getPath(), row.getType()))
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


ACTIONS: dict[str, Callable[[Procedures], dict[str, Any]]] = {
    "compact": Procedures.compact,
    "clean_up": Procedures.clean_up,
    "remove_orphans": Procedures.remove_orphans,
    "rewrite_manifests": Procedures.rewrite_manifests,
    "rewrite_position_deletes": Procedures.rewrite_position_deletes,
    "compute_statistics": Procedures.compute_statistics,
}


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(value: Any) -> str:
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"


# --- the session -------------------------------------------------------------------------------


def open_session(request: dict[str, Any]) -> SparkSession:
    spark = (
        SparkSession.builder.appName(f"monodon {request['action']} {'.'.join(request['table'])}")
        .config(
            "spark.sql.extensions",
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        )
        .getOrCreate()
    )
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
    if isinstance(jvm.org.apache.iceberg.EnvironmentContext, JavaPackage):
        raise Failed(
            "refused",
            "Spark has no Iceberg runtime: set MONODON_SPARK_PACKAGES to its Maven coordinates, or"
            " MONODON_SPARK_JARS to the path of its jar",
        )
    if job := request.get("job"):
        # Iceberg writes this into the summary of every snapshot that this process makes.
        jvm.org.apache.iceberg.EnvironmentContext.put(JOB_PROPERTY, str(job))
    if not request.get("catalog"):
        # Now, and not as settings of the session: those are on the command line of the JVM.
        prefix = f"spark.sql.catalog.{CATALOG}"
        spark.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set(f"{prefix}.type", "rest")
        spark.conf.set(f"{prefix}.uri", request["url"])
        spark.conf.set(f"{prefix}.cache-enabled", "false")
        if request.get("token"):
            spark.conf.set(f"{prefix}.token", request["token"])
            spark.conf.set(f"{prefix}.token-refresh-enabled", "false")
    return spark


def watch_progress(spark: SparkSession, total: int | None, ended: threading.Event) -> None:
    """Tell how many files the finished jobs of Spark rewrote; their descriptions say it."""
    store: Any = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001
    reported = -1
    while not ended.wait(1.0):
        groups: dict[str, int] = {}
        try:
            jobs = store.jobsList(None)
            for number in range(jobs.size()):
                job = jobs.apply(number)
                text = job.description().get() if job.description().isDefined() else ""
                match = _GROUP.search(text)
                if match is not None and str(job.status()) == "SUCCEEDED":
                    groups[text] = int(match[1])
        except Py4JError:
            continue
        finished = sum(groups.values())
        if finished != reported:
            tell("progress", done=finished, total=total)
            reported = finished


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Raises Failed, and what Spark raises."""
    spark = open_session(request)
    tell("log", message=f"Spark {spark.version} runs as {spark.sparkContext.applicationId}")
    ended = threading.Event()
    progress = threading.Thread(
        target=watch_progress, args=(spark, request.get("total"), ended), daemon=True
    )
    progress.start()
    try:
        return ACTIONS[request["action"]](Procedures(spark, request))
    finally:
        ended.set()
        progress.join(5)


def kind_of(error: BaseException) -> str:
    text = str(error)
    for kind, marks in (("stopped", _STOPPED), ("conflict", _CONFLICTS), ("refused", _REFUSALS)):
        if any(mark in text for mark in marks):
            return kind
    return "error"


def first_line(error: BaseException) -> str:
    """What Java says, where Py4J only says that it called Java."""
    cause = getattr(error, "java_exception", None)
    text = str(cause.toString()) if cause is not None else str(error)
    return next((line for line in text.splitlines() if line.strip()), repr(error))


def main() -> int:
    request = from_worker() if os.environ.get("MONODON_JOB") else from_command_line()
    try:
        result = run(request)
    except Failed as failed:
        tell("failed", kind=failed.kind, message=str(failed))
        return 1
    except (PySparkException, Py4JError, OSError) as error:
        message = str(error).strip()
        tell("failed", kind=kind_of(error), message=first_line(error)[:2000])
        print(message, file=sys.stderr)
        return 1
    tell("result", data=result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
