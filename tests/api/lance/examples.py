"""Successful example requests of every operation, and the catalog that they need."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pyarrow as pa

from tests.api.client import encoded_schema, stream
from tests.api.lance.example import ROWS, Example, after, data
from tests.factories import make_root, make_table, make_version

SOURCE = '{"source": ["ws", "data"], "columns": ["id"], "filter": "id > 1"}'


def make_catalog() -> None:
    """Namespace ``ws`` with table ``t``, whose one version is only an entry."""
    make_root()
    make_table("ws", "t")
    make_version(("ws", "t"), 1)


_index = after("/v1/table/ws$data/create_index", {"column": "id", "index_type": "BTREE"})
_tag = after("/v1/table/ws$data/tags/create", {"tag": "v1", "version": 1})
_branch = after("/v1/table/ws$data/branches/create", {"name": "dev"})
_computed = after(
    "/v1/table/ws$data/add_columns", {"new_columns": [{"name": "twice", "computed": "id * 2"}]}
)
_VIEW = {
    "kind": "query",
    "source_query": SOURCE,
    "output_schema": encoded_schema(pa.schema({"id": pa.int64()})),
}
_view = after("/v1/materialized_view/ws$view/create", _VIEW)
_QUERY = {"vector": {"single_vector": [1.0, 2.0]}, "k": 2}

EXAMPLES: dict[str, Example] = {
    "CreateNamespace": Example("/v1/namespace/new/create", {}),
    "ListNamespaces": Example("/v1/namespace/ws/list", method="GET"),
    "DescribeNamespace": Example("/v1/namespace/ws/describe", {}),
    "DropNamespace": Example("/v1/namespace/ws/drop", {"behavior": "Cascade"}),
    "NamespaceExists": Example("/v1/namespace/ws/exists", {}),
    "ListTables": Example("/v1/namespace/ws/table/list", method="GET"),
    "ListAllTables": Example("/v1/table", method="GET"),
    "DeclareTable": Example("/v1/table/ws$new/declare", {}),
    "RegisterTable": Example("/v1/table/ws$new/register", {"location": "mine"}),
    "DescribeTable": Example("/v1/table/ws$t/describe", {}),
    "TableExists": Example("/v1/table/ws$t/exists", {}),
    "DropTable": Example("/v1/table/ws$t/drop"),
    "DeregisterTable": Example("/v1/table/ws$t/deregister", {}),
    "RenameTable": Example("/v1/table/ws$t/rename", {"new_table_name": "u"}),
    "ListTableVersions": Example("/v1/table/ws$t/version/list"),
    "CreateTableVersion": Example(
        "/v1/table/ws$t/version/create", {"version": 2, "manifest_path": "x/1"}
    ),
    "DescribeTableVersion": Example("/v1/table/ws$t/version/describe", {"version": 1}),
    "BatchDeleteTableVersions": Example(
        "/v1/table/ws$t/version/delete", {"ranges": [{"start_version": 0, "end_version": 1}]}
    ),
    "BatchCreateTableVersions": Example(
        "/v1/table/version/batch-create",
        {"entries": [{"id": ["ws", "t"], "version": 2, "manifest_path": "x/1"}]},
    ),
    "BatchCommitTables": Example(
        "/v1/table/batch-commit", {"operations": [{"deregister_table": {"id": ["ws", "t"]}}]}
    ),
    "DescribeTransaction": Example("/v1/transaction/ws$t$1/describe", {}),
    "AlterTransaction": Example(
        "/v1/transaction/ws$t$1/alter",
        {"actions": [{"setPropertyAction": {"key": "a", "value": "b"}}]},
    ),
    "CreateTable": Example("/v1/table/ws$new/create", raw=stream(ROWS)),
    "InsertIntoTable": Example("/v1/table/ws$data/insert", raw=stream(ROWS), prepare=data),
    "MergeInsertIntoTable": Example(
        "/v1/table/ws$data/merge_insert?on=id&when_not_matched_insert_all=true",
        raw=stream(ROWS),
        prepare=data,
    ),
    "UpdateTable": Example(
        "/v1/table/ws$data/update", {"updates": [["text", "'new'"]]}, prepare=data
    ),
    "DeleteFromTable": Example("/v1/table/ws$data/delete", {"predicate": "id = 1"}, prepare=data),
    "QueryTable": Example("/v1/table/ws$data/query", _QUERY, prepare=data),
    "ExplainTableQueryPlan": Example(
        "/v1/table/ws$data/explain_plan", {"query": _QUERY}, prepare=data
    ),
    "AnalyzeTableQueryPlan": Example("/v1/table/ws$data/analyze_plan", _QUERY, prepare=data),
    "UpdateTableSchemaMetadata": Example(
        "/v1/table/ws$data/schema_metadata/update", {"k": "v"}, prepare=data
    ),
    "UpdateFieldMetadata": Example(
        "/v1/table/ws$data/update_field_metadata",
        {"updates": [{"path": "id", "metadata": {"unit": "m"}}]},
        prepare=data,
    ),
    "AlterTableAddColumns": Example(
        "/v1/table/ws$data/add_columns",
        {"new_columns": [{"name": "next", "expression": "id + 1"}]},
        prepare=data,
    ),
    "AlterTableAlterColumns": Example(
        "/v1/table/ws$data/alter_columns",
        {"alterations": [{"path": "text", "rename": "words"}]},
        prepare=data,
    ),
    "AlterTableDropColumns": Example(
        "/v1/table/ws$data/drop_columns", {"columns": ["text"]}, prepare=data
    ),
    "AlterTableBackfillColumns": Example(
        "/v1/table/ws$data/backfill_column", {"column": "twice"}, status=202, prepare=_computed
    ),
    "RestoreTable": Example("/v1/table/ws$data/restore", {"version": 1}, prepare=data),
    "CreateTableIndex": Example(
        "/v1/table/ws$data/create_index", {"column": "id", "index_type": "BTREE"}, prepare=data
    ),
    "CreateTableScalarIndex": Example(
        "/v1/table/ws$data/create_scalar_index",
        {"column": "id", "index_type": "BITMAP"},
        prepare=data,
    ),
    "ListTableIndices": Example("/v1/table/ws$data/index/list", {}, prepare=_index),
    "DescribeTableIndexStats": Example("/v1/table/ws$data/index/id_idx/stats", {}, prepare=_index),
    "DropTableIndex": Example("/v1/table/ws$data/index/id_idx/drop", prepare=_index),
    "ListTableTags": Example("/v1/table/ws$data/tags/list", prepare=data),
    "GetTableTagVersion": Example("/v1/table/ws$data/tags/version", {"tag": "v1"}, prepare=_tag),
    "CreateTableTag": Example(
        "/v1/table/ws$data/tags/create", {"tag": "v2", "version": 1}, prepare=data
    ),
    "DeleteTableTag": Example("/v1/table/ws$data/tags/delete", {"tag": "v1"}, prepare=_tag),
    "UpdateTableTag": Example(
        "/v1/table/ws$data/tags/update", {"tag": "v1", "version": 1}, prepare=_tag
    ),
    "ListTableBranches": Example("/v1/table/ws$data/branches/list", prepare=_branch),
    "CreateTableBranch": Example(
        "/v1/table/ws$data/branches/create", {"name": "dev"}, prepare=data
    ),
    "DeleteTableBranch": Example(
        "/v1/table/ws$data/branches/delete", {"name": "dev"}, prepare=_branch
    ),
    "CreateMaterializedView": Example(
        "/v1/materialized_view/ws$view/create", _VIEW, status=201, prepare=data
    ),
    "RefreshMaterializedView": Example(
        "/v1/materialized_view/ws$view/refresh", {}, status=202, prepare=_view
    ),
}


def _declared() -> Iterator[tuple[str, Example]]:
    """The examples that the tests of operations declare."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if "\nEXAMPLES = " in path.read_text():
            module = import_module(f"{__package__}.{path.stem}")
            yield from module.EXAMPLES.items()


EXAMPLES |= _declared()
