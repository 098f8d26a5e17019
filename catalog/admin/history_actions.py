"""Restoring, rolling back and tagging from the history of a table: links, and forms that call services."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminTextInputWidget

from catalog import access
from catalog.access import Principal
from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.form_pages import sent
from catalog.admin.pages import ReadOnlyAdmin
from catalog.admin.paging import word
from catalog.errors import InvalidInput
from catalog.models import AuditEvent, Table, TableFormat, TableState, TableVersion
from catalog.models.audit import Interface
from catalog.privileges import Privilege
from catalog.services.iceberg.refs import snapshot_refs
from catalog.services.lance import metadata as lance_metadata
from catalog.services.lance.refs import tags as lance_tags

_MAX_DIGITS = 19

VersionLinks = Callable[..., Sequence[object]]


class TagForm(forms.Form):
    name = forms.CharField(
        max_length=200,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off", "spellcheck": "false"}),
        help_text="Name of the tag, such as v1 or training-2026-05.",
    )


def interfaces(row: Table, versions: Iterable[TableVersion]) -> dict[UUID | None, str]:
    """The interface of each version's transaction, from the audit trail. One statement."""
    ids = {version.transaction_id for version in versions if version.transaction_id}
    events = AuditEvent.objects.filter(transaction_id__in=ids, table_uuid=row.uuid)
    return {
        transaction: Interface(interface).label
        for transaction, interface in events.values_list("transaction_id", "interface")
        if interface in Interface
    }


def may_write(request: HttpRequest, row: Table) -> bool:
    return row.state == TableState.LIVE and access.holds(actor(request), Privilege.WRITE, row)


def _link(row: Table, action: str, text: str, **parameters: object) -> SafeString:
    base = cells.page_url(row).removesuffix("change/")
    chosen = {name: value for name, value in parameters.items() if value not in (None, "")}
    return cells.anchor(f"{base}{action}/?{urlencode(chosen)}", text)


def version_links(request: HttpRequest, row: Table) -> VersionLinks:
    """Function from a version of a Lance table to its links; it has none if the user may not write."""
    is_writer = may_write(request, row)

    def links(version: TableVersion, *, is_newest: bool) -> Sequence[object]:
        if not is_writer:
            return ()
        chosen = {"version": version.version, "branch": version.branch}
        restore = [] if is_newest else [_link(row, "restore", "Restore", **chosen)]
        return [*restore, _link(row, "tag", "Tag", **chosen)]

    return links


def snapshot_links(
    request: HttpRequest, row: Table, ancestors: Collection[int]
) -> Callable[[int], Sequence[object]]:
    """The same for snapshots. ``ancestors`` are those to which main can be rolled back."""
    is_writer = may_write(request, row)

    def links(id_: int) -> Sequence[object]:
        if not is_writer:
            return ()
        restore = [_link(row, "restore", "Roll back", snapshot=id_)] if id_ in ancestors else []
        return [*restore, _link(row, "tag", "Tag", snapshot=id_)]

    return links


# --- forms -------------------------------------------------------------------------------------


def restore(
    page: ReadOnlyAdmin, request: HttpRequest, row: Table, principal: Callable[[], Principal]
) -> HttpResponseBase:
    """Confirm and restore a version of a Lance table, or roll main of an Iceberg table back."""
    if row.format == TableFormat.ICEBERG:
        return _roll_back(page, request, row, principal)
    version, branch = _identifier(request, "version"), word(request, "branch")
    of_branch = f" of branch '{cells.clipped(branch)}'" if branch else ""

    def call(_data: dict[str, Any]) -> HttpResponseBase:
        written = lance_metadata.restore(
            actor=principal(), table=row.identifier, version=_required(version), branch=branch
        )
        messages.success(
            request,
            f"Version {version}{of_branch} of table '{row}' was restored as version {written.version}",
        )
        return HttpResponseRedirect(_history(row, "versions", branch))

    return page.ask(
        request,
        title=f"Restore version {_shown(version)}{of_branch} of table '{row}'?",
        text="Adds a version with the content of this one. No version is removed, so the restoration can be"
        " undone in the same way.",
        submit="Restore",
        call=call,
        back=_history(row, "versions", branch),
        original=row,
    )


def _roll_back(
    page: ReadOnlyAdmin, request: HttpRequest, row: Table, principal: Callable[[], Principal]
) -> HttpResponseBase:
    snapshot = _identifier(request, "snapshot")

    def call(_data: dict[str, Any]) -> HttpResponseBase:
        snapshot_refs.roll_back(
            actor=principal(), table=row.identifier, snapshot_id=_required(snapshot)
        )
        messages.success(request, f"Table '{row}' was rolled back to snapshot {snapshot}")
        return HttpResponseRedirect(_history(row, "snapshots"))

    return page.ask(
        request,
        title=f"Roll table '{row}' back to snapshot {_shown(snapshot)}?",
        text="Branch main then refers to this snapshot. Later snapshots stay until they expire: a tag keeps"
        " them. The schema of the table does not change.",
        submit="Roll back",
        danger=True,
        call=call,
        back=_history(row, "snapshots"),
        original=row,
    )


def tag(
    page: ReadOnlyAdmin, request: HttpRequest, row: Table, principal: Callable[[], Principal]
) -> HttpResponseBase:
    """The form that names a version or a snapshot."""
    is_iceberg = row.format == TableFormat.ICEBERG
    noun = "snapshot" if is_iceberg else "version"
    target, branch = _identifier(request, noun), word(request, "branch")

    def call(data: dict[str, Any]) -> HttpResponseBase:
        name = data["name"]
        if is_iceberg:
            snapshot_refs.create_tag(
                actor=principal(), table=row.identifier, tag=name, snapshot_id=_required(target)
            )
        else:
            lance_tags.create_tag(
                actor=principal(),
                table=row.identifier,
                tag=name,
                version=_required(target),
                branch=branch,
            )
        messages.success(request, f"Tag '{name}' of table '{row}' names {noun} {target}")
        return HttpResponseRedirect(_history(row, "refs"))

    return page.ask(
        request,
        title=f"Tag {noun} {_shown(target)} of table '{row}'",
        text=f"Jobs of the maintenance keep a tagged {noun} and its files until the tag is deleted.",
        submit="Create tag",
        form=TagForm(sent(request)),
        call=call,
        back=_history(row, "snapshots" if is_iceberg else "versions", branch),
        original=row,
    )


def _identifier(request: HttpRequest, name: str) -> int | None:
    """A version or snapshot in the URL. The identifiers of snapshots have up to 63 bits."""
    text = word(request, name)
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        return None
    return int(text) if int(text) < 2**63 else None


def _shown(target: int | None) -> str:
    return "?" if target is None else str(target)


def _required(target: int | None) -> int:
    if target is None:
        raise InvalidInput("The URL has no version or snapshot; open this form from the history")
    return target


def _history(row: Table, tab: str, branch: str = "") -> str:
    parameters = {"tab": tab} | ({"branch": branch} if branch else {})
    return f"{cells.page_url(row)}?{urlencode(parameters)}"
