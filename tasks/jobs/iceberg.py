"""Maintenance of an Iceberg table with Iceberg's own procedures, through the catalog's REST endpoint.

The driver of the worker (``driver.py``) calls ``run`` for each job. The script can also be started
manually; ``--help`` lists the options:

    MONODON_API_KEY=mnd_... spark-submit --packages \
        org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 tasks/jobs/iceberg.py \
        compact sales.orders --url http://127.0.0.1:2333

Progress, log lines and the result are written to standard output, one JSON object per line.

The script is one file, so that ``spark-submit`` runs it wherever it is copied, without further files.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, functions

CATALOG = "monodon"
JOB_PROPERTY = "monodon.job-id"
LEFT_OUT_FILES = "monodon.left-out-files"
"""The property with which the catalog names the files of a table that a job must not open."""
_MAX_LISTED = 1000  # files that a result lists
_DELEGATION = "vended-credentials,remote-signing"
_ORPHANS_VIEW = "monodon_orphans"
_DELETE_BATCH = 500
_EXPIRED = {
    "DATA": "deleted_data_files_count",
    "POSITION_DELETES": "deleted_position_delete_files_count",
    "EQUALITY_DELETES": "deleted_equality_delete_files_count",
    "Manifest": "deleted_manifest_files_count",
    "Manifest List": "deleted_manifest_lists_count",
    "Statistics Files": "deleted_statistics_files_count",
}
_LIBRARIES = {
    "s3": ("software.amazon.awssdk.services.s3.S3Client", "iceberg-aws-bundle"),
    "gs": ("com.google.cloud.storage.Storage", "iceberg-gcp-bundle"),
    "abfss": ("com.azure.storage.file.datalake.DataLakeFileSystemClient", "iceberg-azure-bundle"),
}
"""The class that Iceberg needs for files of a scheme, and the artifact that contains it."""
_FILE_IO = {
    "": "org.apache.iceberg.hadoop.HadoopFileIO",
    "s3": "org.apache.iceberg.aws.s3.S3FileIO",
    "gs": "org.apache.iceberg.gcp.gcs.GCSFileIO",
    "abfss": "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
}
"""The class that opens the files of a table at a location of a scheme, and no files elsewhere."""
_FILE_SCHEME = re.compile(r"^file:(//localhost(?=/))?", re.IGNORECASE)
_LOCAL_FILE_SYSTEM = "org.apache.hadoop.fs.LocalFileSystem"
_REMOTE = ("ftp", "har", "hdfs", "http", "https", "swebhdfs", "viewfs", "webhdfs")
"""Schemes of every Hadoop. The libraries of Spark may add others."""
_IMPLEMENTATION = re.compile(r"^fs\.([^.]+)\.impl$")
_MAX_SIZED = 10_000  # files whose sizes are read, each with a request
_GROUP = re.compile(r"Rewriting (\d+) (?:position delete )?files")
_CONFLICTS = (
    "CommitFailedException",
    "ValidationException",
    "CommitStateUnknownException",
    # A file of another table came in, or rights were lost, since the job began. The next attempt leaves the file out.
    "and may not be read for it",
)
_STOPPED = ("NotAuthorizedException", "Not authorized")
_REFUSALS = (
    "ForbiddenException",
    "NoSuchTableException",
    "IllegalArgumentException",
    "TABLE_OR_VIEW_NOT_FOUND",
    "No FileSystem for scheme",
)
_output_lock = threading.Lock()


class Failed(Exception):
    """An error that ends the job. A retry fails again if ``kind`` is ``refused``, and may succeed if
    it is ``conflict``."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def emit(event: str, **fields: Any) -> None:
    """Write an event to standard output."""
    with _output_lock:
        print(json.dumps({"event": event, **fields}), flush=True)


# --- the request ------------------------------------------------------------------------------


def from_command_line() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description="Maintain an Iceberg table of the catalog.")
    parser.add_argument("action", choices=sorted(ACTIONS))
    parser.add_argument("table", help="such as sales.orders; a JSON list if a name contains a dot")
    parser.add_argument("--url", default=os.environ.get("MONODON_URL", "http://127.0.0.1:2333"))
    parser.add_argument(
        "--catalog",
        help="a catalog that the session has configured, instead of --url and MONODON_API_KEY",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        help="an option of the procedure, such as min-input-files=2",
    )
    parser.add_argument("--strategy", choices=["binpack", "sort"], help="for compact")
    parser.add_argument(
        "--sort-order",
        help="for compact with --strategy sort, such as 'country, created_at DESC NULLS LAST' or"
        " 'zorder(country, created_at)'; the default is the sort order of the table",
    )
    parser.add_argument("--older-than-days", type=float, default=7.0)
    parser.add_argument("--retain-last", type=int, default=10)
    parser.add_argument(
        "--dry-run", action="store_true", help="for remove_orphans: list the files only"
    )
    arguments = parser.parse_args()
    if arguments.dry_run and arguments.action != "remove_orphans":
        parser.error("only remove_orphans supports --dry-run")
    if arguments.action != "compact" and (arguments.strategy or arguments.sort_order):
        parser.error("only compact takes --strategy and --sort-order")
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
        "strategy": arguments.strategy,
        "sort_order": arguments.sort_order,
        "options": dict(option.split("=", 1) for option in arguments.option),
        "older_than_ms": int((time.time() - arguments.older_than_days * 86_400) * 1000),
        "retain_last": arguments.retain_last,
        "is_dry_run": arguments.dry_run,
    }


