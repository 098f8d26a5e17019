"""Successful example requests of the operations of the dialect.

The other operations only differ from those of the Lance protocol in their names; two stand for them.
"""

from api.lancedb import urls
from tests.access import rules
from tests.access.rules import Rule
from tests.api.lance import examples as lance_examples
from tests.api.lance.example import ROWS, Example, after, data

_QUERY = {"vector": [1.0, 2.0], "k": 2, "columns": ["id"]}
_index = after("/v1/table/ws$data/create_index", {"column": "id", "index_type": "BTREE"})
_OWN: dict[str, Example] = {
    "ListAllTables": Example("/v1/database/ws/table", method="GET", rule=rules.BROWSE_NAMESPACE),
    "DescribeTable": Example("/v1/table/ws$data/describe", {}, prepare=data),
    "RenameTable": Example("/v1/table/ws$t/rename", {"new_table_name": "u"}),
    "CloneTable": Example(
        "/v1/table/ws$new/clone",
        {"source_location": "LOCATION"},
        prepare=data,
        rule=Rule(rules.Target.NAMESPACE, rules.P.MANAGE),  # CREATE, and READ of its source
    ),
    "CreateEmptyTable": Example("/v1/table/ws$new/create-empty", {}, rule=rules.CREATE),
    "QueryTable": Example("/v1/table/ws$data/query", _QUERY, prepare=data),
    "ExplainTableQueryPlan": Example(
        "/v1/table/ws$data/explain_plan", {"query": _QUERY}, prepare=data
    ),
    "AnalyzeTableQueryPlan": Example("/v1/table/ws$data/analyze_plan", _QUERY, prepare=data),
    "UpdateTable": Example(
        "/v1/table/ws$data/update", {"updates": [["text", "'new'"]]}, prepare=data
    ),
    "DeleteFromTable": Example("/v1/table/ws$data/delete", {"predicate": "id = 1"}, prepare=data),
    "AlterTableAddColumns": Example(
        "/v1/table/ws$data/add_columns",
        raw=lance_examples.stream(ROWS.rename_columns(["more"]).slice(0, 0)),
        prepare=data,
    ),
    "CreateTableIndex": Example(
        "/v1/table/ws$data/create_index", {"column": "id", "index_type": "BTREE"}, prepare=_index
    ),
    "PrewarmTableIndex": Example(
        "/v1/table/ws$data/index/id_idx/prewarm", prepare=_index, rule=rules.READ
    ),
    "ListTableTags": Example("/v1/table/ws$data/tags/list", prepare=data),
    "ListTableVersions": Example("/v1/table/ws$data/version/list", prepare=data),
    "ListJobs": Example("/v1/database/ws/jobs/list", {}, rule=rules.FILTERED),
}
BY_NUMBER = {"DescribeJob", "CancelJob"}
"""Operations on jobs by number, without an example."""
OPERATIONS = {
    operation.__name__: operation
    for operation in urls.ROUTES.values()
    if (operation.__module__.startswith("api.lancedb.") and operation.__name__ not in BY_NUMBER)
    or operation.__name__ in {"DropTable", "NamespaceExists"}
}
EXAMPLES = {name: _OWN.get(name) or lance_examples.EXAMPLES[name] for name in OPERATIONS}
RULES = {name: EXAMPLES[name].rule or rules.LANCE.get(name) for name in OPERATIONS}
