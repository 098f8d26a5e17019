"""The requests of the budget: for each operation, requests that can be sent in a row."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from benchmarks import budget_grants

_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "at", "required": False, "type": "timestamptz"},
        {"id": 3, "name": "customer", "required": False, "type": "string"},
        {"id": 4, "name": "price", "required": False, "type": "decimal(12, 2)"},
    ],
}
LISTED = 100
"""Tables of the namespaces to list, and versions of the table whose versions are listed."""
MANIFESTS = "budget/"
"""Versions at these paths need no manifest file (MONODON_MANIFEST_PATHS)."""

_names = itertools.count(1)


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class Send(Protocol):
    """Send a request that is not measured; returns the headers of the answer."""

    def __call__(self, request: Request) -> dict[str, str]: ...


Prepare = Callable[[Send, int], Sequence[Request]]
"""``prepare(send, count)`` returns ``count`` requests, each of which succeeds once."""


def seed(send: Send) -> None:
    """Create the objects that requests read and change."""
    for name in ("lance", "iceberg", "new"):
        send(_create_namespace(name))
    for number in range(LISTED):
        send(_declare(f"lance$t{number}"))
        send(_create_iceberg(f"t{number}", "iceberg"))
    for version in range(1, LISTED + 1):
        send(_create_version("lance$t0", version))


def _post(path: str, body: Any = None, status: int = 200) -> Request:
    return Request("POST", f"/v1/{path}", body or {}, status)


def _create_namespace(name: str) -> Request:
    return _post(f"namespace/{name}/create", {"properties": {"owner": "budget"}})


def _declare(table: str) -> Request:
    return _post(f"table/{table}/declare")


def _create_version(table: str, version: int) -> Request:
    path = f"{MANIFESTS}{table}/{version}.manifest"
    body = {"version": version, "manifest_path": path, "manifest_size": 461}
    return _post(f"table/{table}/version/create", body)


def _create_iceberg(name: str, namespace: str = "new") -> Request:
    return _post(f"namespaces/{namespace}/tables", {"name": name, "schema": _SCHEMA})


def _same(method: str, path: str, status: int = 200, body: Any = None) -> Prepare:
    request = Request(method, f"/v1/{path}", body, status)
    return lambda send, count: [request] * count


def _new(build: Callable[[str], Request]) -> Prepare:
    """Requests that create something under a new name each."""
    return lambda send, count: [build(f"n{next(_names)}") for _ in range(count)]


def _each(create: Callable[[str], Request], build: Callable[[str], Request]) -> Prepare:
    """Requests that change something once, which is created before."""

    def prepare(send: Send, count: int) -> Sequence[Request]:
        names = [f"n{next(_names)}" for _ in range(count)]
        for name in names:
            send(create(name))
        return [build(name) for name in names]

    return prepare


def _granted(request: Request) -> Prepare:
    """The request by a principal whose privileges come from 1,000 grants."""
    granted = replace(request, headers={"X-Api-Key": budget_grants.KEY})
    return lambda send, count: [granted] * count


def _unchanged(send: Send, count: int) -> Sequence[Request]:
    path = "/v1/namespaces/iceberg/tables/t0"
    etag = send(Request("GET", path))["ETag"]
    return [Request("GET", path, status=304, headers={"If-None-Match": etag})] * count


def _versions(send: Send, count: int) -> Sequence[Request]:
    table = f"new$n{next(_names)}"
    send(_declare(table))
    send(_create_version(table, 1))  # makes the table live, which takes locks
    return [_create_version(table, version) for version in range(2, count + 2)]


def _commits(send: Send, count: int) -> Sequence[Request]:
    name = f"n{next(_names)}"
    send(_create_iceberg(name))
    path = f"namespaces/new/tables/{name}"
    first, *others = [_post(path, _set_property(number)) for number in range(count + 1)]
    send(first)
    return others


def _set_property(number: int) -> dict[str, Any]:
    update = {"action": "set-properties", "updates": {"n": str(number)}}
    return {"requirements": [], "updates": [update]}


def _lance(name: str) -> Request:
    return _declare(f"new${name}")


OPERATIONS: dict[str, Prepare] = {
    "lance describe table": _same("POST", "table/lance$t0/describe", body={}),
    "lance table exists": _same("POST", "table/lance$t0/exists", body={}),
    "lance list 100 tables": _same("GET", "namespace/lance/table/list?limit=100"),
    "lance create version": _versions,
    "lance describe version": _same("POST", "table/lance$t0/version/describe", body={}),
    "lance list 100 versions": _same("POST", "table/lance$t0/version/list?limit=100", body={}),
    "lance namespace exists": _same("POST", "namespace/lance/exists", body={}),
    "lance describe namespace": _same("POST", "namespace/lance/describe", body={}),
    "lance create namespace": _new(_create_namespace),
    "lance drop namespace": _each(_create_namespace, lambda n: _post(f"namespace/{n}/drop")),
    "lance declare table": _new(_lance),
    # The commit rolls back.
    "lance declare taken table": _same("POST", "table/lance$t0/declare", 409, {}),
    "lance rename table": _each(
        _lance, lambda n: _post(f"table/new${n}/rename", {"new_table_name": f"{n}-renamed"})
    ),
    "lance deregister table": _each(_lance, lambda n: _post(f"table/new${n}/deregister")),
    "lance drop table": _each(_lance, lambda n: _post(f"table/new${n}/drop")),
    "iceberg load table": _same("GET", "namespaces/iceberg/tables/t0"),
    "iceberg load table, unchanged": _unchanged,
    "iceberg table exists": _same("HEAD", "namespaces/iceberg/tables/t0", 204),
    "iceberg list 100 tables": _same("GET", "namespaces/iceberg/tables"),
    "iceberg namespace exists": _same("HEAD", "namespaces/iceberg", 204),
    "iceberg load namespace": _same("GET", "namespaces/iceberg"),
    "iceberg create table": _new(_create_iceberg),
    "iceberg commit": _commits,
    "iceberg drop table": _each(
        _create_iceberg,
        lambda n: Request("DELETE", f"/v1/namespaces/new/tables/{n}", status=204),
    ),
    "lance describe table by grants": _granted(_post("table/lance$t0/describe")),
    "iceberg load table by grants": _granted(Request("GET", "/v1/namespaces/iceberg/tables/t0")),
}
"""By name; in benchmarks/budget.toml each has its budget."""
