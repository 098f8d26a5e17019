"""What is in a version of a Lance table, for pages that show it: numbers, fragments, and faults."""

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
"""Rows below which a fragment is small, when there are others: about a tenth of what compaction
aims at."""
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
    """A table's files are not as they should be, or not there; the text is what Lance says.

    No refusal, which would be the caller's doing: only who shows what is wrong catches it.
    """


@contextmanager
def reading() -> Iterator[None]:
    """Raise whatever Lance fails with as Unreadable; refusals of the catalog pass."""
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
    """A version of exactly this table, by default main's newest. One statement.

    Raises the refusals of ``lance_datasets.find_snapshot``, and Unreadable.
    """
    with reading():
        snapshot = datasets.find_snapshot(
            actor=actor, table=table.identifier, version=version, branch=branch
        )
        if snapshot.uuid != table.uuid:  # dropped, and another table bears the name now
            raise TableNotFound(table.identifier)
        return datasets.open_dataset(snapshot)


@dataclass(frozen=True, slots=True)
class Contents:
    """How much a version holds."""

    rows: int
    deleted_rows: int
    fragments: int
    data_files: int
    bytes: int | None
    """Of the data files; None when not every writer noted the sizes."""
    storage_version: str
    has_stable_row_ids: bool


def contents(dataset: LanceDataset) -> Contents:
    """Out of the manifest alone. Raises Unreadable."""
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
    """One fragment, as the manifest has it."""

    id: int
    rows: int
    deleted_rows: int
    data_files: int
    bytes: int | None
    is_small: bool


@dataclass(frozen=True, slots=True)
class Bucket:
    """How many fragments hold at least ``least`` rows, and fewer than ``below``."""

    least: int
    below: int | None
    fragments: int


def fragments(dataset: LanceDataset) -> Sequence[LanceFragment]:
    """All fragments by their ids, untold: a table may have many. Raises Unreadable."""
    with reading():
        return sorted(dataset.get_fragments(), key=lambda each: each.fragment_id)


def fragment(found: LanceFragment, count: int) -> Fragment:
    """What the manifest tells of one of ``count`` fragments. Raises Unreadable."""
    with reading():
        told = found.metadata
        rows = told.physical_rows - told.num_deletions
        sizes = [file.file_size_bytes for file in told.files]
        return Fragment(
            id=told.id,
            rows=rows,
            deleted_rows=told.num_deletions,
            data_files=len(told.files),
            bytes=None if None in sizes else sum(size or 0 for size in sizes),
            is_small=count > 1 and rows < SMALL,
        )


def distribution(found: Sequence[LanceFragment]) -> list[Bucket]:
    """How large the fragments are. Raises Unreadable."""
    bounds = [0, *_BUCKETS]
    counts = [0] * len(bounds)
    with reading():
        for each in found:
            rows = each.physical_rows - each.num_deletions
            counts[sum(rows >= bound for bound in _BUCKETS)] += 1
    return [
        Bucket(least, below, count)
        for least, below, count in zip(bounds, [*_BUCKETS, None], counts, strict=True)
    ]
