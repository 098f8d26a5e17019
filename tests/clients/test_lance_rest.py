"""pylance's RestNamespace calls every operation that it supports, against a live server."""

import base64
import inspect
import sys
import time
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.namespace import RestNamespace
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableIndexNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)
from lance_namespace_urllib3_client import ApiClient, Configuration, TableApi, TransactionApi
from lance_namespace_urllib3_client import models as m

from tests.live import LiveServer

NAMES = ["narwhal", "walrus", "seal", "orca"]


@pytest.fixture
def ns(live: LiveServer) -> RestNamespace:
    return live.client()


@pytest.fixture
def api(live: LiveServer) -> ApiClient:
    return ApiClient(Configuration(host=live.url, api_key={"ApiKeyAuth": live.key}))


@pytest.fixture
def space(ns: RestNamespace, request: pytest.FixtureRequest) -> str:
    name = f"rest_{request.node.name}"
    ns.create_namespace(m.CreateNamespaceRequest(id=[name]))
    return name


@pytest.fixture
def table(ns: RestNamespace, space: str) -> list[str]:
    """Four animals, in version 1."""
    table = [space, "animals"]
    ns.create_table(m.CreateTableRequest(id=table), stream(animals(*NAMES)))
    return table


def animals(*names: str, first: int = 1) -> pa.Table:
    ids = range(first, first + len(names))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array(names, pa.string()),
            "v": pa.array([[float(i), 0.0] for i in ids], pa.list_(pa.float32(), 2)),
        }
    )


def stream(data: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_table(data)
    return sink.getvalue().to_pybytes()


def ask(
    table: list[str], kind: type[Any] = m.QueryTableRequest, *, k: int = 10, **fields: Any
) -> Any:
    """A query, by default without a vector."""
    single = fields.pop("vector", None)
    vector = m.QueryTableRequestVector(single_vector=single)
    return kind(id=table, k=k, vector=vector, **fields)


def only(*names: str) -> m.QueryTableRequestColumns:
    return m.QueryTableRequestColumns(column_names=list(names))


def query(ns: RestNamespace, table: list[str], **fields: Any) -> list[dict[str, Any]]:
    answer = ns.query_table(ask(table, **fields))
    return pa.ipc.open_file(answer.data).read_all().to_pylist()


def ids(ns: RestNamespace, table: list[str]) -> list[int]:
    """Rows as pylance reads them from storage."""
    dataset = lance.dataset(namespace_client=ns, table_id=table)
    return sorted(dataset.to_table(columns=["id"])["id"].to_pylist())


def count(ns: RestNamespace, table: list[str], **fields: Any) -> int:
    return ns.count_table_rows(m.CountTableRowsRequest(id=table, **fields)).count


def versions(ns: RestNamespace, table: list[str], **fields: Any) -> list[int]:
    listed = ns.list_table_versions(m.ListTableVersionsRequest(id=table, **fields))
    return [entry.version for entry in listed.versions]


def audited(live: LiveServer, table: list[str]) -> list[tuple[str, int | None]]:
    """Operations on a table, in order, with the versions they created."""
    with live.database() as database:
        rows = database.execute(
            "SELECT action, after FROM catalog_auditevent WHERE table_uuid ="
            " (SELECT uuid FROM catalog_table WHERE name = %s AND namespace_id ="
            " (SELECT id FROM catalog_namespace WHERE name = %s)) ORDER BY id",
            (table[1], table[0]),
        ).fetchall()
    return [(action, (after or {}).get("version")) for action, after in rows]


def settled(ns: RestNamespace, job: str, within: float = 60.0) -> m.DescribeTransactionResponse:
    """A job's transaction once the job is neither queued nor running."""
    deadline = time.monotonic() + within
    while True:
        answer = ns.describe_transaction(m.DescribeTransactionRequest(id=[job]))
        if answer.status not in ("Queued", "Running"):
            return answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)


