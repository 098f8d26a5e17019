"""Manifests of Lance tables with single forged fields: refused with 4xx, in bounded time and memory."""

import random
from collections.abc import Callable
from typing import Any

import lance as pylance
import psutil
import pyarrow as pa
import pytest
from pyroaring import BitMap

from catalog.access import SYSTEM
from catalog.formats.lance import wire
from catalog.models import Table
from catalog.services.engine.commit import commit
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import registration_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.storage import locations
from tests.api.client import Lance, stream
from tests.factories import make_namespace
from tests.security.forged_messages import forge
from tests.security.lance_attacks import bytes_field, edited, number_field, without_field
from tests.security.test_odd_manifests import faults, newest
from tests.shares import nightly

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
SCAN: dict[str, Any] = {"k": 2, "vector": {}}
OPERATIONS: dict[str, dict[str, Any]] = {
    "describe": {"load_detailed_metadata": True},
    "index/list": {},
    "index/i/stats": {},
    "index/f/stats": {},
    "count_rows": {},
    "count_rows?filtered": {"predicate": "id > 1"},
    "query": SCAN,
    "query?ids": {**SCAN, "with_row_id": True},
    "query?filtered": {**SCAN, "filter": "id = 2"},
    "query?searched": {**SCAN, "vector": {"single_vector": [1.0, 2.0, 3.0, 4.0]}},
    "query?sorted": {**SCAN, "order_by": [{"column_name": "id"}]},
    "query?words": {**SCAN, "full_text_query": {"string_query": {"query": "a"}}},
    "query?versions": {**SCAN, "columns": {"column_names": ["_row_created_at_version"]}},
    "explain_plan": {"query": SCAN},
    "analyze_plan": SCAN,
    "stats": {},
}
MAX_GROWTH = 500 * 1024**2


@pytest.fixture(params=["numbered", "stable"])
def table(lance: Lance, request: pytest.FixtureRequest) -> Table:
    """Three fragments, two with two files and deleted rows, and two indexes; with and without stable row ids."""
    data = pa.table(
        {
            "id": pa.array([1, 2, 3], pa.int64()),
            "name": ["a", "b", "c"],
            "s": [{"x": 1, "y": "q"}] * 3,
            "l": [[1, 2], [3], []],
            "v": pa.array([[1.0, 2.0, 3.0, 4.0]] * 3, pa.list_(pa.float32(), 4)),
        }
    )
    make_namespace("ns")
    location = locations.new_location("t")
    pylance.write_dataset(data, location, enable_stable_row_ids=request.param == "stable")
    register = registration_operations.RegisterTable(table=("ns", "t"), location=location)
    row: Table = commit([register], actor=SYSTEM).results[0]
    insert(lance, data)
    for column, kind, name in (("id", "BTREE", "i"), ("name", "INVERTED", "f")):
        index = {"column": column, "index_type": kind, "name": name}
        lance.post("/v1/table/ns$t/create_scalar_index", index)
    lance.post(
        "/v1/table/ns$t/add_columns", {"new_columns": [{"name": "d", "expression": "id * 2"}]}
    )
    lance.post("/v1/table/ns$t/delete", {"predicate": "id = 2"})
    insert(lance, data.append_column("d", pa.array([1, 2, 3], pa.int64())))
    lance_versions.settle_pending()
    return row


def insert(lance: Lance, data: pa.Table) -> None:
    assert lance.call("POST", "/v1/table/ns$t/insert", raw=stream(data)).status_code == 200


@pytest.mark.parametrize("rounds", [15, nightly(1000)])
def test_forged_fields(lance, table, rounds):
    path, random_ = newest(table), random.Random(f"{rounds} rounds")
    whole = path.read_bytes()
    assert faults(lance, OPERATIONS) == []
    before = psutil.Process().memory_info().rss
    bad = []
    for number in range(rounds):
        path.write_bytes(forge(whole, random_))
        bad += [(number, *fault) for fault in faults(lance, OPERATIONS)]
    assert bad == []
    assert psutil.Process().memory_info().rss < before + MAX_GROWTH


def columns(*numbers: int) -> Callable[[bytes], bytes]:
    """Packed numbers of columns, as many as a file had."""

    def change(content: bytes) -> bytes:
        count = sum(byte < 128 for byte in content)
        return b"".join(wire.encode_varint(number % 2**64) for number in (numbers * count)[:count])

    return change


def without_columns(forged: bytes) -> bytes:
    for field in (2, 3):
        forged = edited(forged, [2, 2], without_field(field))
    return forged


