"""Metadata as rows: exact values of sound documents, and no error for any other."""

import time
from datetime import UTC, datetime

import pytest

from catalog.formats.iceberg import describe, describe_schemas, describe_views
from catalog.formats.iceberg.describe import (
    ColumnNames,
    Delta,
    Layout,
    Metric,
    Reference,
    Snapshot,
    Totals,
)
from catalog.formats.iceberg.describe_schemas import Field
from catalog.formats.iceberg.describe_views import Representation, ViewVersion

LARGEST = 2**63 - 1
SCHEMA = {
    "type": "struct",
    "schema-id": 1,
    "identifier-field-ids": [1],
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": True, "doc": "the key"},
        {
            "id": 2,
            "name": "point",
            "required": False,
            "type": {
                "type": "struct",
                "fields": [
                    {
                        "id": 3,
                        "name": "x",
                        "type": "decimal(9,2)",
                        "required": True,
                        "initial-default": "1.00",
                        "write-default": "2.00",
                    },
                ],
            },
        },
        {
            "id": 4,
            "name": "scores",
            "required": False,
            "type": {
                "type": "map",
                "key-id": 5,
                "key": "string",
                "value-id": 6,
                "value-required": False,
                "value": {
                    "type": "list",
                    "element-id": 7,
                    "element": "double",
                    "element-required": True,
                },
            },
        },
        {"id": 8, "name": "event_time", "type": "timestamptz", "required": False},
    ],
}


def row(id_, name, path, depth, type_, parent=None, is_required=False, **more):  # noqa: PLR0917
    defaults = {"is_identifier": False, "doc": "", "initial_default": None, "write_default": None}
    return Field(
        id=id_,
        name=name,
        path=path,
        depth=depth,
        type=type_,
        parent=parent,
        is_required=is_required,
        **{**defaults, **more},
    )


def test_fields_of_all_depths():
    assert list(describe_schemas.fields(SCHEMA)) == [
        row(1, "id", "id", 0, "long", is_required=True, is_identifier=True, doc="the key"),
        row(2, "point", "point", 0, "struct"),
        row(
            3, "x", "point.x", 1, "decimal(9,2)", 2, True,
            initial_default="1.00", write_default="2.00",
        ),
        row(4, "scores", "scores", 0, "map<string, list<double>>"),
        row(5, "key", "scores.key", 1, "string", 4, True),
        row(6, "value", "scores.value", 1, "list<double>", 4),
        row(7, "element", "scores.value.element", 2, "double", 6, True),
        row(8, "event_time", "event_time", 0, "timestamptz"),
    ]  # fmt: skip


def test_a_snapshot():
    document = {
        "snapshot-id": LARGEST,
        "parent-snapshot-id": LARGEST - 1,
        "sequence-number": 7,
        "timestamp-ms": 1_700_000_000_123,
        "schema-id": 1,
        "summary": {
            "operation": "overwrite",
            "added-records": "10",
            "deleted-records": "3",
            "added-data-files": "2",
            "added-files-size": "4096",
            "removed-files-size": "nonsense",
            "total-records": "107",
            "total-data-files": "5",
            "total-delete-files": "0",
            "total-files-size": "9000000000",
        },
    }
    assert describe.snapshot(document) == Snapshot(
        id=LARGEST,
        parent=LARGEST - 1,
        at=datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
        operation="overwrite",
        sequence_number=7,
        schema_id=1,
        records=Delta(10, 3),
        files=Delta(2, None),
        bytes=Delta(4096, None),
        summary=document["summary"],
    )
    assert describe.totals(document) == Totals(107, 5, 0, 9_000_000_000)


def test_snapshots_come_newest_first_and_the_later_of_two_at_once():
    times = [(1, 100), (2, 300), (3, 200), (4, 300)]
    document = {"snapshots": [{"snapshot-id": i, "timestamp-ms": at} for i, at in times]}
    assert [describe.snapshot_key(snapshot) for snapshot in describe.snapshots(document)] == list(
        "4231"
    )


