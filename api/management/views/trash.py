"""The trash: what was dropped, bringing it back, purging it."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import ClassVar

from api.management import recovery_messages as m
from api.management.operation import ManagementOperation
from catalog import access
from catalog.access import Principal
from catalog.errors import TrashItemNotFound
from catalog.models import TrashItem
from catalog.services.recovery import undrop
from catalog.services.storage import file_references
from catalog.services.storage.file_references import Dependents


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise TrashItemNotFound(text)
    return int(text)


def _told(actor: Principal, rows: Sequence[TrashItem]) -> list[m.TrashItemModel]:
    tables = [row.table_id for row in rows if row.table_id is not None]
    readable = access.readable_tables(actor, tables)
    dependents = file_references.dependents_of(actor, readable)
    return [
        m.TrashItemModel.of(row, readable, dependents.get(row.table_id or 0, Dependents()))
        for row in rows
    ]


class ListTrash(ManagementOperation):
    """What was dropped and may come back, the newest first."""

    response_model = m.TrashPage
    query = ("namespace", "dropped_by", "limit", "page_token")
    described: ClassVar = {
        "dropped_by": {"description": "The name of a principal.", "schema": {"type": "string"}}
    }

    def handle(self, actor: Principal, body: None) -> m.TrashPage:
        rows, token = undrop.list_trash(
            actor=actor,
            namespace=self.named("namespace"),
            dropped_by=self.query_values.get("dropped_by"),
            **self.page,
        )
        return m.TrashPage(items=_told(actor, rows), next_page_token=token)


class GetTrashItem(ManagementOperation):
    """Something that was dropped."""

    response_model = m.TrashItemModel

    def handle(self, actor: Principal, body: None, item: str) -> m.TrashItemModel:
        return _told(actor, [undrop.find_item(actor=actor, item=_number(item))])[0]


class UndropTrashItem(ManagementOperation):
    """Bring back a table, a view, or a namespace with all that was dropped with it."""

    verb = "POST"
    changes = True
    request_model = m.UndropRequest
    response_model = m.Undropped

    def handle(self, actor: Principal, body: m.UndropRequest, item: str) -> m.Undropped:
        row = undrop.undrop(
            actor=actor,
            item=_number(item),
            new=None if body.new is None else tuple(body.new),
            with_parents=body.with_parents,
            without_purged=body.without_purged,
        )
        return m.Undropped.of(row)


class PurgeTrashItem(ManagementOperation):
    """Purge before its time, after a while in which it can be stopped. May need a second person."""

    verb = "POST"
    changes = True
    request_model = m.PurgeRequest
    response_model = m.PurgeJobs
    status = HTTPStatus.ACCEPTED

    def handle(self, actor: Principal, body: m.PurgeRequest, item: str) -> m.PurgeJobs:
        jobs = undrop.purge_now(actor=actor, item=_number(item), reason=body.reason)
        return m.PurgeJobs.of(jobs)


class KeepTrashItem(ManagementOperation):
    """Stop a purge that has not begun: it is kept until somebody purges it."""

    verb = "POST"
    changes = True
    response_model = m.TrashItemModel

    def handle(self, actor: Principal, body: None, item: str) -> m.TrashItemModel:
        return _told(actor, [undrop.keep(actor=actor, item=_number(item))])[0]