def test_every_binding_is_called_here() -> None:
    bindings = {
        name
        for name, member in vars(RestNamespace).items()
        if inspect.isfunction(member) and not name.startswith("_")
    } - {"namespace_id", "retrieve_ops_metrics", "reset_ops_metrics"}
    source = inspect.getsource(sys.modules[__name__])
    assert [name for name in sorted(bindings) if f"ns.{name}(" not in source] == []
    assert len(bindings) == 51


# --- namespaces and tables ---------------------------------------------------------------------


def test_namespaces_and_their_content(ns: RestNamespace) -> None:
    top, inner = ["rest namespaces"], ["rest namespaces", "inner"]
    made = ns.create_namespace(m.CreateNamespaceRequest(id=top, properties={"owner": "me"}))
    assert made.properties == {"owner": "me"}
    ns.create_namespace(m.CreateNamespaceRequest(id=inner))
    assert ns.list_namespaces(m.ListNamespacesRequest(id=top)).namespaces == ["inner"]
    described = ns.describe_namespace(m.DescribeNamespaceRequest(id=top))
    assert described.properties == {"owner": "me"}
    ns.namespace_exists(m.NamespaceExistsRequest(id=inner))

    table = [*inner, "t"]
    created = ns.create_table(
        m.CreateTableRequest(id=table, properties={"kind": "test"}), stream(animals("seal"))
    )
    assert (created.version, created.properties) == (1, {"kind": "test"})
    declared = ns.declare_table(m.DeclareTableRequest(id=[*inner, "later"]))
    assert declared.managed_versioning is True
    assert ns.list_tables(m.ListTablesRequest(id=inner)).tables == ["later", "t"]
    written = ns.list_tables(m.ListTablesRequest(id=inner, include_declared=False))
    assert written.tables == ["t"]
    everywhere = ns.list_all_tables(m.ListTablesRequest(id=[])).tables
    assert {"rest namespaces$inner$t", "rest namespaces$inner$later"} <= set(everywhere)
    ns.table_exists(m.TableExistsRequest(id=table))

    ns.rename_table(m.RenameTableRequest(id=table, new_table_name="u", new_namespace_id=top))
    assert ids(ns, [*top, "u"]) == [1]
    deregistered = ns.deregister_table(m.DeregisterTableRequest(id=[*top, "u"]))
    assert deregistered.location == created.location
    ns.register_table(m.RegisterTableRequest(id=table, location=deregistered.location))
    assert ids(ns, table) == [1]
    ns.drop_table(m.DropTableRequest(id=table))
    with pytest.raises(TableNotFoundError):
        ns.table_exists(m.TableExistsRequest(id=table))
    ns.drop_table(m.DropTableRequest(id=[*inner, "later"]))
    ns.drop_namespace(m.DropNamespaceRequest(id=inner))
    with pytest.raises(NamespaceNotFoundError):
        ns.namespace_exists(m.NamespaceExistsRequest(id=inner))
    ns.drop_namespace(m.DropNamespaceRequest(id=top))


def test_create_table_modes(ns: RestNamespace, table: list[str]) -> None:
    other = stream(animals("beluga", first=9))
    with pytest.raises(TableAlreadyExistsError):
        ns.create_table(m.CreateTableRequest(id=table), other)
    existing = ns.create_table(m.CreateTableRequest(id=table, mode="ExistOk"), other)
    assert (existing.version, ids(ns, table)) == (1, [1, 2, 3, 4])
    ns.create_table(m.CreateTableRequest(id=table, mode="Overwrite"), other)
    assert ids(ns, table) == [9]


def test_describe_with_details(ns: RestNamespace, table: list[str]) -> None:
    plain = ns.describe_table(m.DescribeTableRequest(id=table))
    assert plain.managed_versioning is True
    detailed = ns.describe_table(m.DescribeTableRequest(id=table, load_detailed_metadata=True))
    assert detailed.version == 1
    assert [field.name for field in detailed.var_schema.fields] == ["id", "name", "v"]
    assert detailed.var_schema.fields[0].type.type == "int64"
    assert (detailed.stats.num_deleted_rows, detailed.stats.num_fragments) == (0, 1)


