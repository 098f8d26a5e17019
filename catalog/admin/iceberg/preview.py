"""The preview of a snapshot of an Iceberg table."""

from django.http import HttpRequest

from catalog.admin import cells, row_previews
from catalog.admin.actor import actor
from catalog.admin.pages import Panel
from catalog.admin.paging import query, word
from catalog.admin.row_previews import Version
from catalog.errors import CatalogError
from catalog.formats.rows.previews import Preview, Request
from catalog.models import Table
from catalog.services.iceberg.previews import preview as iceberg_preview
from catalog.services.iceberg.previews.preview import OpenedSnapshot

_LARGEST_ID = 2**63 - 1


def tab(request: HttpRequest, row: Table) -> Panel | list[Panel]:
    """Rows of the requested snapshot, branch or tag, by default of the current snapshot."""
    text, ref = word(request, "snapshot").strip(), word(request, "ref").strip()
    is_number = text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _LARGEST_ID
    if text and not is_number:
        return Panel((), (), f"The table has no snapshot '{cells.clipped(text, 50)}'.")
    try:
        opened = iceberg_preview.open_snapshot(
            actor=actor(request), table=row, snapshot_id=int(text) if text else None, ref=ref
        )
    except CatalogError as error:
        return Panel((), (), cells.clipped(error.message, 2000))
    shown = _panel(request, opened, text, ref)
    if not text and not ref:
        return shown
    notice = [f"Snapshot {opened.snapshot_id}. Return to"]
    back = cells.anchor(query(request, snapshot=None, ref=None), "the current snapshot")
    return [Panel((), (), cells.spaced([*notice, back])), shown]


def _panel(request: HttpRequest, opened: OpenedSnapshot, snapshot_id: str, ref: str) -> Panel:
    def compute(page: Request) -> tuple[Preview, str]:
        try:
            return iceberg_preview.preview(opened, page), ""
        except CatalogError as error:
            return Preview((), ()), error.message

    pinned = {"snapshot": opened.snapshot_id, "ref": None} if opened.snapshot_id else {}
    return row_previews.panel(
        request,
        row_previews.read(request, opened.schema),
        Version(
            fields=[
                ("snapshot", "Snapshot", snapshot_id, "current"),
                ("ref", "Branch or tag", ref, "main"),
            ],
            parameters=pinned,
        ),
        compute=compute,
    )
