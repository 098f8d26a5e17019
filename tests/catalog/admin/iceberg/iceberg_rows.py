"""Iceberg tables and views with arbitrary metadata, written without the services."""

from typing import Any

import orjson

from catalog.models import IcebergMetadata, MetricsReport, Table, TableFormat, TableKind
from catalog.services.iceberg import metadata_files
from tests.factories import make_iceberg_table

LARGEST = 2**63 - 1
MORNING = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
WIDE = {
    "type": "struct",
    "schema-id": 1,
    "identifier-field-ids": [1],
    "fields": [
        {"id": 1, "name": "key", "type": "long", "required": True, "doc": "what tells rows apart"},
        {
            "id": 3,
            "name": "place",
            "required": False,
            "type": {
                "type": "struct",
                "fields": [{"id": 4, "name": "lat", "type": "double", "required": True}],
            },
        },
        {
            "id": 5,
            "name": "event_time",
            "type": "timestamptz",
            "required": False,
            "initial-default": "1970-01-01T00:00:00+00:00",
        },
    ],
}
FIRST = {
    "type": "struct",
    "schema-id": 0,
    "identifier-field-ids": [],
    "fields": [
        {"id": 1, "name": "id", "type": "int", "required": False},
        {"id": 2, "name": "name", "type": "string", "required": False},
    ],
}


def snapshot(number: int, **more: Any) -> dict[str, Any]:
    """Snapshot ``number``, counted from 1, with one of the largest valid ids."""
    return {
        "snapshot-id": LARGEST - 100_000 + number,
        "parent-snapshot-id": LARGEST - 100_000 + number - 1,
        "sequence-number": number,
        "timestamp-ms": MORNING + number * 1000,
        "manifest-list": f"file:///srv/snap-{number}.avro",
        "schema-id": 1,
        "summary": {
            "operation": "append",
            "added-records": "1000",
            "added-data-files": "2",
            "added-files-size": "2048",
            "total-records": str(number * 1000),
            "total-data-files": str(number * 2),
            "total-delete-files": "0",
            "total-files-size": str(number * 2048),
            "spark.app.id": f"local-{number}",
        },
        **more,
    }


def full_document(count: int = 3) -> dict[str, Any]:
    """A document with every field, in which each list has ``count`` members."""
    snapshots = [snapshot(number) for number in range(1, count + 1)]
    newest = snapshots[-1]["snapshot-id"] if snapshots else None
    return {
        "format-version": 2,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": "file:///srv/wh/events",
        "last-updated-ms": MORNING,
        "schemas": [FIRST, WIDE],
        "current-schema-id": 1,
        "partition-specs": [
            {"spec-id": 0, "fields": []},
            *(
                {
                    "spec-id": number,
                    "fields": [
                        {"source-id": 5, "field-id": 1000, "name": "d", "transform": "day"},
                        {"source-id": 1, "field-id": 1001, "name": "b", "transform": "bucket[16]"},
                        {"source-id": 2, "field-id": 1002, "name": "n", "transform": "void"},
                    ],
                }
                for number in range(1, count + 1)
            ),
        ],
        "default-spec-id": 1,
        "sort-orders": [
            {"order-id": 0, "fields": []},
            {
                "order-id": 1,
                "fields": [
                    {
                        "source-id": 1,
                        "transform": "identity",
                        "direction": "desc",
                        "null-order": "nulls-last",
                    }
                ],
            },
        ],
        "default-sort-order-id": 1,
        "properties": {
            "write.format.default": "parquet",
            "s3.secret-access-key": "hidden-from-all",
            **{f"p{number}": str(number) for number in range(count)},
        },
        "snapshots": snapshots,
        "current-snapshot-id": newest,
        "refs": {
            "main": {"snapshot-id": newest, "type": "branch"},
            **{
                f"tag{number}": {
                    "snapshot-id": LARGEST - 100_000 + number,
                    "type": "tag",
                    "max-ref-age-ms": 86_400_000,
                }
                for number in range(1, count + 1)
            },
        },
        "metadata-log": [
            {"metadata-file": f"file:///srv/wh/m{number}.json", "timestamp-ms": MORNING + number}
            for number in range(count)
        ],
        "statistics": [
            {
                "snapshot-id": snapshot["snapshot-id"],
                "statistics-path": f"file:///srv/wh/{snapshot['snapshot-id']}.puffin",
                "file-size-in-bytes": 4096,
                "file-footer-size-in-bytes": 10,
                "blob-metadata": [
                    {
                        "type": "apache-datasketches-theta-v1",
                        "snapshot-id": snapshot["snapshot-id"],
                        "sequence-number": 1,
                        "fields": [1],
                    }
                ],
            }
            for snapshot in snapshots
        ],
        "partition-statistics": [
            {
                "snapshot-id": snapshot["snapshot-id"],
                "statistics-path": f"file:///srv/wh/{snapshot['snapshot-id']}.parquet",
                "file-size-in-bytes": 512,
            }
            for snapshot in snapshots
        ],
    }


