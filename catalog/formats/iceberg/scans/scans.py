"""Scan requests, resolved against a table's metadata (spec: PlanTableScanRequest).

A ``Scan`` holds everything that planning needs apart from the manifests, as JSON: later commits do
not affect a plan whose tasks are fetched after them.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from catalog.errors import InvalidInput, InvalidMetadata, Unsupported
from catalog.formats.iceberg.reading import INT_MAX, LONG_MAX, Document, kind
from catalog.formats.iceberg.scans.filter_parsing import Names, parse
from catalog.formats.iceberg.schema import schemas
from catalog.formats.iceberg.schema.schemas import Columns

_COLUMNS_OF_FILES = frozenset(
    {
        *("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id"),
        "_last_updated_sequence_number",
    }
)
"""Metadata columns, which a scan may select although no schema has them (spec: Reserved Field
IDs)."""


@dataclass(frozen=True)
class Request:
    """A PlanTableScanRequest with checked types."""

    snapshot_id: int | None = None
    start_snapshot_id: int | None = None
    end_snapshot_id: int | None = None
    use_snapshot_schema: bool = False
    case_sensitive: bool = True
    filter: Any = True
    select: list[str] | None = None
    stats_fields: list[str] | None = None
    min_rows_requested: int | None = None


@dataclass(frozen=True)
class Scan:
    schema: Document
    """The schema of the names in the filter."""
    specs: list[Document]
    source_types: dict[str, str]
    """Types of partition sources that the schema does not have because they were dropped."""
    snapshots: list[tuple[int, str]]
    """Ids and manifest lists of the snapshots."""
    appended_only: bool = False
    """True to scan only the files that each snapshot appended."""
    filter: Any = True
    case_sensitive: bool = True
    stats: list[int] = field(default_factory=list)
    """The ids of columns whose metrics the client requests."""
    min_rows: int | None = None

    def to_json(self) -> Document:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Document) -> Self:
        """Read a scan, ignoring fields of other versions of this server."""
        names = {attribute.name for attribute in fields(cls)}
        return cls(**{key: value for key, value in document.items() if key in names})


# --- the request -------------------------------------------------------------------------------


def read_request(body: Document) -> Request:
    """Read a request. Raises InvalidInput for fields of a wrong type or in contradiction."""
    request = Request(
        snapshot_id=_integer(body, "snapshot-id"),
        start_snapshot_id=_integer(body, "start-snapshot-id"),
        end_snapshot_id=_integer(body, "end-snapshot-id"),
        use_snapshot_schema=_flag(body, "use-snapshot-schema", default=False),
        case_sensitive=_flag(body, "case-sensitive", default=True),
        filter=True if body.get("filter") is None else body["filter"],
        select=_names(body, "select"),
        stats_fields=_names(body, "stats-fields"),
        min_rows_requested=_integer(body, "min-rows-requested"),
    )
    incremental = (request.start_snapshot_id, request.end_snapshot_id)
    if request.snapshot_id is not None and incremental != (None, None):
        raise InvalidInput(
            "snapshot-id asks for one snapshot, start-snapshot-id and end-snapshot-id for what was "
            "appended between two: use one or the other"
        )
    if None in incremental and incremental != (None, None):
        raise InvalidInput("start-snapshot-id and end-snapshot-id go together")
    return request


def _integer(body: Document, key: str) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= LONG_MAX:
        raise InvalidInput(f"{key}: expected a positive integer of 64 bits, not {kind(value)}")
    return value


def _flag(body: Document, key: str, *, default: bool) -> bool:
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidInput(f"{key}: expected a boolean, not {kind(value)}")
    return value


def _names(body: Document, key: str) -> list[str] | None:
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidInput(f"{key}: expected an array of column names")
    return value


# --- the scan ----------------------------------------------------------------------------------


def settle(document: Document, request: Request) -> Scan:
    """Resolve a request against a table's metadata.

    Raises InvalidInput for an unknown snapshot or column, and Unsupported for a v1 snapshot without
    a manifest list.
    """
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in document.get("snapshots") or ()}
    if request.start_snapshot_id is not None and request.end_snapshot_id is not None:
        chosen = _appends(by_id, request.start_snapshot_id, request.end_snapshot_id)
        last: Document | None = by_id[request.end_snapshot_id]
    else:
        last = _snapshot(document, by_id, request.snapshot_id)
        chosen = [] if last is None else [last]
    schema = _schema(document, last if request.use_snapshot_schema else None)
    columns = schemas.index(schema, "schema")
    names = Names(columns, case_sensitive=request.case_sensitive)
    for name in request.select or ():
        if name not in _COLUMNS_OF_FILES:
            names.find(name, "select")
    parse(request.filter, names)
    return Scan(
        schema=schema,
        specs=list(document.get("partition-specs") or ()),
        source_types=_other_types(document, columns),
        snapshots=[(snapshot["snapshot-id"], _manifest_list(snapshot)) for snapshot in chosen],
        appended_only=request.start_snapshot_id is not None,
        filter=request.filter,
        case_sensitive=request.case_sensitive,
        stats=[names.find(name, "stats-fields").id for name in request.stats_fields or ()],
        min_rows=request.min_rows_requested,
    )


def _snapshot(
    document: Document, by_id: dict[int, Document], snapshot_id: int | None
) -> Document | None:
    """The requested snapshot, by default main's; None if the table has none."""
    if snapshot_id is None:
        current = document.get("current-snapshot-id")
        return None if current in {None, -1} else by_id.get(current)
    if snapshot_id not in by_id:
        raise InvalidInput(f"snapshot-id: there is no snapshot {snapshot_id}")
    return by_id[snapshot_id]


