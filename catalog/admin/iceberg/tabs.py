"""The pages of Iceberg tables and views: details and tabs, from the stored metadata."""

import json
from dataclasses import dataclass

from django.http import HttpRequest

from catalog.admin import cells
from catalog.admin.engine import ledger
from catalog.admin.iceberg import details, schemas, snapshots
from catalog.admin.iceberg import files as iceberg_files
from catalog.admin.iceberg import preview as iceberg_preview
from catalog.admin.pages import Page, Panel, Tab
from catalog.admin.paging import paginate, query
from catalog.admin.recovery import protection
from catalog.formats.iceberg import describe, describe_schemas, describe_views, lenient
from catalog.formats.iceberg.describe_views import ViewVersion
from catalog.formats.iceberg.reading import Document
from catalog.models import IcebergMetadata, Table, TableState
from catalog.services.iceberg import metadata_files

_LONGEST_SQL = 100_000  # characters of the current version
_LONGEST_OLD_SQL = 20_000
_REPRESENTATIONS = 20
_VERSIONS = 10  # of a view on one page


@dataclass(frozen=True)
class Metadata:
    """The current metadata of a table or view; empty with a fault if it cannot be read."""

    document: Document
    location: str
    fault: str = ""


def read(row: Table) -> Metadata:
    """Read the metadata. One statement. Never fails: the page has to show what is wrong."""
    stored = IcebergMetadata.objects.filter(table=row).only("metadata_location", "answer").first()
    if stored is None:
        return Metadata({}, "", "The catalog has no metadata of the table or view.")
    try:
        document = lenient.mapping(metadata_files.read_answer(bytes(stored.answer)))
    except metadata_files.UNREADABLE as error:
        return Metadata(
            {}, stored.metadata_location, f"The stored metadata cannot be read: {error}"
        )
    return Metadata(
        document, stored.metadata_location, "" if document else "The stored metadata is empty."
    )


# --- tables ------------------------------------------------------------------------------------


def table_page(request: HttpRequest, row: Table) -> Page:
    metadata = read(row)
    document = metadata.document
    current = describe_schemas.current_schema_id(document)
    opens = row.state == TableState.LIVE
    return Page(
        facts=[
            *_identity(row, metadata, lenient.text(document.get("table-uuid"))),
            *_contents(request, document),
            *_history(row, document.get("last-updated-ms")),
        ],
        tabs=(
            Tab("schema", "Schema", lambda: schemas.schema_tab(request, document, current)),
            Tab("snapshots", "Snapshots", lambda: snapshots.snapshots(request, row, document)),
            Tab("preview", "Data", lambda: iceberg_preview.tab(request, row)),
            Tab("profile", "Column profile", lambda: iceberg_preview.profile(request, row)),
            Tab("files", "Files", lambda: iceberg_files.tab(request, row, document)),
            Tab(
                "refs",
                "Branches and tags",
                lambda: snapshots.references(request, document),
            ),
            Tab(
                "layout",
                "Partitions and sorting",
                lambda: details.layout_tab(request, document),
            ),
            Tab("properties", "Properties", lambda: details.properties(request, document)),
            Tab(
                "statistics",
                "Statistics",
                lambda: details.statistics_tab(request, document),
            ),
            Tab(
                "metadata",
                "Metadata log",
                lambda: details.metadata_log(request, document, metadata.location),
            ),
            Tab("metrics", "Metrics reports", lambda: details.metrics(request, row)),
            Tab("versions", "Versions", lambda: ledger.versions(request, row)),
            *ledger.tabs(request, row),
        ),
        aside_template="admin/catalog/iceberg_aside.html" if opens else "",
        aside={
            "server": request.build_absolute_uri("/").rstrip("/"),
            "table_id": ", ".join(json.dumps(name, ensure_ascii=False) for name in row.identifier),
        },
    )


def _identity(row: Table, metadata: Metadata, uuid: str) -> list[tuple[str, object]]:
    version = lenient.integer(metadata.document.get("format-version"))
    facts: list[tuple[str, object]] = [
        ("Namespace", cells.link(row.namespace)),
        (
            "Format",
            f"{row.get_format_display()} {row.kind}, version {'?' if version is None else version}",
        ),
        ("State", cells.badge(row.state)),
    ]
    if metadata.fault:
        facts.append(("Fault", cells.badge(cells.clipped(metadata.fault), "danger")))
    facts.append(("UUID", cells.exact(cells.clipped(uuid))))
    if uuid != str(row.uuid):
        # The catalog's own UUID, which the audit trail uses: a registered table keeps its UUID.
        facts.append(("UUID in the catalog", cells.exact(row.uuid)))
    location = lenient.text(metadata.document.get("location")) or row.location
    return [
        *facts,
        ("Location", cells.exact(cells.clipped(location, 1000))),
        ("Metadata file", cells.exact(metadata.location)),
    ]