def view_document(count: int = 2, sql: str = "SELECT 1") -> dict[str, Any]:
    return {
        "view-uuid": "fa6506c3-7681-40c8-86dc-e36561f83385",
        "format-version": 1,
        "location": "file:///srv/wh/daily",
        "current-version-id": count,
        "properties": {"comment": "Daily sums"},
        "schemas": [FIRST],
        "versions": [
            {
                "version-id": number,
                "timestamp-ms": MORNING + number * 1000,
                "schema-id": 0,
                "default-catalog": "prod",
                "default-namespace": ["nyc", "raw"],
                "summary": {"engine-name": "Spark", "engine-version": "3.5.1"},
                "representations": [
                    {"type": "sql", "dialect": "spark", "sql": f"{sql} -- spark {number}"},
                    {"type": "sql", "dialect": "trino", "sql": f"{sql} -- trino {number}"},
                ],
            }
            for number in range(1, count + 1)
        ],
        "version-log": [
            {"version-id": number, "timestamp-ms": MORNING + number * 2000}
            for number in range(1, count + 1)
        ],
    }


def hold(row: Table, document: Any) -> None:
    """Set the current metadata of a table, without checks."""
    answer = metadata_files.answer("file:///srv/wh/current.json", orjson.dumps(document))
    IcebergMetadata.objects.update_or_create(
        table=row,
        defaults={
            "metadata_location": "file:///srv/wh/current.json",
            "sequence": 0,
            "answer": answer,
            "etag": '"x"',
        },
    )


def make_full_table(*identifier: str, document: Any = None) -> Table:
    """An Iceberg table, created through the services, with replaced metadata."""
    row = Table.objects.get(pk=make_iceberg_table(*identifier).pk)
    hold(row, full_document() if document is None else document)
    return row


def make_view(*identifier: str, document: Any = None) -> Table:
    row = Table.objects.get(pk=make_iceberg_table(*identifier).pk)
    Table.objects.filter(pk=row.pk).update(kind=TableKind.VIEW)
    hold(row, view_document() if document is None else document)
    row.refresh_from_db()
    assert (row.format, row.kind) == (TableFormat.ICEBERG, TableKind.VIEW)
    return row


def make_report(row: Table, number: int = 1, **report: Any) -> MetricsReport:
    return MetricsReport.objects.create(
        table=row,
        kind=MetricsReport.Kind.SCAN,
        snapshot_id=LARGEST - 100_000 + number,
        actor="spark",
        report={
            "table-name": "prod.events",
            "metrics": {
                "total-planning-duration": {
                    "count": 1,
                    "time-unit": "nanoseconds",
                    "total-duration": 2_644_235_116,
                },
                "result-data-files": {"unit": "count", "value": 4},
                "total-file-size-in-bytes": {"unit": "bytes", "value": 45_056},
                "skipped-data-files": {"unit": "count", "value": 0},
            },
            **report,
        },
    )