# --- the procedures ----------------------------------------------------------------------------


class Procedures:
    """The actions, each a method that returns the result as JSON. They raise Failed and errors of Spark."""

    def __init__(self, spark: SparkSession, request: dict[str, Any]) -> None:
        self._spark = spark
        self._catalog = _quoted(catalog_of(request))
        self._name = ".".join([self._catalog, *map(_quoted, request["table"])])
        self._table = _text(self._name)
        self._request = request
        kept = request.get("kept_metadata")
        self._kept_metadata = None if kept is None else frozenset(kept)

    def compact(self) -> dict[str, Any]:
        strategy, order = self._request.get("strategy"), self._request.get("sort_order")
        if self._request.get("leaves_out"):
            result = self._compact_partly(strategy or "", order or "")
        else:
            result = self._call_for_row(
                "rewrite_data_files",
                strategy=_text(strategy) if strategy else "",
                sort_order=_text(order) if order else "",
                options=self._options(),
            )
        if result.get("failed_data_files_count"):
            raise Failed(
                "conflict",
                f"{result['failed_data_files_count']} files were not rewritten, because others changed"
                f" them; {result['rewritten_data_files_count']} were",
            )
        return result

    def _compact_partly(self, strategy: str, order: str) -> dict[str, Any]:
        """The work of rewrite_data_files, without files that must not be opened.

        The procedure cannot leave out files. Neither a data file nor a delete file that applies to it may be
        left out, or deleted rows would come back.
        """
        table = self._load()
        options = dict(self._request.get("options") or {})
        removes_dangling = options.pop("remove-dangling-deletes", "false") == "true"
        action = self._actions().rewriteDataFiles(table)
        for name, value in options.items():
            action.option(name, value)
        internals = Internals(self._jvm, self._gateway)
        if strategy:
            procedure = internals.construct(
                "org.apache.iceberg.spark.procedures.RewriteDataFilesProcedure", None
            )
            internals.call(
                procedure, "checkAndApplyStrategy", action, strategy, order or None, table.schema()
            )
        emit("log", message=f"rewriteDataFiles({self._table}), without files of other tables")
        start = table.currentSnapshot().snapshotId()
        internals.call(action, "init", start)
        planner = internals.field(action, "planner")
        is_all = options.get("rewrite-all") == "true"
        plan, count = internals.without(
            planner, _left_out_files(table), "RewriteFileGroup", is_all=is_all
        )
        result: dict[str, Any] = {"left_out_data_files_count": count}
        counts = {
            "rewritten_data_files_count": "rewrittenDataFilesCount",
            "added_data_files_count": "addedDataFilesCount",
            "rewritten_bytes_count": "rewrittenBytesCount",
            "failed_data_files_count": "failedDataFilesCount",
        }
        if plan.totalGroupCount():
            commits = internals.call(action, "commitManager", start)
            rewritten = internals.call(
                action, "doExecuteWithPartialProgress", plan, commits
            ).build()
            result |= {name: int(getattr(rewritten, method)()) for name, method in counts.items()}
        else:
            result |= dict.fromkeys(counts, 0)
        removed = self._remove_dangling_deletes() if removes_dangling else 0
        return result | {"removed_delete_files_count": removed}

    def clean_up(self) -> dict[str, Any]:
        """Expire snapshots, then delete those of their files that belong to the table.

        The procedure expire_snapshots is not used: it deletes all files that the metadata names, also
        files of other tables, and files that remaining snapshots name by other paths.
        """
        guard = self._guard()
        emit("log", message=f"expire_snapshots({self._table}), files below {guard.shown}")
        action = (
            self._actions()
            .expireSnapshots(self._load())
            .expireOlderThan(int(self._request["older_than_ms"]))
            .retainLast(int(self._request["retain_last"]))
        )
        self._files_in_metadata()  # fails before the commit if this release of Iceberg cannot do it
        expired = self._frame(action.expireFiles())
        if self._is_in_object_store():
            expired = without_same_objects(expired, self._files_in_metadata())
        needed = self._needed_files()
        counts = dict.fromkeys(_EXPIRED.values(), 0)
        deleted: list[str] = []
        kept: list[str] = []
        for batch in _batches(expired.toLocalIterator(), _DELETE_BATCH):
            own = []
            for path, kind in batch:
                if path in needed:
                    continue
                # Only the catalog removes metadata files. Whoever names one as a data file removes none.
                if guard.is_own(path) and not self._is_metadata(path):
                    own.append(path)
                    name = _EXPIRED.get(kind, "deleted_other_files_count")
                    counts[name] = counts.get(name, 0) + 1
                else:
                    kept.append(path)
            self._delete(own)
            _report_removed(own)
            deleted += own[: max(_MAX_LISTED - len(deleted), 0)]
        return {**counts, "deleted_files": deleted, **_kept_files(kept)}

    def remove_orphans(self) -> dict[str, Any]:
        """Remove orphan files of the table.

        They are listed first, to add up their sizes and to exclude metadata files that the catalog's
        ledger names.
        """
        guard = self._guard()
        # Hadoop has no file system for object stores, so the table's own FileIO lists them.
        listing = {"prefix_listing": "true"} if self._is_in_object_store() else {}
        listed = [
            file for file in self._orphans(is_dry_run=True, **listing) if not self._is_kept(file)
        ]
        if listed:
            listed = self._without_needed(listed)
        orphans = [file for file in listed if guard.is_own(file)]
        kept_files_count = len(listed) - len(orphans)
        orphan_bytes = self._sizes(orphans[:_MAX_SIZED])
        listed_files_count = len(orphans)
        if not self._request["is_dry_run"] and orphans:
            emit("log", message=f"{len(orphans)} orphans were found")
            # The procedure removes those files of the view that begin with the location. The listed
            # files may spell the location of the table differently, so their own prefix is passed.
            orphans = self._orphans(
                is_dry_run=False,
                file_list_view=self._view(orphans),
                location=_text(os.path.commonprefix(orphans)),  # noqa: RUF071 -- compared as text
            )
            for start in range(0, len(orphans), _DELETE_BATCH):
                _report_removed(orphans[start : start + _DELETE_BATCH])
        result = {
            "listed_files_count": listed_files_count,
            "orphan_files_count": len(orphans),
            "orphan_bytes": orphan_bytes,
            "orphan_files": orphans[:_MAX_LISTED],
        }
        if kept_files_count:
            # Without their names: a link may lead to files that the table's owner may not list.
            result["kept_files_count"] = kept_files_count
        return result

    def _guard(self) -> "Guard":
        """The guard for the prefixes in the request; without them, for the table's location."""
        own = self._request.get("own_prefixes")
        if own is None:
            own = [str(self._load().location())]
        return Guard(own, self._request.get("foreign_prefixes") or [])

    def _without_needed(self, files: list[str]) -> list[str]:
        """The files without those that the table's metadata names now, by whatever path."""
        if self._is_in_object_store():
            rows = self._spark.createDataFrame([(file,) for file in files], "path string")
            remaining = without_same_objects(rows, self._files_in_metadata())
            return sorted(row.path for row in remaining.toLocalIterator())
        needed = self._needed_files()
        return [file for file in files if file not in needed]

    def _needed_files(self) -> "NeededFiles":
        """The local files that the table's metadata names now, except metadata files.

        None of an object store, where ``without_same_objects`` compares files without collecting their paths.
        """
        if self._is_in_object_store():
            return NeededFiles(())
        # Without distinct, Spark would read one manifest after the other.
        paths = self._files_in_metadata().select("path").distinct()
        return NeededFiles(row.path for row in paths.toLocalIterator())

    def _files_in_metadata(self) -> DataFrame:
        """The files that the table's metadata names now, as columns ``path`` and ``type``.

        This is what the action itself compares. Metadata tables such as ``all_files`` have the types of the table's
        columns, which Spark may not support, and a table of this name may exist.
        """
        table = self._load()
        action = self._actions().expireSnapshots(table)
        internals = Internals(self._jvm, self._gateway)
        return self._frame(internals.call(action, "fileDS", table.operations().current()))

    def _frame(self, dataset: Any) -> DataFrame:
        return DataFrame(dataset.toDF(), self._spark)

    def _actions(self) -> Any:
        return self._jvm.org.apache.iceberg.spark.actions.SparkActions.get(self._session)

    def _load(self) -> Any:
        """The table as a Java object."""
        return self._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self._session, self._name
        )

    @property
    def _jvm(self) -> Any:
        return self._spark.sparkContext._jvm  # noqa: SLF001

    @property
    def _gateway(self) -> Any:
        return self._spark.sparkContext._gateway  # noqa: SLF001

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
        """True for a metadata file that the catalog's ledger names.

        The ledger may name files that are no longer in the metadata log, and those of registered tables have any
        name. A request without ``kept_metadata`` keeps all metadata files.
        """
        if self._kept_metadata is None:
            return _is_metadata_file(file)
        return file.rpartition("/")[2] in self._kept_metadata

    def _is_metadata(self, file: str) -> bool:
        return _is_metadata_file(file) or self._is_kept(file)

    def _view(self, files: list[str]) -> str:
        """Create a view of files for the procedure, which checks each of them again; returns its name."""
        rows = [(file, datetime.fromtimestamp(0, UTC)) for file in files]
        columns = "file_path string, last_modified timestamp"
        self._spark.createDataFrame(rows, columns).createOrReplaceTempView(_ORPHANS_VIEW)
        return _text(_ORPHANS_VIEW)

    def rewrite_manifests(self) -> dict[str, Any]:
        return self._call_for_row("rewrite_manifests", use_caching="false")

    def rewrite_position_deletes(self) -> dict[str, Any]:
        if self._request.get("leaves_out"):
            result = self._rewrite_position_deletes_partly()
        else:
            result = self._call_for_row("rewrite_position_delete_files", options=self._options())
        removed = self._remove_dangling_deletes()
        if removed:
            rewritten = result.get("rewritten_delete_files_count") or 0
            result["rewritten_delete_files_count"] = rewritten + removed
            result.setdefault("added_delete_files_count", 0)
        return {**result, "removed_delete_files_count": removed}

    def _rewrite_position_deletes_partly(self) -> dict[str, Any]:
        """The work of rewrite_position_delete_files, without files that must not be opened."""
        table = self._load()
        if int(self._jvm.org.apache.iceberg.TableUtil.formatVersion(table)) > 2:
            # A deletion vector replaces all position deletes of its data file, so none may be left out.
            raise Failed("conflict", "The table got another format version meanwhile")
        action = self._actions().rewritePositionDeletes(table)
        for name, value in (self._request.get("options") or {}).items():
            action.option(name, value)
        emit("log", message=f"rewritePositionDeletes({self._table}), without files of other tables")
        internals = Internals(self._jvm, self._gateway)
        true = self._jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
        planner = self._jvm.org.apache.iceberg.actions.BinPackRewritePositionDeletePlanner(
            table, true, False
        )
        internals.set_field(action, "planner", planner)
        internals.call(action, "validateAndInitOptions")
        result = {
            "rewritten_delete_files_count": 0,
            "added_delete_files_count": 0,
            "rewritten_bytes_count": 0,
            "added_bytes_count": 0,
        }
        plan, count = internals.without(
            planner, _left_out_files(table), "RewritePositionDeletesGroup", is_all=False
        )
        if plan.totalGroupCount():
            commits = internals.call(action, "commitManager")
            rewritten = internals.call(action, "doExecuteWithPartialProgress", plan, commits)
            result = {
                "rewritten_delete_files_count": int(rewritten.rewrittenDeleteFilesCount()),
                "added_delete_files_count": int(rewritten.addedDeleteFilesCount()),
                "rewritten_bytes_count": int(rewritten.rewrittenBytesCount()),
                "added_bytes_count": int(rewritten.addedBytesCount()),
            }
        return result | {"left_out_delete_files_count": count}

    def _remove_dangling_deletes(self) -> int:
        """Remove the delete files, of any kind, that no scan applies; returns their number.

        Iceberg compares all delete files with those of a scan of the snapshot. The commit fails if
        another line of snapshots has become current meanwhile.
        """
        emit("log", message=f"removeDanglingDeleteFiles({self._table})")
        result = self._actions().removeDanglingDeleteFiles(self._load()).execute()
        return sum(1 for _ in result.removedDeleteFiles())

    def compute_statistics(self) -> dict[str, Any]:
        return self._call_for_row("compute_table_stats")

    def _orphans(self, *, is_dry_run: bool, **arguments: str) -> list[str]:
        rows = self._call(
            "remove_orphan_files",
            older_than=self._moment(),
            dry_run=str(is_dry_run).lower(),
            **arguments,
        )
        return sorted(row["orphan_file_location"] for row in rows)

    def _is_in_object_store(self) -> bool:
        return not _lenient(str(self._load().location())).startswith("/")

    def _sizes(self, files: list[str]) -> int:
        io = self._load().io()
        total = 0
        for file in files:
            try:
                total += io.newInputFile(file).getLength()
            except Py4JError:  # removed concurrently
                continue
        return total

    def _moment(self) -> str:
        moment = datetime.fromtimestamp(self._request["older_than_ms"] / 1000, UTC)
        return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S}Z'"

    def _options(self) -> str:
        options = self._request.get("options") or {}
        pairs = ", ".join(f"{_text(name)}, {_text(value)}" for name, value in options.items())
        return f"map({pairs})" if pairs else ""

    def _call_for_row(self, procedure: str, **arguments: str) -> dict[str, Any]:
        """Call a procedure that returns one row, or no row if there is no work; returns the row."""
        rows = self._call(procedure, **arguments)
        return rows[0] if rows else {}

    def _call(self, procedure: str, **arguments: str) -> list[dict[str, Any]]:
        named = {"table": self._table} | {name: value for name, value in arguments.items() if value}
        text = ", ".join(f"{name} => {value}" for name, value in named.items())
        emit("log", message=f"{procedure}({text})")
        rows = self._spark.sql(f"CALL {self._catalog}.system.{procedure}({text})").collect()
        return [row.asDict(recursive=True) for row in rows]


