"""Random valid commits, applied by the catalog and by PyIceberg, give the same table (v1 and v2).

`normal` lists intended differences, one per line.
"""

import random

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataUtil, new_table_metadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import TableUpdate, update_table_metadata
from pyiceberg.transforms import BucketTransform

from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.formats.iceberg.metadata import updates
from catalog.formats.iceberg.schema import schemas
from tests.catalog.formats.iceberg.examples import (
    LOCATION,
    UUID,
    column,
    order,
    partition_statistics,
    ref,
    schema,
    snapshot,
    spec,
    statistics,
    table,
)

READ_UPDATE = TypeAdapter(TableUpdate)
REPEATABLE = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def theirs(document):
    return TableMetadataUtil.parse_obj(orjson.loads(orjson.dumps(document)))


def normal(document):
    """A document as PyIceberg reads it, as JSON."""
    plain = orjson.loads(theirs(document).model_dump_json())
    # PyIceberg takes the parent of a removed snapshot away, Java and we leave it.
    ids = {s["snapshot-id"] for s in plain["snapshots"]}
    for entry in plain["snapshots"]:
        if entry.get("parent-snapshot-id") not in ids:
            entry.pop("parent-snapshot-id", None)
    # A reference is logged with the time of the commit, for which each uses its own clock.
    plain["last-updated-ms"] = None
    # A gap in the log drops earlier entries here and in Java; see its own test.
    plain["snapshot-log"] = [entry["snapshot-id"] for entry in plain["snapshot-log"]][-1:]
    # PyIceberg replaces v1's two old fields at writing only.
    plain.pop("schema", None)
    plain.pop("partition-spec", None)
    return plain