# --- rows --------------------------------------------------------------------------------------


def test_rows_written_over_http(live: LiveServer, ns: RestNamespace, table: list[str]) -> None:
    inserted = ns.insert_into_table(
        m.InsertIntoTableRequest(id=table, mode="append"), stream(animals("beluga", first=5))
    )
    assert (inserted.num_inserted_rows, inserted.version) == (1, 2)
    merged = ns.merge_insert_into_table(
        m.MergeInsertIntoTableRequest(
            id=table,
            on=["id"],
            when_matched_update_all=True,
            when_not_matched_insert_all=True,
        ),
        stream(animals("bowhead", "dolphin", first=5)),
    )
    assert (merged.num_updated_rows, merged.num_inserted_rows, merged.version) == (1, 1, 3)
    updated = ns.update_table(
        m.UpdateTableRequest(id=table, predicate="id < 3", updates=[["name", "upper(name)"]])
    )
    assert (updated.updated_rows, updated.version) == (2, 4)
    deleted = ns.delete_from_table(m.DeleteFromTableRequest(id=table, predicate="id = 4"))
    assert deleted.version == 5

    rows = query(ns, table, columns=only("id", "name"))
    assert sorted((row["id"], row["name"]) for row in rows) == [
        (1, "NARWHAL"),
        (2, "WALRUS"),
        (3, "seal"),
        (5, "bowhead"),
        (6, "dolphin"),
    ]
    assert count(ns, table) == 5
    assert count(ns, table, predicate="id > 2") == 3
    assert [count(ns, table, version=version) for version in range(1, 6)] == [4, 5, 6, 6, 5]
    assert audited(live, table) == [
        ("table.create", None),
        ("table.insert", 2),
        ("table.merge_insert", 3),
        ("table.update", 4),
        ("table.delete", 5),
    ]

    replaced = ns.insert_into_table(
        m.InsertIntoTableRequest(id=table, mode="overwrite"), stream(animals("manatee"))
    )
    assert (replaced.version, ids(ns, table)) == (6, [1])


def test_refusals_of_writes(ns: RestNamespace, table: list[str]) -> None:
    insert = m.InsertIntoTableRequest(id=table)
    with pytest.raises(TableSchemaValidationError):
        ns.insert_into_table(insert, stream(pa.table({"id": ["a text"]})))
    with pytest.raises(InvalidInputError):
        ns.insert_into_table(insert, b"no Arrow at all")
    with pytest.raises(TableColumnNotFoundError):
        ns.delete_from_table(m.DeleteFromTableRequest(id=table, predicate="weight > 1"))
    with pytest.raises(InvalidInputError):
        ns.delete_from_table(m.DeleteFromTableRequest(id=table, predicate="id >"))
    with pytest.raises(TableNotFoundError):
        ns.insert_into_table(
            m.InsertIntoTableRequest(id=[table[0], "other"]), stream(animals("seal"))
        )
    assert versions(ns, table) == [1]


# --- queries -----------------------------------------------------------------------------------


def test_queries(ns: RestNamespace, table: list[str]) -> None:
    assert query(ns, table, filter="name LIKE '%al%'", columns=only("name")) == [
        {"name": "narwhal"},
        {"name": "walrus"},
        {"name": "seal"},
    ]
    aliases = m.QueryTableRequestColumns(column_aliases={"twice": "id * 2"})
    assert query(ns, table, k=2, offset=1, columns=aliases) == [{"twice": 4}, {"twice": 6}]
    nearest = query(ns, table, vector=[3.2, 0.0], k=2, columns=only("id", "_distance"))
    assert [row["id"] for row in nearest] == [3, 4]
    assert [row["_distance"] for row in nearest] == pytest.approx([0.04, 0.64])
    filtered = query(
        ns, table, vector=[3.2, 0.0], k=2, filter="id <> 3", prefilter=True, columns=only("id")
    )
    assert [row["id"] for row in filtered] == [4, 2]
    with pytest.raises(TableColumnNotFoundError):
        query(ns, table, filter="weight > 1")
    with pytest.raises(InvalidInputError):
        query(ns, table, filter="id >")
    with pytest.raises(TableVersionNotFoundError):
        query(ns, table, version=7)


