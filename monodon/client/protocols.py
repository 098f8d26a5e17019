"""Operations of the Lance and the Iceberg protocol that the command line needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from monodon.client.transport import Sender, next_token, segment

_SEPARATOR = "\x1f"
"""Between the levels of a namespace in a path of the Iceberg protocol."""

Parts = Sequence[str]


class ProtocolOperations(Sender):
    """Tables and namespaces over the protocols of their formats. Names are sequences of parts."""

    def list_namespaces(self, namespace: Parts) -> Iterator[str]:
        """The names of the namespaces directly below a namespace."""
        yield from self._lance_pages("/v1/namespace/{}/list", "namespaces", namespace)

    def list_lance_tables(self, namespace: Parts) -> Iterator[str]:
        yield from self._lance_pages("/v1/namespace/{}/table/list", "tables", namespace)

    def list_iceberg_tables(self, namespace: Parts) -> Iterator[str]:
        yield from self._iceberg_pages(namespace, "tables")

    def list_iceberg_views(self, namespace: Parts) -> Iterator[str]:
        yield from self._iceberg_pages(namespace, "views")

    def describe_lance_table(self, table: Parts, *, version: int | None = None) -> dict[str, Any]:
        """Location, version, schema and statistics of a Lance table, without credentials."""
        body: dict[str, Any] = {"vend_credentials": False, "load_detailed_metadata": True}
        if version is not None:
            body["version"] = version
        answer: dict[str, Any] = self.send("POST", "/v1/table/{}/describe", body=body, name=table)
        return answer

    def list_lance_versions(self, table: Parts, limit: int) -> list[dict[str, Any]]:
        """The newest versions of a Lance table, newest first."""
        answer = self.send(
            "POST",
            "/v1/table/{}/version/list",
            query={"descending": True, "limit": limit},
            body={},
            name=table,
        )
        versions: list[dict[str, Any]] = answer["versions"]
        return versions

    def load_iceberg_table(self, table: Parts) -> dict[str, Any]:
        """The metadata of an Iceberg table, and where it is stored."""
        answer: dict[str, Any] = self.send("GET", _iceberg_path(table, "tables"))
        return answer

    def load_iceberg_view(self, view: Parts) -> dict[str, Any]:
        answer: dict[str, Any] = self.send("GET", _iceberg_path(view, "views"))
        return answer

    def drop_lance_table(self, table: Parts) -> None:
        self.send("POST", "/v1/table/{}/drop", body={}, name=table)

    def drop_iceberg(self, name: Parts, kind: Literal["tables", "views"]) -> None:
        """Drop an Iceberg table or view."""
        self.send("DELETE", _iceberg_path(name, kind))

    def drop_namespace(self, namespace: Parts, *, cascade: bool = False) -> None:
        """Drop a namespace; with ``cascade``, everything in it too."""
        behavior = "Cascade" if cascade else "Restrict"
        self.send("POST", "/v1/namespace/{}/drop", body={"behavior": behavior}, name=namespace)

    def _lance_pages(self, path: str, field: str, namespace: Parts) -> Iterator[str]:
        token: str | None = None
        while True:
            page = self.send(
                "GET", path, query={"page_token": token, "limit": 1000}, name=namespace
            )
            yield from page[field]
            token = next_token(page, "page_token", token)
            if token is None:
                return

    def _iceberg_pages(self, namespace: Parts, kind: str) -> Iterator[str]:
        if not namespace:  # the root namespace has no Iceberg tables
            return
        token: str | None = None
        while True:
            path = f"/v1/namespaces/{segment(_SEPARATOR.join(namespace))}/{kind}"
            page = self.send("GET", path, query={"pageToken": token or "", "pageSize": 1000})
            for identifier in page["identifiers"]:
                yield identifier["name"]
            token = next_token(page, "next-page-token", token)
            if token is None:
                return


def _iceberg_path(name: Parts, kind: str) -> str:
    *namespace, last = name
    return f"/v1/namespaces/{segment(_SEPARATOR.join(namespace))}/{kind}/{segment(last)}"
