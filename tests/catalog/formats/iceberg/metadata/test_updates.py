import copy

import pytest

from catalog.errors import InvalidMetadata, RequirementFailed
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.formats.iceberg.metadata import updates
from tests.catalog.formats.iceberg.examples import (
    LOCATION,
    UUID,
    add,
    column,
    encryption_key,
    order,
    partition_statistics,
    ref,
    schema,
    snapshot,
    spec,
    statistics,
    table,
    written,
)

BEFORE = f"{LOCATION}/metadata/00000-x.metadata.json"


def apply(base, *changes, now_ms=5_000):
    """Apply updates. The result must be valid, and the base unchanged."""
    original = copy.deepcopy(base)
    try:
        result = updates.apply(base, list(changes), now_ms=now_ms, previous_location=BEFORE)
    finally:
        assert base == original
    metadata_documents.check(result)
    return result


def refused(base, *changes, error=InvalidMetadata):
    with pytest.raises(error) as caught:
        apply(base, *changes)
    return caught.value.message


# -- the table


def test_the_uuid_of_a_table_stays():
    base = table()
    assert apply(base, {"action": "assign-uuid", "uuid": UUID.upper()}) is base
    assert refused(base, {"action": "assign-uuid", "uuid": UUID.replace("8a", "9a")}) == (
        f"updates[0].uuid: the table has UUID {UUID}, which cannot be reassigned"
    )
    assert refused(base, {"action": "assign-uuid", "uuid": "x"}) == (
        "updates[0].uuid must be a UUID, not 'x'"
    )


def test_the_format_version_only_increases():
    upgrade = {"action": "upgrade-format-version"}
    assert apply(table(2), upgrade | {"format-version": 3})["next-row-id"] == 0
    base = table(3)
    assert apply(base, upgrade | {"format-version": 3}) is base
    assert refused(base, upgrade | {"format-version": 2}) == (
        "updates[0].format-version: cannot downgrade v3 table to v2"
    )
    assert refused(base, upgrade | {"format-version": 4}) == (
        "updates[0].format-version: cannot upgrade table to unsupported format version: "
        "v4 (supported: v3)"
    )


def test_a_snapshot_of_v1_has_no_sequence_number():
    base = written(1, version=1)
    with_number = add(2, 1, 1)
    with_number["snapshot"]["sequence-number"] = 2
    assert refused(base, with_number) == (
        "updates[0].snapshot.sequence-number must be 0 in a v1 table"
    )
    with_number["snapshot"]["sequence-number"] = 0
    assert len(apply(base, with_number)["snapshots"]) == 2


@pytest.mark.parametrize("version", [2, 3])
def test_v1_becomes_a_later_version_with_its_snapshots(version):
    base = written(2, version=1)
    result = apply(base, {"action": "upgrade-format-version", "format-version": version})
    assert result["format-version"] == version
    assert [s["sequence-number"] for s in result["snapshots"]] == [0, 0]
    assert result["last-sequence-number"] == 0
    assert not {"schema", "partition-spec"} & set(result)
    assert ("next-row-id" in result) == (version == 3)


def test_the_location_moves():
    result = apply(table(), {"action": "set-location", "location": "s3://other/t/"})
    assert result["location"] == "s3://other/t"
    base = table()
    assert apply(base, {"action": "set-location", "location": LOCATION}) is base
    assert refused(base, {"action": "set-location", "location": ""}) == (
        "updates[0].location must not be empty"
    )


def test_properties_are_set_and_removed():
    base = table()
    result = apply(
        base,
        {"action": "set-properties", "updates": {"a": "1", "b": "2"}},
        {"action": "remove-properties", "removals": ["owner", "a", "absent"]},
    )
    assert result["properties"] == {"b": "2"}
    assert refused(base, {"action": "set-properties", "updates": {"a": 1}}) == (
        "updates[0].updates['a'] must be a string, not an integer"
    )


