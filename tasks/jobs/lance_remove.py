"""Removal of files of a Lance table on Spark executors.

The driver of the worker (``driver.py``) calls ``run`` for each job. The worker decides what to remove: it
names versions, whose files the driver lists with Lance, or the files themselves. Executors remove the
files, and the worker records the paths of each part.

Progress and removed paths are written to standard output, one JSON object per line.
"""

import json
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from lance.dataset import LanceDataset
from py4j.protocol import Py4JError
from pyspark import SparkContext, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_PART = 1000  # files of a task
_REQUESTS_AT_ONCE = 16  # of a task, to an object store
_MAX_CONCURRENT = 256
_MAX_FILES = 10_000_000
_REMOVED, _KEPT, _MISSING = "removed", "kept", "missing"
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STORES = {
    "s3": ("S3Store", "aws_"),
    "gs": ("GCSStore", "google_"),
    "abfss": ("AzureStore", "azure_"),
}
"""By the scheme of locations, the client of obstore, and the prefix of its options."""
_output_lock = threading.Lock()
Entry = tuple[str, str, int]
"""Path relative to the table, kind, and size of a file."""


def emit(event: str, **fields: Any) -> None:
    """Write an event to standard output."""
    with _output_lock:
        print(json.dumps({"event": event, **fields}), flush=True)


# --- on executors ------------------------------------------------------------------------------


def remove(
    location: str,
    paths: Sequence[str],
    written_before: float | None,
    options: dict[str, str] | None,
    attempt: int = 0,
) -> list[str]:
    """Remove files below a location; returns for each path what became of it, or an error.

    With ``written_before``, a file that was written since is kept: it may be another one of the same
    name. In a repeated attempt, a missing file was removed by the one that was lost.
    """
    if options is None and not Path(location).is_dir():
        raise OSError(f"{location} does not exist on this executor")
    store = None if options is None else _store(location, options)
    prefix = location.partition("://")[2].partition("/")[2]

    def remove_one(path: str) -> str:
        try:
            if store is None:
                return remove_file(location, path, written_before)
            return remove_object(store, f"{prefix}/{path}", written_before)
        except FileNotFoundError:
            return _REMOVED if attempt else _MISSING
        except Exception as error:  # noqa: BLE001 -- the other files of the part are removed
            return f"{type(error).__name__}: {error}"[:500]

    if store is None:
        return [remove_one(path) for path in paths]
    with ThreadPoolExecutor(max_workers=_REQUESTS_AT_ONCE) as pool:
        return list(pool.map(remove_one, paths))


