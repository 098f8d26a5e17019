"""Compaction of Lance tables: replace small fragments with large ones, and drop deleted rows.

Lance plans groups of neighbouring fragments. Each group is rewritten by itself, in this process or
on Spark, and is invisible until it is committed as any write. Concurrent appends do not conflict. A
group in which rows were deleted or changed meanwhile is planned again; the other groups are kept.
The same commit updates the row addresses in the indexes, so no index has a gap. Because that takes
time, finished groups are collected as long as committing each one would cost more than it saves.

Only main is compacted: a branch shares most of its files with the version it was created from.
"""

import base64
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from lance.dataset import LanceDataset
from lance.fragment import FragmentMetadata
from lance.optimize import Compaction, CompactionOptions, CompactionTask, RewriteResult

from catalog import access, engines, policies
from catalog.errors import CommitConflict
from catalog.models import Engine, Job, JobEvent
from catalog.privileges import Privilege
from catalog.services.engine import job_stages, jobs
from catalog.services.engine.jobs import JobFailedInPart, Report, Spark
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data_operations
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.errors import no_panic, refusing
from catalog.services.lance.ledger.snapshots import Snapshot
from catalog.storage import lance_options

SCRIPT = "lance_compact"
_ROUNDS = 5
# Maximum ratio of commit time to write time; commits are slow when there are indexes to update.
_COMMIT_SHARE = 0.25
_LISTED_FAILURES, _LISTED_FRAGMENTS = 100, 1000
"""Failed groups in a job's result and log, and fragments of each."""
_ERROR_LENGTH = 1000  # characters


@dataclass(frozen=True, slots=True)
class Layout:
    """Fragments of a version, summarized."""

    version: int
    rows: int
    deleted_rows: int
    files: int
    bytes: int
    small_files: int
    excluded: tuple[int, ...] = ()
    """Ids of fragments that are large enough, and have few enough deleted rows, to be left alone."""
    sizes: tuple[int, ...] = ()
    """Bytes of the fragments whose size is known."""

    def figures(self) -> dict[str, int]:
        values = asdict(self)
        del values["excluded"], values["sizes"]
        return values


@dataclass(frozen=True, slots=True)
class Plan:
    """Work of a compaction of one version."""

    tasks: Sequence[CompactionTask] = ()
    files: int = 0
    """Fragments to read."""
    bytes: int = 0
    rows: int = 0
    deleted_rows: int = 0
    new_files: int = 0

    def figures(self) -> dict[str, int]:
        return {
            "groups": len(self.tasks),
            "files": self.files,
            "bytes": self.bytes,
            "rows": self.rows,
            "deleted_rows": self.deleted_rows,
            "new_files": self.new_files,
        }


def policy_values(job: Job) -> dict[str, Any]:
    """The policy that was in force when the job was requested."""
    return {
        **{rule.name: rule.default for rule in policies.rules()},
        **job.parameters.get("policy", {}),
    }


def lay_out(dataset: LanceDataset, policy: Mapping[str, Any] | Any) -> Layout:
    """Read a version's layout from its manifest alone."""
    small_below = policy["small_ratio"] * policy["target_rows"]
    rows = deleted = files = small = 0
    excluded, sizes = [], []
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata
        deleted_here = _deleted_rows(metadata)
        live = metadata.physical_rows - deleted_here
        files, rows, deleted = files + 1, rows + live, deleted + deleted_here
        sizes.append(sum(file.file_size_bytes or 0 for file in metadata.files))
        if live < small_below:
            small += 1
        elif deleted_here <= policy["deleted_ratio"] * metadata.physical_rows:
            excluded.append(metadata.id)
    positive = tuple(filter(None, sizes))
    return Layout(
        dataset.version, rows, deleted, files, sum(sizes), small, tuple(excluded), positive
    )


def plan(dataset: LanceDataset, layout: Layout, policy: Mapping[str, Any] | Any) -> Plan:
    """Plan a compaction. Reads metadata only."""
    tasks = Compaction.plan(dataset, _options(layout, policy)).tasks
    sizes = [_size(task, policy["target_rows"]) for task in tasks]
    totals = [sum(column) for column in zip(*sizes, strict=True)] or [0] * 5
    return Plan(tasks, *totals)


