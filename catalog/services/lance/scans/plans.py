"""The plan of a query: an open version, and the arguments with which Lance scans it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from lance.dataset import LanceScanner

from catalog.identifiers import Identifier
from catalog.services.lance import time_limits
from catalog.services.lance.containment.calls import contained
from catalog.services.lance.datasets import OpenVersion
from catalog.services.lance.errors import translating
from catalog.services.lance.scans import scanners, search_batches

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    table: Identifier
    principal: str
    dataset: OpenVersion
    options: dict[str, Any]
    nearest: dict[str, Any] = field(default_factory=dict)
    """The arguments of a vector search; empty for other queries."""
    skipped: int = 0
    """Number of results to skip per query vector; Lance's own offset applies to all together."""
    may_share: bool = False
    """True if the search has the same results in a batch (``search_batches``)."""

    @property
    def searched_column(self) -> str:
        """The column of a vector search."""
        return str(self.nearest.get("column", ""))

    @property
    def expressions(self) -> tuple[str, ...]:
        """The filter, and the expressions of columns."""
        columns = self.options["columns"]
        values = columns.values() if isinstance(columns, dict) else ()
        return (self.options["filter"] or "", *values)

    @property
    def may_take_long(self) -> bool:
        return time_limits.may_take_long(self.dataset, self.expressions)

    def run(self, work: Callable[[LanceScanner], T]) -> T:
        """Run a call of Lance with the scanner in limited time. Planning computes the constants of expressions."""
        return time_limits.read(
            self.dataset, self.principal, lambda: work(self.scanner()), self.expressions
        )

    def scanner(self, **nearest: Any) -> LanceScanner:
        """The scanner of the query; ``nearest`` replaces arguments of the search."""
        if self.nearest:
            return scanners.nearest(self.dataset, {**self.nearest, **nearest}, self.options)
        return self.dataset.scanner(**self.options)

    def search(self) -> pa.Table:
        """Return the rows of a search for one vector, which may run in a batch."""
        vector = self.nearest["q"]
        shared = {**self.nearest, "q": None}
        return search_batches.search(
            (id(self.dataset), repr((shared, self.options))), vector, self._search_for
        )

    def _search_for(self, vectors: list[pa.Array]) -> pa.Table:
        query = vectors[0] if len(vectors) == 1 else vectors
        return self.scanner(q=query).to_reader().read_all()

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Contain a call of Lance, and raise its failures as ``translating``."""
        with contained(self.table, self.principal), self.translating():
            yield

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Convert errors like ``errors.translating``, also those of tasks inside Lance."""
        with translating(self.table):
            try:
                yield
            except RuntimeError as error:
                if self.options["filter"] and "Task was aborted" in str(error):
                    # The panic has no message; the filter alone raises the actual error.
                    count = partial(self.dataset.count_rows, self.options["filter"])
                    time_limits.read(self.dataset, self.principal, count, self.expressions)
                raise
