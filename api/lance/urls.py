"""The routes of the Lance protocol, hot ones first.

``{id}`` may contain slashes, as names may, and the server receives decoded paths. So longer suffixes
come before shorter ones, and the pattern of ``id`` is greedy. A trailing slash is allowed everywhere.
"""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, re_path

from api.lance.operation import LanceOperation
from api.lance.views import (
    backfill,
    columns,
    data,
    fallback,
    indexes,
    materialized_views,
    namespaces,
    queries,
    refs,
    tables,
    transactions,
    versions,
)

_View = Callable[..., HttpResponse]
Route = tuple[_View, tuple[()], dict[str, str]]


class Routes:
    """The operations of a protocol by path, and a quick search for frequent paths."""

    def __init__(self) -> None:
        self.operations: dict[str, type[LanceOperation]] = {}
        """The operations by the specification's path, without ``/v1/``."""
        self._by_ending: dict[tuple[str, str], _View] = {}
        self._fixed: dict[str, _View] = {}

    def add(self, template: str, operation: type[LanceOperation]) -> URLPattern:
        """Register an operation, and return its pattern."""
        self.operations[template] = operation
        pattern = template
        for name in ("id", "index_name"):
            # Any character: the identifier refuses a line break, not the router.
            pattern = pattern.replace(f"{{{name}}}", rf"(?P<{name}>[\s\S]+)")
        view = _direct_view(operation)
        kind, middle, ending = template.partition("/{id}/")
        if middle and "{" not in ending:
            self._by_ending[kind, ending] = view
        elif "{" not in template:
            self._fixed[f"/v1/{template}"] = view
        return re_path(rf"^{pattern}/?$", view, name=operation.__name__)

    def find(self, path: str) -> Route | None:
        """The view of ``/v1/<kind>/{id}/<ending>`` and its arguments; None: only the patterns know.

        The result is that of the patterns, with two lookups instead of a search through fifty of them.
        """
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed, (), {}
        if not path.startswith("/v1/") or "/index/" in path:
            return None
        kind, _, remainder = path[4:].partition("/")
        remainder, _, last = remainder.removesuffix("/").rpartition("/")
        shorter, _, before = remainder.rpartition("/")
        for identifier, ending in ((shorter, f"{before}/{last}"), (remainder, last)):
            view = self._by_ending.get((kind, ending))
            if identifier and view is not None:
                return view, (), {"id": identifier}
        return None


def _direct_view(operation: type[LanceOperation]) -> _View:
    """A view as REST framework's, without its two wrappers, which do nothing for an operation."""

    def view(request: HttpRequest, **path: str) -> HttpResponse:
        return operation().dispatch(request, **path)

    vars(view).update(vars(operation.as_view()))  # the OpenAPI document reads its attributes
    return view


_routes = Routes()
ROUTES, find, _route = _routes.operations, _routes.find, _routes.add

urlpatterns = [
    _route("table/{id}/version/describe", versions.DescribeTableVersion),
    _route("table/{id}/describe", tables.DescribeTable),
    _route("table/{id}/version/list", versions.ListTableVersions),
    _route("table/{id}/version/create", versions.CreateTableVersion),
    _route("table/{id}/exists", tables.TableExists),
    _route("namespace/{id}/table/list", tables.ListTables),
    _route("table/{id}/query", queries.QueryTable),
    _route("table/{id}/count_rows", queries.CountTableRows),
    _route("table/{id}/explain_plan", queries.ExplainTableQueryPlan),
    _route("table/{id}/analyze_plan", queries.AnalyzeTableQueryPlan),
    _route("table/{id}/tags/version", refs.GetTableTagVersion),
    _route("table/{id}/tags/list", refs.ListTableTags),
    _route("table/{id}/tags/create", refs.CreateTableTag),
    _route("table/{id}/tags/delete", refs.DeleteTableTag),
    _route("table/{id}/tags/update", refs.UpdateTableTag),
    _route("table/{id}/branches/list", refs.ListTableBranches),
    _route("table/{id}/branches/create", refs.CreateTableBranch),
    _route("table/{id}/branches/delete", refs.DeleteTableBranch),
    _route("table/batch-commit", versions.BatchCommitTables),
    _route("table/version/batch-create", versions.BatchCreateTableVersions),
    _route("table/{id}/version/delete", versions.BatchDeleteTableVersions),
    _route("table/{id}/declare", tables.DeclareTable),
    _route("table/{id}/register", tables.RegisterTable),
    _route("table/{id}/deregister", tables.DeregisterTable),
    _route("table/{id}/rename", tables.RenameTable),
    _route("table", tables.ListAllTables),
    _route("namespace/{id}/create", namespaces.CreateNamespace),
    _route("namespace/{id}/list", namespaces.ListNamespaces),
    _route("namespace/{id}/describe", namespaces.DescribeNamespace),
    _route("namespace/{id}/drop", namespaces.DropNamespace),
    _route("namespace/{id}/exists", namespaces.NamespaceExists),
    _route("table/{id}/index/list", indexes.ListTableIndices),
    _route("table/{id}/index/{index_name}/stats", indexes.DescribeTableIndexStats),
    _route("table/{id}/index/{index_name}/drop", indexes.DropTableIndex),
    _route("table/{id}/create_index", indexes.CreateTableIndex),
    _route("table/{id}/create_scalar_index", indexes.CreateTableScalarIndex),
    _route("table/{id}/schema_metadata/update", columns.UpdateTableSchemaMetadata),
    _route("table/{id}/update_field_metadata", columns.UpdateFieldMetadata),
    _route("table/{id}/restore", columns.RestoreTable),
    _route("table/{id}/alter_columns", columns.AlterTableAlterColumns),
    _route("table/{id}/add_columns", columns.AlterTableAddColumns),
    _route("table/{id}/drop_columns", columns.AlterTableDropColumns),
    _route("table/{id}/stats", columns.GetTableStats),
    _route("transaction/{id}/describe", transactions.DescribeTransaction),
    _route("transaction/{id}/alter", transactions.AlterTransaction),
    _route("table/{id}/backfill_column", backfill.AlterTableBackfillColumns),
    _route("materialized_view/{id}/refresh", materialized_views.RefreshMaterializedView),
    _route("materialized_view/{id}/create", materialized_views.CreateMaterializedView),
    # After the longer suffixes that end in the same way.
    _route("table/{id}/merge_insert", data.MergeInsertIntoTable),
    _route("table/{id}/insert", data.InsertIntoTable),
    _route("table/{id}/update", data.UpdateTable),
    _route("table/{id}/delete", data.DeleteFromTable),
    _route("table/{id}/create", data.CreateTable),
    _route("table/{id}/drop", tables.DropTable),
    re_path("", fallback.NoRoute.as_view()),
]
