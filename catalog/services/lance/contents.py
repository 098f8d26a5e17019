"""Contents of a version of a Lance table for display: numbers, fragments, and faults."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from lance.dataset import LanceDataset
from lance.fragment import LanceFragment

from catalog.access import Principal
from catalog.errors import CatalogError, TableNotFound
from catalog.models import Table
from catalog.services.lance import datasets, errors

SMALL = 100_000
"""Number of rows below which a fragment is small if there are others: about a tenth of the
target size of compaction."""
_BUCKETS = (1_000, 10_000, 100_000, 1_000_000)
_UNREADABLE = (
    OSError,
    ValueError,
    RuntimeError,
    LookupError,
    TypeError,
    NotImplementedError,
    pa.ArrowException,
)


class Unreadable(Exception):
    """A table's files are damaged or missing; the text is the message of Lance.

    Not a CatalogError, which reports a mistake of the caller: only pages that show faults catch it.
    """


@contextmanager
def reading() -> Iterator[None]:
    """Raise every failure of Lance as Unreadable; errors of the catalog pass unchanged."""
    try:
        with errors.no_panic():
            yield
    except CatalogError:
        raise
    except _UNREADABLE as error:
        raise Unreadable(errors.readable(str(error)) or type(error).__name__) from error


def open_table(
    *, actor: Principal, table: Table, version: int | None = None, branch: str = ""
) -> LanceDataset:
    """Open a version of exactly this table, by default main's newest. One statement.

    Raises the errors of ``datasets.find_snapshot``, and Unreadable.
    """
    with reading():
        snapshot = datasets.find_snapshot(
            actor=actor, table=table.identifier, version=version, branch=branch
        )
        if snapshot.uuid != table.uuid:  # the table was dropped and another one has its name
            raise TableNotFound(table.identifier)
        return datasets.open_dataset(snapshot)


@dataclass(frozen=True, slots=True)
class Contents:
    """The size of a version in rows, fragments, files and bytes."""

    rows: int
    deleted_rows: int
    fragments: int
    data_files: int
    bytes: int | None
    """Size of the data files; None if some writer did not record sizes."""
    storage_version: str
    has_stable_row_ids: bool


def contents(dataset: LanceDataset) -> Contents:
    """Read the contents from the manifest alone. Raises Unreadable."""
    with reading():
        totals = dataset.get_version()["metadata"]
        size = int(totals.get("total_files_size", 0))
        rows = int(totals["total_rows"])
        return Contents(
            rows=rows,
            deleted_rows=int(totals["total_deletion_file_rows"]),
            fragments=int(totals["total_fragments"]),
            data_files=int(totals["total_data_files"]),
            bytes=size if size or not rows else None,
            storage_version=dataset.data_storage_version,
            has_stable_row_ids=dataset.has_stable_row_ids,
        )


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment, as recorded in the manifest."""

    id: int
    rows: int
    deleted_rows: int
    data_files: int
    bytes: int | None
    is_small: bool


@dataclass(frozen=True, slots=True)
class Bucket:
    """Number of fragments with at least ``least`` rows and fewer than ``below``."""

    least: int
    below: int | None
    fragments: int


def fragments(dataset: LanceDataset) -> Sequence[LanceFragment]:
    """Return all fragments by id, unconverted, because a table may have many. Raises Unreadable."""
    with reading():
        return sorted(dataset.get_fragments(), key=lambda item: item.fragment_id)


def fragment(item: LanceFragment, count: int) -> Fragment:
    """Describe one of ``count`` fragments from the manifest. Raises Unreadable."""
    with reading():
        metadata = item.metadata
        rows = metadata.physical_rows - metadata.num_deletions
        sizes = [file.file_size_bytes for file in metadata.files]
        return Fragment(
            id=metadata.id,
            rows=rows,
            deleted_rows=metadata.num_deletions,
            data_files=len(metadata.files),
            bytes=None if None in sizes else sum(size or 0 for size in sizes),
            is_small=count > 1 and rows < SMALL,
        )


def distribution(items: Sequence[LanceFragment]) -> list[Bucket]:
    """Return the distribution of fragment sizes. Raises Unreadable."""
    bounds = [0, *_BUCKETS]
    counts = [0] * len(bounds)
    with reading():
        for item in items:
            rows = item.physical_rows - item.num_deletions
            counts[sum(rows >= bound for bound in _BUCKETS)] += 1
    return [
        Bucket(least, below, count)
        for least, below, count in zip(bounds, [*_BUCKETS, None], counts, strict=True)
    ]
