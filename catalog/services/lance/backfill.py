"""Filling computed columns: evaluating the expression that a column was declared with.

A job goes through the fragments in the order of their numbers and writes, for each, the column's
values alone; nothing else of a row is written again. Some fragments make a commit. So an append
meanwhile is no conflict, and who goes on with the job begins after the last fragment committed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from lance.dataset import LanceDataset, LanceOperation
from lance.fragment import LanceFragment

from catalog import access
from catalog.access import On, Principal
from catalog.errors import ColumnNotFound, InvalidInput
from catalog.formats.lance import naming as lance_naming
from catalog.formats.lance import paths as lance_paths
from catalog.formats.lance import sql as lance_sql
from catalog.identifiers import Identifier
from catalog.models import Job
from catalog.privileges import Privilege
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.engine.jobs import Report
from catalog.services.lance import commits, data_operations, datasets
from catalog.services.lance.errors import plan, refusing
from catalog.services.tables import job_operations

_FRAGMENTS_PER_COMMIT = 16
_MAX_BATCH = 8192  # rows
_MOST = 2**31 - 1
_VALUE, _ROW = "value", "_rowid"


@dataclass(frozen=True, slots=True)
class Backfill:
    """What is to be filled (spec: AlterTableBackfillColumnsRequest)."""

    column: str
    """The field's path."""
    where: str | None = None
    """Which rows; by default all."""
    branch: str = ""
    read_version: int | None = None
    """The version whose rows are read; those that came later are left out."""
    num_frags: int | None = None
    """How many fragments to fill at most."""
    task_size: int | None = None
    """How many rows to evaluate at once."""
    commit_granularity: int | None = None
    """How many fragments make a commit."""


@dataclass(frozen=True, slots=True)
class _Computed:
    name: str
    type: pa.DataType
    expression: str


@dataclass(frozen=True, slots=True)
class _Round:
    """What one commit did."""

    last: int
    """The number of the last fragment that was looked at."""
    seen: int
    """Rows of those fragments."""
    rows: int
    fragments: int


def start_backfill(*, actor: Principal, table: Identifier, backfill: Backfill) -> str:
    """Let a job fill a computed column; returns the id of the transaction, which follows the job.

    Raises ColumnNotFound, InvalidInput for a column that is not computed and for a filter or an
    expression that cannot be evaluated, VersionNotFound.
    """
    access.require(actor, Privilege.WRITE, On.table(table))
    for name in ("num_frags", "task_size", "commit_granularity"):
        number = getattr(backfill, name)
        if number is not None and not 1 <= number <= _MOST:
            raise InvalidInput(f"'{name}' is {number}; it must be from 1 to {_MOST}")
    lance_sql.check(backfill.where or "")
    newest = datasets.read(actor=actor, table=table, branch=backfill.branch)
    computed = _computed(newest, table, backfill.column)
    lance_sql.check(computed.expression)  # a client may have written it to storage
    source = _source(actor, table, backfill) or newest
    with refusing(table):
        _check(source, computed, backfill)
    parameters = {key: value for key, value in asdict(backfill).items() if value is not None}
    done = commit([job_operations.StartBackfill(table=table, parameters=parameters)], actor=actor)
    return str(done.id)


def fill(job: Job, report: Report) -> Mapping[str, Any]:
    """Do the job. What came of it so far is kept after each commit."""
    actor, backfill = jobs.principal(job), Backfill(**job.parameters)
    state = {"rows": 0, "fragments": 0, "last_fragment": -1, "seen": 0, **(job.result or {})}
    while backfill.num_frags is None or state["fragments"] < backfill.num_frags:
        table = jobs.identify(job)
        written = commits.write(
            actor=actor,
            table=table,
            branch=backfill.branch,
            operation=data_operations.AlterTableBackfillColumns,
            work=_Filler(table, backfill, state, _source(actor, table, backfill), report),
            summary={"column": backfill.column, "where": backfill.where, "job": job.pk},
        )
        done = written.result
        if done is None:
            break
        state = {
            **state,
            "rows": state["rows"] + done.rows,
            "fragments": state["fragments"] + done.fragments,
            "last_fragment": done.last,
            "seen": state["seen"] + done.seen,
        }
        if written.transaction_id is not None:
            state |= {"version": written.version, "transaction_id": written.transaction_id}
        job.result = state
        jobs.save_result(job)
    return {name: value for name, value in state.items() if name not in ("last_fragment", "seen")}


