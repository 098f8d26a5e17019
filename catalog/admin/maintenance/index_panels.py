"""Panels of the tab "Maintenance" about indexes: measured searches, and missing indexes."""

from catalog.admin import cells
from catalog.admin.pages import Panel
from catalog.models import TableHealth


def panels(newest: TableHealth) -> list[Panel]:
    """The panels of a measurement that has such figures."""
    return [*_searches(newest), *_missing_indexes(newest)]


def _searches(newest: TableHealth) -> list[Panel]:
    """Recall and time of searches in the vector indexes of a Lance table, as the last job measured."""
    searches = newest.statistics.get("index_searches")
    if not searches:
        return []
    return [
        Panel(
            title="Vector searches",
            columns=("Index", "Recall", "Search", "Exact search", "Rows when measured"),
            rows=[
                (
                    cells.clipped(search["name"]),
                    f"{search['recall']:.0%}",
                    f"{search['search_ms']:.1f} ms",
                    f"{search['exact_ms']:.1f} ms",
                    f"{search['rows']:,}",
                )
                for search in searches
            ],
            empty="",
            note="The share of the ten nearest rows that searches without further parameters return, for"
            " sampled vectors of the table, and the median times.",
        )
    ]


def _missing_indexes(newest: TableHealth) -> list[Panel]:
    """Indexes that would serve the queries of the last week."""
    missing = newest.statistics.get("missing_indexes")
    if not missing:
        return []
    return [
        Panel(
            title="Indexes that queries lack",
            columns=("Column", "Index type", "Queries in a week", "Bytes that each query reads"),
            rows=[
                (
                    cells.code(cells.clipped(index["column"])),
                    cells.spaced([index["index_type"], cells.muted(index["distance_type"])]),
                    f"{index['queries']:,}",
                    cells.spaced(["about", cells.size(index["bytes"])]),
                )
                for index in missing
            ],
            empty="",
            note="From queries over HTTP. “Create missing indexes” builds them.",
        )
    ]
