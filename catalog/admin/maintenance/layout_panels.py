"""Panels of the tab "Maintenance" about data files: their sizes, and the largest partitions."""

from collections.abc import Sequence
from itertools import pairwise

from django.http import HttpRequest

from catalog import access
from catalog.admin import cells, charts
from catalog.admin.actor import actor
from catalog.admin.pages import Panel
from catalog.models import Table, TableFormat, TableHealth
from catalog.planning import SIZE_CLASSES, Statistics
from catalog.privileges import Privilege

_UNITS = ((1024**3, "GiB"), (1024**2, "MiB"))


def panels(request: HttpRequest, row: Table, newest: TableHealth) -> list[Panel]:
    """The panels of a measurement that has such figures.

    Partitions have values of columns in their names, so only readers of the table see them.
    """
    statistics = Statistics.from_json(newest.statistics)
    result = _file_sizes(row, statistics)
    if access.holds(actor(request), Privilege.READ, row):
        result += _partitions(statistics)
    return result


def _file_sizes(row: Table, statistics: Statistics) -> list[Panel]:
    counts = statistics.file_sizes
    if len(counts) != len(SIZE_CLASSES) + 1:
        return []
    noun = "fragments" if row.format == TableFormat.LANCE else "data files"
    measured = sum(counts)
    return [
        Panel(
            title="File sizes",
            columns=("Size", noun.capitalize()),
            rows=[
                (name, cells.meter(count, measured, f"{count:,}"))
                for name, count in zip(_classes(SIZE_CLASSES), counts, strict=True)
            ],
            empty="",
            lead=charts.classes(f"{noun.capitalize()} by size", _classes(SIZE_CLASSES), counts),
            note=f"Of {measured:,} of {statistics.files:,} {noun}; the sizes of the others are unknown."
            if measured < statistics.files
            else "",
        )
    ]


def _partitions(statistics: Statistics) -> list[Panel]:
    largest = statistics.largest_partitions
    if not largest:
        return []
    most = max(partition.bytes for partition in largest)
    return [
        Panel(
            title="Largest partitions",
            columns=("Partition", "Size", "Files", "Mean size of a file"),
            rows=[
                (
                    cells.code(partition.name or "without partition"),
                    cells.meter(partition.bytes, most, cells.size(partition.bytes)),
                    f"{partition.files:,}",
                    cells.size(partition.bytes // max(partition.files, 1)),
                )
                for partition in largest
            ],
            empty="",
            note=f"{len(largest)} of {cells.counted(statistics.partitions, 'partition')}, the largest first.",
        )
    ]


def _classes(bounds: Sequence[int]) -> list[str]:
    """Names of the classes between bounds: "below 1 MiB", "1 to 4 MiB", …, "1 GiB or more"."""
    names = [_size(bound) for bound in bounds]
    between = [f"{low} to {high}" for low, high in pairwise(names)]
    return [f"below {names[0]}", *between, f"{names[-1]} or more"]


def _size(size: int) -> str:
    factor, unit = next((factor, unit) for factor, unit in _UNITS if size >= factor)
    return f"{size // factor} {unit}"