@dataclass(frozen=True, slots=True)
class _Filler:
    """Fills the next fragments in one commit, and returns None when there are none left."""

    table: Identifier
    backfill: Backfill
    state: Mapping[str, Any]
    source: LanceDataset | None
    report: Report

    def __call__(self, dataset: LanceDataset) -> _Round | None:
        source = self.source or dataset
        computed = _computed(dataset, self.table, self.backfill.column)
        of_source = {each.fragment_id: each for each in source.get_fragments()}
        todo = [
            each
            for each in sorted(dataset.get_fragments(), key=lambda each: each.fragment_id)
            if each.fragment_id > self.state["last_fragment"] and each.fragment_id in of_source
        ]
        if not todo:
            return None
        begun = self.state["seen"]
        total = begun + sum(each.metadata.num_rows for each in todo)
        last, seen, rows = -1, 0, 0
        changed: list[tuple[int, Any, list[int], bytes]] = []
        for fragment in todo:
            self.report(begun + seen, total)
            last, seen = fragment.fragment_id, seen + fragment.metadata.num_rows
            values = _values(source, of_source[last], computed, self.backfill)
            if values.num_rows:  # Lance joins nothing with nothing
                changed.append((last, *fragment.update_columns(values, with_offsets=True)))
                rows += values.num_rows
            if len(changed) == self._most():
                break
        self.report(begun + seen, total)
        if changed:
            LanceDataset.commit(dataset, _operation(changed), read_version=dataset.version)
        return _Round(last=last, seen=seen, rows=rows, fragments=len(changed))

    def _most(self) -> int:
        """How many fragments make this commit."""
        most = self.backfill.commit_granularity or _FRAGMENTS_PER_COMMIT
        if self.backfill.num_frags is None:
            return most
        return min(most, self.backfill.num_frags - int(self.state["fragments"]))


def _operation(changed: Sequence[tuple[int, Any, list[int], bytes]]) -> LanceOperation.Update:
    return LanceOperation.Update(
        updated_fragments=[metadata for _, metadata, _, _ in changed],
        fields_modified=sorted({field for _, _, fields, _ in changed for field in fields}),
        updated_fragment_offsets={number: offsets for number, _, _, offsets in changed},
        update_mode="rewrite_columns",
    )


def _values(
    source: LanceDataset, fragment: LanceFragment, computed: _Computed, backfill: Backfill
) -> pa.Table:
    """The column's values in a fragment, by the ids of the rows."""
    found = source.scanner(
        columns={_VALUE: computed.expression},
        filter=backfill.where or None,
        fragments=[fragment],
        with_row_id=True,
        batch_size=min(backfill.task_size or _MAX_BATCH, _MAX_BATCH),
    ).to_table()
    return pa.table(
        {_ROW: found[_ROW], computed.name: found[_VALUE].cast(computed.type)},
    )


def _check(source: LanceDataset, computed: _Computed, backfill: Backfill) -> None:
    """Let Lance plan it, so that what cannot be evaluated is refused before there is a job."""
    plan(
        source.scanner(
            columns={_VALUE: computed.expression}, filter=backfill.where or None, with_row_id=True
        )
    )


def _computed(dataset: LanceDataset, table: Identifier, path: str) -> _Computed:
    names = lance_paths.split(path)
    field = lance_paths.find(dataset.schema, names)
    if field is None:
        raise ColumnNotFound(table, f"Column '{path}' does not exist")
    expression = (field.metadata or {}).get(lance_naming.COMPUTED_KEY.encode())
    kind = (field.metadata or {}).get(lance_naming.COMPUTED_KIND_KEY.encode(), b"sql")
    if expression is None or len(names) > 1 or kind != b"sql":
        raise InvalidInput(
            f"Column '{path}' is not a column that is computed by SQL",
            detail="Add it with 'computed', the SQL expression that its values come from.",
        )
    return _Computed(field.name, field.type, expression.decode())


def _source(actor: Principal, table: Identifier, backfill: Backfill) -> LanceDataset | None:
    """The version to read, if one was asked for."""
    if backfill.read_version is None:
        return None
    return datasets.read(
        actor=actor, table=table, version=backfill.read_version, branch=backfill.branch
    )
