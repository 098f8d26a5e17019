"""The button that repairs a Lance table."""

from typing import Any, cast

from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase

from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.pages import ReadOnlyAdmin, button
from catalog.errors import CatalogError
from catalog.models import Table
from catalog.privileges import Privilege
from catalog.services.recovery import lance_repair
from catalog.services.recovery.lance_repair import Repair


class RepairAction:
    """The button "Repair" of the table admin."""

    @button("Repair", permission="repair", icon="healing")
    def repair(self, request: HttpRequest, row: Table) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            result = lance_repair.repair(actor=actor(request), table=row.identifier)
            if result.published:
                messages.success(request, f"Table '{row}' was repaired. {_text(result)}")
            else:
                messages.info(request, f"Table '{row}' does not need repair.")
            return HttpResponseRedirect(cells.page_url(row) + "?tab=versions")

        return cast(ReadOnlyAdmin, self).ask(
            request,
            title=f"Repair table '{row}'?",
            text=f"{_findings(request, row)} Repair publishes a copy of the newest complete version"
            " under a new number and retires versions without a manifest. It removes no files.",
            submit="Repair",
            call=call,
            back=cells.page_url(row) + "?tab=versions",
            original=row,
        )

    def has_repair_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return cast(ReadOnlyAdmin, self).may(request, Privilege.MANAGE, object_id)


def _findings(request: HttpRequest, row: Table) -> str:
    try:
        result = lance_repair.repair(actor=actor(request), table=row.identifier, is_dry_run=True)
    except CatalogError as error:
        return f"{error.message}."
    return _text(result)


def _text(result: Repair) -> str:
    return " ".join(
        f"{report.branch or 'Main'}: newest version {report.newest}, "
        + (
            f"last complete version {report.last_complete}, {report.fault}."
            if report.fault
            else "complete."
        )
        for report in result.branches
    )
