"""All fields of requests that accept text, from the OpenAPI documents that the server serves.

Other tests require that these documents agree with the specifications of the protocols.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Names = tuple[str, ...]

_SIBLINGS: dict[str, Any] = {
    "id": ["ws", "t"],
    "identifier": {"namespace": ["ws"], "name": "t"},
    "source": {"namespace": ["ws"], "name": "t"},
    "destination": {"namespace": ["ws"], "name": "u"},
    "namespace": ["ws"],
    "requirements": [],
    "ref-name": "main",
    "operation": "append",
    "manifest-list": "metadata/own.avro",
    "version": 2,
    "format-version": 2,
    "sequence-number": 99,
    "timestamp-ms": 4_102_444_800_000,
}
"""Values that lead a request further than the simplest value of their type."""
_ALWAYS = {"id", "identifier"}
"""Optional fields that name the object of a request."""
_OWN_KEYS = (
    *("location", "write.data.path", "write.metadata.path", "write.object-storage.path"),
    *("write.folder-storage.path", "lance.location", "uri", "s3.endpoint", "base_uri"),
    *("py-io-impl", "io-impl", "metadata-location", "manifest-list", "provider"),
)
"""Keys of maps that could have a meaning for a reader."""


@dataclass(frozen=True)
class Field:
    """A field that accepts text, in the body, the query or a header."""

    container: str
    names: Names
    make: Callable[[str], Any]
    """The body with a text in this field; for a parameter, the text."""

    def __str__(self) -> str:
        return f"{self.container} {'.'.join(self.names)}"


def fields(document: dict[str, Any], operation: str) -> Iterator[Field]:
    """The fields of an operation's request."""
    for item in document["paths"].values():
        for described in item.values():
            if isinstance(described, dict) and described.get("operationId") == operation:
                schemas = _Schemas(document)
                parameters = (*item.get("parameters", ()), *described.get("parameters", ()))
                for parameter in map(schemas.resolve, parameters):
                    if parameter["in"] in {"query", "header"}:
                        yield Field(parameter["in"], (parameter["name"],), str)
                body = schemas.resolve(described.get("requestBody", {})).get("content", {})
                for media, content in body.items():
                    if "json" in media or "form" in media:
                        for names, make in schemas.texts(content["schema"], is_body=True):
                            yield Field("body", names, make)


class _Schemas:
    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def resolve(self, node: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in node:
            step: Any = self._document
            for name in node["$ref"].removeprefix("#/").split("/"):
                step = step[name]
            node = step
        if "allOf" in node:
            merged: dict[str, Any] = {key: value for key, value in node.items() if key != "allOf"}
            for base in map(self.resolve, node["allOf"]):
                for key, value in base.items():
                    if key == "properties":
                        merged[key] = value | merged.get(key, {})
                    elif key == "required":
                        merged[key] = [*merged.get(key, ()), *value]
                    else:
                        merged.setdefault(key, value)
            return merged
        return node

    def texts(
        self, node: dict[str, Any], within: tuple[str, ...] = (), *, is_body: bool = False
    ) -> Iterator[tuple[Names, Callable[[str], Any]]]:
        """Each place for a text in a value of this schema, and how to make such a value.

        A schema that contains itself is followed once.
        """
        reference = node.get("$ref")
        if reference is not None:
            if reference in within:
                return
            within = (*within, reference)
        node = self.resolve(node)
        variants = [*node.get("oneOf", ()), *node.get("anyOf", ())]
        for variant in variants:
            yield from self.texts(variant, within, is_body=is_body)
        if "const" in node or "enum" in node:
            return
        types = self._types(node)
        if "string" in types or not (types or variants or "properties" in node):
            yield (), str
        if "array" in types:
            for names, make in self.texts(node.get("items", {}), within):
                yield ("[]", *names), lambda text, make=make: [make(text)]
        properties = node.get("properties", {})
        for name, inner in properties.items():
            siblings = self._least_object(node, is_body=is_body)
            for names, make in self.texts(inner, within):
                yield (
                    (name, *names),
                    lambda text, name=name, make=make, siblings=siblings: (
                        siblings | {name: make(text)}
                    ),
                )
        values = node.get("additionalProperties")
        if isinstance(values, dict) and "object" in types and not properties:
            for names, make in self.texts(values, within):
                yield (
                    ("*", *names),
                    lambda text, make=make: {key: make(text) for key in (*_OWN_KEYS, text)},
                )

    @staticmethod
    def _types(node: dict[str, Any]) -> set[str]:
        types = node.get("type", ())
        return {types} if isinstance(types, str) else set(types)

    def _least_object(self, node: dict[str, Any], *, is_body: bool = False) -> dict[str, Any]:
        """A small object. The example adds to the body what it lacks."""
        properties = node.get("properties", {})
        required = set(node.get("required", ())) | _ALWAYS
        return {
            name: self._least(properties[name], name)
            for name in properties
            if name in required and not is_body
        }

    def _least(self, node: dict[str, Any], name: str, depth: int = 0) -> Any:
        """A small value of a schema."""
        node = self.resolve(node)
        for key in ("const", "default"):
            if key in node:
                return node[key]
        if "enum" in node:
            return node["enum"][0]
        if name in _SIBLINGS:
            return _SIBLINGS[name]
        for variants in ("oneOf", "anyOf"):
            if variants in node:
                return self._least(node[variants][0], name, depth)
        types = self._types(node)
        if "object" in types or "properties" in node:
            return self._least_object(node) if depth < 5 else {}
        if "array" in types:
            return [self._least(node.get("items", {}), "", depth + 1)]
        if "integer" in types or "number" in types:
            return 1
        return False if "boolean" in types else "x"