class Writer:
    """Generates commits that are valid for the current table."""

    def __init__(self, dice, version):
        self.dice = dice
        self.version = version
        self.next_snapshot = 1
        self.clock = 10_000

    def commit(self, document):
        """The updates of one request. Each is valid after the previous ones."""
        changes = []
        for kind in dict.fromkeys(self.dice.choices(self.KINDS, k=self.dice.randint(1, 4))):
            more = kind(self, document)
            document = updates.apply(document, more, now_ms=self.clock)
            changes += more
        return changes

    def append(self, document):
        self.clock += self.dice.randint(1, 1_000)
        number = self.next_snapshot
        self.next_snapshot += 1
        parent = document["refs"].get("main", {}).get("snapshot-id")
        made = snapshot(number, parent, self.version, **{"timestamp-ms": self.clock})
        if self.version > 1:
            made["sequence-number"] = document["last-sequence-number"] + 1
        return [{"action": "add-snapshot", "snapshot": made}, ref(number)]

    def tag(self, document):
        if not document["snapshots"]:
            return []
        snapshot_id = self.dice.choice(document["snapshots"])["snapshot-id"]
        kind = self.dice.choice(["tag", "branch"])
        keys = {"max-ref-age-ms": self.dice.randint(1, 9)} if self.dice.random() < 0.5 else {}
        return [ref(snapshot_id, f"ref{self.dice.randint(1, 4)}", kind, **keys)]

    def untag(self, document):
        names = [name for name in document["refs"] if name != "main"]
        return (
            [{"action": "remove-snapshot-ref", "ref-name": self.dice.choice(names)}]
            if names
            else []
        )

    def expire(self, document):
        current = document.get("current-snapshot-id")
        ids = [s["snapshot-id"] for s in document["snapshots"] if s["snapshot-id"] != current]
        ids = [id_ for id_ in ids if self.dice.random() < 0.4]
        # PyIceberg forgets to drop partition statistics with their snapshot.
        files = {f["snapshot-id"] for f in document["partition-statistics"]} & set(ids)
        changes = [{"action": "remove-partition-statistics", "snapshot-id": id_} for id_ in files]
        return [*changes, {"action": "remove-snapshots", "snapshot-ids": ids}] if ids else []

    def widen(self, document):
        current = next(
            s for s in document["schemas"] if s["schema-id"] == document["current-schema-id"]
        )
        id_ = document["last-column-id"] + 1
        kind = self.dice.choice(["string", "long", "decimal(9, 2)", "date", "fixed[4]", "nested"])
        if kind == "nested":
            kind = {"type": "struct", "fields": [column(id_ + 1, "inner", "double")]}
        wider = {**current, "fields": [*current["fields"], column(id_, f"c{id_}", kind)]}
        wider["schema-id"] = max(s["schema-id"] for s in document["schemas"]) + 1
        set_ = {"action": "set-current-schema", "schema-id": -1}
        changes = [{"action": "add-schema", "schema": wider}, set_]
        return changes if self.dice.random() < 0.7 else changes[:1]

    def repartition(self, document):
        specs = document["partition-specs"]
        last = document["last-partition-id"]
        default = next(s for s in specs if s["spec-id"] == document["default-spec-id"])
        field = {
            "source-id": 1,
            "field-id": last + 1,
            "transform": f"bucket[{last}]",
            "name": f"b{last}",
        }
        if self.version == 1 and len(default["fields"]) + 1000 != last + 1:
            return []
        fields = default["fields"] if self.version == 1 or self.dice.random() < 0.5 else []
        made = {"spec-id": max(s["spec-id"] for s in specs) + 1, "fields": [*fields, field]}
        changes = [
            {"action": "add-spec", "spec": made},
            {"action": "set-default-spec", "spec-id": -1},
        ]
        return changes if self.version == 1 or self.dice.random() < 0.7 else changes[:1]

    def sort(self, document):
        made = order(*self.dice.sample([1, 2, 3, 6], self.dice.randint(1, 3)))
        made["order-id"] = max(o["order-id"] for o in document["sort-orders"]) + 1
        made["fields"][0]["transform"] = f"bucket[{made['order-id']}]"
        return [
            {"action": "add-sort-order", "sort-order": made},
            {"action": "set-default-sort-order", "sort-order-id": -1},
        ]

    def back(self, document):
        keys = [
            ("schemas", "schema-id", "set-current-schema", "schema-id"),
            ("sort-orders", "order-id", "set-default-sort-order", "sort-order-id"),
        ]
        if self.version > 1:
            keys.append(("partition-specs", "spec-id", "set-default-spec", "spec-id"))
        list_, id_, action, key = self.dice.choice(keys)
        return [{"action": action, key: self.dice.choice(document[list_])[id_]}]

    def forget(self, document):
        schema_ids = [
            s["schema-id"]
            for s in document["schemas"][:-1]
            if s["schema-id"] != document["current-schema-id"]
        ][:1]
        changes = [{"action": "remove-schemas", "schema-ids": schema_ids}]
        if self.version > 1:
            spec_ids = [
                s["spec-id"]
                for s in document["partition-specs"][:-1]
                if s["spec-id"] != document["default-spec-id"]
            ][:1]
            changes.append({"action": "remove-partition-specs", "spec-ids": spec_ids})
        return changes

    def configure(self, document):
        key = self.dice.choice("abcd")
        if key in document["properties"]:
            return [{"action": "remove-properties", "removals": [key]}]
        versions = str(self.dice.randint(0, 5))
        return [
            {"action": "set-properties", "updates": {key: versions}},
            {
                "action": "set-properties",
                "updates": {"write.metadata.previous-versions-max": versions},
            },
        ]

    def move(self, document):
        return [{"action": "set-location", "location": f"s3://b/{self.dice.randint(1, 3)}"}]

    def measure(self, document):
        if not document["snapshots"]:
            return []
        snapshot_id = self.dice.choice(document["snapshots"])["snapshot-id"]
        size = {"file-size-in-bytes": self.dice.randint(1, 10**6)}
        changes = [
            {"action": "set-statistics", "statistics": statistics(snapshot_id, **size)},
            {
                "action": "set-partition-statistics",
                "partition-statistics": partition_statistics(snapshot_id, **size),
            },
        ]
        if document["statistics"] and self.dice.random() < 0.3:
            removed = document["statistics"][0]["snapshot-id"]
            changes.insert(0, {"action": "remove-statistics", "snapshot-id": removed})
        return changes

    KINDS = (
        append, append, append, tag, untag, widen, repartition, sort, back, forget, configure,
        move, measure, expire,
    )  # fmt: skip