def test_full_text_query(ns: RestNamespace, table: list[str]) -> None:
    ns.create_table_index(m.CreateTableIndexRequest(id=table, column="name", index_type="FTS"))
    words = m.QueryTableRequestFullTextQuery(
        string_query=m.StringFtsQuery(query="walrus", columns=["name"])
    )
    hits = query(ns, table, full_text_query=words)
    assert [row["id"] for row in hits] == [2]


def test_plans(ns: RestNamespace, table: list[str]) -> None:
    request = ask(table, filter="id > 2", columns=only("id"))
    plan = ns.explain_table_query_plan(
        m.ExplainTableQueryPlanRequest(id=table, query=request, verbose=True)
    )
    assert "LanceRead" in plan
    analysis = ns.analyze_table_query_plan(
        ask(table, m.AnalyzeTableQueryPlanRequest, filter="id > 2")
    )
    assert "AnalyzeExec" in analysis
    assert "output_rows=2" in analysis


# --- versions, tags, branches ------------------------------------------------------------------


def test_versions_and_restore(live: LiveServer, ns: RestNamespace, table: list[str]) -> None:
    ns.delete_from_table(m.DeleteFromTableRequest(id=table, predicate="id > 1"))
    described = ns.describe_table_version({"id": table, "version": 1})["version"]
    assert described["version"] == 1
    restored = ns.restore_table(m.RestoreTableRequest(id=table, version=1))
    answer = ns.describe_transaction(m.DescribeTransactionRequest(id=[restored.transaction_id]))
    assert answer.status == "Succeeded"
    assert (versions(ns, table), ids(ns, table)) == ([1, 2, 3], [1, 2, 3, 4])
    assert versions(ns, table, descending=True, limit=1) == [3]
    with pytest.raises(TableVersionNotFoundError):
        ns.restore_table(m.RestoreTableRequest(id=table, version=9))
    deleted = ns.batch_delete_table_versions(
        {"id": table, "ranges": [{"start_version": 1, "end_version": 2}]}
    )
    assert deleted["deleted_count"] == 1
    assert versions(ns, table) == [2, 3]
    with pytest.raises((ConcurrentModificationError, RuntimeError), match="version 3"):
        ns.create_table_version({"id": table, "version": 3, "manifest_path": "x.manifest"})
    assert audited(live, table)[1:3] == [("table.delete", 2), ("table.restore", 3)]


def test_tags(ns: RestNamespace, table: list[str]) -> None:
    ns.delete_from_table(m.DeleteFromTableRequest(id=table, predicate="id > 1"))
    ns.create_table_tag(m.CreateTableTagRequest(id=table, tag="all", version=1))
    tags = ns.list_table_tags(m.ListTableTagsRequest(id=table)).tags
    assert {name: tag.version for name, tag in tags.items()} == {"all": 1}
    dataset = lance.dataset(namespace_client=ns, table_id=table)
    assert dataset.checkout_version("all").count_rows() == 4
    ns.update_table_tag(m.UpdateTableTagRequest(id=table, tag="all", version=2))
    request = m.GetTableTagVersionRequest(id=table, tag="all")
    assert ns.get_table_tag_version(request).version == 2
    ns.delete_table_tag(m.DeleteTableTagRequest(id=table, tag="all"))
    with pytest.raises(TableTagNotFoundError):
        ns.get_table_tag_version(request)