class Internals:
    """Methods of Iceberg's actions that are not public, called by reflection.

    An action plans its groups of files and rewrites them in one call. Here, files are removed from the groups
    in between.
    """

    def __init__(self, jvm: Any, gateway: Any) -> None:
        self._jvm, self._gateway = jvm, gateway

    def call(self, target: Any, name: str, *arguments: Any) -> Any:
        """Call a method by its name and the number of its arguments. Raises Failed if there is none."""
        for method in self._members(target, "getDeclaredMethods"):
            if (
                method.getName() == name
                and method.getParameterCount() == len(arguments)
                and not method.isBridge()
            ):
                method.setAccessible(True)
                return method.invoke(target, self._array(arguments))
        raise _unsupported_release(name)

    def field(self, target: Any, name: str) -> Any:
        return self._field(target, name).get(target)

    def set_field(self, target: Any, name: str, value: Any) -> None:
        self._field(target, name).set(target, value)

    def construct(self, name: str, *arguments: Any) -> Any:
        """An object of a class that has a single constructor."""
        loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        return self._construct(loader.loadClass(name), arguments)

    def without(
        self, planner: Any, files: frozenset[str], group: str, *, is_all: bool
    ) -> tuple[Any, int]:
        """A plan without these files and those that they apply to, and the number of files left out.

        ``group`` is the class of the groups. A group that has lost files remains if the planner would still
        rewrite it.
        """
        plan = planner.plan()
        groups = self._jvm.java.util.ArrayList()
        count = 0
        for planned in _iterate(plan.groups()):
            tasks = self._jvm.java.util.ArrayList()
            for task in _iterate(planned.fileScanTasks()):
                if files.isdisjoint(_paths_of(task, with_deletes=group == "RewriteFileGroup")):
                    tasks.add(task)
            removed = planned.inputFileNum() - tasks.size()
            count += removed
            if not removed:
                groups.add(planned)
            elif not tasks.isEmpty() and (is_all or self._is_worthwhile(planner, tasks)):
                groups.add(self._group(planner, planned, tasks, group))
        sizes = self.field(plan, "groupsInPartition")
        iterable = self._jvm.org.apache.iceberg.io.CloseableIterable.withNoopClose(groups)
        return self._construct(plan.getClass(), (iterable, groups.size(), sizes)), count

    def _is_worthwhile(self, planner: Any, tasks: Any) -> bool:
        groups = self._jvm.java.util.ArrayList()
        groups.add(tasks)
        return bool(self.call(planner, "filterFileGroups", groups).iterator().hasNext())

    def _group(self, planner: Any, planned: Any, tasks: Any, name: str) -> Any:
        size = self.call(planner, "inputSize", tasks)
        limits = (
            planned.maxOutputFileSize(),
            self.call(planner, "inputSplitSize", size),
            self.call(planner, "expectedOutputFiles", size),
        )
        make = getattr(self._jvm.org.apache.iceberg.actions, name)
        if name == "RewriteFileGroup":
            return make(planned.info(), tasks, planned.outputSpecId(), *limits)
        return make(planned.info(), tasks, *limits)

    def _field(self, target: Any, name: str) -> Any:
        for field in self._members(target, "getDeclaredFields"):
            if field.getName() == name:
                field.setAccessible(True)
                return field
        raise _unsupported_release(name)

    def _members(self, target: Any, kind: str) -> Iterator[Any]:
        class_ = target.getClass()
        while class_ is not None:
            yield from getattr(class_, kind)()
            class_ = class_.getSuperclass()

    def _construct(self, class_: Any, arguments: Sequence[Any]) -> Any:
        (constructor,) = class_.getDeclaredConstructors()
        constructor.setAccessible(True)
        return constructor.newInstance(self._array(arguments))

    def _array(self, values: Sequence[Any]) -> Any:
        array = self._gateway.new_array(self._jvm.java.lang.Object, len(values))
        for number, value in enumerate(values):
            array[number] = value
        return array