def _appends(by_id: dict[int, Document], start: int, end: int) -> list[Document]:
    """The append snapshots after ``start`` up to ``end``, oldest first."""
    if end not in by_id:
        raise InvalidInput(f"end-snapshot-id: there is no snapshot {end}")
    appends = []
    walked: set[int] = set()
    step: int | None = end
    while step is not None and step in by_id and step not in walked:
        walked.add(step)
        snapshot = by_id[step]
        # A snapshot of an old library without a summary is assumed to be an append.
        if (snapshot.get("summary") or {}).get("operation", "append") == "append":
            appends.append(snapshot)
        step = snapshot.get("parent-snapshot-id")
        if step == start:  # the start snapshot may have expired
            return appends[::-1]
    raise InvalidInput(f"start-snapshot-id: {start} is no ancestor of snapshot {end}")


def _manifest_list(snapshot: Document) -> str:
    path = snapshot.get("manifest-list")
    if not isinstance(path, str):
        raise Unsupported(
            f"Snapshot {snapshot['snapshot-id']} names its manifests itself, as only the oldest "
            "writers did; plan its scans in the client"
        )
    return path


def _schema(document: Document, snapshot: Document | None) -> Document:
    schema_id = document.get("current-schema-id")
    if snapshot is not None and snapshot.get("schema-id") is not None:
        schema_id = snapshot["schema-id"]
    for schema in document.get("schemas") or ():
        if schema.get("schema-id", 0) == schema_id:
            chosen: Document = schema
            return chosen
    raise InvalidMetadata(f"There is no schema {schema_id}")


def _other_types(document: Document, columns: Columns) -> dict[str, str]:
    """The last types of partition sources that the schema does not have."""
    source_ids = {
        partition_field["source-id"]
        for spec in document.get("partition-specs") or ()
        for partition_field in spec.get("fields") or ()
        if isinstance(partition_field.get("source-id"), int)
    } - columns.keys()
    types: dict[str, str] = {}
    if source_ids:
        newest = sorted(
            document["schemas"], key=lambda schema: schema.get("schema-id", INT_MAX), reverse=True
        )
        for schema in newest:
            for column in schemas.index(schema, "schema").values():
                if column.id in source_ids and isinstance(column.type, str):
                    types.setdefault(str(column.id), column.type)
    return types
