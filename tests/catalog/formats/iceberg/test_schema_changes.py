"""The differences between two schemas, by field ids."""

import pytest

from catalog.formats.iceberg.schema_changes import Change, ChangeKind, changes


def field(id_, name, type_="int", required=False, **more):
    return {"id": id_, "name": name, "type": type_, "required": required, **more}


def schema(*fields, identifiers=()):
    return {"type": "struct", "fields": list(fields), "identifier-field-ids": list(identifiers)}


def struct(*fields):
    return {"type": "struct", "fields": list(fields)}


def listed(id_, element):
    return {"type": "list", "element-id": id_, "element": element, "element-required": False}


A, B, C, D = (field(number, name) for number, name in enumerate("abcd", start=1))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (schema(A, B), schema(A, B), []),
        (schema(A), schema(A, B), [Change(ChangeKind.ADDED, 2, "b", "", "int")]),
        (
            schema(A),
            schema(A, field(2, "b", "string", True)),
            [Change(ChangeKind.ADDED, 2, "b", "", "string required")],
        ),
        (schema(A, B), schema(A), [Change(ChangeKind.DROPPED, 2, "b", "int", "")]),
        (
            schema(A, B),
            schema(A, field(2, "z")),
            [Change(ChangeKind.RENAMED, 2, "z", "b", "z")],
        ),
        # The same name with another id is another field.
        (
            schema(A, B),
            schema(A, field(3, "b")),
            [
                Change(ChangeKind.ADDED, 3, "b", "", "int"),
                Change(ChangeKind.DROPPED, 2, "b", "int", ""),
            ],
        ),
        (
            schema(A),
            schema(field(1, "a", "long")),
            [Change(ChangeKind.TYPE, 1, "a", "int", "long")],
        ),
        (
            schema(A),
            schema(field(1, "a", required=True)),
            [Change(ChangeKind.REQUIRED, 1, "a", "optional", "required")],
        ),
        (
            schema(A),
            schema(A, identifiers=[1]),
            [Change(ChangeKind.IDENTIFIER, 1, "a", "no identifier", "identifier")],
        ),
        (
            schema(A),
            schema(field(1, "a", doc="what it is")),
            [Change(ChangeKind.DOC, 1, "a", "", "what it is")],
        ),
        (
            schema(field(1, "a", **{"write-default": 2**63 - 1})),
            schema(field(1, "a", **{"write-default": 7})),
            [Change(ChangeKind.DEFAULT, 1, "a", "9223372036854775807", "7")],
        ),
        # Only moved fields are listed, not those they passed.
        (
            schema(A, B, C, D),
            schema(D, A, B, C),
            [Change(ChangeKind.MOVED, 4, "d", "after c", "first")],
        ),
        (
            schema(A, B, C, D),
            schema(B, C, A, D),
            [Change(ChangeKind.MOVED, 1, "a", "first", "after c")],
        ),
        (schema(A, B, C), schema(A, C), [Change(ChangeKind.DROPPED, 2, "b", "int", "")]),
        # Several changes.
        (
            schema(A, B, C),
            schema(field(3, "c2", "long"), A, D),
            [
                Change(ChangeKind.TYPE, 3, "c2", "int", "long"),
                Change(ChangeKind.RENAMED, 3, "c2", "c", "c2"),
                Change(ChangeKind.MOVED, 3, "c2", "after b", "first"),
                Change(ChangeKind.ADDED, 4, "d", "", "int"),
                Change(ChangeKind.DROPPED, 2, "b", "int", ""),
            ],
        ),
        # Inside a struct; adding a struct implies adding its fields.
        (
            schema(field(1, "p", struct(field(2, "x"), field(3, "y")))),
            schema(field(1, "p", struct(field(3, "y", "long"), field(2, "x")))),
            [
                Change(ChangeKind.TYPE, 3, "p.y", "int", "long"),
                Change(ChangeKind.MOVED, 3, "p.y", "after p.x", "first in p"),
            ],
        ),
        (
            schema(A),
            schema(A, field(2, "p", struct(field(3, "x"), field(4, "y")))),
            [Change(ChangeKind.ADDED, 2, "p", "", "struct")],
        ),
        (
            schema(A, field(2, "p", struct(field(3, "x")))),
            schema(A),
            [Change(ChangeKind.DROPPED, 2, "p", "struct", "")],
        ),
        (
            schema(A, field(2, "p", struct(field(3, "x")))),
            schema(A, field(2, "p", struct()), field(3, "x")),
            [Change(ChangeKind.MOVED, 3, "x", "first in p", "after p")],
        ),
        # A renamed struct is one change: its fields keep their names.
        (
            schema(field(1, "p", struct(field(2, "x")))),
            schema(field(1, "q", struct(field(2, "x")))),
            [Change(ChangeKind.RENAMED, 1, "q", "p", "q")],
        ),
        # An element's type change is listed once, at the element.
        (
            schema(field(1, "l", listed(2, "int"))),
            schema(field(1, "l", listed(2, "long"))),
            [Change(ChangeKind.TYPE, 2, "l.element", "int", "long")],
        ),
        (
            schema(field(1, "l", listed(2, "int"))),
            schema(field(1, "l", "string")),
            [
                Change(ChangeKind.TYPE, 1, "l", "list<int>", "string"),
                Change(ChangeKind.DROPPED, 2, "l.element", "int", ""),
            ],
        ),
    ],
)
def test_changes_are_described(old, new, expected):
    assert changes(old, new) == expected


def test_a_reversed_schema_of_10_000_columns_is_compared_quickly():
    forwards = [field(number, f"c{number}") for number in range(10_000)]
    differences = changes(schema(*forwards), schema(*forwards[::-1]))
    assert len(differences) == 9_999
    assert {change.kind for change in differences} == {ChangeKind.MOVED}


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"fields": None},
        {"fields": [None, 1, "x", [], {}]},
        {"fields": [{"id": "1", "name": 7, "type": None}]},
        {"fields": [{"id": 1, "name": "a", "type": struct(field(1, "a", struct(field(1, "a"))))}]},
        {"fields": [field(1, "a"), field(1, "a"), field(1, "b")]},
        {"fields": [field(1, "a", {"type": "list"}), field(2, "b", {"type": "map", "key": []})]},
        {"fields": [field(1, "a", **{"write-default": {"x": [1]}})], "identifier-field-ids": [{}]},
    ],
)
def test_invalid_schemas_are_compared(odd):
    sound = schema(A, field(2, "p", struct(field(3, "x"))))
    assert isinstance(changes(odd, sound), list)
    assert isinstance(changes(sound, odd), list)
    assert changes(odd, odd) == []
