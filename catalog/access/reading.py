"""Reading an object in the statement that reads what decides about access to it."""

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
_BY_GRANTS = " by grants"


class ObjectRead:
    """A statement that reads an object, and one that reads the same with what decides about access to it."""

    def __init__(
        self,
        text: str,
        text_with_facts: str,
        *,
        name: str,
        parameters: tuple[str, ...],
        is_binary: bool,
    ) -> None:
        """``name`` is that of the statement in a pipeline, where it has these parameters."""
        self._text, self._text_with_facts = text, text_with_facts
        self._name, self._parameters = name, parameters
        self._format = Format.BINARY if is_binary else Format.TEXT

    def fetch(
        self, actor: Principal, privilege: Privilege, target: On, values: Mapping[str, Any]
    ) -> tuple[Privilege, tuple[Any, ...] | None]:
        """The privileges that the check of access found, and the columns; None: there is no such object.

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
    def statements(self) -> dict[str, str]:
        """For a pipeline: the statement for principals that hold the privilege everywhere, and that for others."""
        return {
            self._name: numbered(self._text, *self._parameters),
            self._name + _BY_GRANTS: numbered(self._text_with_facts, *self._parameters),
        }

    def statement(self, actor: Principal, privilege: Privilege) -> bytes | None:
        """The name of the statement in a pipeline for this principal; None: none decides about its access."""
        if actor.holds_everywhere(privilege):
            return self._name.encode()
        return f"{self._name}{_BY_GRANTS}".encode() if cache.is_usable_by(actor) else None

    @staticmethod
    def permitted(
        actor: Principal, privilege: Privilege, row: tuple[Any, ...] | None
    ) -> tuple[Any, ...] | None:
        """The columns of a row of that statement for this principal, without executing another one.

        None: there is no such object, or only more statements can decide about access. They alone refuse.
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


class TableRead(ObjectRead):
    """A statement that reads a table ``t`` that is not dropped, by its digest, the parameter ``digest``."""

    def __init__(
        self,
        columns: str,
        *,
        name: str = "",
        join: str = "",
        condition: str = "true",
        parameters: tuple[str, ...] = ("digest",),
        is_binary: bool = False,
    ) -> None:
        is_meant = f"t.digest = %(digest)s AND t.state <> 'dropped' AND {condition}"
        text = f"SELECT {columns} FROM catalog_table t {join} WHERE {is_meant}"  # noqa: S608 -- no input
        with_facts = f"""
            SELECT {FACTS}, {columns} FROM (SELECT) always LEFT JOIN (
                catalog_table t {join}
                JOIN catalog_namespace n ON n.id = t.namespace_id AND n.dropped_at IS NULL
            ) ON {is_meant}
        """  # noqa: S608 -- no input
        super().__init__(text, with_facts, name=name, parameters=parameters, is_binary=is_binary)


class NamespaceRead(ObjectRead):
    """A statement that reads a namespace ``n`` that is not dropped, by its digest, the parameter ``digest``."""

    def __init__(
        self,
        columns: str,
        *,
        name: str = "",
        join: str = "",
        condition: str = "true",
        parameters: tuple[str, ...] = ("digest",),
    ) -> None:
        is_meant = f"n.digest = %(digest)s AND n.dropped_at IS NULL AND {condition}"
        text = f"SELECT {columns} FROM catalog_namespace n {join} WHERE {is_meant}"  # noqa: S608 -- no input
        with_facts = f"""
            SELECT {FACTS}, {columns} FROM (SELECT) always LEFT JOIN (
                catalog_namespace n {join} LEFT JOIN catalog_table t ON false
            ) ON {is_meant}
        """  # noqa: S608 -- no input
        super().__init__(text, with_facts, name=name, parameters=parameters, is_binary=False)
