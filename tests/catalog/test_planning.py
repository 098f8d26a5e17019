"""Maintenance plans and scores from the figures of tables."""

from dataclasses import replace

import pytest

from catalog import maintenance_actions, planning, policies, read_costs
from catalog.planning import BuiltIndex, IndexSearch, MissingIndex, StaleIndex, Statistics
from catalog.policies import Mode

WELL = Statistics(
    format="lance",
    version=9,
    rows=1_000_000,
    deleted_rows=0,
    files=2,
    bytes=10**9,
    small_files=0,
    rewrite_files=0,
    rewrite_bytes=0,
    rewritten_files=0,
    versions=5,
    old_versions=0,
)
SMALL = replace(
    WELL, files=200, small_files=200, rewrite_files=200, rewritten_files=2, rewrite_bytes=10**8
)
ON = policies.effective(
    [
        (
            "p",
            {rule.name: "on" for rule in policies.rules() if rule.unit == "mode"}
            | {"recall": "off"},
        )
    ]
)


def kinds(statistics: Statistics, policy=ON) -> list[str]:
    return [job.kind for job in maintenance_actions.plan(statistics, policy)]


def test_a_healthy_table_needs_no_maintenance():
    assert kinds(WELL) == []
    assert read_costs.score(WELL, ON) == 100


def test_an_empty_table_needs_no_maintenance():
    empty = replace(WELL, rows=0, files=0, bytes=0, versions=1)
    assert kinds(empty) == []
    assert read_costs.score(empty, ON) == 100


def test_many_small_files_are_compacted():
    (job,) = maintenance_actions.plan(SMALL, ON)
    assert (job.kind, job.mode, job.files_gone, job.bytes_read) == ("compact", Mode.ON, 198, 10**8)
    assert job.reason == "200 of 200 files are small"
    assert not job.is_for_spark
    assert read_costs.score(SMALL, ON) == 30


def test_few_small_files_are_not_compacted():
    few = replace(SMALL, files=7, small_files=7, rewrite_files=7, rewritten_files=1)
    assert kinds(few) == []
    assert read_costs.score(few, ON) == 93


def test_files_that_compaction_would_not_reduce_are_not_compacted():
    assert kinds(replace(SMALL, rewritten_files=200)) == []


def test_many_deleted_rows_are_compacted():
    deleted = replace(WELL, deleted_rows=200_000, rewrite_files=1, rewritten_files=1)
    (job,) = maintenance_actions.plan(deleted, ON)
    assert (job.kind, job.files_gone) == ("compact", 0)
    assert "200000 rows are deleted" in job.reason
    assert kinds(replace(deleted, deleted_rows=100_000)) == []


def test_large_lance_tables_and_all_iceberg_tables_use_spark():
    large = replace(SMALL, rewrite_bytes=2 * 1024**3)
    assert maintenance_actions.plan(large, ON)[0].is_for_spark
    assert maintenance_actions.plan(replace(SMALL, format="iceberg"), ON)[0].is_for_spark


@pytest.mark.parametrize(
    "changes", [{"old_versions": 3, "removable_files": 100_001}, {"orphan_files": 100_001}]
)
def test_many_files_are_removed_by_spark_from_object_stores_only(changes):
    removal = replace(WELL, **changes)
    (local,) = maintenance_actions.plan(removal, ON)
    assert not local.is_for_spark
    (objects,) = maintenance_actions.plan(replace(removal, is_in_object_store=True), ON)
    assert objects.is_for_spark


def test_files_are_counted_by_size():
    mib = 1024**2
    sizes = (0, mib - 1, mib, 4 * mib - 1, 4 * mib, 256 * mib, 1024 * mib, 5000 * mib)
    assert planning.count_by_size(sizes) == (2, 2, 1, 0, 0, 1, 2)
    assert planning.count_by_size(()) == ()


def test_indexes_with_many_unindexed_rows_are_optimized():
    stale = replace(
        WELL, indexes=3, stale_indexes=(StaleIndex("a", 9_999), StaleIndex("b", 50_000))
    )
    (job,) = maintenance_actions.plan(stale, ON)
    assert (job.kind, job.parameters) == ("optimize_indexes", {"indexes": ["b"]})
    assert "'b' by 50000 rows" in job.reason


def worn(*built: BuiltIndex, **changed: object) -> Statistics:
    return replace(WELL, indexes=len(built), built_indexes=built, **changed)


def test_an_index_with_many_segments_is_rebuilt():
    built = worn(BuiltIndex("a", 20, 10**6), BuiltIndex("b", 21, 5000), BuiltIndex("c", 30, 70))
    (job,) = maintenance_actions.plan(built, ON)
    assert (job.kind, job.mode, job.parameters) == (
        "rebuild_indexes",
        Mode.ON,
        {"indexes": ["b", "c"]},
    )
    assert (job.bytes_read, job.files_gone, job.is_for_spark) == (5070, 0, False)
    assert job.reason == (
        "2 of 3 indexes have degraded: 'b' is in 21 segments, 'c' is in 30 segments"
    )
    assert kinds(built, policies.effective([("p", {"index_segments": 30})])) == []
    assert kinds(built, policies.effective([("p", {"index_rebuilds": "off"})])) == []
    assert maintenance_actions.plan(built, policies.effective([]))[0].mode is Mode.DRY_RUN


