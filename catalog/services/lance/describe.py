"""Details of a Lance table from its data: the schema and the numbers of rows and bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lance.dataset import LanceDataset
from lance.schema import schema_to_json

from catalog.access import Principal
from catalog.errors import ContradictoryInput, TableHasNoData
from catalog.formats import arrow_json
from catalog.identifiers import Identifier
from catalog.services.lance import datasets
from catalog.services.lance.errors import refusing
from catalog.services.lance.refs import tags
from catalog.services.tables import tables, usage
from catalog.services.tables.tables import TableDescription
from catalog.services.tables.usage import Read

# The default target size of compaction, in rows.
_SMALL_ROWS = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TableDetails:
    """Details of a table version from its manifest."""

    version: int
    schema: arrow_json.Json
    """The schema as a JsonArrowSchema."""
    num_deleted_rows: int
    num_fragments: int
    metadata: dict[str, str]
    """The table's own metadata, and totals of its files and rows."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Statistics of the numbers of rows per fragment, deleted rows included."""

    min: int
    max: int
    mean: int
    p25: int
    p50: int
    p75: int
    p99: int


@dataclass(frozen=True, slots=True)
class TableStats:
    """Statistics of the newest version of a branch."""

    total_bytes: int
    """Size of the columns' data, without the other contents of the files."""
    num_rows: int
    num_indices: int
    num_fragments: int
    num_small_fragments: int
    """Fragments that compaction would merge."""
    lengths: Lengths


def describe_table(
    *,
    actor: Principal,
    table: Identifier,
    version: int | None = None,
    branch: str = "",
    tag: str | None = None,
) -> TableDescription:
    """Describe a table after checking that the requested version, branch or tag exists.

    Raises TableNotFound, VersionNotFound, BranchNotFound, TagNotFound, and TableHasNoData for a
    branch or a tag of a table that is only declared.
    """
    description = tables.describe_table(actor=actor, table=table)
    usage.count(actor, table, Read.LOAD)
    branch, version = resolve(actor=actor, table=table, version=version, branch=branch, tag=tag)
    if version is not None or branch:
        datasets.find_snapshot(actor=actor, table=table, version=version, branch=branch)
    return description


def resolve(
    *,
    actor: Principal,
    table: Identifier,
    version: int | None = None,
    branch: str = "",
    tag: str | None = None,
) -> tuple[str, int | None]:
    """Return the requested branch (empty: main) and version (None: the newest)."""
    if tag is None:
        return branch, version
    if version is not None or branch:
        raise ContradictoryInput("A tag cannot be given together with a version or a branch")
    return tags.resolve(actor=actor, table=table, tag=tag)


def load_details(
    *,
    actor: Principal,
    table: Identifier,
    version: int | None = None,
    branch: str = "",
    tag: str | None = None,
) -> TableDetails:
    """Return the details of a version, by default the newest.

    Raises the errors of ``describe_table``, and TableHasNoData for a table that is only declared.
    """
    if tables.describe_table(actor=actor, table=table).is_only_declared:
        raise TableHasNoData(table)
    branch, version = resolve(actor=actor, table=table, version=version, branch=branch, tag=tag)
    dataset = datasets.read(actor=actor, table=table, version=version, branch=branch)
    with refusing(table):
        return _details(dataset)


def load_schema(
    *,
    actor: Principal,
    table: Identifier,
    version: int | None = None,
    branch: str = "",
    tag: str | None = None,
) -> tuple[int, arrow_json.Json]:
    """Return the number of a version, by default the newest, and its schema in Lance's own JSON.

    A schema with a type that Lance's JSON lacks, such as a map, has the form of ``arrow_json``. Raises the
    errors of ``load_details``.
    """
    branch, version = resolve(actor=actor, table=table, version=version, branch=branch, tag=tag)
    dataset = datasets.read(actor=actor, table=table, version=version, branch=branch)
    with refusing(table):
        schema = dataset.lance_schema.to_pyarrow()
    try:
        return dataset.version, schema_to_json(schema)
    except ValueError:
        return dataset.version, arrow_json.schema_to_json(schema)


def get_stats(*, actor: Principal, table: Identifier, branch: str = "") -> TableStats:
    """Return statistics of a branch's newest version. Raises TableHasNoData, BranchNotFound."""
    dataset = datasets.read(actor=actor, table=table, branch=branch)
    with refusing(table):
        fragments = [fragment.metadata for fragment in dataset.get_fragments()]
        sizes: Any = dataset.stats.data_stats().fields
        counts = dataset.stats.dataset_stats(max_rows_per_group=_SMALL_ROWS)
        return TableStats(
            total_bytes=sum(field.bytes_on_disk for field in sizes),
            num_rows=sum(fragment.num_rows for fragment in fragments),
            num_indices=len(dataset.describe_indices()),
            num_fragments=len(fragments),
            num_small_fragments=counts["num_small_files"],
            lengths=_lengths([fragment.physical_rows for fragment in fragments]),
        )


def _details(dataset: LanceDataset) -> TableDetails:
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    files = [file for fragment in fragments for file in fragment.files]
    deletions = [fragment.deletion_file for fragment in fragments if fragment.deletion_file]
    physical = sum(fragment.physical_rows for fragment in fragments)
    deleted = sum(fragment.num_deletions for fragment in fragments)
    sums = {
        "total_fragments": len(fragments),
        "total_data_files": len(files),
        "total_files_size": sum(file.file_size_bytes or 0 for file in files),
        "total_deletion_files": len(deletions),
        "total_data_file_rows": physical,
        "total_deletion_file_rows": deleted,
        "total_rows": physical - deleted,
    }
    return TableDetails(
        version=dataset.version,
        schema=arrow_json.schema_to_json(dataset.lance_schema.to_pyarrow()),
        num_deleted_rows=deleted,
        num_fragments=len(fragments),
        metadata=dict(dataset.metadata) | {name: str(count) for name, count in sums.items()},
    )


def _lengths(rows: Sequence[int]) -> Lengths:
    """Return length statistics; a percentile is the length at the rank rounded down."""
    ordered = sorted(rows) or [0]

    def percentile(share: float) -> int:
        return ordered[int(share * (len(ordered) - 1))]

    return Lengths(
        min=ordered[0],
        max=ordered[-1],
        mean=sum(ordered) // len(ordered),
        p25=percentile(0.25),
        p50=percentile(0.5),
        p75=percentile(0.75),
        p99=percentile(0.99),
    )
