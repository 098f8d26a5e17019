"""The preview of a snapshot of an Iceberg table."""

from django.http import HttpRequest

from catalog.admin import cells, column_profiles, row_previews
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
    opened = _open(request, row)
    if isinstance(opened, Panel):
        return opened
    text, ref = _requested(request)
    shown = _panel(request, opened, text, ref)
    if not text and not ref:
        return shown
    notice = [f"Snapshot {opened.snapshot_id}. Return to"]
    back = cells.anchor(query(request, snapshot=None, ref=None), "the current snapshot")
    return [Panel((), (), cells.spaced([*notice, back])), shown]


def profile(request: HttpRequest, row: Table) -> Panel | list[Panel]:
    """The profile of a column of the requested snapshot, branch or tag."""
    opened = _open(request, row)
    if isinstance(opened, Panel):
        return opened
    text, ref = _requested(request)
    named = {name: value for name, value in (("snapshot", text), ("ref", ref)) if value}
    return column_profiles.panels(
        request, opened.schema, named, lambda column: iceberg_preview.profile(opened, column)
    )


def _requested(request: HttpRequest) -> tuple[str, str]:
    """The requested snapshot, and branch or tag."""
    return word(request, "snapshot").strip(), word(request, "ref").strip()


def _open(request: HttpRequest, row: Table) -> OpenedSnapshot | Panel:
    """The requested snapshot, or a panel with the reason why it cannot be opened."""
    text, ref = _requested(request)
    is_number = text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _LARGEST_ID
    if text and not is_number:
        return Panel((), (), f"The table has no snapshot '{cells.clipped(text, 50)}'.")
    try:
        return iceberg_preview.open_snapshot(
            actor=actor(request), table=row, snapshot_id=int(text) if text else None, ref=ref
        )
    except CatalogError as error:
        return Panel((), (), cells.clipped(error.message, 2000))


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