def test_a_vector_index_is_rebuilt_if_most_rows_are_newer():
    half, more = (BuiltIndex("v", 1, 9, 4, trained) for trained in (500_000, 499_999))
    assert kinds(worn(half)) == []
    (job,) = maintenance_actions.plan(worn(more), ON)
    assert job.kind == "rebuild_indexes"
    assert "500001 of 1000000 rows were added after 'v' was trained" in job.reason
    never = policies.effective([("p", {"untrained_ratio": 1.0})])
    assert kinds(worn(BuiltIndex("v", 1, 9, 4, 0)), never) == []
    assert kinds(worn(BuiltIndex("v", 1, 9, 4, 2_000_000))) == []  # rows were deleted since
    assert kinds(worn(BuiltIndex("b", 1, 9), rows=0)) == []


OLD = BuiltIndex("v", 1, 9, 4, 400_000)
"""A vector index without 600,000 of a million rows in its training."""


def searched(
    index: BuiltIndex, recall: float, search_ms: float = 5.0, rows: int = 1_000_000
) -> Statistics:
    search = IndexSearch("v", recall, search_ms, 50.0, rows, 4)
    return worn(index, index_searches=(search,))


def test_a_measured_recall_decides_about_a_rebuild():
    assert kinds(searched(OLD, 0.9)) == []
    (job,) = maintenance_actions.plan(searched(OLD, 0.899), ON)
    assert job.kind == "rebuild_indexes"
    assert job.reason == "1 of 1 indexes have degraded: the recall of 'v' is 90%"
    (cost,) = read_costs.assess(searched(OLD, 0.5), ON).costs
    assert (cost.reason, cost.bytes) == ("recall 50% of 'v'", 4 * 10**8)
    few_new_rows = replace(OLD, trained_rows=950_000)
    assert kinds(searched(few_new_rows, 0.1)) == [], "a rebuild would give nearly the same index"
    assert kinds(searched(OLD, 1.0, rows=900_000)) == ["rebuild_indexes"], "the table has grown"
    assert kinds(searched(OLD, 1.0, rows=910_000)) == []


def test_slow_searches_lead_to_a_rebuild():
    slow = searched(OLD, 1.0, search_ms=20.5)
    limited = policies.effective([("p", {"index_rebuilds": "on", "max_search_ms": 20})])
    assert kinds(slow) == []
    (job,) = maintenance_actions.plan(slow, limited)
    assert "a search in 'v' takes 20 ms" in job.reason
    (cost,) = read_costs.assess(slow, limited).costs
    assert cost.reason == "searches of 20 ms in 'v'"
    assert kinds(searched(OLD, 1.0, search_ms=20.0), limited) == []
    new = BuiltIndex("v", 1, 9, 4, 1_000_000)
    assert kinds(searched(new, 1.0, search_ms=90.0), limited) == [], "a rebuild would not help"
    assert kinds(searched(replace(new, segments=2), 1.0, 90.0), limited) == ["rebuild_indexes"]


def test_the_recall_of_an_index_is_measured_after_training_and_growth():
    on = policies.effective([("p", {"recall": "on", "index_rebuilds": "off"})])
    assert kinds(worn(OLD), on) == ["measure_recall"]
    assert kinds(searched(OLD, 0.5), on) == []
    assert kinds(searched(OLD, 0.5, rows=900_000), on) == ["measure_recall"]
    assert kinds(worn(BuiltIndex("scalar", 1, 9)), on) == []


def test_missing_indexes_are_planned():
    missing = MissingIndex("id", "BTREE", 700, 8_000_000)
    lacking = replace(WELL, missing_indexes=(missing,), reads_per_day=200.0)
    (job,) = maintenance_actions.plan(lacking, ON)
    assert (job.kind, job.bytes_read) == ("create_indexes", 8_000_000)
    assert job.reason == "queries lack indexes: BTREE on 'id' (700 queries in a week)"
    (cost,) = read_costs.assess(lacking, ON).costs
    assert (cost.reason, cost.bytes) == (
        "no index on 'id', which 700 queries used in a week",
        4_000_000,
    )
    assert Statistics.from_json(lacking.as_json()) == lacking


def test_an_index_that_is_rebuilt_is_not_optimized():
    stale = (StaleIndex("a", 50_000), StaleIndex("b", 60_000))
    both = worn(BuiltIndex("a", 99, 1), BuiltIndex("b", 1, 1), stale_indexes=stale)
    assert [
        (job.kind, job.parameters["indexes"]) for job in maintenance_actions.plan(both, ON)
    ] == [
        ("rebuild_indexes", ["a"]),
        ("optimize_indexes", ["b"]),
    ]
    settings = policies.effective([("p", {"indexes": "on"})])
    assert [
        (job.kind, job.parameters["indexes"]) for job in maintenance_actions.plan(both, settings)
    ] == [
        ("rebuild_indexes", ["a"]),
        ("optimize_indexes", ["a", "b"]),
    ]


