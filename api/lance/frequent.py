"""The frequent reads of the Lance protocol: of a table, a namespace, the tables in it, and few versions of main.

They are answered here as by the views, if the caller holds the privilege by its level or by cached grants. Threads
answer for tables in object stores, because the answers have credentials, and whatever is long or needs a look at
storage.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson
from django.http import HttpResponse
from lance_namespace_urllib3_client import models as m
from pydantic import BaseModel, ValidationError

from api import request_facts
from api.front.frequent import Content, Read, read_of
from api.lance import urls
from api.lance.operation import JSON, content_of
from api.lance.views.namespaces import DescribeNamespace, NamespaceExists
from api.lance.views.tables import DescribeTable, ListTables, TableExists
from api.lance.views.versions import ListTableVersions
from api.operation import parse_object, parse_query, refuse_repeated_keys
from catalog.access import ObjectRead, Principal
from catalog.errors import CatalogError, InvalidInput
from catalog.formats.lance.naming import MAX_VERSION, branch_name
from catalog.identifiers import Identifier, digest
from catalog.models import TableFormat
from catalog.postgresql.pipeline import Parameters, Row
from catalog.privileges import NOTHING, Privilege
from catalog.services.lance.ledger import few_versions, versions
from catalog.services.tables import namespaces, tables, usage
from catalog.services.tables.usage import Read as Use

_PATHS = ("/v1/table/", "/v1/namespace/")
_LONGEST_PATH = 500
"""Of a path with its query."""
_RARE_MEMBERS = frozenset({"identity", "context"})
_NOTHING = Content(
    HTTPStatus.OK.value, [("Content-Type", HttpResponse(b"").headers["Content-Type"])]
)


class _Request(NamedTuple):
    """A request as its operation reads it."""

    view: Any
    identifier: Identifier
    body: Any


class _Answer(NamedTuple):
    """How a request is answered."""

    statement: ObjectRead
    privilege: Privilege
    render: Callable[[Row], Content | None]
    """The answer for the columns of the statement; None: the ordinary way decides."""
    more: Parameters = ()
    """The parameters of the statement after the digest."""
    is_load: bool = False


class _Call(NamedTuple):
    """A request of one of these operations, and how it is answered."""

    operation: str
    target: str
    identifier: Identifier
    parameters: Parameters
    answer: _Answer


class LanceReads:
    """The frequent reads of one process."""

    def __init__(self) -> None:
        self.statements = {
            **tables.DESCRIBE_LOCAL.statements,
            **tables.KIND.statements,
            **tables.FEW_NAMES.statements,
            **namespaces.EXISTS.statements,
            **namespaces.FEW_PROPERTIES.statements,
            **few_versions.ASCENDING.statements,
            **few_versions.DESCENDING.statements,
        }

    def find(self, request: dict[str, Any], body: bytes, principal: Principal) -> Read | None:
        """The read of a request; None: it is not one of these, or never permitted here."""
        path, query = request["PATH_INFO"], request["QUERY_STRING"]
        if not path.startswith(_PATHS) or len(path) + len(query) > _LONGEST_PATH:
            return None
        if "HTTP_CONTENT_ENCODING" in request or (body and request.get("CONTENT_TYPE") != JSON):
            return None
        call = _call_of(request["REQUEST_METHOD"], path, query, body)
        if call is None:
            return None
        return read_of(
            principal,
            call.operation,
            call.target,
            statement=call.answer.statement,
            privilege=call.answer.privilege,
            parameters=call.parameters,
            render=partial(_render, principal, call),
        )


@lru_cache(maxsize=4096)
def _call_of(method: str, path: str, query: str, content: bytes) -> _Call | None:
    """The call of one of these operations; None for other requests, and for those that the operation refuses."""
    route = urls.find(path)
    operation: Any = None if route is None else getattr(route[0], "cls", None)
    if route is None or operation not in _ANSWERS or method != operation.verb:
        return None
    view, arguments = operation(), route[2]
    try:
        view.query_values = parse_query(query)
        if not view.query_values.keys() <= {"delimiter", *view.query}:
            return None
        body = _body_of(view.request_model, content)
        identifier: Identifier = view.path_arguments(arguments, body)["id"]
        answer = _ANSWERS[operation](_Request(view, identifier, body))
    except (CatalogError, ValidationError):
        return None
    if answer is None:
        return None
    target = request_facts.name(arguments, view.delimiter)
    parameters = (str(digest(identifier)).encode(), *answer.more)
    return _Call(operation.__name__, target, identifier, parameters, answer)


def _body_of(model: type[BaseModel] | None, content: bytes) -> Any:
    """The body as the operation reads it. Raises InvalidInput, also for members that it ignores, and ValidationError."""
    members = parse_object(content or b"{}")
    if content.count(b":") > 1:  # otherwise no key can be repeated; looking takes 4 µs
        refuse_repeated_keys(content)
    if members and not (model and members.keys() <= model.model_fields.keys() - _RARE_MEMBERS):
        raise InvalidInput("The request body has a member that is not read here")
    return model.model_validate_json(content or b"{}") if model else None


def _render(principal: Principal, call: _Call, columns: Row) -> Content | None:
    content = call.answer.render(columns)
    if content is not None and call.answer.is_load:
        usage.count(principal, call.identifier, Use.LOAD)
    return content


def _json(content: bytes) -> Content:
    return Content(HTTPStatus.OK.value, [("Content-Type", JSON)], content)


# -- tables


def _describe_table(request: _Request) -> _Answer | None:
    view, table, body = request
    is_of_version = body.version is not None or body.tag is not None or branch_name(body.branch)
    if is_of_version or view.flag("load_detailed_metadata", body.load_detailed_metadata):
        return None
    extras = view.extras(body)

    def render(columns: Row) -> Content | None:
        facts = tables.description_of(table, columns, NOTHING)
        return None if facts is None else _json(content_of(view.answer(facts, None, *extras)))

    return _Answer(tables.DESCRIBE_LOCAL, Privilege.READ, render, is_load=True)


def _table_exists(request: _Request) -> _Answer | None:
    def render(columns: Row) -> Content | None:
        return _NOTHING if columns[0] == TableFormat.LANCE else None

    return _Answer(tables.KIND, Privilege.BROWSE, render) if request.body.version is None else None


def _list_tables(request: _Request) -> _Answer | None:
    page = request.view.page
    has_declared = request.view.flag("include_declared", default=True)
    if page["page_token"] or has_declared is False:
        return None
    size = page["limit"] or tables.PAGE_SIZE

    def render(columns: Row) -> Content | None:
        if columns[0] is None:
            return None
        names, token = tables.page_of(columns[0], size)
        return _json(content_of(m.ListTablesResponse(tables=names, page_token=token)))

    return _Answer(tables.FEW_NAMES, Privilege.BROWSE, render, (b"lance",))


# -- namespaces


def _described_namespace(columns: Row) -> Content:
    return _json(content_of(m.DescribeNamespaceResponse(properties=orjson.loads(columns[0]))))


_NAMESPACE_EXISTS = _Answer(namespaces.EXISTS, Privilege.BROWSE, lambda _: _NOTHING)
# Who may only browse it sees no location among the properties: the ordinary way decides.
_DESCRIBE_NAMESPACE = _Answer(namespaces.FEW_PROPERTIES, Privilege.READ, _described_namespace)


# -- versions


def _list_versions(request: _Request) -> _Answer | None:
    view, body = request.view, request.body
    selection = view.selection(body)
    first, size = versions.bounds(**selection)
    if view.branch(body) or first > MAX_VERSION:
        return None

    def render(columns: Row) -> Content | None:
        page = few_versions.page_of(columns, size)
        if page is None:
            return None
        end = b"}" if page.token is None else b',"page_token":%b}' % orjson.dumps(page.token)
        return _json(b'{"versions":[%b]%b' % (page.entries.encode(), end))

    statement = few_versions.DESCENDING if selection["descending"] else few_versions.ASCENDING
    return _Answer(statement, Privilege.READ, render, few_versions.parameters(first, size))


_ANSWERS: Mapping[Any, Callable[[_Request], _Answer | None]] = {
    DescribeTable: _describe_table,
    TableExists: _table_exists,
    ListTables: _list_tables,
    NamespaceExists: lambda _: _NAMESPACE_EXISTS,
    DescribeNamespace: lambda _: _DESCRIBE_NAMESPACE,
    ListTableVersions: _list_versions,
}
