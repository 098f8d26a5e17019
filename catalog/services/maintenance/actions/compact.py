"""Compaction: rewrite small files, and files with many deleted rows."""

from catalog import engines
from catalog.layouts import Strategy
from catalog.maintenance_actions import Implementation, MaintenanceAction
from catalog.planning import Proposal, Statistics, has_many_equality_deletes, must_sort_all
from catalog.policies import ICEBERG, LANCE, MB, EffectivePolicy, Mode, Rule, Unit
from catalog.services.maintenance.actions.results import change_of


def _plan(statistics: Statistics, policy: EffectivePolicy) -> Proposal | None:
    s = statistics
    removed = s.rewrite_files - s.rewritten_files
    has_small_files = s.small_files >= policy["min_small_files"] and removed > 0
    has_deleted_rows = s.deleted_rows > policy["deleted_ratio"] * max(
        s.rows + s.deleted_rows, 1
    ) or has_many_equality_deletes(
        files=s.applying_equality_delete_files, keys=s.equality_deletes, rows=s.rows, policy=policy
    )
    must_sort = must_sort_all(
        files=s.files, unsorted_bytes=s.unsorted_bytes, size=s.bytes, policy=policy
    )
    if not (has_small_files or must_sort or (has_deleted_rows and s.rewrite_files)):
        return None
    reason = f"{s.small_files} of {s.files} files are small"
    if s.unsorted_files:
        reason += f", {s.unsorted_files} are not sorted as the policy requires"
    if s.deleted_rows:
        reason += f", {s.deleted_rows} rows are deleted"
    if s.applying_equality_delete_files:
        reason += (
            f", {s.applying_equality_delete_files} equality delete files have"
            f" {s.equality_deletes} keys"
        )
    if s.dangling_deletes:
        reason += f", {s.dangling_deletes} delete files apply to no data file"
    return Proposal(
        reason,
        files_gone=removed,
        bytes_read=s.rewrite_bytes,
        is_for_spark=s.format == "iceberg" or engines.choose(policy, s.rewrite_bytes)[0] == "spark",
    )


ACTION = MaintenanceAction(
    key="compact",
    title="Compact",
    help="Rewrites small files as fewer large files without deleted rows. "
    "Readers and writers are not blocked.",
    icon="compress",
    group="Compaction",
    rules=(
        Rule("compaction", Unit.MODE, Mode.DRY_RUN, "Rewrite small files and remove deleted rows."),
        Rule(
            "target_rows",
            Unit.COUNT,
            1024 * 1024,
            "Target number of rows of a fragment after compaction.",
            LANCE,
            low=1024,
        ),
        Rule(
            "target_bytes",
            Unit.BYTES,
            512 * MB,
            "Target size of a data file after compaction.",
            ICEBERG,
            low=MB,
        ),
        Rule(
            "small_ratio",
            Unit.RATIO,
            0.5,
            "A file or fragment below this fraction of its target is small.",
            low=0.01,
            high=0.99,
        ),
        Rule(
            "min_small_files",
            Unit.COUNT,
            8,
            "Compact when at least this many small files exist.",
            low=2,
        ),
        Rule(
            "deleted_ratio",
            Unit.RATIO,
            0.1,
            "Rewrite fragments or files with a larger fraction of deleted rows.",
            low=0.0,
            high=1.0,
        ),
        Rule(
            "strategy",
            Unit.STRATEGY,
            str(Strategy.BINPACK),
            "Order of the rows in the new files: binpack keeps it, sort sorts by the columns of "
            "sort_order, zorder keeps rows together that are near in several of these columns.",
            ICEBERG,
        ),
        Rule(
            "sort_order",
            Unit.SORT_ORDER,
            "",
            "Columns of the strategies sort and zorder, such as country, created_at desc nulls last. "
            "zorder takes columns alone. Empty: the sort order of the table.",
            ICEBERG,
        ),
        Rule(
            "unsorted_ratio",
            Unit.RATIO,
            0.3,
            "With sort or zorder, rewrite all files when files with a larger fraction of the bytes are "
            "not sorted yet.",
            ICEBERG,
            low=0.0,
            high=1.0,
        ),
    ),
    implementations={
        "lance": Implementation(
            run="catalog.services.maintenance.lance_compaction.compact",
            takes_spark=True,
            help="rewrites small adjacent fragments, and fragments with many deleted rows",
            settings="`target_rows`; fragments below `small_ratio` of it, or with more than "
            "`deleted_ratio` deleted rows",
            promises={
                "files_read": (("plan", "files"), ("done", "files_removed")),
                "files_written": (("plan", "new_files"), ("done", "files_added")),
                "bytes_read": (("plan", "bytes"), ("done", "bytes_read")),
            },
        ),
        "iceberg": Implementation(
            run="catalog.services.maintenance.iceberg_actions.compact",
            takes_spark=True,
            help="rewrites small files, and files with many deleted rows (`rewrite_data_files`), in the "
            "same order or [sorted](#sorted-files)",
            settings="`target_bytes`; files below `small_ratio` of it, or above 1.8 times it, in "
            "partitions with at least `min_small_files` of them (at most 5 are required); files with "
            "`deleted_ratio` deleted rows; `strategy`, `sort_order`, `unsorted_ratio`",
            promises={
                name: (("planned", figure), ("done", figure))
                for name, figure in (
                    ("files_read", "rewritten_data_files_count"),
                    ("files_written", "added_data_files_count"),
                    ("bytes_read", "rewritten_bytes_count"),
                )
            },
        ),
    },
    summarize=change_of("files", "data files"),
    order=30,
    plan=_plan,
    merges_files=True,
)