def test_branches(ns: RestNamespace, table: list[str]) -> None:
    ns.create_table_branch(m.CreateTableBranchRequest(id=table, name="dev"))
    branches = ns.list_table_branches(m.ListTableBranchesRequest(id=table)).branches
    assert {name: branch.parent_version for name, branch in branches.items()} == {"dev": 1}
    ns.insert_into_table(
        m.InsertIntoTableRequest(id=table, branch="dev"), stream(animals("beluga", first=5))
    )
    ns.delete_from_table(m.DeleteFromTableRequest(id=table, branch="dev", predicate="id < 4"))
    rows = query(ns, table, branch="dev", columns=only("id"))
    assert sorted(row["id"] for row in rows) == [4, 5]
    assert (count(ns, table, branch="dev"), count(ns, table)) == (2, 4)
    assert ids(ns, table) == [1, 2, 3, 4]
    ns.delete_table_branch(m.DeleteTableBranchRequest(id=table, name="dev"))
    with pytest.raises(TableBranchNotFoundError):
        count(ns, table, branch="dev")


# --- indexes and statistics --------------------------------------------------------------------


def test_indexes(ns: RestNamespace, table: list[str]) -> None:
    scalar = ns.create_table_scalar_index(
        m.CreateTableIndexRequest(id=table, column="id", index_type="BTREE", name="by id")
    )
    assert scalar.transaction_id
    vectors = m.CreateTableIndexRequest(
        id=table, column="v", index_type="IVF_FLAT", num_partitions=1, distance_type="l2"
    )
    ns.create_table_index(vectors)
    listed = ns.list_table_indices(m.ListTableIndicesRequest(id=table)).indexes
    assert [(index.index_name, index.columns) for index in listed] == [
        ("by id", ["id"]),
        ("v_idx", ["v"]),
    ]
    answer = ns.describe_table_index_stats(
        m.DescribeTableIndexStatsRequest(id=table, index_name="by id")
    )
    assert (answer.index_type, answer.num_indexed_rows, answer.num_unindexed_rows) == (
        "BTREE",
        4,
        0,
    )
    ns.insert_into_table(m.InsertIntoTableRequest(id=table), stream(animals("beluga", first=5)))
    answer = ns.describe_table_index_stats(
        m.DescribeTableIndexStatsRequest(id=table, index_name="by id")
    )
    assert (answer.num_indexed_rows, answer.num_unindexed_rows) == (4, 1)
    dropped = m.DropTableIndexRequest(id=table, index_name="by id")
    assert ns.drop_table_index(dropped).transaction_id
    with pytest.raises(TableIndexNotFoundError):
        ns.drop_table_index(dropped)


def test_statistics(ns: RestNamespace, table: list[str]) -> None:
    ns.insert_into_table(m.InsertIntoTableRequest(id=table), stream(animals("beluga", first=5)))
    stats = ns.get_table_stats(m.GetTableStatsRequest(id=table))
    assert (stats.num_rows, stats.num_indices, stats.fragment_stats.num_fragments) == (5, 0, 2)
    assert stats.total_bytes > 0
    assert (stats.fragment_stats.lengths.min, stats.fragment_stats.lengths.max) == (1, 4)


# --- columns and metadata ----------------------------------------------------------------------


def test_columns(ns: RestNamespace, table: list[str]) -> None:
    added = ns.alter_table_add_columns(
        m.AlterTableAddColumnsRequest(
            id=table, new_columns=[m.AddColumnsEntry(name="twice", expression="id * 2")]
        )
    )
    assert added.version == 2
    altered = ns.alter_table_alter_columns(
        m.AlterTableAlterColumnsRequest(
            id=table, alterations=[m.AlterColumnsEntry(path="twice", rename="double")]
        )
    )
    assert altered.version == 3
    dataset = lance.dataset(namespace_client=ns, table_id=table)
    assert dataset.to_table(columns=["double"])["double"].to_pylist() == [2, 4, 6, 8]
    dropped = ns.alter_table_drop_columns(
        m.AlterTableDropColumnsRequest(id=table, columns=["double"])
    )
    assert dropped.version == 4
    assert lance.dataset(namespace_client=ns, table_id=table).schema.names == ["id", "name", "v"]
    with pytest.raises(TableColumnNotFoundError):
        ns.alter_table_drop_columns(m.AlterTableDropColumnsRequest(id=table, columns=["double"]))


