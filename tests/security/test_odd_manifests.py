"""No content of a manifest and no request body makes an operation fail with 500."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from catalog.models import Table
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import versions as lance_versions
from tests.api.client import Lance, stream
from tests.factories import make_lance_table
from tests.security import lance_attacks as attacks

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
T = ("ns", "t")
ROUNDS = 60
"""Number of damaged manifests per test."""

OPERATIONS: dict[str, dict[str, Any]] = {
    "describe": {"load_detailed_metadata": True},
    "index/list": {},
    "index/i/stats": {},
    "index/i/drop": {},
    "index/none/stats": {},
    "index/none/drop": {},
    "index/%00/stats": {},
    "index/i%2F..%2Fj/drop": {},
    "version/list": {},
    "version/describe": {"version": 3},
    "count_rows": {},
    "query": {"k": 2, "vector": {}, "filter": "id = 2"},
    "stats": {},
    "restore": {"version": 2},
}


@pytest.fixture
def table(lance) -> Table:
    """Three versions, and an index of the second."""
    row = make_lance_table(T)
    lance.post(
        "/v1/table/ns$t/create_scalar_index",
        {"column": "id", "index_type": "BTREE", "name": "i"},
    )
    rows = pa.table({"id": [4], "name": ["d"]})
    assert lance.call("POST", "/v1/table/ns$t/insert", raw=stream(rows)).status_code == 200
    lance_versions.settle_pending()
    return row


def newest(row: Table) -> Path:
    return min(Path(f"{row.location}/_versions").glob("*.manifest"))


def faults(client: Lance, operations: dict[str, dict[str, Any]] = OPERATIONS) -> list[Any]:
    """The operations whose answers have a status of 500 or above."""
    lance_datasets.clear_caches()
    lance_datasets.answers.clear()
    bad = []
    for path, body in operations.items():
        answer = client.call("POST", f"/v1/table/ns$t/{path}", body)
        if answer.status_code >= 500:
            bad.append((path, answer.status_code, answer.content[:300]))
    return bad


def _cut(data: bytes, random_: random.Random) -> bytes:
    return data[: random_.randrange(len(data))]


def _flip(data: bytes, random_: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random_.randrange(1, 6)):
        changed[random_.randrange(len(changed))] = random_.randrange(256)
    return bytes(changed)


def _swap(data: bytes, random_: random.Random) -> bytes:
    at, width = random_.randrange(len(data)), random_.randrange(1, 40)
    return data[:at] + random_.randbytes(width) + data[at + width :]


def _repeat(data: bytes, random_: random.Random) -> bytes:
    at = random_.randrange(len(data) - 16)
    return data[:at] + data[at : at + 30] * 20 + data[at:]


def _number(data: bytes, random_: random.Random) -> bytes:
    """A number of the message, or of its index section, that is far too large."""
    field = random_.choice([3, 6, 7, 8, 9, 10, 11, 14])
    value = random_.choice([0, 1, 2**31, 2**63, 2**64 - 1])
    return attacks.with_field(data, [], attacks.number_field(field, value))


def _nothing(data: bytes, random_: random.Random) -> bytes:
    return random_.choice([b"", b"LANC", data[-16:], b"\0" * 64])


DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": _cut,
    "flip": _flip,
    "swap": _swap,
    "repeat": _repeat,
    "number": _number,
    "nothing": _nothing,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_manifests(lance, table, damage):
    path = newest(table)
    whole, random_ = path.read_bytes(), random.Random(damage)
    bad = []
    for number in range(ROUNDS // len(DAMAGE)):
        path.write_bytes(DAMAGE[damage](whole, random_))
        bad += [(number, *fault) for fault in faults(lance)]
        lance_versions.settle_pending()
        if newest(table) != path:  # a restore of an older version was possible
            break
    assert bad == []


@pytest.mark.parametrize("missing", ["manifest", "data", "index", "everything", "directory"])
def test_missing_files(lance, table, missing):
    location = Path(table.location)
    if missing == "manifest":
        newest(table).unlink()
    elif missing == "directory":
        location.rename(f"{location}-away")
    else:
        pattern = {"data": "data/*", "index": "_indices/*/*", "everything": "**/*"}[missing]
        for path in sorted(location.glob(pattern), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    assert faults(lance) == []


ODD: list[Any] = [
    None, True, 0, -1, 3, 4, 2**31, 2**53, 2**63, 2**64, 1.5, 1e308, "", "x", "\x00", "../x", "/", "a" * 5000,
    [], [[]], {}, {"a": {}}, "\ud83d\ude00", "_versions/", "file:///", "s3://b/x",
]  # fmt: skip
FIELDS = (
    "version",
    "manifest_path",
    "manifest_size",
    "e_tag",
    "naming_scheme",
    "metadata",
    "branch",
)


def test_unusual_bodies(lance, table):
    """Single and batch CreateTableVersion, and operations that read a version, with arbitrary
    values."""
    random_ = random.Random(7)
    good = {"version": 4, "manifest_path": f"{table.location}/_versions/x.manifest-y"}
    bad = []
    for _ in range(ROUNDS * 3):
        entry = dict(good)
        for name in random_.sample(FIELDS, random_.randrange(1, 4)):
            entry[name] = random_.choice(ODD)
        named = {"id": random_.choice([list(T), ["ns"], [], [""], random_.choice(ODD)]), **entry}
        for path, body in (
            ("/v1/table/ns$t/version/create", entry),
            ("/v1/table/version/batch-create", {"entries": random_.choice([[named], named])}),
            (
                "/v1/table/batch-commit",
                {"operations": [{"create_table_version": random_.choice([named, [named]])}]},
            ),
            ("/v1/table/ns$t/describe", {"load_detailed_metadata": True, **entry}),
            ("/v1/table/ns$t/index/i/stats", entry),
            ("/v1/table/ns$t/index/i/drop", {**entry, "version": random_.choice(ODD)}),
        ):
            answer = lance.call("POST", path, body)
            if answer.status_code >= 500:
                bad.append((path, body, answer.status_code, answer.content[:300]))
    assert bad == []
