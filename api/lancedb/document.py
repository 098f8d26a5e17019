"""The OpenAPI document of the dialect: the operations that differ from those of the Lance protocol."""

from collections.abc import Iterator
from typing import Any

from api.lance.document import LanceSchemaGenerator
from api.lance.operation import LanceOperation
from api.lancedb.urls import OWN_ROUTES
from api.openapi import JSON, Described

_DATABASE = {
    "name": "x-lancedb-database",
    "in": "header",
    "required": True,
    "description": (
        "The namespace that all names in the request are relative to, percent-encoded; empty for the root. This"
        " header selects the dialect; without it, the same path is an operation of the Lance protocol."
    ),
    "schema": {"type": "string"},
}
_PREFIX = {
    "name": "x-lancedb-database-prefix",
    "in": "header",
    "required": False,
    "description": "Names of namespaces in the database, joined by slashes: names are relative to the last.",
    "schema": {"type": "string"},
}


class LanceDBSchemaGenerator(LanceSchemaGenerator):
    document_title = "Monodon: LanceDB remote"
    document_description = (
        'The remote protocol of LanceDB\'s clients, `lancedb.connect("db://…", host_override=…)`. This document'
        " has the operations whose requests or answers differ from those of the Lance protocol. The other"
        " operations of that protocol on one table or namespace are the same, with names that are relative to"
        " the database. Conflicts are refused with 400, except those that may not recur; the code in the body"
        " is that of the Lance protocol."
    )

    def routes(self) -> Iterator[tuple[str, type[LanceOperation]]]:
        for template, operation in OWN_ROUTES.items():
            yield f"/v1/{template}", operation

    def parameters(self, path: str, operation: type[Any]) -> list[Described]:
        return [_DATABASE, _PREFIX, *super().parameters(path, operation)]

    def body(self, operation: type[Any]) -> Described | None:
        if operation.sent_schema is not None:
            return {JSON: {"schema": operation.sent_schema}}
        return super().body(operation)

    def failures(self, operation: type[Any]) -> dict[str, str]:
        texts = super().failures(operation)
        return texts | {"409": self.errors["409"]}
