"""Iceberg metadata as rows to display. Missing and malformed values are left out, never refused.

Lists are read lazily or in pages, so that a document of many megabytes costs little more than
loading it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

from catalog.formats.iceberg import lenient
from catalog.formats.iceberg.describe_schemas import current_schema_id, cut, fields, schema, schemas
from catalog.formats.iceberg.reading import Document

_MAX_TRANSFORM_LENGTH = 200  # characters of a transform

# --- snapshots and references ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Delta:
    """The amounts that a snapshot added and removed; None if its summary does not have them."""

    added: int | None
    removed: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    id: int | None
    parent: int | None
    at: datetime | None
    operation: str
    sequence_number: int | None
    schema_id: int | None
    records: Delta
    files: Delta
    bytes: Delta
    summary: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of a snapshot."""

    records: int | None
    files: int | None
    delete_files: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Reference:
    name: str
    type: str
    snapshot_id: int | None
    retention: tuple[str, ...]
    """The retention rules as texts; empty if the table's own rules apply."""


def snapshots(document: Document) -> list[Document]:
    """The snapshots, newest first, for ``snapshot`` to convert."""
    ordered = [
        (lenient.integer(snapshot.get("timestamp-ms")) or 0, position, snapshot)
        for position, snapshot in enumerate(lenient.objects(document.get("snapshots")))
    ]
    ordered.sort(key=itemgetter(0, 1), reverse=True)
    return [snapshot for _, _, snapshot in ordered]


def snapshot_key(snapshot: Document) -> str:
    return str(snapshot.get("snapshot-id"))


def current_snapshot(document: Document) -> Document | None:
    current = document.get("current-snapshot-id")
    if type(current) is not int:
        return None
    candidates = lenient.objects(document.get("snapshots"))
    return next(
        (candidate for candidate in candidates if candidate.get("snapshot-id") == current), None
    )


def snapshot(document: Document) -> Snapshot:
    summary = lenient.mapping(document.get("summary"))

    def delta(added: str, removed: str) -> Delta:
        return Delta(lenient.count(summary.get(added)), lenient.count(summary.get(removed)))

    parent = lenient.integer(document.get("parent-snapshot-id"))
    return Snapshot(
        id=lenient.integer(document.get("snapshot-id")),
        parent=None if parent == -1 else parent,
        at=lenient.moment(document.get("timestamp-ms")),
        operation=lenient.text(summary.get("operation")),
        sequence_number=lenient.integer(document.get("sequence-number")),
        schema_id=lenient.integer(document.get("schema-id")),
        records=delta("added-records", "deleted-records"),
        files=delta("added-data-files", "deleted-data-files"),
        bytes=delta("added-files-size", "removed-files-size"),
        summary=summary,
    )


def totals(snapshot: Document) -> Totals:
    summary = lenient.mapping(snapshot.get("summary"))
    return Totals(
        records=lenient.count(summary.get("total-records")),
        files=lenient.count(summary.get("total-data-files")),
        delete_files=lenient.count(summary.get("total-delete-files")),
        bytes=lenient.count(summary.get("total-files-size")),
    )


def references(document: Document) -> list[Reference]:
    """The branches and tags by name, ``main`` first."""
    result = []
    for name, value in lenient.mapping(document.get("refs")).items():
        reference = lenient.mapping(value)
        result.append(
            Reference(
                name=name,
                type=lenient.text(reference.get("type")),
                snapshot_id=lenient.integer(reference.get("snapshot-id")),
                retention=tuple(_retention(reference)),
            )
        )
    return sorted(result, key=lambda reference: (reference.name != "main", reference.name))


def references_by_snapshot(document: Document) -> dict[int | None, list[Reference]]:
    by_snapshot: dict[int | None, list[Reference]] = {}
    for reference in references(document):
        by_snapshot.setdefault(reference.snapshot_id, []).append(reference)
    return by_snapshot


def _retention(reference: Document) -> Iterator[str]:
    if (keep := lenient.integer(reference.get("min-snapshots-to-keep"))) is not None:
        yield f"at least {keep:,} {'snapshot' if keep == 1 else 'snapshots'}"
    if (age := lenient.integer(reference.get("max-snapshot-age-ms"))) is not None:
        yield f"snapshots for {duration(age)}"
    if (age := lenient.integer(reference.get("max-ref-age-ms"))) is not None:
        yield f"the reference for {duration(age)}"


_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))


def duration(milliseconds: int) -> str:
    """A duration in the largest exact unit: ``7 days``, ``36 hours``, ``1,500 ms``."""
    for unit, length in _UNITS:
        number, remainder = divmod(milliseconds, length)
        if number > 0 and remainder == 0:
            return f"{number:,} {unit}{'' if number == 1 else 's'}"
    return f"{milliseconds:,} ms"


