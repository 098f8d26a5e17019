"""The frequent reads of the Lance protocol, and requests for them."""

from typing import Any

from api.front.answer import Answer
from catalog.access import SYSTEM
from catalog.models import Table
from catalog.services.engine.commit import commit
from catalog.services.lance.ledger import version_operations, versions
from tests.api.event_loop import Asker, comparable, request_of
from tests.factories import make_table, stage

READS = {
    "describe": ("POST", "/v1/table/ns$t/describe"),
    "exists": ("POST", "/v1/table/ns$t/exists"),
    "list": ("GET", "/v1/namespace/ns/table/list"),
    "versions": ("POST", "/v1/table/ns$t/version/list"),
    "namespace": ("POST", "/v1/namespace/ns/describe"),
    "namespace exists": ("POST", "/v1/namespace/ns/exists"),
}
OF_TABLE = ("describe", "exists", "versions")


def make_live_table(*identifier: str, numbers: Any = (1, 2, 3)) -> Table:
    row = make_table(*identifier, properties={"team": "a"})
    commit([create(row, identifier, number) for number in numbers], actor=SYSTEM)
    versions.settle(row)
    return row


def create(row: Table, identifier: tuple[str, ...], number: int, **more: Any) -> Any:
    path = str(stage(row, number)).lstrip("/")
    return version_operations.CreateVersion(
        table=identifier, version=number, manifest_path=path, **more
    )


def ask_for(key: str, read: str, **more: str) -> dict[str, Any]:
    method, path = READS[read]
    more = {"CONTENT_TYPE": "application/json", **more}
    return request_of(key, more.pop("PATH_INFO", path), more.pop("METHOD", method), **more)


def agree(asker: Asker, request: dict[str, Any], body: bytes = b"") -> Answer:
    """Require that the event loop answers, and as Django does; return the answer."""
    expected = asker.ordinary(request, body)
    answer = asker.in_loop(request, body)
    assert answer is not None, (request["PATH_INFO"], request["QUERY_STRING"], body)
    assert comparable(answer) == comparable(expected)
    return answer


def refuse(asker: Asker, request: dict[str, Any], status: int, body: bytes = b"") -> None:
    """Require that Django answers with this status, and the event loop does not, before and afterwards."""
    assert asker.in_loop(request, body) is None
    assert asker.ordinary(request, body).status == status
    assert asker.in_loop(request, body) is None
