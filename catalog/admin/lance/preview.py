"""The preview of a version of a Lance table."""

from django.http import HttpRequest
from lance.dataset import LanceDataset

from catalog.admin import column_profiles, row_previews
from catalog.admin.pages import Panel
from catalog.admin.paging import number, word
from catalog.admin.row_previews import Version
from catalog.errors import CatalogError
from catalog.formats.rows.previews import Preview, Request
from catalog.models import Table
from catalog.services.lance import preview as lance_preview
from catalog.services.lance.contents import Unreadable, reading

_NONE = Preview((), ())


def panel(row: Table, request: HttpRequest, dataset: LanceDataset) -> Panel:
    with reading():
        schema = dataset.schema
    predicate = word(request, "filter").strip()
    version = number(request, "version")

    def compute(page: Request) -> tuple[Preview, str]:
        try:
            return (
                lance_preview.preview(
                    dataset, table=row.identifier, request=page, predicate=predicate
                ),
                "",
            )
        except CatalogError as error:
            return _NONE, error.message
        except Unreadable as error:
            return _NONE, f"The rows cannot be read: {error}"

    return row_previews.panel(
        request,
        row_previews.read(request, schema),
        Version(
            fields=[
                ("version", "Version", "" if version is None else str(version), "newest"),
                ("branch", "Branch", word(request, "branch"), "main"),
            ],
            parameters={"version": dataset.version},
        ),
        compute=compute,
        sql_filter=predicate,
    )


def profile(row: Table, request: HttpRequest, dataset: LanceDataset) -> list[Panel]:
    """The profile of a column of a version."""
    with reading():
        schema = dataset.schema
    version, branch = number(request, "version"), word(request, "branch")
    named = {"version": "" if version is None else str(version), "branch": branch}
    return column_profiles.panels(
        request,
        schema,
        {name: value for name, value in named.items() if value},
        lambda column: lance_preview.profile(dataset, table=row.identifier, column=column),
    )
