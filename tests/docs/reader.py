"""A reader of the documentation, who enters the code of a page beside a new server."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import lance
import psycopg
import pyarrow as pa
from lance_namespace_urllib3_client import models as m

from tests import templates
from tests.clients import pyice
from tests.docs.blocks import KEY, URL, Block
from tests.docs.commands import Manage, Shell
from tests.live import LiveServer

RUN = {"python", "sh", "console", "http"}
"""The languages that a reader can enter."""


class Reader:
    """`replaced` are texts of the page with values of this server instead, such as the number of a job."""

    def __init__(self, server: LiveServer, manage: Manage, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.variables: dict[str, Any] = {"KEY": server.key}
        self.environment = {"KEY": server.key, "MANAGE_SOCKET": str(manage.socket)}
        self.replaced = {
            URL: server.url,
            f"admin:{KEY}": f"tests:{server.key}",
            KEY: server.key,
        }
        self.output = ""
        """What the last block printed."""
        self._shell: Shell | None = None

    def run(self, block: Block) -> None:
        self.output = self._run(block)

    def _run(self, block: Block) -> str:
        code = block.text
        for shown, actual in self.replaced.items():
            code = code.replace(shown, actual)
        match block.language:
            case "python":
                output = io.StringIO()
                with contextlib.redirect_stdout(output):
                    exec(compile(code, str(block), "exec"), self.variables)
                return output.getvalue()
            case "sh":
                return self.shell.run(code)
            case "console":
                lines = [line for line in code.splitlines() if line.startswith("$ ")]
                assert lines, f"{block} has no line that begins with $"
                return self.shell.run("\n".join(line[2:] for line in lines))
            case "http":
                return "\n".join(map(self._answer, code.splitlines()))
        raise ValueError(f"{block}: {block.language} cannot be run")

    @property
    def shell(self) -> Shell:
        """Started with the environment of this moment."""
        if self._shell is None:
            self._shell = Shell(self.directory, self.environment)
        return self._shell

    def _answer(self, line: str) -> str:
        method, path = line.split(" ")
        return json.dumps(self.request(method, path))

    # -- what pages presuppose

    def request(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.server._http.request(
            method,
            self.server.url + path,
            body=json.dumps(body) if body is not None else None,
            headers={"x-api-key": self.server.key, "content-type": "application/json"},
        )
        assert answer.status < 300, (path, answer.status, answer.data)
        return json.loads(answer.data or b"null")

    def namespace(self, *path: str) -> None:
        self.server.client().create_namespace(
            m.CreateNamespaceRequest(id=list(path), mode="ExistOk")
        )

    def lance_table(self, namespace: str, name: str, rows: pa.Table, *, versions: int = 1) -> None:
        self.namespace(namespace)
        place = {"namespace_client": self.server.client(), "table_id": [namespace, name]}
        lance.write_dataset(rows, **place)
        for _ in range(versions - 1):
            lance.write_dataset(rows, mode="append", **place)

    def iceberg_table(self, namespace: str, name: str, rows: pa.Table) -> None:
        self.namespace(namespace)
        catalog = pyice.connect(self.server.url, token=self.server.key)
        catalog.create_table((namespace, name), schema=rows.schema).append(rows)

    def drop_table(self, *name: str) -> None:
        self.server.client().drop_table(m.DropTableRequest(id=list(name)))

    def drop_namespace(self, *path: str) -> None:
        self.server.client().drop_namespace(m.DropNamespaceRequest(id=list(path)))

    def tables(self, namespace: str) -> set[str]:
        request = m.ListTablesRequest(id=namespace.split("$"))
        return {f"{namespace}.{name}" for name in self.server.client().list_tables(request).tables}

    def token(self) -> str:
        """An access token for the key of the tests."""
        fields = {"grant_type": "client_credentials", "client_secret": self.server.key}
        answer = self.server._http.request(
            "POST", f"{self.server.url}/oauth/token", fields=fields, encode_multipart=False
        )
        token = json.loads(answer.data)["access_token"]
        assert isinstance(token, str)
        return token

    def principal(self, name: str, kind: str = "service") -> None:
        self.request("POST", "/management/v1/principals", {"name": name, "kind": kind})


def renew_database(server: LiveServer) -> None:
    """Give a running server a new database, with the key of the tests and nothing else.

    Its connections end, and it replaces them before the next request uses them.
    """
    name = psycopg.conninfo.conninfo_to_dict(server.database_url)["dbname"]
    assert isinstance(name, str)
    templates.execute("DROP DATABASE {} WITH (FORCE)", name)
    templates.execute("CREATE DATABASE {} TEMPLATE {}", name, templates.with_key())
