"""Fill computed columns by evaluating the expression of their declaration.

A job processes the fragments in the order of their numbers and writes only the values of the
column; the other columns are not rewritten. Several fragments make a commit. A concurrent append is
therefore no conflict, and a repeated job continues after the last committed fragment.
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
from catalog.services.lance import commits, data_operations, datasets, time_limits
from catalog.services.lance.errors import plan, refusing
from catalog.services.lance.rehearsals import rehearse
from catalog.services.tables import job_operations

_FRAGMENTS_PER_COMMIT = 16
_MAX_BATCH = 8192  # rows
_MOST = 2**31 - 1
_VALUE, _ROW = "value", "_rowid"


@dataclass(frozen=True, slots=True)
class Backfill:
    """A requested backfill (spec: AlterTableBackfillColumnsRequest)."""

    column: str
    """Path of the field."""
    where: str | None = None
    """Filter of the rows; by default all rows."""
    branch: str = ""
    read_version: int | None = None
    """The version to read; rows that were added later are not filled."""
    num_frags: int | None = None
    """Maximum number of fragments to fill."""
    task_size: int | None = None
    """Number of rows to evaluate at once."""
    commit_granularity: int | None = None
    """Number of fragments per commit."""


@dataclass(frozen=True, slots=True)
class _Computed:
    name: str
    type: pa.DataType
    expression: str


@dataclass(frozen=True, slots=True)
class _Round:
    """The result of one commit."""

    last: int
    """Number of the last scanned fragment."""
    scanned_rows: int
    """Rows of the scanned fragments."""
    remaining_rows: int
    """Rows of the fragments that later commits scan."""
    rows: int
    fragments: int


def start_backfill(*, actor: Principal, table: Identifier, backfill: Backfill) -> str:
    """Start a job that fills a computed column; return the id of its transaction.

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
    lance_sql.check(computed.expression)  # a client may have written the expression to storage
    source = _source(actor, table, backfill) or newest
    with refusing(table):
        expressions = (computed.expression, backfill.where or "")
        time_limits.read(
            source, actor.name, lambda: _check(source, computed, backfill), expressions
        )
    parameters = {key: value for key, value in asdict(backfill).items() if value is not None}
    transaction = commit(
        [job_operations.StartBackfill(table=table, parameters=parameters)], actor=actor
    )
    return str(transaction.id)


def fill(job: Job, report: Report) -> Mapping[str, Any]:
    """Run the job of a backfill; its result is saved after each commit."""
    actor, backfill = jobs.principal(job), Backfill(**job.parameters)
    state = {"rows": 0, "fragments": 0, "last_fragment": -1, "seen": 0, **(job.result or {})}
    if "source_version" not in state:
        table = jobs.identify(job)
        newest = datasets.read(actor=actor, table=table, branch=backfill.branch)
        source = _source(actor, table, backfill) or newest
        state |= {"source_version": source.version, "remaining_rows": 0}
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
        progress = written.result
        if progress is None:
            break
        state = {
            **state,
            "rows": state["rows"] + progress.rows,
            "fragments": state["fragments"] + progress.fragments,
            "last_fragment": progress.last,
            "seen": state["seen"] + progress.scanned_rows,
            "remaining_rows": progress.remaining_rows,
        }
        if written.transaction_id is not None:
            state |= {"version": written.version, "transaction_id": written.transaction_id}
        job.result = state
        jobs.save_result(job)
    return {name: value for name, value in state.items() if name not in ("last_fragment", "seen")}


@dataclass(frozen=True, slots=True)
class _Filler:
    """Fill the next fragments in one commit; return None if no fragment remains."""

    table: Identifier
    backfill: Backfill
    state: Mapping[str, Any]
    source: LanceDataset | None
    report: Report

    def __call__(self, dataset: LanceDataset) -> _Round | None:
        source = self.source or dataset
        computed = _computed(dataset, self.table, self.backfill.column)
        of_source = {fragment.fragment_id: fragment for fragment in source.get_fragments()}
        todo = [
            fragment
            for fragment in sorted(
                dataset.get_fragments(), key=lambda fragment: fragment.fragment_id
            )
            if fragment.fragment_id > self.state["last_fragment"]
            and fragment.fragment_id in of_source
        ]
        if not todo:
            return None
        begun = self.state["seen"]
        total = begun + sum(fragment.metadata.num_rows for fragment in todo)
        last, scanned_rows, rows = -1, 0, 0
        changed: list[tuple[int, Any, list[int], bytes]] = []
        for fragment in todo:
            self.report(begun + scanned_rows, total)
            last, scanned_rows = fragment.fragment_id, scanned_rows + fragment.metadata.num_rows
            values = _values(source, of_source[last], computed, self.backfill)
            if values.num_rows:  # Lance cannot join an empty table
                changed.append((last, *fragment.update_columns(values, with_offsets=True)))
                rows += values.num_rows
            if len(changed) == self._most():
                break
        self.report(begun + scanned_rows, total)
        if changed:
            LanceDataset.commit(dataset, _operation(changed), read_version=dataset.version)
        return _Round(
            last=last,
            scanned_rows=scanned_rows,
            remaining_rows=total - begun - scanned_rows,
            rows=rows,
            fragments=len(changed),
        )

    def _most(self) -> int:
        """Return the number of fragments of this commit."""
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
    """Return the column's values in a fragment, by row id."""
    values = source.scanner(
        columns={_VALUE: computed.expression},
        filter=backfill.where or None,
        fragments=[fragment],
        with_row_id=True,
        batch_size=min(backfill.task_size or _MAX_BATCH, _MAX_BATCH),
    ).to_table()
    return pa.table(
        {_ROW: values[_ROW], computed.name: values[_VALUE].cast(computed.type)},
    )


def _check(source: LanceDataset, computed: _Computed, backfill: Backfill) -> None:
    """Let Lance plan the scan, so that an invalid expression is refused before the job starts."""
    rehearse(source, [computed.expression])
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
    """Return the dataset of the requested version, or None without one."""
    if backfill.read_version is None:
        return None
    return datasets.read(
        actor=actor, table=table, version=backfill.read_version, branch=backfill.branch
    )
