"""OpenAPI documents, generated from the routes of a protocol and the classes of its operations.

All texts of an operation come from its view. The first line of the class's docstring is the summary, the other
lines are the description. The operation's tag is the module of the class, whose docstring starts with the tag's
name, a colon, and the tag's description. Examples are in ``examples.json`` of the protocol's package.
"""

import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.plumbing import ResolvedComponent
from pydantic import BaseModel

from api.errors import BodyTooLarge, TooManyRequests
from api.operation import Operation
from catalog import errors
from catalog.errors import CatalogError

JSON = "application/json"
Described = dict[str, Any]
API_KEY: Described = {
    "type": "apiKey",
    "in": "header",
    "name": "x-api-key",
    "description": "An API key of Monodon.",
}
BEARER: Described = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key, an access token of this server, or a token of a configured OIDC issuer.",
}
ERRORS: Mapping[str, str] = {
    "400": "Malformed request",
    "401": "No valid credentials",
    "403": "Not permitted",
    "404": "Not found",
    "409": "Conflict with the current state",
    "413": "The request body is too large",
    "429": "Too many requests at once, or too many wrong credentials",
    "503": "Try again later",
    "5XX": "Server error",
}


class ProtocolSchemaGenerator(SchemaGenerator):
    """Describes the operations of one protocol. Subclasses name its routes and its conventions."""

    document_title: ClassVar[str]
    document_description: ClassVar[str]
    security_schemes: ClassVar[Mapping[str, Described]]
    security: ClassVar[list[dict[str, list[str]]]]
    """Any of these schemes suffices."""
    path_parameters: ClassVar[Mapping[str, Described]]
    """Description and schema of each parameter of a path, by its name."""
    query_parameters: ClassVar[Mapping[str, Described]]
    """The same of query parameters. The ``described`` of an operation comes first; other names are strings."""
    errors: ClassVar[Mapping[str, str]] = ERRORS
    """The description of each status that an operation may refuse with."""
    error_model: ClassVar[type[BaseModel]]
    error_media: ClassVar[str] = JSON
    mode: ClassVar[Literal["validation", "serialization"]] = "validation"
    """The mode of pydantic's JSON schema that describes a model."""

    def routes(self) -> Iterator[tuple[str, type[Operation]]]:
        """Path and operation of every route, in the order of the document."""
        raise NotImplementedError

    def body(self, operation: type[Any]) -> Described | None:
        """The content of the request body, by media type; None if there is no body."""
        model = operation.request_model
        return None if model is None else self.content(model)

    def answers(self, operation: type[Any]) -> dict[str, Described]:
        """The answers other than refusals, by status."""
        raise NotImplementedError

    def operation_id(self, operation: type[Operation]) -> str:
        return operation.__name__

    def parameters(self, path: str, operation: type[Any]) -> list[Described]:
        described = {**self.query_parameters, **operation.described}
        string = {"schema": {"type": "string"}}
        return [
            *(
                {"name": name, "in": "path", "required": True, **parameter}
                for name, parameter in self.path_parameters.items()
                if f"{{{name}}}" in path
            ),
            *(
                {"name": name, "in": "query", **described.get(name, string)}
                for name in operation.query
            ),
        ]

    def failures(self, operation: type[Any]) -> dict[str, str]:
        """The description of each refusal of an operation, by status."""
        return {
            status: text
            for status, text in self.errors.items()
            if status != "413" or self.body(operation) is not None
        }

    def error_of(self, operation: type[Any]) -> type[BaseModel]:
        return self.error_model

    def security_of(self, operation: type[Operation]) -> list[dict[str, list[str]]]:
        return self.security

    def render_error(self, error: CatalogError) -> tuple[int, bytes]:
        """Status and body of a refusal."""
        raise NotImplementedError

    # -- the document

    def get_schema(self, request: Any = None, public: bool = False) -> Described:
        document: Described = super().get_schema(request, public)  # type: ignore[no-untyped-call]
        tags = dict(tag_of(operation) for _, operation in self.routes())
        document["tags"] = [{"name": name, "description": tags[name]} for name in sorted(tags)]
        examples = error_examples(self.render_error, self.errors)
        add_error_examples(document, examples, self.error_model.__name__)
        return document

    def parse(self, input_request: Any, public: bool) -> Described:
        self._names: dict[type[BaseModel] | str, str] = {}
        paths: dict[str, Described] = {}
        for path, operation in self.routes():
            method = operation.verb.lower()
            paths.setdefault(path, {})[method] = self._describe(path, operation)
        return paths

    def _describe(self, path: str, operation: type[Operation]) -> Described:
        summary, description = texts_of(operation)
        examples = examples_of(type(self).__module__).get(operation.__name__, {})
        described: Described = {
            "operationId": self.operation_id(operation),
            "summary": summary,
            "description": description or summary,
            "tags": [tag_of(operation)[0]],
            "parameters": self.parameters(path, operation),
            "security": self.security_of(operation),
            "responses": self.answers(operation),
        }
        for answer in described["responses"].values():
            _add_example(answer.get("content", {}), examples.get("answer"))
        for status, text in self.failures(operation).items():
            described["responses"][status] = {"description": text}
            if operation.verb != "HEAD":
                error = self.content(self.error_of(operation), self.error_media)
                described["responses"][status]["content"] = error
        body = self.body(operation)
        if body is not None:
            _add_example(body, examples.get("request"))
            described["requestBody"] = {"required": True, "content": body}
        return described

    def content(self, model: type[BaseModel] | str, media: str = JSON) -> Described:
        """Content of one media type. A name refers to an object that no model describes."""
        name = self._names.get(model)
        if name is None:
            name = self._names[model] = model if isinstance(model, str) else model.__name__
            if isinstance(model, str):
                schemas = {name: {"type": "object", "additionalProperties": True}}
            else:
                schema = model.model_json_schema(
                    by_alias=True, ref_template="#/components/schemas/{model}", mode=self.mode
                )
                schemas = schema.pop("$defs", {}) | {name: schema}
            for schema_name, schema in schemas.items():
                self._register(schema_name, schema)
        return {media: {"schema": {"$ref": f"#/components/schemas/{name}"}}}

    def _register(self, name: str, schema: Described) -> None:
        component = ResolvedComponent(  # type: ignore[no-untyped-call]
            name=name, type=ResolvedComponent.SCHEMA, object=name, schema=schema
        )
        self.registry.register_on_missing(component)


