"""Metadata of user-defined functions."""

import copy
from typing import Any

import pytest

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg import functions

VERSION = {
    "version-id": 1,
    "representations": [{"type": "sql", "dialect": "spark", "sql": "x + 1"}],
    "timestamp-ms": 1000,
}
DEFINITION = {
    "definition-id": "int",
    "parameters": [{"name": "x", "type": "int", "doc": "a number"}],
    "return-type": "int",
    "versions": [VERSION],
    "current-version-id": 1,
    "function-type": "udf",
}
FUNCTION: dict[str, Any] = {
    "function-uuid": "42fd3f91-bc10-41c1-8a52-92b57dd0a9b2",
    "format-version": 1,
    "definitions": [DEFINITION],
    "definition-log": [
        {
            "timestamp-ms": 1000,
            "definition-versions": [{"definition-id": "int", "version-id": 1}],
        }
    ],
}
TABLE = {"type": "struct", "fields": [{"name": "name", "type": "string", "id": 7}]}


def changed(*path: Any, to: Any = None, without: bool = False) -> dict[str, Any]:
    function = copy.deepcopy(FUNCTION)
    owner: Any = function
    for key in path[:-1]:
        owner = owner[key]
    if without:
        del owner[path[-1]]
    else:
        owner[path[-1]] = to
    return function


D = ("definitions", 0)
V = (*D, "versions", 0)
R = (*V, "representations", 0)


def test_a_valid_function_is_accepted():
    functions.check(FUNCTION)
    functions.check(
        {
            **FUNCTION,
            "location": "file:///x",
            "doc": "adds",
            "secure": True,
            "properties": {"a": "b"},
            "more": 1,
        }
    )
    table = {**DEFINITION, "definition-id": "", "parameters": [], "function-type": "udtf"}
    functions.check({**FUNCTION, "definitions": [DEFINITION, {**table, "return-type": TABLE}]})
    functions.check(
        changed(*V, to={**VERSION, "deterministic": True, "on-null-input": "return-null"})
    )


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ([], ""),
        (["int", "decimal(9,2)", "variant"], "int,decimal(9,2),variant"),
        ([{"type": "list", "element": "int", "element-id": 3}], "list<int>"),
        ([{"type": "map", "key": "string", "value": "int"}, "date"], "map<string,int>,date"),
        (
            [{"type": "struct", "fields": [{"name": "id", "type": "int"}, {"name": "a:b", "type": {"type": "list", "element": "string"}}]}],
            r"struct<id:int,a\:b:list<string>>",
        ),
    ],
)  # fmt: skip
def test_signatures(types, expected):
    parameters = [{"name": f"p{i}", "type": type_} for i, type_ in enumerate(types)]
    assert functions.definition_id(parameters) == expected


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "The document must be an object, not an array"),
        (changed("function-uuid", to="x"), "function-uuid must be a UUID, not 'x'"),
        (changed("function-uuid", without=True), "function-uuid is missing"),
        (changed("format-version", to=2), "format-version must be between 1 and 1"),
        (changed("definitions", to=[]), "definitions must not be empty"),
        (changed("definitions", to={}), "definitions must be an array, not an object"),
        (changed("definitions", to=[DEFINITION] * 2), "definitions[1]: there are two definitions 'int'"),
        (changed("properties", to={"a": 1}), "properties['a'] must be a string, not an integer"),
        (changed("secure", to="no"), "secure must be a boolean, not a string"),
        (changed("doc", to=5), "doc must be a string, not an integer"),
        (changed(*D, "definition-id", to="long"), "definitions[0].definition-id is 'long', but its parameters make 'int'"),
        (changed(*D, "definition-id", to="int "), "definitions[0].definition-id is 'int ', but its parameters make 'int'"),
        (changed(*D, "parameters", to=[{"name": "x"}]), "definitions[0].parameters[0].type is missing"),
        (changed(*D, "parameters", 0, "name", to=""), "definitions[0].parameters[0].name must not be empty"),
        (
            changed(*D, "parameters", to=[{"name": "x", "type": "int"}] * 2),
            "definitions[0].parameters[1]: there are two parameters named 'x'",
        ),
        (changed(*D, "parameters", 0, "type", to="number"), "definitions[0].parameters[0].type: unknown type 'number'"),
        (changed(*D, "parameters", 0, "type", to="decimal(9, 2)"), "definitions[0].parameters[0].type: 'decimal(9, 2)' must hold no spaces and no quotes"),
        (changed(*D, "parameters", 0, "type", to=5), "definitions[0].parameters[0].type must be a type's name or an object, not an integer"),
        (changed(*D, "parameters", 0, "type", to={"type": "set"}), "definitions[0].parameters[0].type.type: unknown type 'set'"),
        (changed(*D, "return-type", to={"type": "list"}), "definitions[0].return-type.element is missing"),
        (
            changed(*D, "return-type", to={"type": "struct", "fields": [{"name": "a", "type": "int"}] * 2}),
            "definitions[0].return-type.fields[1]: there are two fields named 'a'",
        ),
        (changed(*D, "function-type", to="macro"), "definitions[0].function-type must be udf or udtf, not 'macro'"),
        (changed(*D, "function-type", to="udtf"), "definitions[0].return-type of a udtf must be a struct"),
        (changed(*D, "return-nullable", to=1), "definitions[0].return-nullable must be a boolean, not an integer"),
        (changed(*D, "specific-name", to=1), "definitions[0].specific-name must be a string, not an integer"),
        (changed(*D, "versions", to=[]), "definitions[0].versions must not be empty"),
        (changed(*D, "versions", to=[VERSION, VERSION]), "definitions[0].versions[1]: there are two versions 1"),
        (changed(*D, "current-version-id", to=2), "definitions[0].current-version-id 2 is not in versions"),
        (changed(*V, "timestamp-ms", without=True), "definitions[0].versions[0].timestamp-ms is missing"),
        (changed(*V, "version-id", to="1"), "definitions[0].versions[0].version-id must be an integer, not a string"),
        (changed(*V, "deterministic", to="yes"), "definitions[0].versions[0].deterministic must be a boolean, not a string"),
        (changed(*V, "on-null-input", to="skip"), "definitions[0].versions[0].on-null-input must be return-null or call, not 'skip'"),
        (changed(*V, "representations", to=[]), "definitions[0].versions[0].representations must not be empty"),
        (changed(*R, "type", to="java"), "definitions[0].versions[0].representations[0].type must be sql, not 'java'"),
        (changed(*R, "sql", to=""), "definitions[0].versions[0].representations[0].sql must not be empty"),
        (changed(*R, "dialect", without=True), "definitions[0].versions[0].representations[0].dialect is missing"),
        (
            changed(*V, "representations", to=[VERSION["representations"][0]] * 2),
            "definitions[0].versions[0].representations[1]: there are two of dialect 'spark'",
        ),
        (changed("definition-log", without=True), "definition-log is missing"),
        (changed("definition-log", 0, "timestamp-ms", to=None), "definition-log[0].timestamp-ms must be an integer, not null"),
        (
            changed("definition-log", 0, "definition-versions", 0, "version-id", to="1"),
            "definition-log[0].definition-versions[0].version-id must be an integer, not a string",
        ),
    ],
)  # fmt: skip
def test_refusals(document, message):
    with pytest.raises(InvalidMetadata) as refusal:
        functions.check(document)
    assert str(refusal.value) == message


