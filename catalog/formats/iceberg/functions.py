"""Validation of the metadata of user-defined functions (Iceberg UDF spec; FunctionMetadata).

Unlike in a schema, types have no ids and no ``required``. Unknown fields are kept.
"""

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.reading import (
    INT_MAX,
    Document,
    as_object,
    at,
    boolean_at,
    filled_text_at,
    integer_at,
    kind,
    objects_at,
    optional_text_at,
    required,
    shown,
    strings_by_name_at,
    text_at,
    uuid_at,
)
from catalog.formats.iceberg.schema import primitives

FORMAT_VERSION = 1
_MAX_DEPTH = 50
_KINDS = frozenset({"udf", "udtf"})
_ON_NULL_INPUT = frozenset({"return-null", "call"})
_ESCAPED = str.maketrans({mark: "\\" + mark for mark in "\\:,<>"})


def check(document: Document) -> None:
    """Raise InvalidMetadata with the path to the first fault."""
    as_object(document, "")
    uuid_at(document, "function-uuid", "")
    integer_at(document, "format-version", "", FORMAT_VERSION, FORMAT_VERSION)
    _check_definitions(document)
    _check_log(document)
    optional_text_at(document, "location", "")
    optional_text_at(document, "doc", "")
    if document.get("properties") is not None:
        strings_by_name_at(document, "properties", "")
    if document.get("secure") is not None:
        boolean_at(document, "secure", "")


def check_successor(document: Document, before: Document) -> None:
    """Raise InvalidMetadata if an update changes the uuid or the content of a stored version."""
    if document["function-uuid"].lower() != before["function-uuid"].lower():
        raise InvalidMetadata("function-uuid must not change: it tells which function this is")
    old = {
        (definition["definition-id"], version["version-id"]): version
        for definition in before["definitions"]
        for version in definition["versions"]
    }
    for i, definition in enumerate(document["definitions"]):
        for j, version in enumerate(definition["versions"]):
            was = old.get((definition["definition-id"], version["version-id"]), version)
            if version != was:
                raise InvalidMetadata(
                    f"definitions[{i}].versions[{j}]: version {version['version-id']} of "
                    f"{shown(definition['definition-id'])} is there already; add a new version"
                )


def definition_id(parameters: list[Document], path: str = "parameters") -> str:
    """The canonical signature of parameters: ``int,list<int>,struct<id:int>``."""
    return ",".join(
        _type_id(required(parameter, "type", f"{path}[{i}]"), f"{path}[{i}].type", 0)
        for i, parameter in enumerate(parameters)
    )


def _type_id(type_: object, path: str, depth: int) -> str:
    if depth > _MAX_DEPTH:
        raise InvalidMetadata(f"{path}: types are nested deeper than {_MAX_DEPTH} levels")
    if isinstance(type_, str):
        if " " in type_ or '"' in type_ or "'" in type_:
            raise InvalidMetadata(f"{path}: {shown(type_)} must hold no spaces and no quotes")
        primitives.base_name(type_, path)
        return type_
    if not isinstance(type_, dict):
        raise InvalidMetadata(f"{path} must be a type's name or an object, not {kind(type_)}")
    name = text_at(type_, "type", path)
    if name == "list":
        return f"list<{_part(type_, 'element', path, depth)}>"
    if name == "map":
        return f"map<{_part(type_, 'key', path, depth)},{_part(type_, 'value', path, depth)}>"
    if name != "struct":
        raise InvalidMetadata(f"{at(path, 'type')}: unknown type {shown(name)}")
    parts = []
    names: set[str] = set()
    for i, member in enumerate(objects_at(type_, "fields", path)):
        here = f"{path}.fields[{i}]"
        field = filled_text_at(member, "name", here)
        if field in names:
            raise InvalidMetadata(f"{here}: there are two fields named {shown(field)}")
        names.add(field)
        parts.append(f"{field.translate(_ESCAPED)}:{_part(member, 'type', here, depth)}")
    return f"struct<{','.join(parts)}>"


def _part(owner: Document, key: str, path: str, depth: int) -> str:
    return _type_id(required(owner, key, path), at(path, key), depth + 1)


def _check_definitions(document: Document) -> None:
    ids: set[str] = set()
    specific: set[str] = set()
    definitions = objects_at(document, "definitions", "")
    if not definitions:
        raise InvalidMetadata("definitions must not be empty")
    for i, definition in enumerate(definitions):
        path = f"definitions[{i}]"
        id_ = text_at(definition, "definition-id", path)
        if id_ in ids:
            raise InvalidMetadata(f"{path}: there are two definitions {shown(id_)}")
        name = optional_text_at(definition, "specific-name", path)
        if name is not None and name in specific:
            raise InvalidMetadata(f"{path}: there are two with specific-name {shown(name)}")
        specific |= {name} if name is not None else set()
        _check_signature(definition, id_, path)
        optional_text_at(definition, "doc", path)
        if definition.get("return-nullable") is not None:
            boolean_at(definition, "return-nullable", path)
        ids.add(id_)
        versions = _check_versions(definition, path)
        current = integer_at(definition, "current-version-id", path, high=INT_MAX)
        if current not in versions:
            raise InvalidMetadata(f"{path}.current-version-id {current} is not in versions")


