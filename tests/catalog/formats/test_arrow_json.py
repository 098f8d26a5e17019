import pyarrow as pa
import pytest

from catalog.errors import InvalidInput
from catalog.formats.arrow_json import schema_to_json, type_from_json, type_to_json

_ITEM = {"name": "item", "nullable": True, "type": {"type": "int32"}}
_ENTRIES = {
    "name": "entries",
    "nullable": False,
    "type": {
        "type": "struct",
        "fields": [
            {"name": "key", "nullable": False, "type": {"type": "utf8"}},
            {"name": "value", "nullable": True, "type": {"type": "int8"}},
        ],
    },
}


@pytest.mark.parametrize(
    ("type_", "json"),
    [
        (pa.null(), {"type": "null"}),
        (pa.bool_(), {"type": "bool"}),
        *((getattr(pa, name)(), {"type": name}) for name in ("int8", "int16", "int32", "int64")),
        *((getattr(pa, name)(), {"type": name}) for name in ("uint8", "uint16", "uint32")),
        (pa.uint64(), {"type": "uint64"}),
        (pa.float16(), {"type": "float16"}),
        (pa.float32(), {"type": "float32"}),
        (pa.float64(), {"type": "float64"}),
        (pa.decimal128(10, 2), {"type": "decimal128", "length": 10002}),
        (pa.decimal128(10, -2), {"type": "decimal128", "length": 9998}),
        (pa.decimal256(50, 3), {"type": "decimal256", "length": 50003}),
        (pa.date32(), {"type": "date32"}),
        (pa.date64(), {"type": "date64"}),
        (pa.time32("s"), {"type": "time32", "unit": "s"}),
        (pa.time64("ns"), {"type": "time64", "unit": "ns"}),
        (pa.timestamp("ms"), {"type": "timestamp", "unit": "ms"}),
        (pa.timestamp("us", "UTC"), {"type": "timestamp", "unit": "us", "timezone": "UTC"}),
        (pa.duration("ns"), {"type": "duration", "unit": "ns"}),
        (pa.string(), {"type": "utf8"}),
        (pa.large_string(), {"type": "large_utf8"}),
        (pa.binary(), {"type": "binary"}),
        (pa.large_binary(), {"type": "large_binary"}),
        (pa.binary(7), {"type": "fixed_size_binary", "length": 7}),
        (pa.list_(pa.int32()), {"type": "list", "fields": [_ITEM]}),
        (pa.large_list(pa.int32()), {"type": "large_list", "fields": [_ITEM]}),
        (
            pa.list_(pa.int32(), 3),
            {"type": "fixed_size_list", "fields": [_ITEM], "length": 3},
        ),
        (pa.map_(pa.string(), pa.int8()), {"type": "map", "fields": [_ENTRIES]}),
        (pa.struct([]), {"type": "struct", "fields": []}),
        (
            pa.struct([pa.field("a.b", pa.int8(), nullable=False, metadata={"k": "ü"})]),
            {
                "type": "struct",
                "fields": [
                    {
                        "name": "a.b",
                        "nullable": False,
                        "type": {"type": "int8"},
                        "metadata": {"k": "ü"},
                    }
                ],
            },
        ),
    ],
    ids=str,
)
def test_types_round_trip(type_, json):
    assert type_to_json(type_) == json
    assert type_from_json(json) == type_


def test_types_without_a_json_name():
    assert type_to_json(pa.dictionary(pa.int8(), pa.string())) == {"type": "utf8"}
    assert type_to_json(pa.month_day_nano_interval()) == {"type": "month_day_nano_interval"}


def test_schema():
    schema = pa.schema([pa.field("j", pa.json_(), metadata={"k": "v"})], metadata={"of": "schema"})
    assert schema_to_json(schema) == {
        "fields": [
            {
                "name": "j",
                "nullable": True,
                "type": {"type": "utf8"},
                "metadata": {"ARROW:extension:name": "arrow.json", "k": "v"},
            }
        ],
        "metadata": {"of": "schema"},
    }
    assert schema_to_json(pa.schema([])) == {"fields": []}


