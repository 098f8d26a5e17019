"""Filters of the REST protocol."""

import json
from typing import Any

import pytest
from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from catalog.errors import InvalidInput
from catalog.formats.iceberg.scans import expressions, filter_parsing
from catalog.formats.iceberg.scans.expressions import AllOf, AnyOf, Filter, Predicate
from catalog.formats.iceberg.scans.filter_parsing import Names
from catalog.formats.iceberg.schema import schemas

TYPES = {
    "flag": "boolean",
    "i": "int",
    "l": "long",
    "f": "float",
    "d": "double",
    "n": "decimal(9, 2)",
    "day": "date",
    "clock": "time",
    "ts": "timestamp",
    "tz": "timestamptz",
    "ns": "timestamp_ns",
    "s": "string",
    "u": "uuid",
    "x": "fixed[3]",
    "b": "binary",
    "v": "variant",
}
SCHEMA = {
    "type": "struct",
    "fields": [
        *(
            {"id": i, "name": name, "type": type_, "required": False}
            for i, (name, type_) in enumerate(TYPES.items(), 1)
        ),
        {
            "id": 50,
            "name": "place",
            "required": False,
            "type": {
                "type": "struct",
                "fields": [{"id": 51, "name": "City", "type": "string", "required": True}],
            },
        },
        {
            "id": 60,
            "name": "tags",
            "required": False,
            "type": {"type": "list", "element-id": 61, "element": "int", "element-required": True},
        },
        {"id": 70, "name": "I", "type": "string", "required": False},
    ],
}
IDS = {column.name: column.id for column in schemas.index(SCHEMA, "schema").values()}


def parse(value: Any, *, case_sensitive: bool = True) -> Filter:
    names = Names(schemas.index(SCHEMA, "schema"), case_sensitive=case_sensitive)
    return filter_parsing.parse(value, names)


def predicate(value: Any) -> Predicate:
    expression = parse(value).expression
    assert isinstance(expression, Predicate), expression
    return expression


def compare(op: str, term: Any, value: Any) -> dict[str, Any]:
    return {"type": op, "term": term, "value": value}


def test_constants():
    for value, expected in [
        (True, True),
        (False, False),
        ({"type": "true"}, True),
        ({"type": "false"}, False),
        ({"type": "not", "child": True}, False),
        ({"type": "not", "child": {"type": "false"}}, True),
        ({"type": "and", "left": True, "right": {"type": "true"}}, True),
        ({"type": "or", "left": False, "right": False}, False),
        ({"type": "in", "term": "i", "values": []}, False),
        ({"type": "not-in", "term": "i", "values": []}, True),
    ]:
        assert parse(value).expression is expected, value


@pytest.mark.parametrize(
    ("op", "negated"),
    [
        ("is-null", "not-null"),
        ("is-nan", "not-nan"),
        ("lt", "gt-eq"),
        ("gt", "lt-eq"),
        ("eq", "not-eq"),
        ("starts-with", "not-starts-with"),
        ("in", "not-in"),
    ],
)
def test_every_predicate_and_its_negation(op: str, negated: str):
    """PyIceberg, reading the same words, has the same test."""
    column = "f" if "nan" in op else "s"
    for operator, other in ((op, negated), (negated, op)):
        body: dict[str, Any] = {"type": operator, "term": column}
        if operator in {"in", "not-in"}:
            body["values"] = ["a", "b"]
        elif "null" not in operator and "nan" not in operator:
            body["value"] = "a"
        renamed = json.loads(json.dumps(body).replace(f'"{column}"', f'"c{IDS[column]}"', 1))
        expression = predicate(body)
        assert expression.test == BooleanExpression.model_validate(renamed)
        assert expression.source == body
        assert expression.is_exact
        assert expression.is_ordered == (operator != "not-starts-with")
        inverse = predicate({"type": "not", "child": body})
        assert inverse.test == ~expression.test
        assert inverse.source == {**body, "type": other}