# --- partitions and sorting --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """A partition spec or a sort order: its fields as expressions of columns."""

    id: int | None
    is_current: bool
    fields: tuple[tuple[str, str], ...]
    """Pairs of an expression and a note: a partition field's name and id, or a sort direction."""


class ColumnNames:
    """Names of columns by id, from the current schema or the newest schema that has the column."""

    def __init__(self, document: Document) -> None:
        current = schema(document, current_schema_id(document))
        self._document = document
        self._names = _names(current) if current is not None else {}
        self._is_complete = False

    def __getitem__(self, id_: int | None) -> str:
        if id_ not in self._names and not self._is_complete:
            self._is_complete = True
            for older in reversed(schemas(self._document)):
                self._names = _names(older) | self._names
        return self._names.get(id_) or f"column {'?' if id_ is None else id_}"


def _names(schema: Document) -> dict[int | None, str]:
    return {field.id: field.path for field in fields(schema)}


def partition_specs(document: Document) -> list[Document]:
    """The partition specs, newest first; the default spec is not always the newest."""
    specs = lenient.objects(document.get("partition-specs"))
    return sorted(specs, key=lambda spec: lenient.integer(spec.get("spec-id")) or 0, reverse=True)


def sort_orders(document: Document) -> list[Document]:
    orders = lenient.objects(document.get("sort-orders"))
    return sorted(
        orders, key=lambda order: lenient.integer(order.get("order-id")) or 0, reverse=True
    )


def partition_spec(spec: Document, document: Document, names: ColumnNames) -> Layout:
    id_ = lenient.integer(spec.get("spec-id"))
    return Layout(
        id=id_,
        is_current=id_ is not None and id_ == document.get("default-spec-id"),
        fields=tuple(
            (
                expression(field, names),
                f"{lenient.text(field.get('name'))}, id {field.get('field-id', '?')}",
            )
            for field in lenient.objects(spec.get("fields"))
        ),
    )


def sort_order(order: Document, document: Document, names: ColumnNames) -> Layout:
    id_ = lenient.integer(order.get("order-id"))
    return Layout(
        id=id_,
        is_current=id_ is not None and id_ == document.get("default-sort-order-id"),
        fields=tuple(
            (
                expression(field, names),
                " ".join(
                    lenient.text(field.get(key)).replace("-", " ")
                    for key in ("direction", "null-order")
                ).strip(),
            )
            for field in lenient.objects(order.get("fields"))
        ),
    )


def expression(field: Document, names: ColumnNames) -> str:
    """A field as text: ``day(event_time)``, ``bucket[16](id)``, or a column for identity."""
    transform = lenient.text(field.get("transform")) or "?"
    ids: Sequence[int | None] = lenient.integers(field.get("source-ids")) or [
        lenient.integer(field.get("source-id"))
    ]
    columns = ", ".join(names[id_] for id_ in ids)
    return (
        columns
        if transform == "identity"
        else f"{cut(transform, _MAX_TRANSFORM_LENGTH)}({columns})"
    )


# --- properties, files, reports ----------------------------------------------------------------

_SECRET = re.compile(
    r"(^|[._-])(secret|password|passwd|token|credentials?|(private|account)[_-]?key)($|[._-])",
    re.IGNORECASE,
)


def properties(document: Document) -> list[tuple[str, object]]:
    """The properties by name. Values with secret names are masked: engines store credentials."""
    values = lenient.mapping(document.get("properties"))
    return [(key, "••••••" if _SECRET.search(key) else values[key]) for key in sorted(values)]


def statistics(document: Document) -> list[Document]:
    """Table statistics files, the last added first."""
    return lenient.objects(document.get("statistics"))[::-1]


def partition_statistics(document: Document) -> list[Document]:
    return lenient.objects(document.get("partition-statistics"))[::-1]


def metadata_log(document: Document) -> list[tuple[str, datetime | None]]:
    """Earlier metadata files with their times, newest first."""
    return [
        (lenient.text(entry.get("metadata-file")), lenient.moment(entry.get("timestamp-ms")))
        for entry in reversed(lenient.objects(document.get("metadata-log")))
    ]


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    number: int
    unit: str
    """``count``, ``bytes``, or a unit of time."""


def metrics(report: object) -> list[Metric]:
    """The measurements of a scan or commit report by name, without zeros."""
    measured = []
    for name, value in sorted(lenient.mapping(lenient.mapping(report).get("metrics")).items()):
        result = lenient.mapping(value)
        number = lenient.integer(result.get("value", result.get("total-duration")))
        unit = lenient.text(result.get("unit") or result.get("time-unit")) or "count"
        if number:
            measured.append(Metric(name, number, unit))
    return measured