def test_an_unknown_update_is_refused():
    assert refused(table(), {"action": "add-view-version"}) == (
        "updates[0].action: unknown table update 'add-view-version'"
    )
    assert refused(table(), {}) == "updates[0].action is missing"
    with pytest.raises(InvalidMetadata, match=r"updates\[1\] must be an object, not null"):
        updates.apply(table(), [{"action": "set-properties", "updates": {}}, None], now_ms=1)
    with pytest.raises(InvalidMetadata, match="updates must be an array, not an object"):
        updates.apply(table(), {}, now_ms=1)


# -- nothing changes


@pytest.mark.parametrize(
    "change",
    [
        {"action": "set-properties", "updates": {"owner": "ann"}},
        {"action": "set-properties", "updates": {}},
        {"action": "remove-properties", "removals": ["absent"]},
        {"action": "set-current-schema", "schema-id": 0},
        {"action": "set-default-spec", "spec-id": 0},
        {"action": "set-default-sort-order", "sort-order-id": 1},
        {"action": "add-schema", "schema": schema()},
        {"action": "add-spec", "spec": spec((2, "day", "ts_day"))},
        {"action": "add-sort-order", "sort-order": order(1)},
        {"action": "remove-snapshots", "snapshot-ids": [77]},
        {"action": "remove-snapshot-ref", "ref-name": "absent"},
        {"action": "remove-statistics", "snapshot-id": 77},
        {"action": "remove-partition-statistics", "snapshot-id": 77},
        {"action": "remove-schemas", "schema-ids": [77]},
        {"action": "remove-partition-specs", "spec-ids": [77]},
        {"action": "remove-encryption-key", "key-id": "absent"},
        ref(2),
    ],
    ids=lambda change: change["action"],
)
def test_no_op_updates_return_the_base_itself(change):
    base = written(2)
    assert apply(base, change) is base


def test_no_updates_change_nothing():
    base = table()
    assert apply(base) is base


# -- schemas, specs, orders


def test_a_schema_gets_the_next_id_and_becomes_current():
    base = table()
    wider = schema(column(8, "note"), **{"schema-id": 55})
    result = apply(
        base,
        {"action": "add-schema", "schema": wider, "last-column-id": 99},
        {"action": "set-current-schema", "schema-id": -1},
    )
    assert [s["schema-id"] for s in result["schemas"]] == [0, 1]
    assert (result["current-schema-id"], result["last-column-id"]) == (1, 8)
    assert result["schemas"][0] is base["schemas"][0]


def test_an_equal_schema_is_reused_as_the_last_added():
    base = apply(table(), {"action": "add-schema", "schema": schema(column(8, "note"))})
    result = apply(
        base,
        {"action": "add-schema", "schema": schema(column(8, "note"), **{"schema-id": 9})},
        {"action": "set-current-schema", "schema-id": -1},
    )
    assert len(result["schemas"]) == 2
    assert result["current-schema-id"] == 1


def test_lower_ids_of_removed_schemas_are_not_reused():
    add_schema = {"action": "add-schema", "schema": schema(column(8, "a"))}
    two = {"action": "add-schema", "schema": schema(column(9, "b"))}
    base = apply(table(), add_schema, two, {"action": "remove-schemas", "schema-ids": [1]})
    assert [s["schema-id"] for s in base["schemas"]] == [0, 2]
    result = apply(base, {"action": "add-schema", "schema": schema(column(10, "c"))})
    assert [s["schema-id"] for s in result["schemas"]] == [0, 2, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"action": "set-current-schema", "schema-id": -1},
            "updates[0].schema-id is -1, but nothing was added before",
        ),
        (
            {"action": "set-current-schema", "schema-id": 7},
            "updates[0].schema-id: there is no schema-id 7",
        ),
        (
            {"action": "set-default-spec", "spec-id": -1},
            "updates[0].spec-id is -1, but nothing was added before",
        ),
        (
            {"action": "set-default-spec", "spec-id": 7},
            "updates[0].spec-id: there is no spec-id 7",
        ),
        (
            {"action": "set-default-sort-order", "sort-order-id": -1},
            "updates[0].sort-order-id is -1, but nothing was added before",
        ),
        (
            {"action": "set-default-sort-order", "sort-order-id": 7},
            "updates[0].sort-order-id: there is no order-id 7",
        ),
        (
            {"action": "remove-schemas", "schema-ids": [0]},
            "updates[0].schema-ids: cannot remove the current schema",
        ),
        (
            {"action": "remove-partition-specs", "spec-ids": [0]},
            "updates[0].spec-ids: cannot remove the default partition spec",
        ),
        (
            {"action": "add-schema", "schema": schema(column(8, "n", "timestamp_ns"))},
            "updates[0].schema: column 'n': timestamp_ns is not supported until v3",
        ),
        (
            {"action": "add-schema", "schema": schema({**column(8, "n"), "initial-default": "x"})},
            "updates[0].schema: column 'n': an initial default is not supported until v3",
        ),
        (
            {"action": "add-spec", "spec": spec((5, "identity", "t"))},
            "updates[0].spec.fields[0]: cannot partition by non-primitive column 'tags'",
        ),
        (
            {"action": "add-sort-order", "sort-order": order(99)},
            "updates[0].sort-order.fields[0]: cannot find the source column of this sort field",
        ),
        (
            {"action": "add-encryption-key", "encryption-key": encryption_key()},
            "updates[0].encryption-key: encryption keys are not supported until v3",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value["action"],
)
def test_refusals(change, message):
    assert refused(table(), change) == message