@pytest.mark.parametrize(
    ("json", "type_"),
    [
        ("int32", pa.int32()),
        ("Int32", pa.int32()),
        ({"type": "boolean"}, pa.bool_()),
        ({"type": "halffloat"}, pa.float16()),
        ({"type": "float"}, pa.float32()),
        ({"type": "double"}, pa.float64()),
        ({"type": "string"}, pa.string()),
        ({"type": "large_string"}, pa.large_string()),
        ({"type": "date32:day"}, pa.date32()),
        ({"type": "date64:ms"}, pa.date64()),
        ({"type": "time32:s"}, pa.time32("s")),
        ({"type": "time64:us"}, pa.time64("us")),
        ({"type": "timestamp"}, pa.timestamp("us")),
        ({"type": "timestamp:ns:-"}, pa.timestamp("ns")),
        ({"type": "timestamp:us:Europe/Berlin"}, pa.timestamp("us", "Europe/Berlin")),
        ({"type": "timestamp:s:+02:00"}, pa.timestamp("s", "+02:00")),
        ({"type": "duration"}, pa.duration("us")),
        ({"type": "duration:ms"}, pa.duration("ms")),
        ({"type": "decimal:128:10:2"}, pa.decimal128(10, 2)),
        ({"type": "decimal:256:50:-3"}, pa.decimal256(50, -3)),
        ({"type": "decimal:10:2"}, pa.decimal128(10, 2)),
        ({"type": "fixed_size_binary:16"}, pa.binary(16)),
    ],
    ids=str,
)
def test_other_spellings(json, type_):
    assert type_from_json(json) == type_


@pytest.mark.parametrize(
    ("json", "error"),
    [
        (None, "not an Arrow type"),
        ({}, "not an Arrow type"),
        ([], "not an Arrow type"),
        ({"type": None}, "not an Arrow type"),
        ({"type": ""}, "not known"),
        ({"type": "int32:x"}, "not known"),
        ({"type": "union"}, "not known"),
        ({"type": "dict:utf8:int8:false"}, "not known"),
        ({"type": "x" * 1000}, "not known"),
        ({"type": "decimal"}, "not known"),
        ({"type": "decimal32", "length": 5001}, "not known"),
        ({"type": "decimal128"}, "length"),
        ({"type": "decimal128", "length": True}, "length"),
        ({"type": "decimal128", "length": 0}, "precision"),
        ({"type": "decimal128", "length": 39000}, "precision"),
        ({"type": "decimal:128:99:2"}, "precision"),
        ({"type": "decimal:128:5:9"}, "precision"),
        ({"type": "time32"}, "unit"),
        ({"type": "time32", "unit": "us"}, "unit"),
        ({"type": "time64:s"}, "unit"),
        ({"type": "timestamp", "unit": "days"}, "unit"),
        ({"type": "timestamp", "unit": ["s"]}, "unit"),
        ({"type": "timestamp", "timezone": 1}, "timezone"),
        ({"type": "fixed_size_binary"}, "length"),
        ({"type": "fixed_size_binary", "length": 0}, "length"),
        ({"type": "fixed_size_binary", "length": 2**31}, "length"),
        ({"type": "fixed_size_list", "fields": [_ITEM]}, "length"),
        ({"type": "list"}, "fields"),
        ({"type": "list", "fields": []}, "one field"),
        ({"type": "list", "fields": [_ITEM, _ITEM]}, "one field"),
        ({"type": "map", "fields": [_ITEM]}, "struct of the key"),
        ({"type": "struct"}, "fields"),
        ({"type": "struct", "fields": {}}, "fields"),
        ({"type": "struct", "fields": [1]}, "not an Arrow field"),
        ({"type": "struct", "fields": [{"name": 1}]}, "not an Arrow field"),
        ({"type": "struct", "fields": [{**_ITEM, "nullable": None}]}, "nullable"),
        ({"type": "struct", "fields": [{**_ITEM, "type": None}]}, "not an Arrow type"),
        ({"type": "struct", "fields": [{**_ITEM, "metadata": {"a": 1}}]}, "metadata"),
        ({"type": "struct", "fields": [{**_ITEM, "metadata": "a"}]}, "metadata"),
    ],
    ids=str,
)
def test_malformed_types(json, error):
    with pytest.raises(InvalidInput, match=error) as raised:
        type_from_json(json)
    assert len(str(raised.value)) < 300


def test_types_nested_too_deep():
    json = {"type": "int8"}
    for _ in range(100):
        json = {"type": "list", "fields": [{"name": "item", "nullable": True, "type": json}]}
    with pytest.raises(InvalidInput, match="deeper"):
        type_from_json(json)
