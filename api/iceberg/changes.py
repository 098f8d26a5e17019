"""Parsing of requested changes, as lenient as Java's parsers.

The result is normalized: actions and types in lower case, updates and removals with their current
names, and no missing lists.
"""

from typing import Any

from api.iceberg.operation import IcebergOperation
from catalog.errors import InvalidInput
from catalog.models import TableKind
from catalog.services.iceberg.changes import TableChange

# Names that older clients use.
_LEGACY = {"set-properties": ("updated", "updates"), "remove-properties": ("removed", "removals")}


def read_change(table: tuple[str, ...], body: dict[str, Any]) -> TableChange:
    """A commit to one table (specification: CommitTableRequest). Raises InvalidInput."""
    return TableChange(
        table=table,
        requirements=[_lowered(item, "type") for item in _list_at(body, "requirements")],
        updates=[_present(_lowered(item, "action")) for item in _list_at(body, "updates")],
    )


def read_commit(
    operation: IcebergOperation,
    identifier: tuple[str, ...],
    body: dict[str, Any],
    *,
    kind: TableKind = TableKind.TABLE,
) -> TableChange:
    """A commit to the table, or view, of the path. Raises InvalidInput."""
    repeated = body.get("identifier")
    if repeated is not None and read_identifier(operation, repeated, "identifier") != identifier:
        raise InvalidInput(f"The body's identifier is not the {kind.value} of the path")
    return read_change(identifier, body)


def _list_at(body: dict[str, Any], name: str) -> list[Any]:
    """A list that may be absent or null."""
    items = body.get(name)
    if items is None:
        return []
    if not isinstance(items, list):
        raise InvalidInput(f"{name}: expected a list")
    return items


def _lowered(value: Any, key: str) -> Any:
    """An object with the text of this key in lower case. Other values are refused later."""
    if not isinstance(value, dict):
        return value
    text = value.get(key)
    return {**value, key: text.lower()} if isinstance(text, str) and not text.islower() else value


def _present(update: Any) -> Any:
    if not isinstance(update, dict):
        return update
    old, new = _LEGACY.get(str(update.get("action")), ("", ""))
    if not old or old not in update:
        return update
    present = {key: value for key, value in update.items() if key != old}
    return {new: update[old], **present}


def read_identifier(operation: IcebergOperation, value: Any, path: str) -> tuple[str, ...]:
    """A TableIdentifier of a body. Without a namespace, it is at the top of the warehouse.

    Raises InvalidInput.
    """
    levels = (value.get("namespace") or []) if isinstance(value, dict) else None
    name = value.get("name") if isinstance(value, dict) else None
    if not (
        isinstance(levels, list)
        and all(isinstance(level, str) for level in levels)
        and isinstance(name, str)
    ):
        raise InvalidInput(f"{path}: expected an object with a namespace and a name")
    return operation.absolute(levels, name)