def test_schema_metadata(ns: RestNamespace, table: list[str]) -> None:
    answer = ns.update_table_schema_metadata(
        m.UpdateTableSchemaMetadataRequest(id=table, metadata={"source": "the sea"})
    )
    assert answer.metadata == {"source": "the sea"}
    schema = lance.dataset(namespace_client=ns, table_id=table).schema
    assert schema.metadata == {b"source": b"the sea"}


def test_a_backfilled_column(ns: RestNamespace, table: list[str]) -> None:
    ns.alter_table_add_columns(
        m.AlterTableAddColumnsRequest(
            id=table, new_columns=[m.AddColumnsEntry(name="twice", computed="id * 2")]
        )
    )
    started = ns.alter_table_backfill_columns(
        m.AlterTableBackfillColumnsRequest(id=table, column="twice")
    )
    assert settled(ns, started.job_id).status == "Succeeded"
    dataset = lance.dataset(namespace_client=ns, table_id=table)
    assert dataset.to_table(columns=["twice"])["twice"].to_pylist() == [2, 4, 6, 8]


def test_a_materialized_view(ns: RestNamespace, table: list[str]) -> None:
    view = [table[0], "long"]
    schema = pa.schema({"id": pa.int64(), "upper": pa.string()})
    created = ns.create_materialized_view(
        m.CreateMaterializedViewRequest(
            id=view,
            kind="query",
            source_query=f"SELECT id, upper(name) AS upper FROM {'.'.join(table)} WHERE id > 2",
            output_schema=base64.b64encode(schema.serialize()).decode(),
            with_no_data=False,
        )
    )
    assert created.version == 1
    assert settled(ns, created.job_id).status == "Succeeded"
    assert query(ns, view) == [{"id": 3, "upper": "SEAL"}, {"id": 4, "upper": "ORCA"}]
    ns.insert_into_table(m.InsertIntoTableRequest(id=table), stream(animals("beluga", first=5)))
    refreshed = ns.refresh_materialized_view(m.RefreshMaterializedViewRequest(id=view))
    assert settled(ns, refreshed.job_id).status == "Succeeded"
    dataset = lance.dataset(namespace_client=ns, table_id=view)
    assert dataset.to_table()["upper"].to_pylist() == ["SEAL", "ORCA", "BELUGA"]


# --- operations without a method in RestNamespace ----------------------------------------------


def test_field_metadata(ns: RestNamespace, api: ApiClient, table: list[str]) -> None:
    answer = TableApi(api).update_field_metadata(
        "$".join(table),
        m.UpdateFieldMetadataRequest(
            updates=[m.UpdateFieldMetadataEntry(path="name", metadata={"unit": "animal"})]
        ),
    )
    assert answer.version == 2
    assert answer.fields == {"name": {"unit": "animal"}}
    field = lance.dataset(namespace_client=ns, table_id=table).schema.field("name")
    assert field.metadata == {b"unit": b"animal"}


def test_a_batch_of_both_kinds(ns: RestNamespace, api: ApiClient, table: list[str]) -> None:
    """A table created over HTTP is deregistered in the transaction that declares another."""
    new = [table[0], "new"]
    answer = TableApi(api).batch_commit_tables(
        m.BatchCommitTablesRequest(
            operations=[
                m.CommitTableOperation(declare_table=m.DeclareTableRequest(id=new)),
                m.CommitTableOperation(deregister_table=m.DeregisterTableRequest(id=table)),
            ]
        )
    )
    assert len(answer.results) == 2
    report = TransactionApi(api).describe_transaction(
        answer.transaction_id, m.DescribeTransactionRequest()
    )
    assert report.status == "Succeeded"
    assert ns.list_tables(m.ListTablesRequest(id=table[:1])).tables == ["new"]
    # The first rows of a declared table come over HTTP as well.
    inserted = ns.insert_into_table(m.InsertIntoTableRequest(id=new), stream(animals("seal")))
    assert (inserted.version, ids(ns, new)) == (1, [1])