def remove_file(location: str, path: str, written_before: float | None) -> str:
    """Remove a regular file on a path without links. Raises OSError."""
    directory, _, name = f"{location}/{path}".rpartition("/")
    try:
        handle = os.open(directory, _DIRECTORY)
    except NotADirectoryError:
        return _KEPT  # a link
    try:
        if _path_of(handle, directory) != directory:
            return _KEPT
        status = os.stat(name, dir_fd=handle, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return _KEPT
        if written_before is not None and status.st_mtime >= written_before:
            return _KEPT
        os.unlink(name, dir_fd=handle)
    finally:
        os.close(handle)
    return _REMOVED


def _path_of(handle: int, directory: str) -> str:
    try:
        return str(Path(f"/proc/self/fd/{handle}").readlink())
    except OSError:  # not Linux
        return os.path.realpath(directory)


def remove_object(store: Any, key: str, written_before: float | None) -> str:
    """Remove an object. Raises OSError and the errors of obstore."""
    import obstore  # executors need it for object stores only

    status = obstore.head(store, key)
    if written_before is not None and status["last_modified"].timestamp() >= written_before:
        return _KEPT
    obstore.delete(store, key)
    return _REMOVED


def _store(location: str, options: dict[str, str]) -> Any:
    """The client of the bucket of a location, with the options with which Lance opens it."""
    from obstore import store

    scheme, _, rest = location.partition("://")
    name, prefix = _STORES[scheme]
    bucket = rest.partition("/")[0].partition("@")[0]
    config = {option: value for option, value in options.items() if option.startswith(prefix)}
    client = {"allow_http": options.get("allow_http") == "true"}
    return getattr(store, name)(bucket, config=config, client_options=client)


# --- in the driver -----------------------------------------------------------------------------


def candidates(request: dict[str, Any]) -> list[Entry]:
    """The files below the table's location that only the versions of the request refer to.

    Lance leaves out versions that were tagged in storage meanwhile, with their files.
    """
    dataset = LanceDataset(
        request["location"], request["main"], storage_options=request["storage_options"]
    )
    if request["branch"]:
        dataset = dataset.checkout_version((request["branch"], request["newest"]))
    explanation = dataset.explain_cleanup_old_versions(
        versions=request["versions"],
        error_if_tagged_old_versions=False,
        include_files=True,
        max_files=_MAX_FILES,
    )
    root = request["root"]
    return [
        (file.path[len(root) :], file.kind, file.size_bytes)
        for file in explanation.candidate_files
        if file.path.startswith(root)
    ]


def remove_all(
    context: SparkContext, request: dict[str, Any], files: Sequence[Entry]
) -> Iterator[tuple[Sequence[Entry], list[str], str]]:
    """Remove files in parts; yields each part with its outcomes, or with an error, when it has ended.

    Each part is a Spark job of its own, so the failure of a part does not stop the others.
    """
    location, options = request["location"], request["storage_options"]
    written_before = request["written_before"]
    is_speculative = context.getConf().get("spark.speculation", "false") == "true"

    def run(part: Sequence[Entry]) -> list[str]:
        def work(paths: list[str]) -> list[str]:
            task = TaskContext.get()
            attempt = 1 if is_speculative or task is None else task.attemptNumber()
            return remove(location, paths, written_before, options, attempt)

        rows = context.parallelize([[path for path, _, _ in part]], 1)
        return list(rows.map(work).collect()[0])

    parts = [files[begin : begin + _PART] for begin in range(0, len(files), _PART)]
    at_once = min(len(parts), 2 * context.defaultParallelism, _MAX_CONCURRENT)
    with ThreadPoolExecutor(max_workers=max(at_once, 1)) as pool:
        running = {pool.submit(run, part): part for part in parts}
        for ended in as_completed(running):
            try:
                yield running[ended], ended.result(), ""
            except (PySparkException, Py4JError) as error:
                yield running[ended], [], _last_line(error)


def run(request: dict[str, Any], spark: SparkSession) -> dict[str, Any]:
    """Remove the files, and write an event with the removed paths of each part.

    Manifests are removed after all other files: while one exists, the versions are found again.
    Raises RuntimeError if a file could not be removed.
    """
    context = spark.sparkContext
    emit("stage", name="removing")
    files: list[Entry]
    if request["files"] is not None:
        files = [(path, kind, size) for path, kind, size in request["files"]]
    else:
        files = candidates(request)
    finished, errors = 0, []
    phases = [
        [entry for entry in files if entry[1] != "manifest"],
        [entry for entry in files if entry[1] == "manifest"],
    ]
    for phase in phases:
        for part, outcomes, failure in remove_all(context, request, phase):
            removed = [
                entry for entry, outcome in zip(part, outcomes, strict=False) if outcome == _REMOVED
            ]
            errors += [failure] if failure else []
            errors += [text for text in outcomes if text not in {_REMOVED, _KEPT, _MISSING}]
            emit("part", data={"files": removed})
            finished += len(part)
            emit("progress", done=finished, total=len(files))
        if errors:
            raise RuntimeError(f"{len(errors)} files or parts were not removed: {errors[0]}")
    return {"files": len(files)}


def _last_line(error: BaseException) -> str:
    """The last line of an error's message that names a Python error, without the lines of Java."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error:" in line and not line.startswith(("at ", "org."))]
    return (named or lines or [repr(error)])[-1][:1000]


def describe(error: BaseException) -> tuple[str, str]:
    """The kind and the message of an error of ``run``."""
    return "error", _last_line(error)
