"""Requests that Django and the event loop answer, to compare their answers.

The statements of the event loop run on the connection of the test, so that they see its rows.
"""

import asyncio
from io import BytesIO
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from psycopg.adapt import Transformer

from api.front import environ
from api.front.answer import Answer
from api.front.frequent import FrequentReads, Reads
from catalog.identifiers import digest
from catalog.models import Grant, Namespace, Table, TableFormat
from catalog.models import Principal as Row
from catalog.postgresql.pipeline import Pipeline
from catalog.privileges import READ_ONLY, Privilege


class SamePipeline(Pipeline):
    """Executes statements on the connection of the test."""

    executed = 0
    database: Any
    """The connection of the test; a task of an event loop would get another one."""

    def execute(self, name: bytes, parameters: Any) -> Any:
        self.executed += 1
        result = self.database.connection.pgconn.exec_params(self._statements[name], parameters)
        assert not result.error_message, result.error_message
        rows = Transformer(self.database.connection)
        rows.set_pgresult(result)
        future: asyncio.Future[Any] = self._loop.create_future()
        future.set_result(rows.load_row(0, tuple) if result.ntuples else None)
        return future


class Asker:
    """Sends requests to Django and to the event loop."""

    def __init__(self, *protocols: Reads) -> None:
        self.reads = FrequentReads(protocols)
        self._loop = asyncio.new_event_loop()
        self.reads.start(self._loop)
        statements = {name: text for r in protocols for name, text in r.statements.items()}
        self.pipeline = self.reads._pipeline = SamePipeline(self._loop, statements)
        self.pipeline.database = connections[DEFAULT_DB_ALIAS]

    def close(self) -> None:
        self._loop.close()

    def ordinary(self, request: dict[str, Any], body: bytes = b"") -> Answer:
        from config.wsgi import application

        answer = application.answer(environ.set_body({**request}, body))
        read = self.reads.find(request, body)
        if read is not None and read.learn is not None:
            read.learn(answer)
        return answer

    def in_loop(self, request: dict[str, Any], body: bytes = b"") -> Answer | None:
        """The answer of the event loop, None if it has none."""
        read = self.reads.find(request, body)
        if read is None:
            return None
        return self._loop.run_until_complete(self.reads.answer(request, read))


def request_of(key: str, path: str, method: str = "GET", **more: str) -> dict[str, Any]:
    return {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "SERVER_NAME": "testserver",
        "SERVER_PORT": "80",
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_X_API_KEY": key,
        "HTTP_HOST": "testserver",
        "wsgi.input": BytesIO(),
        "wsgi.url_scheme": "http",
        **more,
    }


def grant(name: str = "tenant", privileges: Privilege = READ_ONLY, **target: Any) -> None:
    row = Row.objects.get(name=name)
    Grant.objects.create(principal=row, mask=privileges.value, **target)


def comparable(answer: Answer) -> tuple[Any, ...]:
    headers = {name: value for name, value in answer.headers if name != "x-request-id"}
    # Django's answers to HEAD have the length of no content.
    return answer.status, headers, answer.content, answer.principal


def add_tables(namespace: Namespace, numbers: range, size: int, format_: TableFormat) -> None:
    """Add tables whose names have this number of bytes."""
    names = [f"{number:0{size}}" for number in numbers]
    Table.objects.bulk_create(
        Table(
            namespace=namespace,
            name=name,
            digest=digest((*namespace.path, name)),
            location=f"/x/{name}",
            format=format_,
            state="live",
        )
        for name in names
    )