def texts_of(operation: type[Operation]) -> tuple[str, str]:
    """Summary and description of an operation. The description may be empty."""
    summary, _, description = inspect.cleandoc(operation.__doc__ or "").partition("\n")
    return summary.removesuffix("."), description.strip()


def tag_of(operation: type[Operation]) -> tuple[str, str]:
    """Name and description of an operation's tag."""
    module = operation.__module__
    first_line = (sys.modules[module].__doc__ or "").partition("\n")[0]
    name, _, description = first_line.partition(": ")
    if not description:
        return module.rpartition(".")[2].replace("_", " ").capitalize(), name
    return name, f"{description[:1].upper()}{description[1:]}"


@cache
def examples_of(module: str) -> dict[str, dict[str, Any]]:
    """The examples of a document's package: ``request`` and ``answer`` by the name of the operation's class."""
    file = Path(str(sys.modules[module].__file__)).with_name("examples.json")
    return json.loads(file.read_text()) if file.exists() else {}


def _add_example(content: Described, example: Any) -> None:
    if example is not None:
        for media in content.values():
            media["example"] = example


# --- examples of refusals ------------------------------------------------------------------------


def error_examples(
    render: Callable[[CatalogError], tuple[int, bytes]], statuses: Collection[str]
) -> dict[str, Any]:
    """Examples of refusals, by status, of those statuses that have one."""
    examples: dict[str, Any] = {}
    for error in _samples():
        number, body = render(error)
        status = str(number) if str(number) in statuses else f"{number // 100}XX"
        if status in statuses and status not in examples:
            examples[status] = {"summary": error.message, "value": json.loads(body)}
    return examples


def component_name(status: str) -> str:
    return f"Error{status}"


def add_error_examples(document: dict[str, Any], examples: dict[str, Any], model: str) -> None:
    """Add the examples to the document, and refer to them from the responses of this model."""
    schema = {"$ref": f"#/components/schemas/{model}"}
    components = document["components"].setdefault("examples", {})
    components.update({component_name(status): value for status, value in examples.items()})
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                example = status if status in examples else f"{status[0]}XX"
                reference = f"#/components/examples/{component_name(example)}"
                for media in response.get("content", {}).values():
                    if example in examples and media["schema"] == schema:
                        media["examples"] = {"Example": {"$ref": reference}}


def _samples() -> list[CatalogError]:
    return [
        errors.InvalidInput("limit is 'ten'; use a whole number"),
        errors.Unauthenticated("The API key is unknown, expired or revoked"),
        errors.PermissionDenied("'etl' may not write table 'sales.orders'"),
        errors.TableNotFound(("sales", "orders")),
        errors.Unsupported("Version 3 of the table format is not supported"),
        errors.TableAlreadyExists(("sales", "orders")),
        errors.ContradictoryInput("The properties to set and to remove both contain 'owner'"),
        BodyTooLarge(16_777_216),
        errors.TokenExpired(),
        TooManyRequests("'etl'", 64, 1),
        errors.ServiceUnavailable("The database is being restarted; try again later"),
        errors.OutcomeUnknown("The connection to the database was lost during the commit"),
    ]