def test_too_deeply_nested_types_are_refused():
    type_: Any = "int"
    for _ in range(50):
        type_ = {"type": "list", "element": type_}
    deeper = {"type": "list", "element": type_}
    functions.check(changed(*D, "return-type", to=type_))
    with pytest.raises(InvalidMetadata, match="nested deeper than 50 levels"):
        functions.check(changed(*D, "return-type", to=deeper))
    functions.definition_id([{"name": "a", "type": type_}])
    with pytest.raises(InvalidMetadata, match="nested deeper than 50 levels"):
        functions.definition_id([{"name": "a", "type": deeper}])


def test_optional_fields_get_defaults():
    short = {
        "parameters": DEFINITION["parameters"],
        "return-type": "int",
        "versions": [{"representations": VERSION["representations"]}] * 2,
    }
    made = functions.complete([short], 1000)
    assert made == [
        {
            "function-type": "udf",
            **short,
            "definition-id": "int",
            "versions": [VERSION, {**VERSION, "version-id": 2}],
            "current-version-id": 2,
        }
    ]
    assert functions.complete([DEFINITION], 5) == [DEFINITION]
    for wrong in (5, [5], [{"versions": []}], [{"parameters": 1}], [{"parameters": []}]):
        with pytest.raises(InvalidMetadata):
            functions.complete(wrong, 0)


def test_existing_versions_are_immutable():
    functions.check_successor(FUNCTION, FUNCTION)
    second = {**VERSION, "version-id": 2}
    functions.check_successor(changed(*D, "versions", to=[VERSION, second]), FUNCTION)
    functions.check_successor(changed(*D, "versions", to=[second]), FUNCTION)
    with pytest.raises(InvalidMetadata, match="version 1 of 'int' is there already"):
        functions.check_successor(changed(*V, "deterministic", to=True), FUNCTION)
    with pytest.raises(InvalidMetadata, match="function-uuid must not change"):
        functions.check_successor(
            changed("function-uuid", to="52fd3f91-bc10-41c1-8a52-92b57dd0a9b2"), FUNCTION
        )
