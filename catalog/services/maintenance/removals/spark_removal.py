"""Removal of files of a Lance table by Spark executors.

The worker decides what is removed, with the ledger, and holds the lease of the job; executors only
remove files. They check each file as the worker does: no link is followed, and an orphan that was
written again is kept. The paths of removed files are recorded part by part, as in the worker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from catalog import engines
from catalog.models import Engine, Job, Table
from catalog.services.audit import removed_files
from catalog.services.engine import job_stages
from catalog.services.engine.jobs import Report, Spark
from catalog.services.lance import datasets as lance_datasets
from catalog.storage import lance_options, locations

SCRIPT = "lance_remove"
_FILES_AT_ONCE = 100_000  # in one request to the driver
MANIFEST = "manifest"
File = tuple[str, str, int]
"""Path relative to the table, kind, and size."""


@dataclass(slots=True)
class Removed:
    """What a clean-up removed from a branch."""

    versions: int
    files: int
    bytes: int
    failed: int = 0
    """Files that Lance could not remove."""


@dataclass(slots=True)
class SparkRemoval:
    """Removes files of one table, and counts them."""

    job: Job
    table: Table
    report: Report
    spark: Spark
    total: int
    files: int = 0
    bytes: int = 0
    versions: int = 0
    """Removed manifests."""

    def remove_versions(
        self, branch: str, versions: Sequence[int], newest: Mapping[str, int]
    ) -> Removed:
        """Remove the files that only these versions of a branch refer to; the driver lists them.

        ``newest`` has the newest version of main, under the empty name, and of the branch.
        """
        files, size, manifests = self.files, self.bytes, self.versions
        self._run(
            {
                "branch": branch,
                "versions": list(versions),
                "main": newest[""],
                "newest": newest[branch],
                "root": locations.store_path(self.table.location, ""),
                "files": None,
                "written_before": None,
            },
            is_recorded=False,
        )
        return Removed(self.versions - manifests, self.files - files, self.bytes - size)

    def remove_listed(self, files: Sequence[File]) -> Removed:
        """Remove these files, and record their paths."""
        before, size, manifests = self.files, self.bytes, self.versions
        self.remove_files(files, None)
        return Removed(self.versions - manifests, self.files - before, self.bytes - size)

    def remove_files(self, files: Sequence[File], written_before: float | None) -> None:
        """Remove these files, and record their paths, except those that were written since a moment."""
        for begin in range(0, len(files), _FILES_AT_ONCE):
            page = files[begin : begin + _FILES_AT_ONCE]
            self._run({"files": page, "written_before": written_before}, is_recorded=True)

    def _run(self, request: dict[str, Any], *, is_recorded: bool) -> None:
        already_done = self.files

        def report(completed: int, _total: int | None = None) -> None:
            self.report(min(already_done + completed, self.total), self.total)

        def add(part: Mapping[str, Any]) -> None:
            files = part["files"]
            if is_recorded:
                location = self.table.location
                removed_files.record(self.job, [f"{location}/{path}" for path, _, _ in files])
            self.files += len(files)
            self.bytes += sum(size for _, _, size in files)
            self.versions += sum(kind == MANIFEST for _, kind, _ in files)

        location = self.table.location
        options = lance_options.storage_options(location)
        request |= {"location": location, "storage_options": options}
        self.spark(self.job, SCRIPT, request, report, on_part=add)


def choose(
    job: Job,
    table: Table,
    policy: Mapping[str, Any],
    *,
    files: int,
    report: Report,
    spark: Spark | None,
) -> SparkRemoval | None:
    """The removal by Spark, or None if the worker removes the files. Records the choice.

    Executors cannot renew credentials, so files in stores with temporary ones are removed here.
    """
    if spark is None or not files:
        return None
    is_object = locations.is_object(table.location)
    engine, reason = engines.choose_for_removal(policy, files, is_object=is_object)
    if engine == Engine.SPARK and lance_datasets.expires(
        lance_options.storage_options(table.location)
    ):
        engine, reason = Engine.WORKER, f"executors cannot open the table, although {reason}"
    job_stages.choose_engine(job, Engine(engine), reason)
    if engine == Engine.WORKER:
        return None
    return SparkRemoval(job, table, report, spark, files)