def test_references_with_their_retention():
    document = {
        "refs": {
            "audit": {
                "snapshot-id": 5,
                "type": "branch",
                "min-snapshots-to-keep": 1,
                "max-snapshot-age-ms": 7 * 86_400_000,
                "max-ref-age-ms": 36 * 3_600_000,
            },
            "main": {"snapshot-id": 5, "type": "branch"},
            "eom": {"snapshot-id": 4, "type": "tag", "max-ref-age-ms": 1_500},
        }
    }
    main = Reference("main", "branch", 5, ())
    audit = Reference(
        "audit",
        "branch",
        5,
        ("at least 1 snapshot", "snapshots for 7 days", "the reference for 36 hours"),
    )
    eom = Reference("eom", "tag", 4, ("the reference for 1,500 ms",))
    assert describe.references(document) == [main, audit, eom]
    assert describe.references_by_snapshot(document) == {5: [main, audit], 4: [eom]}


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ({"source-id": 8, "transform": "day"}, "day(event_time)"),
        ({"source-id": 1, "transform": "bucket[16]"}, "bucket[16](id)"),
        ({"source-id": 3, "transform": "identity"}, "point.x"),
        ({"source-id": 9, "transform": "void"}, "void(gone)"),
        ({"source-id": 99, "transform": "year"}, "year(column 99)"),
        ({"source-ids": [1, 8], "transform": "bucket[4]"}, "bucket[4](id, event_time)"),
        ({"transform": "hour"}, "hour(column ?)"),
        ({}, "?(column ?)"),
    ],
)
def test_partition_expressions(field, expected):
    schema_ = {"schema-id": 0, "fields": [{"id": 9, "name": "gone", "type": "int"}]}
    names = ColumnNames({"schemas": [schema_, SCHEMA], "current-schema-id": 1})
    assert describe.expression(field, names) == expected


def test_partition_specs_and_sort_orders():
    document = {
        "schemas": [SCHEMA],
        "current-schema-id": 1,
        "default-spec-id": 1,
        "default-sort-order-id": 3,
    }
    names = ColumnNames(document)
    spec = {
        "spec-id": 1,
        "fields": [
            {"source-id": 8, "field-id": 1000, "name": "event_day", "transform": "day"},
            {"source-id": 1, "field-id": 1001, "name": "id_b", "transform": "bucket[16]"},
        ],
    }
    assert describe.partition_spec(spec, document, names) == Layout(
        1, True, (("day(event_time)", "event_day, id 1000"), ("bucket[16](id)", "id_b, id 1001"))
    )
    empty = {"spec-id": 0, "fields": []}
    assert describe.partition_spec(empty, document, names) == Layout(0, False, ())
    order = {
        "order-id": 3,
        "fields": [
            {
                "source-id": 1,
                "transform": "identity",
                "direction": "desc",
                "null-order": "nulls-last",
            }
        ],
    }
    assert describe.sort_order(order, document, names) == Layout(
        3, True, (("id", "desc nulls last"),)
    )
    specs = {"partition-specs": [empty, spec], "sort-orders": [empty, order]}
    assert describe.partition_specs(specs) == [spec, empty]
    assert describe.sort_orders(specs) == [order, empty]


def test_secrets_among_the_properties_are_not_shown():
    properties = {
        "write.format.default": "parquet",
        "s3.secret-access-key": "x",
        "s3.session.token": "x",
        "Password": "x",
        "io.adls.private_key": "x",
        "tokenizer": "whitespace",
    }
    hidden = "••••••"
    assert describe.properties({"properties": properties}) == [
        ("Password", hidden),
        ("io.adls.private_key", hidden),
        ("s3.secret-access-key", hidden),
        ("s3.session.token", hidden),
        ("tokenizer", "whitespace"),
        ("write.format.default", "parquet"),
    ]


def test_the_metadata_log_newest_first():
    log = [
        {"metadata-file": "a.json", "timestamp-ms": 0},
        {"metadata-file": "b.json", "timestamp-ms": 10**18},
    ]
    assert describe.metadata_log({"metadata-log": log}) == [
        ("b.json", None),
        ("a.json", datetime(1970, 1, 1, tzinfo=UTC)),
    ]


def test_metrics_of_a_report():
    report = {
        "metrics": {
            "total-planning-duration": {
                "count": 1,
                "time-unit": "nanoseconds",
                "total-duration": 2_644_235_116,
            },
            "result-data-files": {"unit": "count", "value": 4},
            "total-file-size-in-bytes": {"unit": "bytes", "value": 45_075},
            "skipped-data-files": {"unit": "count", "value": 0},
        }
    }
    assert describe.metrics(report) == [
        Metric("result-data-files", 4, "count"),
        Metric("total-file-size-in-bytes", 45_075, "bytes"),
        Metric("total-planning-duration", 2_644_235_116, "nanoseconds"),
    ]


