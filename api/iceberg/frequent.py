"""The frequent reads of the Iceberg protocol: getConfig, loadTable, tableExists and listTables.

They are answered here as by the views, if the caller holds the privilege by its level or by cached grants, and
if a table's files are local: answers for tables in object stores have credentials.
"""

from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson
from cachetools import LRUCache

from api import request_facts
from api.front.answer import Answer
from api.front.frequent import Content, Read, read_of
from api.iceberg import prefixes, urls
from api.iceberg.operation import JSON
from api.iceberg.views.config import GetConfig
from api.iceberg.views.tables import (
    SNAPSHOTS,
    ListTables,
    LoadTable,
    TableExists,
    has_current,
    tag_of,
    takes_gzip,
)
from catalog import identifiers
from catalog.access import Principal
from catalog.errors import CatalogError
from catalog.identifiers import Identifier, digest
from catalog.models import TableFormat, TableKind
from catalog.postgresql.pipeline import Row
from catalog.privileges import Privilege
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.tables import tables, usage
from catalog.services.tables.usage import Read as Use

_CONFIG = "/v1/config"
_LONGEST_PATH = 500
_LONGEST_TAGS = 1_000
"""Of an If-None-Match header. Reading one of 64 KB would occupy the event loop for 30 ms."""
_MAX_CACHED_BYTES = 16 * 1024 * 1024
_BYTES_PER_ANSWER = 2_000
"""Of its key and its headers."""
_ICEBERG_TABLE = (TableFormat.ICEBERG, TableKind.TABLE)


class _Object(NamedTuple):
    """What a path names."""

    identifier: Identifier
    is_table: bool
    levels: tuple[str, ...]
    """Of the namespace, relative to the warehouse."""
    digest: bytes
    target: str


@lru_cache(maxsize=4096)
def _object_of(path: str) -> _Object | None:
    """The table, or the namespace of a list of tables; None for other paths."""
    route = urls.find(path)
    # The name of the view decides: a namespace may be named "tables".
    if route is None or route[0] not in (urls.TABLE_VIEW, urls.LIST_VIEW):
        return None
    is_table, parts = route[0] is urls.TABLE_VIEW, route[2]
    try:
        warehouse = prefixes.read(parts["prefix"]) if "prefix" in parts else ()
        levels = tuple(identifiers.check(prefixes.levels(parts["namespace"])))
        names = tuple(identifiers.check((*levels, parts["table"]))) if is_table else levels
    except CatalogError:
        return None
    identifier = (*warehouse, *names)
    key = str(digest(identifier)).encode()
    return _Object(identifier, is_table, levels, key, request_facts.name(parts, None))