def test_a_transaction_is_described_and_altered(
    ns: RestNamespace, api: ApiClient, table: list[str]
) -> None:
    updated = ns.update_table(m.UpdateTableRequest(id=table, updates=[["id", "id + 10"]]))
    answer = ns.describe_transaction(m.DescribeTransactionRequest(id=[updated.transaction_id]))
    assert answer.status == "Succeeded"
    action = m.AlterTransactionAction(
        set_property_action=m.AlterTransactionSetProperty(key="why", value="a test")
    )
    # pylance 14.0.2 loses the content of the actions: it sends "actions": [{}].
    request = m.AlterTransactionRequest(id=[updated.transaction_id], actions=[action])
    with pytest.raises(InvalidInputError, match="Action 0: exactly one of"):
        ns.alter_transaction(request)
    altered = TransactionApi(api).alter_transaction(updated.transaction_id, request)
    assert altered.properties["why"] == "a test"


# --- writes over HTTP and direct writes --------------------------------------------------------


def test_http_and_direct_writers_share_one_history(
    live: LiveServer, ns: RestNamespace, table: list[str]
) -> None:
    def append(*names: str, first: int) -> lance.LanceDataset:
        rows = animals(*names, first=first)
        return lance.write_dataset(rows, namespace_client=ns, table_id=table, mode="append")

    assert append("beluga", first=5).version == 2
    over_http = ns.insert_into_table(
        m.InsertIntoTableRequest(id=table), stream(animals("bowhead", first=6))
    )
    assert over_http.version == 3
    dataset = lance.dataset(namespace_client=ns, table_id=table)
    assert dataset.version == 3
    assert dataset.delete("id = 2")["num_deleted_rows"] == 1
    updated = ns.update_table(
        m.UpdateTableRequest(id=table, predicate="id = 5", updates=[["name", "'white whale'"]])
    )
    assert (updated.updated_rows, updated.version) == (1, 5)
    dataset.checkout_latest()
    dataset.optimize.compact_files(target_rows_per_fragment=1000)
    merged = ns.merge_insert_into_table(
        m.MergeInsertIntoTableRequest(id=table, on=["id"], when_not_matched_insert_all=True),
        stream(animals("narwhal", "walrus")),
    )
    assert (merged.num_inserted_rows, merged.num_updated_rows) == (1, 0)

    assert ids(ns, table) == [1, 2, 3, 4, 5, 6]
    names = {row["id"]: row["name"] for row in query(ns, table, columns=only("id", "name"))}
    assert names[5] == "white whale"
    history = versions(ns, table)
    assert history == list(range(1, merged.version + 1))
    made = [version for _, version in audited(live, table) if version is not None]
    assert made == history[1:]
    opened = [
        lance.dataset(namespace_client=ns, table_id=table, version=version).count_rows()
        for version in history
    ]
    assert [opened[0], opened[1], opened[2], opened[3], opened[-1]] == [4, 5, 6, 5, 6]


def test_a_table_created_by_a_direct_writer(ns: RestNamespace, space: str) -> None:
    table = [space, "direct"]
    lance.write_dataset(animals("narwhal"), namespace_client=ns, table_id=table)
    inserted = ns.insert_into_table(
        m.InsertIntoTableRequest(id=table), stream(animals("walrus", first=2))
    )
    assert inserted.version == 2
    again = lance.write_dataset(
        animals("seal", first=3), namespace_client=ns, table_id=table, mode="append"
    )
    assert (again.version, ids(ns, table)) == (3, [1, 2, 3])
