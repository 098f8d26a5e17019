"""Reading a table in the statement that reads what decides about access to it."""

from collections.abc import Mapping
from typing import Any

from psycopg.pq import Format

from catalog.access.authorization import On, require
from catalog.access.cached_grants import FACTS, Facts, cache, held_by
from catalog.access.principal import Principal
from catalog.postgresql.cursors import hot_cursor
from catalog.postgresql.pipeline import numbered
from catalog.privileges import Privilege

_NUMBER_OF_FACTS = len(Facts.__annotations__)


class TableRead:
    """A statement that reads a table ``t`` that is not dropped, by its digest, the parameter ``digest``."""

    def __init__(
        self, columns: str, *, join: str = "", condition: str = "true", is_binary: bool = False
    ) -> None:
        is_meant = f"t.digest = %(digest)s AND t.state <> 'dropped' AND {condition}"
        self._format = Format.BINARY if is_binary else Format.TEXT
        self._text = f"SELECT {columns} FROM catalog_table t {join} WHERE {is_meant}"  # noqa: S608 -- no input
        self._text_with_facts = f"""
            SELECT {FACTS}, {columns} FROM (SELECT) always LEFT JOIN (
                catalog_table t {join}
                JOIN catalog_namespace n ON n.id = t.namespace_id AND n.dropped_at IS NULL
            ) ON {is_meant}
        """  # noqa: S608 -- no input

    def fetch(
        self, actor: Principal, privilege: Privilege, target: On, values: Mapping[str, Any]
    ) -> tuple[Privilege, tuple[Any, ...] | None]:
        """The privileges that the check of access found, and the columns; None: there is no such table.

        One statement if the actor holds the privilege everywhere, or its grants are cached. One more to read its
        grants. Raises the exceptions of ``access.require``.
        """
        if actor.holds_everywhere(privilege):
            return actor.everywhere, self._execute(self._text, values)
        if cache.is_usable_by(actor):
            row = self._execute(self._text_with_facts, values)
            if row is not None:
                held = held_by(actor, row[:_NUMBER_OF_FACTS])
                if held is not None and privilege in held:
                    return held, row[_NUMBER_OF_FACTS:]
        held = require(actor, privilege, target, uses_cache=False)
        return held, self._execute(self._text, values)

    @property
    def statements(self) -> tuple[str, str]:
        """For a pipeline: the statement for principals that hold the privilege everywhere, and that for others."""
        return numbered(self._text, "digest"), numbered(self._text_with_facts, "digest")

    @staticmethod
    def permitted(
        actor: Principal, privilege: Privilege, row: tuple[Any, ...] | None
    ) -> tuple[Any, ...] | None:
        """The columns of a row of the statement for this principal, without executing another one.

        None: there is no such table, or only more statements can decide about access. They alone refuse.
        """
        if actor.holds_everywhere(privilege) or row is None:
            return row
        held = held_by(actor, row[:_NUMBER_OF_FACTS], may_read=False)
        return row[_NUMBER_OF_FACTS:] if held is not None and privilege in held else None

    def _execute(self, text: str, values: Mapping[str, Any]) -> tuple[Any, ...] | None:
        cursor = hot_cursor()
        cursor.cursor.format = self._format
        try:
            cursor.execute(text, values)
            row: tuple[Any, ...] | None = cursor.fetchone()
        finally:
            cursor.cursor.format = Format.TEXT
        return row