def _unsupported_release(name: str) -> Failed:
    return Failed(
        "refused",
        f"Files of other tables cannot be left out with this release of Iceberg: it has no '{name}'",
    )


def _left_out_files(table: Any) -> frozenset[str]:
    """The files that a job must not open, as the catalog named them with this state of the table."""
    text = table.properties().get(LEFT_OUT_FILES)
    return frozenset(json.loads(text)) if text else frozenset()


def _paths_of(task: Any, *, with_deletes: bool) -> set[str]:
    """The paths of the files that a task reads: a data file with its delete files, or a delete file."""
    files = [task.file(), *(_iterate(task.deletes()) if with_deletes else ())]
    return {str(file.location()) for file in files}


def _iterate(iterable: Any) -> Iterator[Any]:
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


class Guard:
    """Decides which files belong to the table, from prefixes alone.

    A file belongs to the table if the longest of the table's prefixes above it is longer than that of
    any other table. Symbolic links in local paths are resolved. URIs of object stores are compared
    as text. Links themselves, and paths with ``..``, never belong to the table, nor do those with ``?`` or ``#`` in
    object stores.
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
        if local is None and ("?" in path or "#" in path):  # Iceberg would open another object
            return False
        if local is not None and _is_link(local):
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


class NeededFiles:
    """Files that must stay, whatever path names them.

    Iceberg compares paths as text, but a local path has several spellings and may lead through links.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._directories: dict[str, str] = {}
        self._real = {self._real_path(text) for path in paths for text in _readings(path)}

    def __contains__(self, path: str) -> bool:
        return bool(self._real) and self._real_path(path) in self._real

    def _real_path(self, path: str) -> str:
        local = _local(path)
        if local is None or not _is_plain(path) or _is_link(local):
            return _real(_lenient(path))
        directory, _, name = local.rpartition("/")
        if directory not in self._directories:
            self._directories[directory] = _real(directory)
        return f"{self._directories[directory]}/{name}"