@pytest.mark.parametrize(
    ("column", "value", "literal"),
    [
        ("flag", True, True),
        ("i", -(2**31), -(2**31)),
        ("l", 2**63 - 1, 2**63 - 1),
        ("f", 0.5, 0.5),
        ("d", 0.1, 0.1),
        ("d", 3, 3.0),
        ("n", "1.50", "1.50"),
        ("n", "-1.5", "-1.50"),
        ("n", 2.25, "2.25"),
        ("n", 3, "3.00"),
        ("day", "1970-01-11", 10),
        ("day", -10, -10),
        ("clock", "00:00:01.000002", 1_000_002),
        ("clock", 5, 5),
        ("ts", "1970-01-01T00:00:01.5", 1_500_000),
        ("ts", "1969-12-31T23:59", -60_000_000),
        ("ts", 7, 7),
        ("tz", "1970-01-01T01:00:00+01:00", 0),
        ("tz", "1970-01-01T00:00:00Z", 0),
        ("tz", "1970-01-01T00:00:00", 0),
        ("s", "é", "é"),
        (
            "u",
            "EB26BDB1-a1d8-4aa6-990e-da940875492c",
            bytes.fromhex("eb26bdb1a1d84aa6990eda940875492c"),
        ),
        ("x", "78797A", b"xyz"),
        ("b", "ff00", b"\xff\0"),
        ("place.City", "Graz", "Graz"),
    ],
)
def test_literals_of_every_type(column, value, literal):
    test = predicate(compare("eq", column, value)).test
    value_ = test.literal.value
    assert (str(value_) if column == "n" else value_) == literal
    assert type(value_) is type(literal) or column == "n"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("f", 0.1),  # no float is 0.1
        ("d", 2**60 + 1),
        ("n", "0.001"),
        ("n", "12345678.9"),
        ("ts", "1970-01-01T00:00:00.0000001"),
        ("ns", "1970-01-01T00:00:00.000000001"),
        ("x", "00"),
        ("v", 1),
    ],
)
def test_an_unrepresentable_literal_may_match(column, value):
    for op in ("eq", "not-eq", "lt", "gt-eq"):
        body = compare(op, column, value)
        expression = predicate(body)
        assert expression.test == AlwaysTrue()
        assert not expression.is_exact
        assert expression.source == body


@pytest.mark.parametrize(
    ("column", "above", "below"),
    [
        ("i", 2**31, -(2**31) - 1),
        ("l", 2**63, -(2**63) - 1),
        ("l", 1e30, -1e30),
        ("f", 1e300, -1e300),
        ("day", 2**31, -(2**31) - 1),
    ],
)
def test_a_literal_out_of_range_gives_a_constant(column, above, below):
    for value in (above, below):
        assert parse(compare("eq", column, value)).expression is False
        assert parse(compare("not-eq", column, value)).expression is True
    for more, less in (("gt", "lt"), ("gt-eq", "lt-eq")):
        assert parse(compare(more, column, above)).expression is False
        assert parse(compare(less, column, below)).expression is False
        for op, value in ((less, above), (more, below)):
            actual = predicate(compare(op, column, value)).test
            assert type(actual).__name__ == "NotNull"  # nulls do not match


def test_a_value_out_of_range_is_in_no_set():
    some = predicate({"type": "in", "term": "i", "values": [1, 2**31, 2, -(2**40)]})
    assert (
        some.test.literals == predicate({"type": "in", "term": "i", "values": [1, 2]}).test.literals
    )
    assert parse({"type": "not-in", "term": "i", "values": [2**31]}).expression is True


def test_other_spellings_are_accepted():
    reference = {"type": "reference", "name": "i"}
    expected = predicate(compare("lt", "i", 5)).test
    for body in [
        {"type": "lt", "left": reference, "right": 5},
        {"type": "lt", "left": {"type": "reference", "id": IDS["i"]}, "right": 5},
        {"type": "gt", "left": 5, "right": reference},
        {"type": "lt", "left": reference, "right": {"type": "literal", "value": 5}},
        {
            "type": "gt",
            "left": {"type": "literal", "value": 5, "data-type": "int"},
            "right": reference,
        },
        {"type": "lt", "term": {"type": "reference", "term": "i"}, "value": 5},
    ]:
        actual = predicate(body)
        assert actual.test == expected
        assert actual.source == body
        negation = predicate({"type": "not", "child": body})
        assert negation.test == ~expected
    test = predicate({"type": "in", "term": "i", "values": [1, 2]}).test
    typed = {"type": "literals", "values": [1, 2], "data-type": "int"}
    assert predicate({"type": "in", "child": reference, "values": typed}).test == test
    assert predicate({"type": "is-null", "child": reference}).test == (
        predicate({"type": "is-null", "term": "i"}).test
    )


