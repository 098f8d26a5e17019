"""The delete files of a data file, by sequence number, path, partition and bounds."""

import struct
from types import SimpleNamespace

import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.types import DoubleType, LongType, StringType

from catalog.formats.iceberg.scans.deletes import DeleteIndex, _referenced_path, partition_key

DATA, POSITION, EQUALITY = (
    DataFileContent.DATA,
    DataFileContent.POSITION_DELETES,
    DataFileContent.EQUALITY_DELETES,
)
PATH_ID = 2147483546
KEY, OTHER = partition_key(0, (1,)), partition_key(0, (2,))
FILE = "file:///data/5.parquet"


def entry(number, content=POSITION, *, path="x", spec_id=0, references=None, vector=False, **file):
    values = {"lower_bounds": None, "upper_bounds": None, "null_value_counts": None}
    return SimpleNamespace(
        sequence_number=number,
        spec_id=spec_id,
        referenced_data_file=references,
        is_deletion_vector=vector,
        file=SimpleNamespace(
            **{"content": content, "file_path": path, "equality_ids": None, **values, **file}
        ),
    )


def data(number, **file):
    return entry(number, DATA, path=FILE, **file)


def applying(deletes, file, *, key=KEY, unpartitioned=(), types=None):
    index = DeleteIndex(set(unpartitioned), types or {1: LongType()})
    for delete, delete_key in deletes:
        index.add(delete, delete_key)
    return index.for_file(file, key)


def bounds(lower, upper, id_=PATH_ID):
    return {"lower_bounds": {id_: lower}, "upper_bounds": {id_: upper}}


def test_position_deletes_of_the_partition_apply_to_files_as_old_or_older():
    old, same, new = (entry(number) for number in (4, 5, 6))
    elsewhere = entry(9)
    deletes = [(old, KEY), (same, KEY), (new, KEY), (elsewhere, OTHER)]
    assert applying(deletes, data(5)) == [same, new]


def test_position_deletes_that_name_a_file_apply_to_it_alone():
    by_name = entry(5, references=FILE)
    by_bounds = entry(5, **bounds(FILE.encode(), FILE.encode()))
    other = entry(5, references="file:///data/6.parquet")
    old = entry(4, references=FILE)
    deletes = [(row, OTHER) for row in (by_name, by_bounds, other, old)]
    assert applying(deletes, data(5)) == [by_name, by_bounds]


def test_bounds_of_the_path_exclude_other_files():
    def named(lower, upper):
        return entry(5, lower_bounds=lower, upper_bounds=upper)

    around = named({PATH_ID: b"file:///data/4"}, {PATH_ID: b"file:///data/6"})
    exact = named({PATH_ID: FILE.encode()}, {PATH_ID: b"file:///data/6"})
    to_exact = named({PATH_ID: b"file"}, {PATH_ID: FILE.encode()})
    below = named({PATH_ID: b"file"}, {PATH_ID: b"file:///data/4"})
    above = named({PATH_ID: b"file:///data/6"}, {PATH_ID: b"g"})
    half = named({PATH_ID: b"file"}, None)
    deletes = [(row, KEY) for row in (around, exact, to_exact, below, above, half)]
    assert applying(deletes, data(5)) == [around, exact, to_exact, half]


def test_with_a_deletion_vector_no_position_deletes_apply():
    vector = entry(5, references=FILE, vector=True)
    old = entry(4, references=FILE, vector=True)
    position = entry(5)
    assert applying([(vector, OTHER), (position, KEY)], data(5)) == [vector]
    assert applying([(old, OTHER), (position, KEY)], data(5)) == [position]


def test_equality_deletes_apply_to_older_files():
    same, new, elsewhere = (entry(number, EQUALITY) for number in (5, 6, 6))
    everywhere = entry(6, EQUALITY, spec_id=7)
    deletes = [(same, KEY), (new, KEY), (elsewhere, OTHER), (everywhere, partition_key(7, ()))]
    assert applying(deletes, data(5), unpartitioned=[7]) == [everywhere, new]
    position = entry(5)
    assert applying([(new, KEY), (position, KEY)], data(5)) == [position, new]


def number(value):
    return struct.pack("<q", value)


def may_equal(deleted, existing, *, nulls=(0, 0), type_=None):
    delete = entry(
        6, EQUALITY, equality_ids=[1], null_value_counts={1: nulls[0]}, **bounds(*deleted, 1)
    )
    file = data(5, null_value_counts={1: nulls[1]}, **bounds(*existing, 1))
    return applying([(delete, KEY)], file, types={1: type_ or LongType()}) == [delete]


@pytest.mark.parametrize(
    ("deleted", "existing", "expected"),
    [
        ((1, 3), (4, 6), False),
        ((1, 4), (4, 6), True),
        ((7, 9), (4, 6), False),
        ((6, 9), (4, 6), True),
        ((5, 5), (4, 6), True),
    ],
)
def test_equality_deletes_whose_values_are_apart_do_not_apply(deleted, existing, expected):
    bounds = [tuple(map(number, pair)) for pair in (deleted, existing)]
    assert may_equal(*bounds) is expected
    # A deleted null may equal an existing one.
    assert may_equal(*bounds, nulls=(1, 1)) is True
    assert may_equal(*bounds, nulls=(None, None)) is True
    assert may_equal(*bounds, nulls=(1, 0)) is expected
    assert may_equal(*bounds, nulls=(0, 1)) is expected
    # Their bounds prove nothing.
    assert may_equal(*bounds, type_=DoubleType()) is True


def test_bounds_that_cannot_be_read_exclude_nothing():
    assert may_equal((b"\x01", b"\x02"), (number(8), number(9))) is True
    assert may_equal((b"\xff", b"\xff"), (b"\xfe", b"\xfe"), type_=StringType()) is True
    delete = entry(6, EQUALITY, equality_ids=[1, 2], null_value_counts={1: 0, 2: 0})
    assert applying([(delete, KEY)], data(5)) == [delete]


def test_values_apart_in_one_column_are_enough():
    counts = {"null_value_counts": {1: 0, 2: 0}}
    low, high = ({1: number(5), 2: number(n)} for n in (1, 8))
    delete = entry(6, EQUALITY, equality_ids=[1, 2], lower_bounds=low, upper_bounds=low, **counts)
    file = data(5, lower_bounds=high, upper_bounds=high, **counts)
    types = {1: LongType(), 2: LongType()}
    assert applying([(delete, KEY)], file, types=types) == []
    # A column that was dropped excludes nothing.
    assert applying([(delete, KEY)], file, types={1: LongType()}) == [delete]


def test_the_path_in_equal_bounds_is_that_of_the_only_file():
    assert _referenced_path(entry(1)) is None
    assert _referenced_path(entry(1, references="a", **bounds(b"b", b"b"))) == "a"
    assert _referenced_path(entry(1, **bounds(b"a", b"a"))) == "a"
    assert _referenced_path(entry(1, **bounds(b"a", b"b"))) is None
    assert _referenced_path(entry(1, lower_bounds={PATH_ID: b"a"})) is None
    assert _referenced_path(entry(1, **bounds(b"\xff", b"\xff"))) == "\ufffd"


def test_keys_of_partitions_tell_floats_apart_by_their_bits():
    nan = float("nan")
    assert partition_key(0, (nan, 1)) == partition_key(0, (float("nan"), 1))
    assert partition_key(0, (0.0,)) != partition_key(0, (-0.0,))
    assert partition_key(0, (1,)) != partition_key(1, (1,))
    assert partition_key(3, ("a", None)) == (3, ("a", None))
