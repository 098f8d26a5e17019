"""The routes of the Iceberg protocol.

``{namespace}``, ``{table}``, ``{view}`` and ``{function}`` may contain slashes, as names may, and the
server receives decoded paths. No name contains ``/tables/``, ``/views/``, ``/functions/`` or ``/plan/``,
or ends with the suffix of a route (``catalog.identifiers.check_name``), so that each path has one
interpretation: the first of those words ends the namespace.
"""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, re_path

from api.iceberg.operation import IcebergOperation
from api.iceberg.prefixes import RESERVED
from api.iceberg.views import (
    config,
    fallback,
    functions,
    metrics,
    namespaces,
    oauth,
    scans,
    signing,
    tables,
    transactions,
    views,
)

_View = Callable[..., HttpResponse]

_PREFIX = rf"(?:(?!(?:{'|'.join(sorted(RESERVED))})/)(?P<prefix>[^/]+)/)?"
_GROUPS = {
    # Any character: the identifier refuses a line break, not the router.
    "{prefix}/": _PREFIX,
    "{namespace}": r"(?P<namespace>(?:(?!/(?:tables|views|functions)/)[\s\S])+)",
    "{table}": r"(?P<table>(?:(?!/plan/)[\s\S])+)",
    "{view}": r"(?P<view>[\s\S]+)",
    "{function}": r"(?P<function>[\s\S]+)",
    "{plan-id}": r"(?P<plan_id>[^/]+)",
}
_NAMESPACE = "{prefix}/namespaces/{namespace}"
_TABLES = f"{_NAMESPACE}/tables"
_TABLE = f"{_TABLES}/{{table}}"

ROUTES: dict[str, dict[str, type[IcebergOperation]]] = {}
"""The operations by the specification's path and the method, without ``/v1/``."""
_VIEWS: dict[str, _View] = {}


def _route(template: str, **operations: type[IcebergOperation]) -> URLPattern:
    ROUTES[template] = operations
    pattern = template
    for name, group in _GROUPS.items():
        pattern = pattern.replace(name, group)
    view = _VIEWS[template] = _dispatcher(operations)
    return re_path(rf"^{pattern}$", view, name="-".join(op.__name__ for op in operations.values()))


def _dispatcher(operations: dict[str, type[IcebergOperation]]) -> _View:
    """The view of a path: dispatches to the operation of the method, with a new instance per
    request."""
    allowed = ", ".join(operations)

    def view(request: HttpRequest, **path: str) -> HttpResponse:
        operation = operations.get(request.method or "")
        if operation is None:
            return fallback.WrongMethod(allowed=allowed).dispatch(request)
        return operation().dispatch(request, **path)

    view.csrf_exempt = True  # type: ignore[attr-defined]
    return view


# Longer suffixes first: a path with one also matches the pattern of the name alone.
urlpatterns = [
    _route("config", GET=config.GetConfig),
    _route("oauth/tokens", POST=oauth.GetToken),
    # -- tables
    _route("{prefix}/transactions/commit", POST=transactions.CommitTransaction),
    _route("{prefix}/tables/rename", POST=tables.RenameTable),
    _route(f"{_TABLE}/unregister", POST=tables.UnregisterTable),
    _route(f"{_TABLE}/credentials", GET=tables.LoadCredentials),
    _route(f"{_TABLE}/sign", POST=signing.SignRequest),
    _route(f"{_TABLE}/plan", POST=scans.PlanTableScan),
    _route(
        f"{_TABLE}/plan/{{plan-id}}", GET=scans.FetchPlanningResult, DELETE=scans.CancelPlanning
    ),
    _route(f"{_TABLE}/tasks", POST=scans.FetchScanTasks),
    _route(f"{_TABLE}/metrics", POST=metrics.ReportMetrics),
    _route(
        _TABLE,
        GET=tables.LoadTable,
        HEAD=tables.TableExists,
        POST=tables.UpdateTable,
        DELETE=tables.DropTable,
    ),
    _route(_TABLES, GET=tables.ListTables, POST=tables.CreateTable),
    _route("{prefix}/namespaces/{namespace}/register", POST=tables.RegisterTable),
    # -- views
    _route("{prefix}/views/rename", POST=views.RenameView),
    _route(
        "{prefix}/namespaces/{namespace}/views/{view}",
        GET=views.LoadView,
        HEAD=views.ViewExists,
        POST=views.ReplaceView,
        DELETE=views.DropView,
    ),
    _route("{prefix}/namespaces/{namespace}/views", GET=views.ListViews, POST=views.CreateView),
    _route("{prefix}/namespaces/{namespace}/register-view", POST=views.RegisterView),
    # -- functions
    _route("{prefix}/namespaces/{namespace}/functions/{function}", GET=functions.LoadFunction),
    _route("{prefix}/namespaces/{namespace}/functions", GET=functions.ListFunctions),
    # -- namespaces
    _route("{prefix}/namespaces/{namespace}/properties", POST=namespaces.UpdateProperties),
    _route(
        _NAMESPACE,
        GET=namespaces.LoadNamespaceMetadata,
        HEAD=namespaces.NamespaceExists,
        DELETE=namespaces.DropNamespace,
    ),
    _route("{prefix}/namespaces", GET=namespaces.ListNamespaces, POST=namespaces.CreateNamespace),
    # Paths that begin like a route but are none, including an empty prefix.
    re_path(
        rf"^/*(?:(?:config|oauth)|{_PREFIX}/*(?:namespaces|tables|views|transactions))(?:/|$)",
        fallback.NoRoute.as_view(),
    ),
]

config.GetConfig.endpoints = [
    f"{method} /v1/{template}" for template, operations in ROUTES.items() for method in operations
]

TABLE_VIEW, LIST_VIEW = _VIEWS[_TABLE], _VIEWS[_TABLES]
"""The views of a table and of the tables of a namespace, as ``find`` returns them."""


def find(path: str) -> tuple[_View, tuple[()], dict[str, str]] | None:
    """The view and the arguments of frequent paths: the configuration, a namespace, its tables, one of them.

    The result is that of the patterns, without a search through them. None: use the patterns.
    """
    if not path.startswith("/v1/"):
        return None
    if path == "/v1/config":
        return _VIEWS["config"], (), {}
    prefix, _, remainder = path[4:].partition("/")
    arguments: dict[str, str] = {}
    if prefix != "namespaces":
        if prefix in RESERVED or not prefix or not remainder.startswith("namespaces/"):
            return None
        arguments["prefix"] = prefix
        remainder = remainder[len("namespaces/") :]
    namespace, *suffix = remainder.split("/")
    if not namespace or (suffix and suffix[0] != "tables"):
        return None
    arguments["namespace"] = namespace
    match suffix:
        case []:
            return _VIEWS[_NAMESPACE], (), arguments
        case [_]:
            return _VIEWS[_TABLES], (), arguments
        case [_, table] if table:
            return _VIEWS[_TABLE], (), arguments | {"table": table}
        case _:  # a slash in a name, or a longer route
            return None