@pytest.mark.parametrize(
    "body",
    [
        compare("eq", {"type": "transform", "transform": "day", "term": "ts"}, "1970-01-01"),
        {
            "type": "eq",
            "left": {
                "type": "apply",
                "function": "day",
                "arguments": [{"type": "reference", "name": "ts"}],
            },
            "right": 1,
        },
        {
            "type": "lt",
            "left": {"type": "reference", "name": "i"},
            "right": {"type": "reference", "name": "l"},
        },
        {"type": "starts-with", "left": "abc", "right": {"type": "reference", "name": "s"}},
        {
            "type": "is-null",
            "child": {
                "type": "apply",
                "function": "f",
                "arguments": [{"type": "reference", "name": "s"}],
            },
        },
    ],
)
def test_computed_terms_are_left_to_the_client(body):
    expression = predicate(body)
    assert (expression.test, expression.is_exact, expression.source) == (AlwaysTrue(), False, body)
    negation = predicate({"type": "not", "child": body})
    assert (negation.test, negation.source) == (AlwaysTrue(), {"type": "not", "child": body})


def test_names():
    assert parse(compare("eq", "i", 1)).types.keys() == {IDS["i"]}
    assert parse(compare("eq", "I", "a")).types.keys() == {IDS["I"]}
    folded = parse(compare("eq", "PLACE.CITY", "Graz"), case_sensitive=False)
    assert folded.types.keys() == {51}
    assert expressions.to_json(folded.expression) == compare("eq", "PLACE.CITY", "Graz")
    with pytest.raises(InvalidInput, match=r"'i' may be any of 'i', 'I'"):
        parse(compare("eq", "i", 1), case_sensitive=False)
    assert predicate({"type": "is-null", "term": "place"}).test == AlwaysTrue()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (5, "filter: expected a predicate, not an integer"),
        ("i < 5", "filter: expected a predicate, not a string"),
        ([], "filter: expected a predicate, not an array"),
        ({}, "filter: null is no type of a predicate"),
        ({"type": "xor"}, "filter: 'xor' is no type of a predicate"),
        ({"type": ["and"]}, "filter: an array is no type of a predicate"),
        ({"type": "not"}, "filter: expected a predicate, not null"),
        ({"type": "and", "left": True}, "filter: and needs right"),
        ({"type": "or", "right": True}, "filter: or needs left"),
        ({"type": "is-null"}, "filter: is-null needs child or term"),
        ({"type": "is-null", "term": "i", "child": "i"}, "filter: is-null needs child or term"),
        ({"type": "is-null", "term": "nothing"}, "filter: there is no column 'nothing'"),
        ({"type": "is-null", "term": "I "}, "filter: there is no column 'I '"),
        (
            {"type": "is-null", "child": {"type": "reference", "id": 99}},
            "filter: there is no column with id 99",
        ),
        (
            {"type": "is-null", "child": {"type": "reference"}},
            "filter: a reference needs a name or an id",
        ),
        ({"type": "is-null", "child": {"type": "what"}}, "filter: 'what' is no type of a term"),
        ({"type": "is-null", "term": 5}, "filter: expected the name of a column, not an integer"),
        (
            compare("eq", {"type": "transform", "term": "ts"}, 1),
            "filter: a transform needs its name",
        ),
        (
            compare("eq", {"type": "transform", "transform": "day", "term": "nothing"}, 1),
            "filter: there is no column 'nothing'",
        ),
        (
            {
                "type": "eq",
                "left": {
                    "type": "apply",
                    "function": "f",
                    "arguments": [{"type": "reference", "name": "nothing"}],
                },
                "right": 1,
            },
            "filter: there is no column 'nothing'",
        ),
        ({"type": "is-nan", "term": "i"}, "filter: 'i' is of type int, which has no NaN"),
        (compare("starts-with", "b", "00"), "filter: 'b' is of type binary, which has no prefixes"),
        (compare("eq", "place", "x"), "filter: 'place' is a struct, which eq cannot test"),
        (
            {"type": "is-null", "term": "tags.element"},
            "filter: 'tags.element' lies in a list or a map, of which a row has many values",
        ),
        ({"type": "eq", "term": "i"}, "filter: eq needs value"),
        ({"type": "eq", "value": 1}, "filter: eq needs term"),
        ({"type": "eq", "left": 1}, "filter: eq needs right"),
        ({"type": "eq", "left": 1, "right": 1}, "filter: eq compares a literal with a literal"),
        (
            {"type": "eq", "term": "i", "value": 1, "left": 1},
            "filter: eq has left and right, or term and value, not both",
        ),
        (compare("eq", "i", {"x": 1}), "filter: expected a literal, not an object"),
        (compare("eq", "i", {"type": "literal"}), "filter: expected a literal, not null"),
        (compare("eq", "i", [1]), "filter: expected a literal, not an array"),
        (
            {"type": "in", "term": "i", "values": 5},
            "filter: values must be an array, not an integer",
        ),
        ({"type": "in", "term": "i"}, "filter: values must be an array, not null"),
        ({"type": "in", "term": "i", "values": [None]}, "filter: expected a literal, not null"),
        (
            {"type": "in", "term": "i", "values": ["a"]},
            "filter: 'i': a string is no value of type int",
        ),
        (compare("eq", "flag", 1), "filter: 'flag': an integer is no value of type boolean"),
        (compare("eq", "i", True), "filter: 'i': a boolean is no value of type int"),
        (
            compare("eq", "i", 1.0),
            "filter: 'i': a fractional or too large number is no value of type int",
        ),
        (compare("eq", "l", "1"), "filter: 'l': a string is no value of type long"),
        (compare("eq", "f", "NaN"), "filter: 'f': a string is no value of type float"),
        (compare("eq", "n", "NaN"), "filter: 'n': 'NaN' is no value of type decimal(9, 2)"),
        (compare("eq", "n", "one"), "filter: 'n': 'one' is no value of type decimal(9, 2)"),
        (compare("eq", "day", "1970-13-01"), "filter: 'day': month must be in 1..12"),
        (compare("eq", "day", True), "filter: 'day': a boolean is no value of type date"),
        (compare("eq", "clock", "25:00"), "filter: 'clock': hour must be in 0..23"),
        (
            compare("eq", "ts", "1970-01-01"),
            "filter: 'ts': '1970-01-01' is no value of type timestamp",
        ),
        (
            compare("eq", "ts", "1970-01-01T00:00:00Z"),
            "filter: 'ts': '1970-01-01T00:00:00Z' has a zone, and type timestamp has none",
        ),
        (compare("eq", "ts", "1970-02-30T00:00:00"), "filter: 'ts': day is out of range for month"),
        (compare("eq", "s", 5), "filter: 's': an integer is no value of type string"),
        (compare("eq", "u", "eb26"), "filter: 'u': badly formed hexadecimal UUID string"),
        (
            compare("eq", "b", "0g"),
            "filter: 'b': non-hexadecimal number found in fromhex() arg at position 1",
        ),
    ],
)
def test_refusals(body, message):
    for value in (body, {"type": "and", "left": True, "right": body}):
        with pytest.raises(InvalidInput) as refusal:
            parse(value)
        assert str(refusal.value) == message