def test_an_index_that_cannot_be_rebuilt_is_optimized():
    stale = (StaleIndex("a", 50_000),)
    statistics = worn(BuiltIndex("a", 99, 1, obstacle="too few vectors"), stale_indexes=stale)
    assert [
        (job.kind, job.parameters["indexes"]) for job in maintenance_actions.plan(statistics, ON)
    ] == [
        ("optimize_indexes", ["a"]),
    ]


def test_figures_of_older_releases_have_no_built_indexes():
    old = WELL.as_json()
    del old["built_indexes"]
    assert Statistics.from_json(old) == WELL
    new = searched(BuiltIndex("a", 2, 10, 4, 100), 0.5)
    assert Statistics.from_json(new.as_json()) == new


def test_old_versions_are_cleaned_up():
    (job,) = maintenance_actions.plan(replace(WELL, versions=100, old_versions=90), ON)
    assert job.kind == "clean_up"
    assert "90 of 100 versions" in job.reason


def test_iceberg_tables_have_their_own_actions():
    iceberg = replace(WELL, format="iceberg", manifests=80, delete_files=30, old_versions=1)
    assert kinds(iceberg) == ["rewrite_position_deletes", "rewrite_manifests", "clean_up"]
    some = replace(iceberg, rewritten_manifests=60, rewritten_delete_files=22)
    assert [(job.kind, job.files_gone) for job in maintenance_actions.plan(some, ON)] == [
        ("rewrite_position_deletes", 8),
        ("rewrite_manifests", 20),
        ("clean_up", 0),
    ]
    assert kinds(replace(iceberg, format="lance")) == ["clean_up"]


def test_manifests_and_deletes_that_a_rewrite_would_not_reduce_are_not_rewritten():
    same = replace(
        WELL,
        format="iceberg",
        manifests=80,
        rewritten_manifests=61,
        delete_files=30,
        rewritten_delete_files=30,
    )
    assert kinds(same) == []
    few = replace(
        same, manifests=49, rewritten_manifests=1, delete_files=9, rewritten_delete_files=1
    )
    assert kinds(few) == []
    full = replace(same, rewritten_manifests=80)
    assert read_costs.score(full, ON) == 100


def test_several_actions_have_a_fixed_order():
    everything = replace(SMALL, stale_indexes=(StaleIndex("a", 10**6),), indexes=1, old_versions=4)
    assert kinds(everything) == ["optimize_indexes", "compact", "clean_up"]


@pytest.mark.parametrize(("mode", "expected"), [("off", []), ("dry_run", [Mode.DRY_RUN])])
def test_modes_of_policies_become_modes_of_jobs(mode, expected):
    policy = policies.effective([("p", {"compaction": mode})])
    assert [job.mode for job in maintenance_actions.plan(SMALL, policy)] == expected


def test_the_score_stays_within_its_bounds():
    worst = replace(
        SMALL,
        rewrite_files=10**6,
        rows=0,
        deleted_rows=10**9,
        stale_indexes=(StaleIndex("a", 10**9),),
        versions=10,
        old_versions=10,
        manifests=10**6,
        delete_files=10**6,
    )
    assert read_costs.score(worst, ON) == 0
    assert read_costs.score(worst, ON) < read_costs.score(SMALL, ON) < read_costs.score(WELL, ON)


def test_segments_of_an_index_that_are_merged():
    assert planning.segments_to_merge([], 100) == 0
    assert planning.segments_to_merge([600], 100) == 0
    assert planning.segments_to_merge([600, 100], 100) == 1
    assert planning.segments_to_merge([600, 200, 100], 100) == 2
    assert planning.segments_to_merge([600, 200, 100], 600) == 3
    assert planning.segments_to_merge([100, 600], 100) == 0  # only the newest ones


def test_merging_keeps_segments_few_and_rarely_rewrites_rows():
    segments, written = [1000], 0
    for _ in range(1000):
        merged = planning.segments_to_merge(segments, 1)
        new = 1 + sum(segments[len(segments) - merged :])
        segments = [*segments[: len(segments) - merged], new]
        written += new
        assert len(segments) <= 11
    assert sum(segments) == 2000
    assert written < 1000 * 11


def test_equality_deletes_of_upserts_are_compacted():
    """Three upserts of a small table, as Flink writes them."""
    upserted = replace(
        WELL, format="iceberg", rows=13, files=4, rewrite_files=1, rewritten_files=1,
        equality_delete_files=3, equality_deletes=3, min_rows=0,
    )  # fmt: skip
    (job,) = maintenance_actions.plan(upserted, ON)
    assert job.kind == "compact"
    assert job.reason.endswith("3 equality delete files have 3 keys")
    assert read_costs.score(upserted, ON) < 80
    few = replace(upserted, rows=1_000_000, equality_delete_files=1)
    assert kinds(few) == []
    many = replace(upserted, rows=1_000_000, equality_delete_files=10)
    assert kinds(many) == ["compact"]
