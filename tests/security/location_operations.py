"""Operations of both protocols that name a location: each sends one form of it."""

from collections.abc import Callable
from typing import Any

from django.http import HttpResponse

from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.factories import ICEBERG_SCHEMA

Send = Callable[[str], HttpResponse]


def view_body(name: str, **keys: Any) -> dict[str, Any]:
    version = {
        "version-id": 1,
        "schema-id": 0,
        "timestamp-ms": 2000,
        "summary": {},
        "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
        "default-namespace": ["ns"],
    }
    made = {"name": name, "schema": ICEBERG_SCHEMA, "view-version": version, "properties": {}}
    return {**made, **keys}


def lance_operations(lance: Lance) -> dict[str, Send]:
    def post(path: str, body: Callable[[str], Any]) -> Send:
        return lambda form: lance.call("POST", path, body(form))

    return {
        "DeclareTable": post("/v1/table/ns$new/declare", lambda form: {"location": form}),
        "RegisterTable": post("/v1/table/ns$new/register", lambda form: {"location": form}),
        "RegisterTable overwrite": post(
            "/v1/table/ns$t/register", lambda form: {"location": form, "mode": "OVERWRITE"}
        ),
        "BatchCommitTables": post(
            "/v1/table/batch-commit",
            lambda form: {
                "operations": [{"declare_table": {"id": ["ns", "new"], "location": form}}]
            },
        ),
    }


def manifest_operations(lance: Lance) -> dict[str, Send]:
    def version(form: str) -> dict[str, Any]:
        return {"version": 7, "manifest_path": form}

    return {
        "CreateTableVersion": lambda form: lance.call(
            "POST", "/v1/table/ns$t/version/create", version(form)
        ),
        "BatchCreateTableVersions": lambda form: lance.call(
            "POST",
            "/v1/table/version/batch-create",
            {"entries": [{"id": ["ns", "t"], **version(form)}]},
        ),
        "BatchCommitTables": lambda form: lance.call(
            "POST",
            "/v1/table/batch-commit",
            {"operations": [{"create_table_version": {"id": ["ns", "t"], **version(form)}}]},
        ),
    }


def iceberg_operations(iceberg: Iceberg) -> dict[str, Send]:
    def post(path: str, body: Callable[[str], Any]) -> Send:
        return lambda form: iceberg.call("POST", f"namespaces/ns/{path}", body(form))

    def table(**keys: Any) -> dict[str, Any]:
        return {"name": "new", "schema": ICEBERG_SCHEMA, **keys}

    def move(form: str) -> list[dict[str, Any]]:
        return [{"action": "set-location", "location": form}]

    operations: dict[str, Send] = {
        "createTable": post("tables", lambda form: table(location=form)),
        "createTable staged": post(
            "tables", lambda form: table(location=form, **{"stage-create": True})
        ),
        "registerTable": post("register", lambda form: {"name": "new", "metadata-location": form}),
        "registerTable overwrite": post(
            "register", lambda form: {"name": "i", "metadata-location": form, "overwrite": True}
        ),
        "updateTable": post("tables/i", lambda form: {"requirements": [], "updates": move(form)}),
        "commitTransaction": lambda form: iceberg.call(
            "POST",
            "transactions/commit",
            {
                "table-changes": [
                    {
                        "identifier": {"namespace": ["ns"], "name": "i"},
                        "requirements": [],
                        "updates": move(form),
                    }
                ]
            },
        ),
        "createView": post("views", lambda form: view_body("new", location=form)),
        "replaceView": post("views/v", lambda form: {"updates": move(form)}),
        "registerView": post(
            "register-view", lambda form: {"name": "new", "metadata-location": form}
        ),
    }
    for name in ("write.data.path", "write.metadata.path"):
        operations[f"createTable {name}"] = post(
            "tables", lambda form, name=name: table(properties={name: form})
        )
        operations[f"updateTable {name}"] = post(
            "tables/i",
            lambda form, name=name: {
                "requirements": [],
                "updates": [{"action": "set-properties", "updates": {name: form}}],
            },
        )
    return operations


LANCE = ["DeclareTable", "RegisterTable", "RegisterTable overwrite", "BatchCommitTables"]
MANIFESTS = ["CreateTableVersion", "BatchCreateTableVersions", "BatchCommitTables"]
ICEBERG = [
    "createTable",
    "createTable staged",
    "createTable write.data.path",
    "createTable write.metadata.path",
    "registerTable",
    "registerTable overwrite",
    "updateTable",
    "updateTable write.data.path",
    "updateTable write.metadata.path",
    "commitTransaction",
    "createView",
    "replaceView",
    "registerView",
]


def is_lance(body: Any) -> bool:
    return {"error", "code", "instance"} <= set(body)


def is_iceberg(body: Any) -> bool:
    return {"message", "type", "code"} <= set(body["error"])