def test_new_specs_and_orders_become_the_defaults():
    result = apply(
        table(),
        {"action": "add-spec", "spec": spec((2, "day", "ts_day"), (1, "bucket[8]", "bin"))},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": order(3, 1)},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    )
    assert result["default-spec-id"] == 1
    assert [f["field-id"] for f in result["partition-specs"][1]["fields"]] == [1000, 1001]
    assert result["last-partition-id"] == 1001
    assert [o["order-id"] for o in result["sort-orders"]] == [1, 2]
    assert result["default-sort-order-id"] == 2


def test_the_former_name_of_add_spec_is_accepted():
    change = {"action": "add-partition-spec", "spec": spec((3, "identity", "name"))}
    assert apply(table(), change)["partition-specs"][1]["fields"][0]["field-id"] == 1001


def test_a_table_becomes_unsorted():
    result = apply(
        table(),
        {"action": "add-sort-order", "sort-order": {"order-id": 5, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    )
    assert result["sort-orders"][1] == {"order-id": 0, "fields": []}
    assert result["default-sort-order-id"] == 0


def test_the_default_spec_and_order_must_fit_the_current_schema():
    base = table()
    for dropped, message in (
        (1, "Default partition spec.fields[0]: cannot find the source column"),
        (0, "Default sort order.fields[0]: cannot find the source column"),
    ):
        narrow = schema()
        del narrow["fields"][dropped]
        error = refused(
            base,
            {"action": "add-schema", "schema": narrow},
            {"action": "set-current-schema", "schema-id": -1},
        )
        assert error.startswith(message)


def test_the_last_column_id_never_falls():
    narrow = schema()
    narrow["fields"] = narrow["fields"][:3]
    result = apply(table(), {"action": "add-schema", "schema": narrow})
    assert (len(result["schemas"]), result["last-column-id"]) == (2, 7)
    wider = {"action": "add-schema", "schema": schema(column(9, "note"))}
    # The schema exists already, the id of the dropped column is still taken.
    result = apply(table(), wider, {"action": "add-schema", "schema": schema()})
    assert (len(result["schemas"]), result["last-column-id"]) == (2, 9)


def without_name():
    """A table whose spec 1 and order 2, which are not the defaults, use column 3, which is no
    longer current."""
    narrow = schema()
    del narrow["fields"][2]
    return apply(
        table(),
        {"action": "add-spec", "spec": spec((3, "identity", "name_part"))},
        {"action": "add-sort-order", "sort-order": order(3)},
        {"action": "add-schema", "schema": narrow},
        {"action": "set-current-schema", "schema-id": -1},
    )


def test_a_default_spec_must_fit_a_schema_that_the_same_commit_leaves_alone():
    base = without_name()
    assert refused(base, {"action": "set-default-spec", "spec-id": 1}) == (
        "Default partition spec.fields[0]: cannot find the source column of this partition field"
    )


def test_a_default_order_must_fit_a_schema_that_the_same_commit_leaves_alone():
    base = without_name()
    assert refused(base, {"action": "set-default-sort-order", "sort-order-id": 2}) == (
        "Default sort order.fields[0]: cannot find the source column of this sort field"
    )


def test_an_earlier_schema_must_fit_the_defaults_of_now():
    base = apply(
        table(),
        {"action": "add-schema", "schema": schema(column(8, "note"))},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": spec((8, "identity", "note_part"))},
        {"action": "set-default-spec", "spec-id": -1},
    )
    assert refused(base, {"action": "set-current-schema", "schema-id": 0}) == (
        "Default partition spec.fields[0]: cannot find the source column of this partition field"
    )


def test_v1_keeps_fields_for_older_readers():
    result = apply(
        table(1),
        {"action": "add-schema", "schema": schema(column(8, "note"))},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": spec((2, "day", "ts_day"), (3, "identity", "name"))},
        {"action": "set-default-spec", "spec-id": -1},
    )
    assert result["schema"] == result["schemas"][1]
    assert result["partition-spec"] == result["partition-specs"][1]["fields"]
    assert "last-sequence-number" not in result


# -- snapshots


def test_an_append_moves_main():
    result = apply(table(), add(1), ref(1))
    assert result["snapshots"] == [snapshot(1)]
    assert result["refs"] == {"main": {"snapshot-id": 1, "type": "branch"}}
    assert result["current-snapshot-id"] == 1
    assert result["last-sequence-number"] == 1
    assert result["last-updated-ms"] == 2_001
    assert result["snapshot-log"] == [{"timestamp-ms": 2_001, "snapshot-id": 1}]
    assert result["metadata-log"] == [{"timestamp-ms": 1_000, "metadata-file": BEFORE}]


def test_a_stale_snapshot_may_be_retried():
    message = refused(
        written(2), add(9, parent=2, **{"sequence-number": 2}), error=RequirementFailed
    )
    assert message == (
        "Requirement failed: Cannot add snapshot with sequence number 2 "
        "older than last sequence number 2"
    )
    message = refused(
        written(2, version=3),
        add(9, parent=2, version=3, **{"first-row-id": 19}),
        error=RequirementFailed,
    )
    assert message == (
        "Requirement failed: Cannot add a snapshot, first-row-id is behind table next-row-id: "
        "19 < 20"
    )


def test_a_first_snapshot_of_a_branch_may_share_the_last_sequence_number():
    result = apply(
        written(2), add(9, **{"sequence-number": 2}), ref(9, "other", **{"max-ref-age-ms": 5})
    )
    assert result["last-sequence-number"] == 2
    assert result["refs"]["other"] == {"snapshot-id": 9, "type": "branch", "max-ref-age-ms": 5}
    refused(written(2), add(9, **{"sequence-number": 1}), error=RequirementFailed)


def test_the_first_snapshot_of_a_table_may_have_the_sequence_number_0():
    result = apply(written(0), add(1, **{"sequence-number": 0}), ref(1))
    assert result["last-sequence-number"] == 0


def test_v3_counts_rows():
    assert written(3, version=3)["next-row-id"] == 30
    skipping = add(4, parent=3, version=3, **{"first-row-id": 100, "added-rows": 5})
    assert apply(written(3, version=3), skipping)["next-row-id"] == 105
    for missing in ("first-row-id", "added-rows"):
        change = add(4, parent=3, version=3)
        del change["snapshot"][missing]
        assert refused(written(3, version=3), change) == f"updates[0].snapshot.{missing} is missing"
    too_many = add(4, parent=3, version=3, **{"added-rows": 2**63 - 1})
    assert refused(written(3, version=3), too_many) == (
        f"updates[0].snapshot.added-rows: the row ids would pass {2**63 + 29:,}, too far above the next"
        " row id 30"
    )


def test_numbers_leave_room_for_later_commits():
    """A number near the largest one would refuse all later commits of all clients."""
    following = written(3)["last-sequence-number"] + 1
    assert apply(written(3), add(4, parent=3, **{"sequence-number": following + 999_999}))
    for number in (following + 1_000_000, 2**63 - 1):
        assert refused(written(3), add(4, parent=3, **{"sequence-number": number})) == (
            f"Cannot add snapshot with sequence number {number}: more than 1,000,000 above the last"
            f" sequence number {following - 1}"
        )
    most = add(4, parent=3, version=3, **{"added-rows": 2**48})
    assert apply(written(3, version=3), most)["next-row-id"] == 30 + 2**48
    assert "too far above" in refused(
        written(3, version=3), add(4, parent=3, version=3, **{"added-rows": 2**48 + 1})
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (add(2, parent=1), "updates[0].snapshot.snapshot-id: snapshot already exists for id: 2"),
        (ref(9), "updates[0].snapshot-id: cannot set main to unknown snapshot: 9"),
        (ref(1, type="tag"), "updates[0].type: main must be a branch"),
        (ref(1, "t", "Label"), "updates[0].type must be branch or tag"),
        (
            ref(1, "t", "tag", **{"min-snapshots-to-keep": 1}),
            "updates[0].min-snapshots-to-keep: tags do not support it, branches do",
        ),
        (
            ref(1, "t", "tag", **{"max-snapshot-age-ms": 1}),
            "updates[0].max-snapshot-age-ms: tags do not support it, branches do",
        ),
        (
            ref(1, "t", "tag", **{"max-ref-age-ms": 0}),
            "updates[0].max-ref-age-ms must be between 1 and 9223372036854775807",
        ),
        (
            add(3, summary={"operation": "merge"}),
            (
                "updates[0].snapshot.summary.operation must be one of "
                "append, replace, overwrite, delete"
            ),
        ),
        (
            add(3, **{"snapshot-id": 3.0}),
            (
                "updates[0].snapshot.snapshot-id must be an integer, "
                "not a fractional or too large number"
            ),
        ),
        (
            add(3, **{"snapshot-id": True}),
            "updates[0].snapshot.snapshot-id must be an integer, not a boolean",
        ),
        (
            add(3, **{"snapshot-id": 2**63}),
            "updates[0].snapshot.snapshot-id must be between 0 and 9223372036854775807",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value["action"],
)
def test_snapshot_refusals(change, message):
    assert refused(written(2), change) == message


def test_ids_of_63_bits_are_exact():
    big = 2**63 - 1
    result = apply(table(), add(1, **{"snapshot-id": big}), ref(big))
    assert metadata_documents.parse(metadata_documents.dump(result))["current-snapshot-id"] == big


def test_intermediate_snapshots_are_not_logged():
    result = apply(written(1), add(2, 1), ref(2), add(3, 2), ref(3), add(4, 3), ref(4, "audit"))
    assert [e["snapshot-id"] for e in result["snapshot-log"]] == [1, 3]
    assert [s["snapshot-id"] for s in result["snapshots"]] == [1, 2, 3, 4]


def test_a_rollback_is_logged_with_the_commit_time():
    result = apply(written(3), ref(1), now_ms=8_000)
    assert result["snapshot-log"][-1] == {"timestamp-ms": 8_000, "snapshot-id": 1}
    assert result["last-updated-ms"] == 8_000


def test_a_snapshot_far_ahead_of_the_clock_is_refused():
    """All later changes would have its time."""
    at_most = apply(written(1), add(2, 1, **{"timestamp-ms": 65_000}), ref(2))
    assert at_most["last-updated-ms"] == 65_000
    later = {"timestamp-ms": 65_001}
    for changes in ([add(2, 1, **later)], [add(2, 1, **later), ref(2, "audit")]):
        assert refused(written(1), *changes) == (
            "updates[0].snapshot.timestamp-ms: Invalid snapshot timestamp 65001: more than a minute"
            " ahead of the server's clock at 5000"
        )


def test_a_snapshot_older_than_the_table_is_refused():
    """Clean-up would consider the snapshot old, and remove its files."""
    base = written(2) | {"last-updated-ms": 10_000_000}
    at_least = apply(base, add(3, 2, **{"timestamp-ms": 9_940_000}), ref(3), now_ms=10_000_000)
    assert at_least["last-updated-ms"] == 10_000_000
    for changes in ([add(3, 2, **{"timestamp-ms": 9_939_999})], [add(3, **{"timestamp-ms": 5})]):
        timestamp = changes[0]["snapshot"]["timestamp-ms"]
        assert refused(base, *changes) == (
            f"updates[0].snapshot.timestamp-ms: Invalid snapshot timestamp {timestamp}: before last"
            " updated timestamp 10000000"
        )
    logged = [{"timestamp-ms": 10_050_000, "snapshot-id": 2}]
    assert "before last snapshot log entry at 10050000" in refused(
        base | {"snapshot-log": logged}, add(3, 2, **{"timestamp-ms": 9_980_000})
    )


def test_a_table_ahead_of_the_clock_accepts_commits():
    """The table was registered so; writers do not use earlier timestamps."""
    base = written(1) | {"last-updated-ms": 10**15}
    assert apply(base, add(2, 1, **{"timestamp-ms": 10**15 + 60_000}), ref(2))["snapshots"][1:]
    assert "ahead" in refused(base, add(2, 1, **{"timestamp-ms": 10**15 + 60_001}))


def test_timestamps_never_decrease():
    base = written(2)
    late = add(3, 2, **{"timestamp-ms": 5})
    result = apply(base, late, ref(3))
    assert result["last-updated-ms"] == base["last-updated-ms"] == 2_002
    assert result["snapshot-log"][-1] == {"timestamp-ms": 2_002, "snapshot-id": 3}
    assert result["snapshots"][-1]["timestamp-ms"] == 5
    renamed = apply(base, {"action": "set-properties", "updates": {"a": "b"}}, now_ms=7)
    assert renamed["last-updated-ms"] == 2_002


def test_removing_a_snapshot_removes_its_refs_and_statistics():
    base = apply(
        written(3),
        ref(1, "old", "tag"),
        {"action": "set-statistics", "statistics": statistics(1)},
        {"action": "set-statistics", "statistics": statistics(3), "snapshot-id": 3},
        {"action": "set-partition-statistics", "partition-statistics": partition_statistics(1)},
    )
    result = apply(base, {"action": "remove-snapshots", "snapshot-ids": [1, 77]})
    assert [s["snapshot-id"] for s in result["snapshots"]] == [2, 3]
    assert list(result["refs"]) == ["main"]
    assert result["statistics"] == [statistics(3)]
    assert result["partition-statistics"] == []
    assert [e["snapshot-id"] for e in result["snapshot-log"]] == [2, 3]


def test_a_gap_in_the_log_drops_earlier_entries():
    result = apply(written(4), {"action": "remove-snapshots", "snapshot-ids": [2]})
    assert [e["snapshot-id"] for e in result["snapshot-log"]] == [3, 4]


def test_a_table_may_lose_its_current_snapshot():
    base = written(2)
    for change in (
        {"action": "remove-snapshot-ref", "ref-name": "main"},
        {"action": "remove-snapshots", "snapshot-ids": [2]},
    ):
        result = apply(base, change)
        assert result["current-snapshot-id"] == -1
        assert result["refs"] == {}
    removed = apply(written(2, version=3), {"action": "remove-snapshot-ref", "ref-name": "main"})
    assert "current-snapshot-id" not in removed
    replaced = apply(
        base,
        {"action": "remove-snapshot-ref", "ref-name": "main"},
        add(3, **{"sequence-number": 3}),
        ref(3),
    )
    assert replaced["current-snapshot-id"] == 3


def test_statistics_are_replaced_per_snapshot():
    first = {"action": "set-statistics", "statistics": statistics(1)}
    again = {"action": "set-statistics", "statistics": statistics(1, **{"file-size-in-bytes": 9})}
    base = apply(written(1), first)
    assert apply(base, first) is base
    assert [f["file-size-in-bytes"] for f in apply(base, again)["statistics"]] == [9]
    assert apply(base, {"action": "remove-statistics", "snapshot-id": 1})["statistics"] == []
    assert refused(base, {**first, "snapshot-id": 2}) == (
        "updates[0].snapshot-id is not that of the statistics: 1"
    )


def test_an_error_in_a_blob_of_statistics_names_its_place():
    wrong = statistics(1)
    wrong["blob-metadata"][0]["properties"] = {"ndv": 3}
    error = refused(written(1), {"action": "set-statistics", "statistics": wrong})
    assert error.startswith("updates[0].statistics.blob-metadata[0].properties['ndv'] ")


def test_encryption_keys_are_added_and_removed():
    base = apply(table(3), {"action": "add-encryption-key", "encryption-key": encryption_key("k1")})
    assert base["encryption-keys"] == [encryption_key("k1")]
    assert (
        apply(base, {"action": "add-encryption-key", "encryption-key": encryption_key("k1")})
        is base
    )
    removed = apply(base, {"action": "remove-encryption-key", "key-id": "k1"})
    assert removed["encryption-keys"] == []


# -- the metadata log


@pytest.mark.parametrize(
    ("requested", "remaining"), [("2", 2), ("0", 1), ("-5", 1), ("many", 6), ("1e9", 6), ("", 6)]
)
def test_the_metadata_log_is_cut(requested, remaining):
    change = {
        "action": "set-properties",
        "updates": {"write.metadata.previous-versions-max": requested},
    }
    result = apply(written(5), change)
    assert len(result["metadata-log"]) == remaining
    assert result["metadata-log"][-1] == {"timestamp-ms": 2_005, "metadata-file": BEFORE}


def test_the_metadata_log_keeps_100_entries_by_default():
    assert len(written(103)["metadata-log"]) == 100


def test_unknown_fields_survive():
    base = {**table(), "x-engine": {"a": [1, 2]}}
    odd = {**column(8, "note"), "x": 1}
    result = apply(
        base,
        {"action": "add-schema", "schema": {**schema(odd), "x": 2}},
        {
            "action": "add-spec",
            "spec": {"fields": [{**spec((3, "identity", "name"))["fields"][0], "x": 3}], "x": 4},
        },
        add(1, x=5),
    )
    assert result["x-engine"] == {"a": [1, 2]}
    assert (result["schemas"][1]["fields"][-1]["x"], result["schemas"][1]["x"]) == (1, 2)
    assert result["partition-specs"][1]["fields"][0]["x"] == 3
    assert result["partition-specs"][1]["x"] == 4
    assert result["snapshots"][0]["x"] == 5


# -- a table of updates alone


def creation(version=2):
    return [
        {"action": "assign-uuid", "uuid": UUID},
        {"action": "upgrade-format-version", "format-version": version},
        {"action": "add-schema", "schema": schema(**{"schema-id": 0})},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": spec((2, "day", "ts_day"))},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": order(1)},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": LOCATION},
        {"action": "set-properties", "updates": {"owner": "ann"}},
    ]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_updates_alone_create_the_same_table(version):
    made = updates.apply(None, creation(version), now_ms=1_000)
    metadata_documents.check(made)
    expected = table(version)
    expected["partition-specs"][0] = made["partition-specs"][0] | expected["partition-specs"][0]
    assert made == expected


def test_a_table_may_be_created_with_its_first_rows():
    made = updates.apply(None, [*creation(), add(1), ref(1)], now_ms=1_000)
    metadata_documents.check(made)
    assert (made["current-snapshot-id"], made["last-updated-ms"]) == (1, 2_001)


def test_a_table_from_updates_is_unpartitioned_and_unsorted_by_default():
    few = [c for c in creation() if c["action"] in {"add-schema", "set-location"}]
    made = updates.apply(None, few, now_ms=1_000)
    metadata_documents.check(made)
    assert made["partition-specs"] == [{"spec-id": 0, "fields": []}]
    assert made["sort-orders"] == [{"order-id": 0, "fields": []}]
    assert made["format-version"] == 2


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ({"set-location"}, "A table needs a location: set-location is missing"),
        (
            {"add-schema", "set-current-schema", "add-spec", "set-default-spec",
             "add-sort-order", "set-default-sort-order"},
            "A table needs a schema: add-schema is missing",
        ),
        ({"add-schema", "set-current-schema"}, "There is no schema 0: add one first"),
    ],
    ids=["location", "schema", "schema-before-spec"],
)  # fmt: skip
def test_a_table_needs_a_schema_and_a_location(left_out, message):
    with pytest.raises(InvalidMetadata) as caught:
        updates.apply(None, [c for c in creation() if c["action"] not in left_out], now_ms=1_000)
    assert caught.value.message == message
