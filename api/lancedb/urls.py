"""The routes of the dialect: those of the Lance protocol, and further ones of LanceDB's clients."""

import re
from typing import Any, NoReturn, cast

from django.urls import URLPattern, include, path, re_path

from api.database_header import PATHS
from api.lance.operation import LanceOperation
from api.lance.urls import ROUTES as LANCE_ROUTES
from api.lance.urls import Route, Routes
from api.lance.views import fallback
from api.lancedb.operation import DatabaseOperation
from api.lancedb.views import columns, data, indexes, jobs, queries, refs, tables
from catalog.access import Principal
from catalog.errors import Unsupported

_OWN: dict[str, type[DatabaseOperation]] = {
    "table": tables.ListAllTables,
    "table/{id}/describe": tables.DescribeTable,
    "table/{id}/rename": tables.RenameTable,
    "table/{id}/query": queries.QueryTable,
    "table/{id}/explain_plan": queries.ExplainTableQueryPlan,
    "table/{id}/analyze_plan": queries.AnalyzeTableQueryPlan,
    "table/{id}/merge_insert": data.MergeInsertIntoTable,
    "table/{id}/update": data.UpdateTable,
    "table/{id}/delete": data.DeleteFromTable,
    "table/{id}/tags/list": refs.ListTableTags,
    "table/{id}/version/list": refs.ListTableVersions,
    "table/{id}/create_index": indexes.CreateTableIndex,
    "table/{id}/add_columns": columns.AlterTableAddColumns,
    "table/{id}/backfill_column": columns.AlterTableBackfillColumns,
}
"""The operations that differ from those of the Lance protocol."""
_FURTHER: dict[str, type[DatabaseOperation]] = {
    "table/{id}/index/{index_name}/prewarm": indexes.PrewarmTableIndex,
    "table/{id}/create-empty": tables.CreateEmptyTable,
    "table/{id}/clone": tables.CloneTable,
    "jobs/list": jobs.ListJobs,
    "jobs/describe": jobs.DescribeJob,
    "jobs/cancel": jobs.CancelJob,
}
"""Routes that the Lance protocol does not have. They come first: no ending of the others ends in them."""


OWN_ROUTES: dict[str, type[DatabaseOperation]] = {**_OWN, **_FURTHER}
_ABSENT = {
    "table/batch-commit",
    "table/version/batch-create",
    "materialized_view/{id}/create",
    "materialized_view/{id}/refresh",
}
"""Routes of the Lance protocol whose bodies name tables from the root down; no client of LanceDB uses them."""


def _in_database(operation: type[LanceOperation]) -> type[DatabaseOperation]:
    """The operation of the Lance protocol with names that are relative to the database."""
    attributes: dict[str, Any] = {"__doc__": operation.__doc__, "__module__": operation.__module__}
    derived = type(operation.__name__, (DatabaseOperation, operation), attributes)
    return cast(type[DatabaseOperation], derived)


_LISTS = re.compile(r"namespace/.+/(?:view|materialized_view|function|secret)/list/?", re.DOTALL)
"""Lists that are not supported; ``namespace/{id}/list`` would take their last part for the end of a name."""
_routes = Routes()
ROUTES = _routes.operations


class NoRoute(DatabaseOperation, fallback.NoRoute):
    """A path that the dialect does not have.

    After a 404 the clients would report that the table does not exist.
    """

    def handle(self, actor: Principal, body: None) -> NoReturn:
        raise Unsupported(f"'{self.request.path}' is not supported in a database")


_patterns: list[URLPattern] = [
    re_path(rf"^{_LISTS.pattern}$", NoRoute.as_view()),
    *(_routes.add(template, operation) for template, operation in _FURTHER.items()),
    *(
        _routes.add(template, _OWN.get(template) or _in_database(operation))
        for template, operation in LANCE_ROUTES.items()
        if template not in _ABSENT
    ),
    re_path("", NoRoute.as_view()),
]


def find(route: str) -> Route | None:
    """The view of a frequent path and its arguments; None: only the patterns know."""
    return None if _LISTS.fullmatch(route, len(PATHS)) else _routes.find(route)


urlpatterns = [path("v1/", include(_patterns))]
