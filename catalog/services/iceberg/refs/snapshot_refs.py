"""Tag a snapshot of an Iceberg table, and roll branch main back to an earlier one."""

from collections.abc import Iterator, Mapping
from typing import Any

from catalog import access
from catalog.access import Principal
from catalog.errors import InvalidInput, TagAlreadyExists
from catalog.formats.iceberg import lenient
from catalog.formats.iceberg.reading import Document
from catalog.identifiers import Identifier, label
from catalog.privileges import Privilege
from catalog.services.iceberg import commits
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange

_MAIN = "main"


def create_tag(*, actor: Principal, table: Identifier, tag: str, snapshot_id: int) -> None:
    """Create a tag for a snapshot.

    Raises InvalidInput for a snapshot that the table does not have, TagAlreadyExists if a branch or tag has
    the name, and the errors of ``commits.commit_table``.
    """
    document = _load(actor, table)
    _require_snapshot(table, document, snapshot_id)
    if tag in lenient.mapping(document.get("refs")):
        raise TagAlreadyExists(table, tag)
    reference = {"type": "tag", "ref-name": tag, "snapshot-id": snapshot_id}
    _commit(actor, table, tag, None, reference)


def roll_back(*, actor: Principal, table: Identifier, snapshot_id: int) -> None:
    """Let branch main refer to one of the earlier snapshots that led to its current one.

    Raises InvalidInput for any other snapshot, RequirementFailed if main has changed meanwhile, and the
    errors of ``commits.commit_table``.
    """
    document = _load(actor, table)
    _require_snapshot(table, document, snapshot_id)
    current = lenient.integer(document.get("current-snapshot-id"))
    if snapshot_id not in set(ancestors(document)):
        raise InvalidInput(
            f"Snapshot {snapshot_id} is not an earlier snapshot of branch main of table '{label(table)}';"
            " roll back to one that is"
        )
    main = lenient.mapping(lenient.mapping(document.get("refs")).get(_MAIN))
    retention = {name: value for name, value in main.items() if name != "snapshot-id"}
    reference = {
        **retention,
        "type": "branch",
        "ref-name": _MAIN,
        "snapshot-id": snapshot_id,
    }
    _commit(actor, table, _MAIN, current, reference)


def ancestors(document: Document) -> Iterator[int]:
    """The snapshots that led to the current one, newest first, as far as the metadata has them."""
    parents = {
        lenient.integer(snapshot.get("snapshot-id")): lenient.integer(
            snapshot.get("parent-snapshot-id")
        )
        for snapshot in lenient.objects(document.get("snapshots"))
    }
    # Each parent is removed when it is visited: the metadata of a registered table may have a cycle.
    parent = parents.pop(lenient.integer(document.get("current-snapshot-id")), None)
    while parent is not None and parent in parents:
        yield parent
        parent = parents.pop(parent)


def _load(actor: Principal, table: Identifier) -> Document:
    access.require(actor, Privilege.WRITE, iceberg_tables.on(table))
    return iceberg_tables.load_table(actor=actor, table=table).document


def _require_snapshot(table: Identifier, document: Document, snapshot_id: int) -> None:
    ids = (snapshot.get("snapshot-id") for snapshot in lenient.objects(document.get("snapshots")))
    if snapshot_id not in ids:
        raise InvalidInput(
            f"Table '{label(table)}' has no snapshot {snapshot_id}; choose one of its history"
        )


def _commit(
    actor: Principal,
    table: Identifier,
    name: str,
    expected: int | None,
    reference: Mapping[str, Any],
) -> None:
    commits.commit_table(
        actor=actor,
        change=TableChange(
            table=table,
            requirements=[{"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": expected}],
            updates=[{"action": "set-snapshot-ref", **reference}],
        ),
    )