def _size(task: CompactionTask, target: int) -> tuple[int, int, int, int, int]:
    fragments = task.fragments
    deleted = sum(map(_deleted_rows, fragments))
    rows = sum(fragment.physical_rows for fragment in fragments) - deleted
    size = sum(file.file_size_bytes or 0 for fragment in fragments for file in fragment.files)
    # Lance writes as many files as are full, each with the same number of rows.
    return len(fragments), size, rows, deleted, max(rows // target, 1) if rows else 0


def _deleted_rows(fragment: FragmentMetadata) -> int:
    return (fragment.deletion_file and fragment.deletion_file.num_deleted_rows) or 0


def _options(layout: Layout, policy: Mapping[str, Any] | Any) -> CompactionOptions:
    return {
        "target_rows_per_fragment": policy["target_rows"],
        "materialize_deletions_threshold": policy["deleted_ratio"],
        "excluded_fragment_ids": list(layout.excluded),
    }


def compact(job: Job, report: Report, *, spark: Spark | None = None) -> Mapping[str, Any]:
    """Compact the job's table. The job may stop after any group; committed groups stay.

    Raises CommitConflict if concurrent writes changed every group in every round.
    """
    return _Compactor(job, report, policy_values(job), spark).run()


@dataclass(slots=True)
class _Compactor:
    job: Job
    report: Report
    policy: Mapping[str, Any]
    spark: Spark | None
    completed: int = 0
    """Fragments of the finished groups."""
    total: int = 0
    groups: int = 0
    """Committed groups."""
    conflicts: int = 0
    """Groups that concurrent writes had changed."""
    transactions: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)
    """Figures of the committed groups."""
    failures: list[dict[str, Any]] = field(default_factory=list)
    """Groups that failed on Spark in the last round."""
    waiting: list[RewriteResult] = field(default_factory=list)
    """Written groups that are not committed."""
    commit_seconds: float = 0.0
    """Duration of the last commit."""
    committed_at: float = 0.0

    def run(self) -> dict[str, Any]:
        _, _, before, plan = self._plan()
        outcome_so_far = {"plan": plan.figures(), "before": before.figures()}
        if self.job.is_dry_run:
            return {**outcome_so_far, "after": _expected(before, plan)}
        for _ in range(_ROUNDS):
            conflicts_before = self.conflicts
            self._round()
            if self.conflicts == conflicts_before:
                break
        else:
            if not self.groups:
                raise CommitConflict(
                    f"Concurrent writes changed the table in each of {_ROUNDS} rounds; run the job"
                    " again when there are fewer writes"
                )
        _, _, after, _ = self._plan()
        outcome = {
            **outcome_so_far,
            "after": after.figures(),
            "groups": self.groups,
            "done": dict(self.figures),
        }
        if self.transactions:
            outcome["transaction_id"] = self.transactions[-1]
        if not self.groups:
            outcome["note"] = "nothing to compact"
        elif self.conflicts:
            again = (
                "they were compacted again"
                if self.conflicts == conflicts_before
                else "some were not compacted"
            )
            outcome["note"] = f"{self.conflicts} groups were changed concurrently; {again}"
        if self.failures:
            raise self._failed_in_part(outcome)
        return outcome

    def _failed_in_part(self, outcome: dict[str, Any]) -> JobFailedInPart:
        outcome.pop("note", None)
        total = self.groups + len(self.failures)
        return JobFailedInPart(
            f"Failed in part: {self.groups} of {total} groups were compacted, {len(self.failures)}"
            f" failed: {self.failures[0]['error']}",
            {
                **outcome,
                "failed_groups": self.failures[:_LISTED_FAILURES],
                "failed_groups_not_listed": max(len(self.failures) - _LISTED_FAILURES, 0),
            },
        )

    def _plan(self) -> tuple[Snapshot, LanceDataset, Layout, Plan]:
        table = jobs.identify(self.job)
        snapshot = lance_datasets.find_snapshot(actor=jobs.principal(self.job), table=table)
        dataset = lance_datasets.open_dataset(snapshot)
        with refusing(table):
            layout = lay_out(dataset, self.policy)
            return snapshot, dataset, layout, plan(dataset, layout, self.policy)

    def _round(self) -> None:
        job_stages.begin(self.job, "planning")
        snapshot, dataset, layout, plan = self._plan()
        self.total = self.completed + plan.files
        self.report(self.completed, self.total)
        access.require(
            jobs.principal(self.job), Privilege.MAINTAIN, self.job.table
        )  # before anything is written
        if not plan.tasks:
            return
        options = _options(layout, self.policy)
        jobs.log_event(self.job, "planned", data={"version": snapshot.version, **plan.figures()})
        self.failures, self.committed_at = [], time.monotonic()
        if self.spark is not None and self._choose_engine(snapshot, plan) == Engine.SPARK:
            self._on_spark(snapshot, dataset, plan.tasks, self.spark, options)
        else:
            job_stages.begin(self.job, "rewriting")
            for task in plan.tasks:
                self.report(self.completed, self.total)
                with no_panic():
                    rewrite = task.execute(dataset)
                self.completed += len(task.fragments)
                self._add(rewrite, options)
        self._flush(options)

    def _add(self, rewrite: RewriteResult, options: CompactionOptions) -> None:
        """Commit a written group, or keep it for the next commit if commits would take too long."""
        self.waiting.append(rewrite)
        elapsed = time.monotonic() - self.committed_at
        if self.commit_seconds <= _COMMIT_SHARE * elapsed:
            self._flush(options)

    def _flush(self, options: CompactionOptions) -> None:
        rewrites, self.waiting = self.waiting, []
        began = time.monotonic()
        self._commit(rewrites, options)
        self.committed_at = time.monotonic()
        self.commit_seconds = self.committed_at - began

    def _choose_engine(self, snapshot: Snapshot, plan: Plan) -> Engine:
        engine, reason = engines.choose(self.policy, plan.bytes)
        if engine == Engine.SPARK and not _is_open_to_spark(snapshot):
            engine, reason = Engine.WORKER, f"executors cannot open the table, although {reason}"
        job_stages.choose_engine(self.job, Engine(engine), reason)
        return Engine(engine)

    def _commit(self, rewrites: Sequence[RewriteResult], options: CompactionOptions) -> None:
        """Commit groups together, or one by one if concurrent writes changed some of them."""
        if not rewrites:
            return
        self.report(self.completed, self.total)
        try:
            written = lance_commits.write(
                actor=jobs.principal(self.job),
                table=jobs.identify(self.job),
                operation=data_operations.CompactTable,
                work=partial(_commit, rewrites=list(rewrites), options=options),
                summary={"job": self.job.pk, "groups": len(rewrites)},
                can_repeat=False,
                may_commit=lambda: self.report(self.completed, self.total),
            )
        except CommitConflict as conflict:
            if len(rewrites) > 1:
                for rewrite in rewrites:
                    self._commit([rewrite], options)
                return
            self.conflicts += 1
            jobs.log_event(
                self.job, f"a group must be compacted again: {conflict}", JobEvent.Level.WARNING
            )
        else:
            self.groups += len(rewrites)
            self.figures.update(written.result)
            self.figures["bytes_read"] += sum(map(_bytes_read, rewrites))
            if written.transaction_id is not None:
                self.transactions.append(written.transaction_id)
            jobs.log_event(
                self.job,
                f"committed version {written.version}",
                data={"groups": len(rewrites), "version": written.version, **written.result},
            )

    def _on_spark(
        self,
        snapshot: Snapshot,
        dataset: LanceDataset,
        tasks: Sequence[CompactionTask],
        spark: Spark,
        options: CompactionOptions,
    ) -> None:
        """Rewrite the groups on Spark executors, and commit each as soon as it is written.

        A group that fails there is left as it is. Raises RuntimeError if all groups fail.
        """
        already_done = self.completed
        missing = dict(enumerate(tasks))

        def report(completed: int, _total: int | None = None) -> None:
            self.report(already_done + completed, self.total)

        def add(part: Mapping[str, Any]) -> None:
            rewrite = RewriteResult.from_json(part["rewrite"])  # type: ignore[attr-defined]
            self.completed += len(missing.pop(part["number"]).fragments)
            self._add(rewrite, options)

        request = {
            "uri": snapshot.uri,
            "version": snapshot.version,
            # The files that were checked: clients can replace the manifest in storage.
            "manifest": base64.b64encode(dataset._ds.serialized_manifest()).decode(),  # noqa: SLF001
            "tasks": [task.json() for task in tasks],  # type: ignore[attr-defined]
            "sizes": [len(task.fragments) for task in tasks],
            "storage_options": lance_options.storage_options(snapshot.location),
        }
        answer = spark(self.job, SCRIPT, request, report, on_part=add)
        self.completed = self.total
        errors = {failure["number"]: failure["error"] for failure in answer["failed"]}
        for number, task in missing.items():
            fragments = [fragment.id for fragment in task.fragments[:_LISTED_FRAGMENTS]]
            error = errors.get(number, "the driver reported no result")[:_ERROR_LENGTH]
            self.failures.append({"fragments": fragments, "error": error})
        for failure in self.failures[:_LISTED_FAILURES]:
            text = f"a group failed on Spark: {failure['error']}"
            data = {"fragments": failure["fragments"]}
            jobs.log_event(self.job, text, JobEvent.Level.ERROR, data)
        if (others := len(self.failures) - _LISTED_FAILURES) > 0:
            text = f"{others} more groups failed on Spark"
            jobs.log_event(self.job, text, JobEvent.Level.ERROR)
        if len(self.failures) == len(tasks) and not self.groups:
            raise RuntimeError("All groups failed on Spark; see the job's log for the errors")


def _bytes_read(rewrite: RewriteResult) -> int:
    fragments: Sequence[FragmentMetadata] = rewrite.original_fragments  # type: ignore[attr-defined]
    return sum(file.file_size_bytes or 0 for fragment in fragments for file in fragment.files)


def _is_open_to_spark(snapshot: Snapshot) -> bool:
    """True if executors can open a version by its URI.

    They cannot renew credentials, so tables in stores with temporary ones are compacted here.
    """
    options = lance_options.storage_options(snapshot.location)
    return snapshot.is_in_place and not lance_datasets.expires(options)


def _commit(
    newest: LanceDataset, *, rewrites: list[RewriteResult], options: CompactionOptions
) -> dict[str, int]:
    metrics = Compaction.commit(newest, rewrites, options)
    return {"files_removed": metrics.fragments_removed, "files_added": metrics.fragments_added}


def _expected(before: Layout, plan: Plan) -> dict[str, int]:
    return {
        "rows": before.rows,
        "deleted_rows": before.deleted_rows - plan.deleted_rows,
        "files": before.files - plan.files + plan.new_files,
    }