def test_long_chains_are_accepted_and_deep_nesting_is_refused():
    comparison = compare("eq", "i", 1)
    chain: Any = comparison
    for _ in range(5000):
        chain = {"type": "and", "left": chain, "right": comparison}
    expression = parse(chain).expression
    assert isinstance(expression, AllOf)
    assert len(expression.parts) == 5001
    expressions.to_test(expression, lambda leaf: leaf.test)
    json.dumps(expressions.to_json(expression))
    nested: Any = comparison
    for level in range(filter_parsing.MAX_DEPTH):
        nested = {"type": ("or", "and")[level % 2], "left": nested, "right": comparison}
    assert isinstance(parse(nested).expression, AllOf)
    with pytest.raises(InvalidInput, match="nested deeper than 100 levels"):
        parse({"type": "or", "left": nested, "right": comparison})
    with pytest.raises(InvalidInput, match="nested deeper than 100 levels"):
        parse({"type": "not", "child": {"type": "not", "child": nested}})


def test_the_residual_contains_only_undecided_predicates():
    first, second, third = (compare("eq", "i", number) for number in (1, 2, 3))
    body = {
        "type": "not",
        "child": {
            "type": "and",
            "left": first,
            "right": {"type": "or", "left": second, "right": third},
        },
    }
    expression = parse(body).expression
    assert isinstance(expression, AnyOf)
    assert expressions.to_json(expression) == {
        "type": "or",
        "left": compare("not-eq", "i", 1),
        "right": {
            "type": "and",
            "left": compare("not-eq", "i", 2),
            "right": compare("not-eq", "i", 3),
        },
    }

    def without(number: int, is_known: bool):
        return expressions.to_json(
            expressions.settle(
                expression, lambda leaf: is_known if leaf.source["value"] == number else leaf
            )
        )

    assert without(1, True) is True
    assert without(1, False) == {
        "type": "and",
        "left": compare("not-eq", "i", 2),
        "right": compare("not-eq", "i", 3),
    }
    assert without(2, False) == compare("not-eq", "i", 1)
    assert without(2, True) == {
        "type": "or",
        "left": compare("not-eq", "i", 1),
        "right": compare("not-eq", "i", 3),
    }
