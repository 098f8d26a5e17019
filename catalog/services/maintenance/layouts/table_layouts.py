"""The layout of a table's data files: whether it fits the table, and which files have it already.

A file has a layout if a job sorted it so, or if its manifest entry names the equal sort order of the
table. The snapshots that jobs created are in their results, because a clean-up removes snapshots from the
metadata while the manifest entries keep their ids.
"""

from collections.abc import Mapping
from typing import Any

from catalog.errors import InvalidInput
from catalog.formats.iceberg import sorted_files
from catalog.formats.iceberg.reading import Document
from catalog.layouts import Layout, Strategy, parse
from catalog.models import IcebergMetadata, Job, Table, TableFormat
from catalog.policies import EffectivePolicy
from catalog.services.iceberg import metadata_files

JOB_PROPERTY = "monodon.job-id"
"""The property of a snapshot's summary that names the job."""
_MAX_JOBS = 1000


def check_settings(table: Table, values: Mapping[str, Any]) -> None:
    """Check the settings ``strategy`` and ``sort_order`` of a table's own policy against its schema.

    Settings that the policy inherits are checked when a job starts. Raises InvalidInput.
    """
    columns = values.get("sort_order", "")
    strategy = values.get("strategy", Strategy.SORT)
    if not columns or strategy == Strategy.BINPACK:
        return
    check(table, Layout(Strategy(strategy), parse(columns)))


def check(table: Table, requested: Layout) -> None:
    """Raise InvalidInput if a layout does not fit the current schema of an Iceberg table."""
    if table.format != TableFormat.ICEBERG or not requested.is_sorted:
        return
    document = document_of(table)
    if document is not None:
        sorted_files.check(document, requested)


def document_of(table: Table) -> Document | None:
    """The current metadata of an Iceberg table; None if it has none."""
    row = IcebergMetadata.objects.filter(table=table).only("answer").first()
    return None if row is None else metadata_files.read_answer(bytes(row.answer))


def layout_for(document: Document, policy: EffectivePolicy) -> Layout:
    """The layout of a policy if it fits a table, else that of bin-packing, for estimates."""
    try:
        requested = policy.layout
        sorted_files.check(document, requested)
    except InvalidInput:
        return Layout()
    return requested


def require_layout(document: Document, policy: EffectivePolicy) -> Layout:
    """The layout of a job's policy. Raises InvalidInput if it does not fit the table any more."""
    try:
        requested = policy.layout
        sorted_files.check(document, requested)
    except InvalidInput as error:
        raise InvalidInput(f"{error.message}. Nothing was changed") from error
    return requested


def sorted_snapshots(
    table: Table, document: Document, requested: Layout, order: int | None
) -> frozenset[int]:
    """The snapshots in which jobs added files with a layout. One statement.

    Columns are compared by their ids, because another column may have got the name since.
    """
    rows = Job.objects.filter(
        table=table,
        kind="compact",
        is_dry_run=False,
        result__layout__strategy=str(requested.strategy),
        result__layout__fields=sorted_files.fields(document, requested),
    )
    if not requested.columns:  # the sort order of the table may have changed since
        rows = rows.filter(result__layout__order_id=order)
    listed = rows.order_by("-pk").values_list("result__layout__snapshots", flat=True)[:_MAX_JOBS]
    return frozenset(id_ for ids in listed for id_ in ids or ())


def snapshots_of(document: Document, job: Job) -> list[int]:
    """The snapshots of the current metadata that a job has created."""
    return [
        snapshot["snapshot-id"]
        for snapshot in document.get("snapshots") or []
        if (snapshot.get("summary") or {}).get(JOB_PROPERTY) == str(job.pk)
    ]