COLUMNS: dict[str, Callable[[bytes], bytes]] = {
    "none": without_columns,
    "removed": lambda forged: edited(forged, [2, 2, 2], columns(-2)),
    "unknown": lambda forged: edited(forged, [2, 2, 2], columns(99)),
    "repeated": lambda forged: edited(forged, [2, 2, 2], columns(0)),
    "of no file": lambda forged: edited(forged, [2, 2, 3], columns(-1)),
    "of wrong positions": lambda forged: edited(forged, [2, 2, 3], columns(7, 6, 5, 4)),
    "far": lambda forged: edited(forged, [2, 2, 3], columns(2**31 - 1)),
    "no files": lambda forged: edited(forged, [2], without_field(2)),
    "no rows": lambda forged: edited(forged, [2], without_field(4)),
    "zero rows": lambda forged: edited(forged, [2, 4], lambda _: wire.encode_varint(0)),
    "one row": lambda forged: edited(forged, [2, 4], lambda _: wire.encode_varint(1)),
    "more rows": lambda forged: edited(forged, [2, 4], lambda _: wire.encode_varint(2**31)),
    "no version": lambda forged: edited(edited(forged, [2, 2], without_field(4)), [2, 2], without_field(5)),
    "no size": lambda forged: edited(forged, [2, 2], without_field(6)),
    "small": lambda forged: edited(forged, [2, 2, 6], lambda _: wire.encode_varint(40)),
    "large": lambda forged: edited(forged, [2, 2, 6], lambda _: wire.encode_varint(2**62)),
}  # fmt: skip


def test_files_with_other_columns(lance, table, subtests):
    """Lance relies on what a manifest states of the files, such as which columns they have."""
    path = newest(table)
    whole = path.read_bytes()
    for name, forgery in COLUMNS.items():
        with subtests.test(name):
            path.write_bytes(forgery(whole))
            assert path.read_bytes() != whole
            assert faults(lance, OPERATIONS) == []


def with_rows(number: int) -> Callable[[bytes], bytes]:
    return lambda forged: edited(forged, [2, 4], lambda _: wire.encode_varint(number))


def with_ids(*ranges: tuple[int, int]) -> Callable[[bytes], bytes]:
    """The same ids for each fragment."""
    segments = b"".join(bytes_field(1, bytes_field(1, span(*ends))) for ends in ranges)
    return lambda forged: edited(forged, [2, 5], lambda _: segments)


def with_versions(field: int, end: int) -> Callable[[bytes], bytes]:
    run = bytes_field(1, bytes_field(1, bytes_field(1, span(0, end))) + number_field(2, 1))
    return lambda forged: edited(forged, [2, field], lambda _: run)


def span(start: int, end: int) -> bytes:
    return number_field(1, start) + number_field(2, end)


def overlapping(forged: bytes) -> bytes:
    return with_ids((0, 2**27))(with_rows(2**27)(forged))


ROWS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "rows": (with_rows(2**62), "4294967296 are possible"),
    "deleted rows": (
        lambda forged: edited(forged, [2, 3, 4], lambda _: wire.encode_varint(4)),
        "4 deleted rows of 3",
    ),
}


def with_all_fragments(forged: bytes) -> bytes:
    """Indexes of 2^32 fragments. Their statistics asked for 790 GB, which ended the process."""
    bitmap = BitMap()
    bitmap.add_range(0, 2**32)
    bitmap.run_optimize()
    content = bitmap.serialize()
    return edited(forged, [1, 5], lambda _: content, index=True)


INDEXES = {"fragments of an index": (with_all_fragments, f"an index states {2**32} fragments")}
IDS = {
    "ids": (with_ids((0, 2**62)), f"ids of {2**62} rows, and has 3"),
    "repeated ids": (with_ids(*[(0, 2**31)] * 200), f"ids of {200 * 2**31} rows"),
    "backwards": (with_ids((9, 1)), "ends at 1, before its start 9"),
    "overlapping ids": (overlapping, f"overlap, and have {3 * 2**27} ids"),
    "updated versions": (with_versions(7, 2**62), f"versions of {2**62} rows"),
    "created versions": (with_versions(9, 2**62), f"versions of {2**62} rows"),
}


@pytest.mark.parametrize(
    ("table", "forged_numbers"),
    [("numbered", ROWS | INDEXES), ("stable", ROWS | IDS)],
    indirect=["table"],
)
def test_numbers_of_rows(lance, table, forged_numbers, subtests):
    """Lance would take memory for each row that a manifest states, or end the process."""
    path = newest(table)
    whole = path.read_bytes()
    for name, (forgery, message) in forged_numbers.items():
        with subtests.test(name):
            path.write_bytes(forgery(whole))
            assert path.read_bytes() != whole
            lance_datasets.clear_caches()
            for operation, body in OPERATIONS.items():
                answer = lance.call("POST", f"/v1/table/ns$t/{operation}", body)
                assert answer.status_code == 400, (operation, answer.content)
                assert message in answer.json()["error"]
