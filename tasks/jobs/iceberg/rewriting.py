"""Actions that rewrite files of a table, or add statistics. They delete no file."""

from typing import Any

from .errors import Failed
from .events import emit
from .internals import left_out_files
from .table import Table, literal


def compact(table: Table) -> dict[str, Any]:
    """Rewrite data files that are small or have deleted rows. Raises Failed if not all were rewritten."""
    strategy, order = table.request.get("strategy"), table.request.get("sort_order")
    if table.request.get("leaves_out"):
        result = _compact_partly(table, strategy or "", order or "")
    else:
        result = table.call_for_row(
            "rewrite_data_files",
            strategy=literal(strategy) if strategy else "",
            sort_order=literal(order) if order else "",
            options=table.options(),
        )
    if result.get("failed_data_files_count"):
        raise Failed(
            "conflict",
            f"{result['failed_data_files_count']} files were not rewritten, because others changed"
            f" them; {result['rewritten_data_files_count']} were",
        )
    return result


def _compact_partly(table: Table, strategy: str, order: str) -> dict[str, Any]:
    """The work of rewrite_data_files, without files that must not be opened.

    The procedure cannot leave out files. Neither a data file nor a delete file that applies to it may be
    left out, or deleted rows would come back.
    """
    loaded = table.load()
    options = dict(table.request.get("options") or {})
    removes_dangling = options.pop("remove-dangling-deletes", "false") == "true"
    action = table.actions().rewriteDataFiles(loaded)
    for name, value in options.items():
        action.option(name, value)
    internals = table.internals()
    if strategy:
        procedure = internals.construct(
            "org.apache.iceberg.spark.procedures.RewriteDataFilesProcedure", None
        )
        internals.call(
            procedure, "checkAndApplyStrategy", action, strategy, order or None, loaded.schema()
        )
    emit("log", message=f"rewriteDataFiles({table.sql_name}), without files of other tables")
    start = loaded.currentSnapshot().snapshotId()
    internals.call(action, "init", start)
    planner = internals.field(action, "planner")
    is_all = options.get("rewrite-all") == "true"
    plan, count = internals.without(
        planner, left_out_files(loaded), "RewriteFileGroup", is_all=is_all
    )
    result: dict[str, Any] = {"left_out_data_files_count": count}
    counts = {
        "rewritten_data_files_count": "rewrittenDataFilesCount",
        "added_data_files_count": "addedDataFilesCount",
        "rewritten_bytes_count": "rewrittenBytesCount",
        "failed_data_files_count": "failedDataFilesCount",
    }
    if plan.totalGroupCount():
        commits = internals.call(action, "commitManager", start)
        rewritten = internals.call(action, "doExecuteWithPartialProgress", plan, commits).build()
        result |= {name: int(getattr(rewritten, method)()) for name, method in counts.items()}
    else:
        result |= dict.fromkeys(counts, 0)
    removed = _remove_dangling_deletes(table) if removes_dangling else 0
    return result | {"removed_delete_files_count": removed}


def rewrite_position_deletes(table: Table) -> dict[str, Any]:
    """Rewrite small delete files, and remove those that apply to no data file."""
    if table.request.get("leaves_out"):
        result = _rewrite_position_deletes_partly(table)
    else:
        result = table.call_for_row("rewrite_position_delete_files", options=table.options())
    removed = _remove_dangling_deletes(table)
    if removed:
        rewritten = result.get("rewritten_delete_files_count") or 0
        result["rewritten_delete_files_count"] = rewritten + removed
        result.setdefault("added_delete_files_count", 0)
    return {**result, "removed_delete_files_count": removed}


def _rewrite_position_deletes_partly(table: Table) -> dict[str, Any]:
    """The work of rewrite_position_delete_files, without files that must not be opened."""
    loaded = table.load()
    if int(table.jvm.org.apache.iceberg.TableUtil.formatVersion(loaded)) > 2:
        # A deletion vector replaces all position deletes of its data file, so none may be left out.
        raise Failed("conflict", "The table got another format version meanwhile")
    action = table.actions().rewritePositionDeletes(loaded)
    for name, value in (table.request.get("options") or {}).items():
        action.option(name, value)
    emit("log", message=f"rewritePositionDeletes({table.sql_name}), without files of other tables")
    internals = table.internals()
    true = table.jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
    planner = table.jvm.org.apache.iceberg.actions.BinPackRewritePositionDeletePlanner(
        loaded, true, False
    )
    internals.set_field(action, "planner", planner)
    internals.call(action, "validateAndInitOptions")
    result = {
        "rewritten_delete_files_count": 0,
        "added_delete_files_count": 0,
        "rewritten_bytes_count": 0,
        "added_bytes_count": 0,
    }
    plan, count = internals.without(
        planner, left_out_files(loaded), "RewritePositionDeletesGroup", is_all=False
    )
    if plan.totalGroupCount():
        commits = internals.call(action, "commitManager")
        rewritten = internals.call(action, "doExecuteWithPartialProgress", plan, commits)
        result = {
            "rewritten_delete_files_count": int(rewritten.rewrittenDeleteFilesCount()),
            "added_delete_files_count": int(rewritten.addedDeleteFilesCount()),
            "rewritten_bytes_count": int(rewritten.rewrittenBytesCount()),
            "added_bytes_count": int(rewritten.addedBytesCount()),
        }
    return result | {"left_out_delete_files_count": count}


def _remove_dangling_deletes(table: Table) -> int:
    """Remove the delete files, of any kind, that no scan applies; returns their number.

    Iceberg compares all delete files with those of a scan of the snapshot. The commit fails if
    another line of snapshots has become current meanwhile.
    """
    emit("log", message=f"removeDanglingDeleteFiles({table.sql_name})")
    result = table.actions().removeDanglingDeleteFiles(table.load()).execute()
    return sum(1 for _ in result.removedDeleteFiles())


def rewrite_manifests(table: Table) -> dict[str, Any]:
    """Combine small manifests."""
    return table.call_for_row("rewrite_manifests", use_caching="false")


def compute_statistics(table: Table) -> dict[str, Any]:
    """Count the distinct values of each column, in a statistics file."""
    return table.call_for_row("compute_table_stats")