class IcebergReads:
    """The frequent reads of one process, and the answers of loadTable that it repeats."""

    def __init__(self) -> None:
        self.statements = {
            **iceberg_tables.ETAG.statements,
            **tables.KIND.statements,
            **tables.FEW_NAMES.statements,
        }
        self._answers: Any = LRUCache(
            _MAX_CACHED_BYTES, getsizeof=lambda content: len(content.body) + _BYTES_PER_ANSWER
        )
        """By the ETag, which no other answer has, and the encoding."""
        self._configuration: Content | None = None
        """That of the whole catalog, which is the same for all principals."""

    def find(self, request: dict[str, Any], body: bytes, principal: Principal) -> Read | None:
        """The read of a request; None: it is not one of these, or never permitted here."""
        path, method = request["PATH_INFO"], request["REQUEST_METHOD"]
        if body or not path.startswith("/v1/") or len(path) > _LONGEST_PATH:
            return None
        if path == _CONFIG:
            return self._config(request, principal) if method == "GET" else None
        target = _object_of(path)
        if target is None:
            return None
        if not target.is_table:
            return _list(request, principal, target) if method == "GET" else None
        if method == "GET":
            return self._load(request, principal, target)
        return _exists(request, principal, target) if method == "HEAD" else None

    def _config(self, request: dict[str, Any], principal: Principal) -> Read | None:
        if request["QUERY_STRING"] or "HTTP_IF_NONE_MATCH" in request:
            return None
        name = GetConfig.__name__
        return Read(principal, name, "-", b"", (), self._configured, self._learn_configuration)

    def _configured(self, row: Row | None) -> Content | None:
        return self._configuration

    def _learn_configuration(self, answer: Answer) -> None:
        if answer.status == HTTPStatus.OK:
            repeated = [("Content-Type", dict(answer.headers)["Content-Type"])]
            self._configuration = Content(HTTPStatus.OK.value, repeated, answer.content)

    def _load(self, request: dict[str, Any], principal: Principal, table: _Object) -> Read | None:
        snapshots = SNAPSHOTS.get(request["QUERY_STRING"])
        if snapshots is None:
            return None
        if len(request.get("HTTP_IF_NONE_MATCH", "")) > _LONGEST_TAGS:
            return None
        return read_of(
            principal,
            LoadTable.__name__,
            table.target,
            statement=iceberg_tables.ETAG,
            privilege=Privilege.READ,
            parameters=(table.digest,),
            render=partial(self._loaded, request, principal, table, snapshots),
            learn=partial(self._learn, takes_gzip(request)),
        )

    def _loaded(
        self,
        request: dict[str, Any],
        principal: Principal,
        table: _Object,
        snapshots: str,
        columns: Row,
    ) -> Content | None:
        etag: str = columns[0]
        tag = tag_of(etag, snapshots)
        header = request.get("HTTP_IF_NONE_MATCH")
        if header is not None and has_current(header, etag, snapshots):
            usage.count(principal, table.identifier, Use.LOAD)
            return Content(HTTPStatus.NOT_MODIFIED.value, [("ETag", tag)])
        content: Content | None = self._answers.get((tag, takes_gzip(request)))
        if content is not None:
            usage.count(principal, table.identifier, Use.LOAD)
        return content

    def _learn(self, gzip: bool, answer: Answer) -> None:
        """Repeat an answer from now on, if it is that of a table in local files."""
        headers = dict(answer.headers)
        is_stored = "no-store" not in headers.get("Cache-Control", "")
        if answer.status != HTTPStatus.OK or not is_stored or "ETag" not in headers:
            return
        if len(answer.content) > _MAX_CACHED_BYTES // 8:
            return
        names = ("Content-Type", "Vary", "ETag", "Content-Encoding")
        repeated = [(name, headers[name]) for name in names if name in headers]
        content = Content(HTTPStatus.OK.value, repeated, answer.content)
        self._answers[headers["ETag"], gzip] = content


# -- tableExists


def _exists(request: dict[str, Any], principal: Principal, table: _Object) -> Read | None:
    if request["QUERY_STRING"]:
        return None
    return read_of(
        principal,
        TableExists.__name__,
        table.target,
        statement=tables.KIND,
        privilege=Privilege.BROWSE,
        parameters=(table.digest,),
        render=_existing,
    )


def _existing(columns: Row) -> Content | None:
    return Content(HTTPStatus.NO_CONTENT.value, []) if columns == _ICEBERG_TABLE else None


# -- listTables


def _list(request: dict[str, Any], principal: Principal, namespace: _Object) -> Read | None:
    if request["QUERY_STRING"]:
        return None
    return read_of(
        principal,
        ListTables.__name__,
        namespace.target,
        statement=tables.FEW_NAMES,
        privilege=Privilege.BROWSE,
        parameters=(namespace.digest, b"iceberg"),
        render=partial(_listed, namespace.levels),
    )


def _listed(levels: tuple[str, ...], columns: Row) -> Content | None:
    (names,) = columns
    if names is None:
        return None
    answer = ListTables.answer(list(levels), names, None)
    return Content(HTTPStatus.OK.value, [("Content-Type", JSON)], orjson.dumps(answer))