def _is_metadata_file(path: str) -> bool:
    return ".metadata.json" in path.rpartition("/")[2]


def _is_in(directory: str, prefix: str) -> bool:
    return f"{directory}/".startswith(prefix.rstrip("/") + "/")


def _is_plain(path: str) -> bool:
    """True if a path has no empty part and no ``.`` or ``..``, which could point elsewhere."""
    parts = path.partition(":")[2] or path
    names = parts.lstrip("/").split("/")
    return not any(name in {"", ".", ".."} for name in names)


def _local(path: str) -> str | None:
    """The local path that Hadoop reads for a path or URI; None for other storage."""
    for prefix in ("file://localhost/", "file:///", "file:/"):
        if path.startswith(prefix):
            local_path = "/" + path.removeprefix(prefix)
            return None if local_path.startswith("//") else local_path
    return path if path.startswith("/") and not path.startswith("//") else None


def _lenient(path: str) -> str:
    """The same local path for readers that take no host from it, and any letters as those of the scheme."""
    path = _FILE_SCHEME.sub("", path)
    return "/" + path.lstrip("/") if path.startswith("/") else path


def _readings(path: str) -> Iterator[str]:
    """The paths that readers of local files derive from a path.

    PyIceberg opens what is before the query and the fragment of a URI. Hadoop applies ``..`` before it follows links.
    """
    yield path
    if "?" in path or "#" in path:
        path = re.split("[?#]", path, maxsplit=1)[0]
        yield path
    if ".." in path:
        yield os.path.normpath(_lenient(path))


