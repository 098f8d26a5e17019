import pytest

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.schema import schemas, sorting
from tests.catalog.formats.iceberg.examples import order, schema

COLUMNS = schemas.index(schema(), "schema")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("direction", "up", "order.fields[0].direction must be one of asc, desc"),
        ("null-order", "x", "order.fields[0].null-order must be one of nulls-first, nulls-last"),
        ("source-id", None, "order.fields[0].source-id must be an integer, not null"),
    ],
)
def test_a_malformed_order_is_refused(key, value, message):
    bad = order(1)
    bad["fields"][0][key] = value
    with pytest.raises(InvalidMetadata) as caught:
        sorting.check_structure(bad, "order")
    assert caught.value.message == message


def test_unsuitable_sources_are_refused():
    sorting.check_fit(order(1, 6, 7), COLUMNS, "order")
    with pytest.raises(InvalidMetadata, match="cannot sort by non-primitive column 'place'"):
        sorting.check_fit(order(1, 4), COLUMNS, "order")


def test_orders_are_equal_whatever_their_ids():
    assert sorting.same({**order(1), "order-id": 7}, order(1))
    assert not sorting.same(order(1, 2), order(2, 1))


def test_a_new_table_has_order_1_or_none():
    assert sorting.fresh(order(5), {5: 1}, "o") == order(1)
    assert sorting.fresh({"order-id": 7, "fields": []}, {}, "o") == {"order-id": 0, "fields": []}
    with pytest.raises(InvalidMetadata) as caught:
        sorting.fresh(order(5), {}, "o")
    assert caught.value.message == "o.fields[0].source-id: the schema has no column with id 5"