def _contents(request: HttpRequest, document: Document) -> list[tuple[str, object]]:
    count = len(lenient.objects(document.get("snapshots")))
    entry = describe.current_snapshot(document)
    if entry is None:
        current: object = cells.muted("none")
        return [("Current snapshot", current), ("Snapshots", f"{count:,}")]
    snapshot, totals = describe.snapshot(entry), describe.totals(entry)
    url = query(request, tab="snapshots", after=None)
    current = cells.spaced([cells.exact(snapshot.id), cells.when(snapshot.at)])
    files: object = cells.NOTHING if totals.files is None else f"{totals.files:,}"
    if totals.delete_files:
        files = f"{files}, and {totals.delete_files:,} delete files"
    return [
        ("Current snapshot", current),
        ("Snapshots", cells.anchor(url, f"{count:,}")),
        ("Records", cells.NOTHING if totals.records is None else f"{totals.records:,}"),
        ("Data files", files),
        ("Size", cells.size(totals.bytes)),
    ]


def _history(row: Table, updated: object = None) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [
        ("Owner", row.owner or cells.NOTHING),
        ("Protected", protection.badge(row)),
        ("Created", cells.when(row.created_at)),
    ]
    if updated is not None:
        facts.append(("Last updated", cells.when(lenient.moment(updated))))
    if row.dropped_at is not None:
        facts.append(("Dropped", cells.when(row.dropped_at)))
    return facts


# --- views -------------------------------------------------------------------------------------


def view_page(request: HttpRequest, row: Table) -> Page:
    metadata = read(row)
    document = metadata.document
    entry = describe_views.current_version(document)
    current = describe_views.version(entry or {})
    return Page(
        facts=[
            *_identity(row, metadata, lenient.text(document.get("view-uuid"))),
            ("Current version", "?" if current.id is None else current.id),
            ("Default catalog", cells.clipped(current.default_catalog) or cells.NOTHING),
            (
                "Default namespace",
                cells.clipped(".".join(current.default_namespace)) or cells.NOTHING,
            ),
            *_history(row),
            ("Last changed", cells.when(current.at)),
        ],
        tabs=(
            Tab("sql", "SQL", lambda: _sql(current)),
            Tab(
                "schema",
                "Schema",
                lambda: schemas.schema_tab(request, document, current.schema_id),
            ),
            Tab("history", "History", lambda: _view_versions(request, document)),
            Tab("properties", "Properties", lambda: details.properties(request, document)),
            Tab("versions", "Metadata versions", lambda: ledger.versions(request, row)),
            *ledger.tabs(request, row),
        ),
    )


def _sql(version: ViewVersion) -> Panel:
    return Panel(
        columns=("Dialect", "SQL"),
        rows=[
            (
                cells.badge(cells.clipped(representation.dialect, 40) or "?"),
                cells.source(representation.sql, _LONGEST_SQL),
            )
            for representation in version.representations[:_REPRESENTATIONS]
        ],
        empty="The current version has no SQL. Engines store one text for each dialect.",
    )


def _view_versions(request: HttpRequest, document: Document) -> Panel:
    page = paginate(
        request,
        describe_views.versions(document),
        lambda entry: str(lenient.integer(entry.get("version-id"))),
        "after",
        _VERSIONS,
    )
    since = describe_views.current_since(document)
    current = document.get("current-version-id")
    versions = [describe_views.version(entry) for entry in page.items]
    return Panel(
        columns=("Version", "Created", "Current since", "Schema", "Default namespace"),
        rows=[
            (
                cells.spaced(
                    [
                        "?" if version.id is None else version.id,
                        *(
                            [cells.badge("current", "success")]
                            if version.id is not None and version.id == current
                            else ()
                        ),
                    ]
                ),
                cells.when(version.at),
                cells.when(since.get(version.id)),
                _schema(request, version),
                cells.clipped(".".join(version.default_namespace)) or cells.NOTHING,
            )
            for version in versions
        ],
        below=[_definition(version) for version in versions],
        empty="No versions in the metadata.",
        first=page.first,
        following=page.following,
        note="" if len(versions) > 1 else "Replacing the view adds a version.",
    )


def _definition(version: ViewVersion) -> object:
    texts = (
        cells.fold(
            cells.clipped(f"{representation.dialect}: {representation.sql}", 120),
            cells.source(representation.sql, _LONGEST_OLD_SQL),
        )
        for representation in version.representations[:_REPRESENTATIONS]
    )
    return cells.lines([*texts, snapshots.summary(version.summary)])


def _schema(request: HttpRequest, version: ViewVersion) -> object:
    if version.schema_id is None:
        return cells.NOTHING
    url = query(request, tab="schema", schema=version.schema_id, after=None)
    return cells.anchor(url, version.schema_id)