def _is_link(path: str) -> bool:
    try:
        return Path(path).is_symlink()
    except OSError:  # no file has such a long name
        return False


def _real(path: str) -> str:
    local = _local(path)
    if local is None or "\0" in local:  # no file has such a name
        return path.rstrip("/")
    return os.path.realpath(local)


def _report_removed(paths: list[str]) -> None:
    """Report removed files to the catalog, which records them in the audit trail."""
    if paths:
        emit("part", data={"removed": paths})


def _kept_files(paths: list[str]) -> dict[str, Any]:
    """The part of a result that lists files which were kept because they do not belong to the table."""
    return {"kept_files_count": len(paths), "kept_files": paths[:_MAX_LISTED]} if paths else {}


def _batches(rows: Iterator[Any], size: int) -> Iterator[list[tuple[str, str]]]:
    """Path and type of each file, in lists of at most ``size``."""
    while batch := [(row.path, row.type) for row in itertools.islice(rows, size)]:
        yield batch


def without_same_objects(files: DataFrame, needed: DataFrame) -> DataFrame:
    """The files in an object store without those that ``needed`` names, by whatever path.

    Iceberg compares paths as text, but opens the same object for the schemes ``s3`` and ``s3a``, for example.
    """
    objects = needed.select(_object("path").alias("object"))
    return files.join(objects, _object("path") == objects["object"], "left_anti")


def _object(column: str) -> Column:
    """The bucket, or the container and the account, and the key that a path names.

    Iceberg ignores the scheme, and what follows a question mark or a number sign. Some libraries ignore empty segments, and
    apply ``.`` and ``..``.
    """
    named = functions.col(column)
    for pattern, text in (
        (r"(?s)^[^:]*:/*([^/@]+(@[^/.]+)?)[^/]*", "$1"),
        (r"(?s)[?#].*$", ""),
    ):
        named = functions.regexp_replace(named, pattern, text)
    segments = functions.filter(functions.split(named, "/"), lambda name: ~name.isin("", "."))
    no_segments = functions.array().cast("array<string>")
    return functions.concat_ws("/", functions.aggregate(segments, no_segments, _with_segment))