@pytest.mark.parametrize("version", [1, 2])
@REPEATABLE
@given(seed=st.integers(0, 2**32))
def test_random_commits_agree_with_pyiceberg(version, seed):
    writer = Writer(random.Random(seed), version)
    ours = table(version)
    other = theirs(ours)
    for number in range(8):
        changes = writer.commit(ours)
        location = f"{LOCATION}/metadata/{number:05d}.metadata.json"
        read = tuple(READ_UPDATE.validate_python(change) for change in changes)
        other = update_table_metadata(other, read, metadata_location=location)
        result = updates.apply(ours, changes, now_ms=writer.clock, previous_location=location)
        metadata_documents.check(result)
        if result is not ours:
            assert normal(result) == normal(orjson.loads(other.model_dump_json()))
        # PyIceberg continues from the catalog's result, so each difference counts once.
        ours, other = result, theirs(result)


types = st.recursive(
    st.sampled_from(["long", "string", "decimal(9, 2)", "uuid", "timestamptz"]),
    lambda inner: st.one_of(
        st.tuples(st.just("list"), inner),
        st.tuples(st.just("map"), inner, inner),
        st.tuples(st.just("struct"), st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=8,
)


def built(type_, ids):
    if isinstance(type_, str):
        return type_
    name, *inner = type_
    if name == "list":
        return {
            "type": "list",
            "element-id": next(ids),
            "element": built(inner[0], ids),
            "element-required": True,
        }
    if name == "map":
        return {
            "type": "map",
            "key-id": next(ids),
            "key": built(inner[0], ids),
            "value-id": next(ids),
            "value": built(inner[1], ids),
            "value-required": False,
        }
    return {
        "type": "struct",
        "fields": [column(next(ids), f"f{i}", built(t, ids)) for i, t in enumerate(inner[0])],
    }


@REPEATABLE
@given(columns=st.lists(types, min_size=1, max_size=4), seed=st.integers(0, 2**32))
def test_fresh_ids_agree_with_pyiceberg(columns, seed):
    ids = iter(random.Random(seed).sample(range(10_000), 500))
    schema_ = {
        "type": "struct",
        "fields": [column(next(ids), f"c{i}", built(t, ids)) for i, t in enumerate(columns)],
    }
    schema_["fields"].append(column(next(ids), "key", "long", required=True))
    key = schema_["fields"][-1]["id"]
    schema_["identifier-field-ids"] = [key]
    ours = metadata_documents.new_table(
        schema=schema_,
        partition_spec=spec((key, "bucket[7]", "bin")),
        write_order=order(key),
        location=LOCATION,
        now_ms=1_000,
        table_uuid=UUID,
    )
    other = new_table_metadata(
        Schema.model_validate(schema_),
        PartitionSpec(PartitionField(key, 1000, BucketTransform(7), "bin")),
        SortOrder.model_validate(order(key)),
        LOCATION,
        {},
        UUID,
    )
    assert normal(ours) == normal(orjson.loads(other.model_dump_json()))


def test_schema_equality_agrees_with_pyiceberg():
    original = schema(**{"schema-id": 3, "identifier-field-ids": [1]})
    for other in (
        schema(**{"identifier-field-ids": [1]}),
        schema(column(9, "x"), **{"identifier-field-ids": [1]}),
        schema(),
    ):
        equal = Schema.model_validate(original) == Schema.model_validate(other)
        assert schemas.same(original, other) is equal


def test_an_unpartitioned_unsorted_table_agrees_with_pyiceberg():
    ours = metadata_documents.new_table(
        schema=schema(), location=LOCATION, now_ms=1, table_uuid=UUID
    )
    other = new_table_metadata(
        Schema.model_validate(schema()),
        UNPARTITIONED_PARTITION_SPEC,
        SortOrder(order_id=0),
        LOCATION,
        {},
        UUID,
    )
    assert normal(ours) == normal(orjson.loads(other.model_dump_json()))
