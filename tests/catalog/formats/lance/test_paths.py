"""Paths of Lance fields."""

import pyarrow as pa
import pytest

from catalog.errors import InvalidInput
from catalog.formats.lance.paths import find, split

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.struct([("a.b", pa.int32()), ("c", pa.struct([("d", pa.string())]))])),
        ("l", pa.list_(pa.struct([("x", pa.int8())]))),
    ]
)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("id", ("id",)),
        ("s.c.d", ("s", "c", "d")),
        ("s.`a.b`", ("s", "a.b")),
        ("`a``b`", ("a`b",)),
        ("Up Per", ("Up Per",)),
    ],
)
def test_split(path, names):
    assert split(path) == names


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", "`a", "`a`b", "a`b`", "``"])
def test_malformed(path):
    with pytest.raises(InvalidInput, match="malformed"):
        split(path)


def test_find():
    assert find(SCHEMA, ("id",)).type == pa.int64()
    assert find(SCHEMA, ("s", "a.b")).type == pa.int32()
    assert find(SCHEMA, ("s", "c", "d")).type == pa.string()
    assert find(SCHEMA, ("l", "x")).type == pa.int8()
    assert find(SCHEMA, ("id", "x")) is None
    assert find(SCHEMA, ("nope",)) is None