def _with_segment(path: Column, name: Column) -> Column:
    above = functions.slice(path, 1, functions.greatest(functions.size(path) - 1, functions.lit(0)))
    below = functions.concat(path, functions.array(name))
    return functions.when(name == "..", above).otherwise(below)


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


def catalog_of(request: dict[str, Any]) -> str:
    """The name of the catalog in the session. Each job has its own, with its own credentials."""
    if request.get("catalog"):
        return str(request["catalog"])
    return f"{CATALOG}_{request['job']}" if request.get("job") else CATALOG


def start_session(request: dict[str, Any]) -> SparkSession:
    """Start Spark for a script that was started manually."""
    return (
        SparkSession.builder.appName(f"monodon {request['action']} {'.'.join(request['table'])}")
        .config(
            "spark.sql.extensions",
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        )
        # A table may be named ${env:SECRET}.
        .config("spark.sql.variable.substitute", "false")
        .getOrCreate()
    )


def prepare_session(spark: SparkSession, request: dict[str, Any]) -> None:
    """Configure the catalog. Raises Failed if Spark lacks a library."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
    if isinstance(jvm.org.apache.iceberg.EnvironmentContext, JavaPackage):
        raise Failed(
            "refused",
            "Spark has no Iceberg runtime: set MONODON_SPARK_PACKAGES to its Maven coordinates, or"
            " MONODON_SPARK_JARS to the path of its jar",
        )
    require_libraries(jvm, request.get("scheme") or "")
    if not request.get("catalog"):
        # Not as settings of the application, which would be on the command line of the JVM.
        prefix = f"spark.sql.catalog.{catalog_of(request)}"
        spark.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set(f"{prefix}.type", "rest")
        spark.conf.set(f"{prefix}.uri", request["url"])
        spark.conf.set(f"{prefix}.cache-enabled", "false")
        if request.get("scheme") in _FILE_IO:
            # By default Iceberg opens any URI in a manifest, also of a local file, or over HTTP. Writers of the table
            # can replace a manifest after the catalog has checked it.
            spark.conf.set(f"{prefix}.io-impl", _FILE_IO[request["scheme"]])
        if request.get("scheme") == "":
            open_local_files_only(spark, prefix)
        spark.conf.set(f"{prefix}.header.X-Iceberg-Access-Delegation", _DELEGATION)
        if request.get("traceparent"):
            spark.conf.set(f"{prefix}.header.traceparent", request["traceparent"])
        if request.get("token"):
            spark.conf.set(f"{prefix}.token", request["token"])
            spark.conf.set(f"{prefix}.token-refresh-enabled", "false")


def open_local_files_only(spark: SparkSession, prefix: str) -> None:
    """Make Hadoop refuse every URI in a catalog that is not of a local file.

    HadoopFileIO opens all schemes that Hadoop knows, such as ``http`` and ``hdfs``. Names of other schemes are given to
    the local file system, which refuses them without a connection ("Wrong FS"). The settings are those of
    the catalog, because Spark itself may use another file system. Hadoop keeps opened file systems for the
    process, so that a job must neither get one of another scheme nor leave one. It looks for an opened one by the scheme
    in small letters, but for settings by the scheme as it is written.
    """
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
    for scheme in sorted(_other_schemes(jvm, hadoop)):
        spark.conf.set(f"{prefix}.hadoop.fs.{scheme}.impl", _LOCAL_FILE_SYSTEM)
        for spelling in _spellings(scheme):
            spark.conf.set(f"{prefix}.hadoop.fs.{spelling}.impl.disable.cache", "true")
    spark.conf.set(f"{prefix}.hadoop.fs.defaultFS", "file:///")  # for paths without a scheme


def _spellings(scheme: str) -> Iterator[str]:
    """A scheme with any of its letters as capitals."""
    return map("".join, itertools.product(*(sorted({char, char.upper()}) for char in scheme)))


def _other_schemes(jvm: Any, hadoop: Any) -> set[str]:
    """The schemes that Hadoop can open by its settings and by its libraries, except that of local files."""
    schemes = set(_REMOTE)
    for name in hadoop.getValByRegex(_IMPLEMENTATION.pattern).keySet():
        match = _IMPLEMENTATION.search(str(name))
        schemes |= {match[1]} if match else set()
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    file_system = loader.loadClass("org.apache.hadoop.fs.FileSystem")
    providers = jvm.java.util.ServiceLoader.load(file_system, loader).iterator()
    while providers.hasNext():
        # Hadoop ignores those that cannot be loaded, too.
        with contextlib.suppress(Py4JError):
            schemes.add(str(providers.next().getScheme()))
    return schemes - {"file"}


def require_libraries(jvm: Any, scheme: str) -> None:
    """Raise Failed if Spark cannot open files in the object store of a table."""
    if scheme not in _LIBRARIES:
        return
    name, artifact = _LIBRARIES[scheme]
    library: Any = jvm
    for segment in name.split("."):
        library = getattr(library, segment)
    if isinstance(library, JavaPackage):
        raise Failed(
            "refused",
            f"Spark has no libraries for {scheme}://: add org.apache.iceberg:{artifact}, in the version"
            " of the Iceberg runtime, to MONODON_SPARK_PACKAGES, or the path of its jar to"
            " MONODON_SPARK_JARS",
        )


class Progress:
    """Reports the files and bytes that finished Spark jobs rewrote, from the descriptions of the jobs."""

    def __init__(self, spark: SparkSession, total: int | None) -> None:
        self._store: Any = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001
        self._total = total
        self._first = self._newest() + 1
        """The application may have run other jobs before."""
        self._groups: dict[str, tuple[int, int]] = {}
        """Files and bytes of the finished groups. Spark itself forgets jobs when it has run many."""
        self._reported: tuple[int, int] | None = None
        self._stage = ""

    def watch(self, ended: threading.Event) -> None:
        while not ended.wait(0.5):
            with contextlib.suppress(Py4JError):
                self._report()

    def _newest(self) -> int:
        jobs = self._store.jobsList(None)
        return max((jobs.apply(number).jobId() for number in range(jobs.size())), default=-1)

    def _report(self) -> None:
        is_rewriting = False
        jobs = self._store.jobsList(None)
        for number in range(jobs.size()):
            job = jobs.apply(number)
            if job.jobId() < self._first:
                continue
            text = job.description().get() if job.description().isDefined() else ""
            match = _GROUP.search(text)
            if match is None:
                continue
            is_rewriting = True
            if str(job.status()) == "SUCCEEDED":
                self._groups[text] = int(match[1]), self._bytes_of(job)
        if is_rewriting:
            finished = sum(files for files, _ in self._groups.values())
            size = sum(size for _, size in self._groups.values())
            is_last = bool(self._total) and finished >= (self._total or 0)
            self._begin("committing" if is_last else "rewriting")
            if (finished, size) != self._reported:
                emit("progress", done=finished, total=self._total, bytes=size)
                self._reported = finished, size

    def _begin(self, stage: str) -> None:
        if stage != self._stage:
            self._stage = stage
            emit("stage", name=stage)

    def _bytes_of(self, job: Any) -> int:
        """The bytes that a job read."""
        stages = job.stageIds()
        numbers = [int(stages.apply(number)) for number in range(stages.size())]
        return sum(int(self._store.lastStageAttempt(number).inputBytes()) for number in numbers)


def run(request: dict[str, Any], spark: SparkSession) -> dict[str, Any]:
    """Run the requested action and return its result. Raises Failed and errors of Spark."""
    prepare_session(spark, request)
    environment: Any = spark.sparkContext._jvm.org.apache.iceberg.EnvironmentContext  # type: ignore[union-attr]  # noqa: SLF001
    if job := request.get("job"):
        # Iceberg writes this into the summary of every snapshot that this process creates.
        environment.put(JOB_PROPERTY, str(job))
    ended = threading.Event()
    watcher = Progress(spark, request.get("total"))
    progress = threading.Thread(target=watcher.watch, args=(ended,), daemon=True)
    emit("stage", name="planning")
    progress.start()
    try:
        return ACTIONS[request["action"]](Procedures(spark, request))
    finally:
        ended.set()
        progress.join(5)
        environment.remove(JOB_PROPERTY)


def kind_of(error: BaseException) -> str:
    text = str(error)
    for kind, marks in (("stopped", _STOPPED), ("conflict", _CONFLICTS), ("refused", _REFUSALS)):
        if any(mark in text for mark in marks):
            return kind
    return "error"


def first_line(error: BaseException) -> str:
    """The first line of an error's message; of the Java exception if there is one."""
    cause = getattr(error, "java_exception", None)
    text = str(cause.toString()) if cause is not None else str(error)
    return next((line for line in text.splitlines() if line.strip()), repr(error))


def describe(error: BaseException) -> tuple[str, str]:
    """The kind and the message of an error of ``run``."""
    if isinstance(error, Failed):
        return error.kind, str(error)
    return kind_of(error), first_line(error)[:2000]


def main() -> int:
    request = from_command_line()
    try:
        spark = start_session(request)
        emit("log", message=f"Spark {spark.version} runs as {spark.sparkContext.applicationId}")
        result = run(request, spark)
    except (Failed, PySparkException, Py4JError, OSError) as error:
        kind, message = describe(error)
        emit("failed", kind=kind, message=message)
        if not isinstance(error, Failed):
            print(str(error).strip(), file=sys.stderr)
        return 1
    emit("result", data=result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
