"""What this process last saw of tables, so that the commonest write need not ask first."""

import uuid

from catalog.models import Table, TableState
from catalog.services.statements import select_tables


class SeenTables:
    """Live tables as this process last saw them, by digest.

    What is kept may be out of date. It is good enough to prepare a write that locks the table and
    looks at it again (``insert_if_unchanged``): a row's location, format and uuid never change.
    """

    def __init__(self, limit: int = 20_000) -> None:
        self._limit = limit
        self._rows: dict[uuid.UUID, Table] = {}

    def get(self, wanted: set[uuid.UUID]) -> dict[uuid.UUID, Table]:
        """The live tables of these digests: those kept, the others read now."""
        found = {key: row for key in wanted if (row := self._rows.get(key)) is not None}
        if len(found) < len(wanted):
            if len(self._rows) >= self._limit:
                self._rows.clear()
            read = select_tables(wanted - found.keys())
            live = {row.digest: row for row in read if row.state == TableState.LIVE}
            self._rows.update(live)
            found.update(live)
        return found

    def forget(self, digests: set[uuid.UUID]) -> None:
        for key in digests:
            self._rows.pop(key, None)

    def clear(self) -> None:
        self._rows.clear()


tables = SeenTables()