def test_versions_of_a_view():
    first = {
        "version-id": 1,
        "timestamp-ms": 0,
        "schema-id": 0,
        "summary": {"engine-name": "Spark"},
        "representations": [{"type": "sql", "dialect": "spark", "sql": "SELECT 1"}],
        "default-catalog": "prod",
        "default-namespace": ["a", "b"],
    }
    second = {"version-id": 2, "timestamp-ms": 1}
    document = {
        "current-version-id": 1,
        "versions": [first, second],
        "version-log": [
            {"version-id": 1, "timestamp-ms": 0},
            {"version-id": 2, "timestamp-ms": 1000},
            {"version-id": 1, "timestamp-ms": 2000},
        ],
    }
    assert describe_views.versions(document) == [second, first]
    assert describe_views.current_version(document) == first
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert describe_views.version(first) == ViewVersion(
        id=1,
        at=epoch,
        schema_id=0,
        default_catalog="prod",
        default_namespace=("a", "b"),
        representations=(Representation("spark", "SELECT 1"),),
        summary={"engine-name": "Spark"},
    )
    assert describe_views.current_since(document) == {
        1: epoch.replace(second=2),
        2: epoch.replace(second=1),
    }


def everything(document):
    """Every description of a document."""
    names = ColumnNames(document)
    return [
        [list(describe_schemas.fields(schema)) for schema in describe_schemas.schemas(document)],
        [
            (
                describe.snapshot(snapshot),
                describe.totals(snapshot),
                describe.snapshot_key(snapshot),
            )
            for snapshot in describe.snapshots(document)
        ],
        describe.current_snapshot(document),
        describe.references_by_snapshot(document),
        [describe.partition_spec(o, document, names) for o in describe.partition_specs(document)],
        [describe.sort_order(order, document, names) for order in describe.sort_orders(document)],
        describe.properties(document),
        describe.statistics(document),
        describe.partition_statistics(document),
        describe.metadata_log(document),
        describe.metrics(document),
        [describe_views.version(version) for version in describe_views.versions(document)],
        describe_views.current_version(document),
        describe_views.current_since(document),
    ]


KEYS = (
    "schemas", "schema", "current-schema-id", "snapshots", "current-snapshot-id", "refs",
    "partition-specs", "default-spec-id", "sort-orders", "default-sort-order-id", "properties",
    "statistics", "partition-statistics", "metadata-log", "metrics", "versions",
    "current-version-id", "version-log",
)  # fmt: skip
INSIDE = (
    "schema-id", "fields", "identifier-field-ids", "id", "name", "type", "required", "doc",
    "snapshot-id", "parent-snapshot-id", "timestamp-ms", "summary", "operation", "added-records",
    "total-records", "spec-id", "order-id", "source-id", "source-ids", "transform", "direction",
    "max-ref-age-ms", "min-snapshots-to-keep", "metadata-file", "value", "unit", "version-id",
    "representations", "default-namespace", "sql", "dialect",
)  # fmt: skip
ODD = (None, True, -1, 10**40, 1.5, "", "x", "9" * 5000, [], [None], [[]], {}, {"x": None}, [{}])


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:12])
def test_odd_documents_are_described(value):
    everything({})
    everything(dict.fromkeys(KEYS, value))
    for key in INSIDE:
        odd = {key: value}
        everything({outer: [odd, {inner: [odd] for inner in INSIDE}] for outer in KEYS})
        everything({outer: {"a": odd, **odd} for outer in KEYS})


def test_a_deeply_nested_schema_is_truncated():
    type_ = "int"
    for level in range(300):
        type_ = {"type": "list", "element-id": level, "element": type_}
    rows = list(describe_schemas.fields({"fields": [{"id": 999, "name": "deep", "type": type_}]}))
    assert len(rows) == 61
    assert len(rows[0].type) == 200


def test_5000_snapshots_are_sorted_in_one_pass():
    document = {
        "snapshots": [{"snapshot-id": n, "timestamp-ms": n, "summary": {}} for n in range(5000)],
        "refs": {f"t{n}": {"snapshot-id": n, "type": "tag"} for n in range(5000)},
    }
    started = time.thread_time()
    snapshots = describe.snapshots(document)
    assert [describe.snapshot(snapshot).id for snapshot in snapshots[:3]] == [4999, 4998, 4997]
    assert len(describe.references_by_snapshot(document)) == 5000
    assert time.thread_time() - started < 2.5  # by comparing each with each it would be ten


@pytest.mark.parametrize(
    ("text", "expected"), [("", ""), ("abcd", "abcd"), ("abcde", "abcde"), ("abcdef", "abcd…")]
)
def test_long_texts_are_cut(text, expected):
    assert describe_schemas.cut(text, 5) == expected