def _check_signature(definition: Document, id_: str, path: str) -> None:
    names: set[str] = set()
    parameters = objects_at(definition, "parameters", path)
    for i, parameter in enumerate(parameters):
        here = f"{path}.parameters[{i}]"
        name = filled_text_at(parameter, "name", here)
        if name in names:
            raise InvalidMetadata(f"{here}: there are two parameters named {shown(name)}")
        names.add(name)
        optional_text_at(parameter, "doc", here)
    expected = definition_id(parameters, f"{path}.parameters")
    if id_ != expected:
        raise InvalidMetadata(
            f"{path}.definition-id is {shown(id_)}, but its parameters make {shown(expected)}"
        )
    returned = required(definition, "return-type", path)
    _type_id(returned, f"{path}.return-type", 0)
    function = text_at(definition, "function-type", path)
    if function not in _KINDS:
        raise InvalidMetadata(f"{path}.function-type must be udf or udtf, not {shown(function)}")
    if function == "udtf" and (not isinstance(returned, dict) or returned["type"] != "struct"):
        raise InvalidMetadata(f"{path}.return-type of a udtf must be a struct")


def _check_versions(definition: Document, path: str) -> set[int]:
    numbers: set[int] = set()
    for i, version in enumerate(objects_at(definition, "versions", path)):
        here = f"{path}.versions[{i}]"
        number = integer_at(version, "version-id", here, high=INT_MAX)
        if number in numbers:
            raise InvalidMetadata(f"{here}: there are two versions {number}")
        numbers.add(number)
        integer_at(version, "timestamp-ms", here)
        if version.get("deterministic") is not None:
            boolean_at(version, "deterministic", here)
        on_null = optional_text_at(version, "on-null-input", here)
        if on_null is not None and on_null not in _ON_NULL_INPUT:
            raise InvalidMetadata(
                f"{here}.on-null-input must be return-null or call, not {shown(on_null)}"
            )
        _check_representations(version, here)
    if not numbers:
        raise InvalidMetadata(f"{path}.versions must not be empty")
    return numbers


def _check_representations(version: Document, path: str) -> None:
    dialects: set[str] = set()
    for i, representation in enumerate(objects_at(version, "representations", path)):
        here = f"{path}.representations[{i}]"
        name = text_at(representation, "type", here)
        if name != "sql":
            raise InvalidMetadata(f"{here}.type must be sql, not {shown(name)}")
        dialect = filled_text_at(representation, "dialect", here).lower()
        if dialect in dialects:
            raise InvalidMetadata(f"{here}: there are two of dialect {shown(dialect)}")
        dialects.add(dialect)
        filled_text_at(representation, "sql", here)
    if not dialects:
        raise InvalidMetadata(f"{path}.representations must not be empty")


def _check_log(document: Document) -> None:
    """Check the log. An entry may name a removed version: only recent versions are kept."""
    for i, entry in enumerate(objects_at(document, "definition-log", "")):
        path = f"definition-log[{i}]"
        integer_at(entry, "timestamp-ms", path)
        for j, version in enumerate(objects_at(entry, "definition-versions", path)):
            text_at(version, "definition-id", f"{path}.definition-versions[{j}]")
            integer_at(version, "version-id", f"{path}.definition-versions[{j}]", high=INT_MAX)


def log_entry(document: Document, timestamp_ms: int) -> Document:
    """A definition log entry for the current versions."""
    return {
        "timestamp-ms": timestamp_ms,
        "definition-versions": [
            {
                "definition-id": definition["definition-id"],
                "version-id": definition["current-version-id"],
            }
            for definition in document["definitions"]
        ],
    }


def complete(definitions: object, timestamp_ms: int) -> list[Document]:
    """Add ids, times and versions to definitions as people write them.

    Raises InvalidMetadata for a value of the wrong kind among those that it reads.
    """
    made = []
    for i, definition in enumerate(objects_at({"definitions": definitions}, "definitions", "")):
        path = f"definitions[{i}]"
        filled = {"function-type": "udf", **definition}
        if "definition-id" not in definition:
            parameters = objects_at(definition, "parameters", path)
            filled["definition-id"] = definition_id(parameters, f"{path}.parameters")
        versions = objects_at(definition, "versions", path)
        filled["versions"] = [
            {"version-id": j, "timestamp-ms": timestamp_ms, **version}
            for j, version in enumerate(versions, 1)
        ]
        ids = [version["version-id"] for version in filled["versions"]]
        if "current-version-id" not in definition and all(type(id_) is int for id_ in ids):
            filled["current-version-id"] = max(ids, default=0)
        made.append(filled)
    return made
