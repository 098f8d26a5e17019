"""Scores of a zoo of tables follow the expected cost of reading them."""

from dataclasses import replace

import pytest

from catalog import policies, read_costs
from catalog.planning import BuiltIndex, StaleIndex, Statistics
from catalog.read_costs import MIB, REQUEST

POLICY = policies.effective([])
GOOD = Statistics(
    format="iceberg",
    version=1,
    rows=1_000_000,
    deleted_rows=0,
    files=1,
    bytes=100 * MIB,
    small_files=0,
    rewrite_files=0,
    rewrite_bytes=0,
    rewritten_files=0,
    versions=1,
    old_versions=0,
    manifests=1,
    rewritten_manifests=1,
)


def small(files: int, size: int = 100 * MIB) -> Statistics:
    return replace(
        GOOD, files=files, small_files=files, rewrite_files=files, rewritten_files=1, bytes=size
    )


LANCE = replace(GOOD, format="lance", manifests=0, rewritten_manifests=0)
# From the cheapest to the most expensive to read, relative to the same table after maintenance.
ZOO = {
    "one file": GOOD,
    "a dangling delete file": replace(GOOD, equality_delete_files=1, dangling_equality_deletes=1),
    "ten old snapshots": replace(GOOD, versions=11, old_versions=10, removable_bytes=100 * MIB),
    "a tenth of the rows deleted": replace(GOOD, rows=900_000, deleted_rows=100_000, delete_files=1,
                                           rewritten_delete_files=1),
    "a third of the rows not indexed": replace(LANCE, indexes=1, stale_indexes=(StaleIndex("i", 333_333),)),
    "half of the rows under an equality delete": replace(
        GOOD, equality_delete_files=10, equality_deletes=1000, min_rows=500_000
    ),
    "an index of 40 segments": replace(
        LANCE, indexes=1, built_indexes=(BuiltIndex("i", 40, MIB),)
    ),
    "12 files of 1.4 MB": small(12, 17 * MIB),
    "100 files": small(100),
    "300 files with 60 position delete files": replace(
        small(300), delete_files=60, rewritten_delete_files=1, deleted_rows=50_000
    ),
    "960 files with 120 manifests": replace(small(960), manifests=120),
    "3000 files": small(3000),
}  # fmt: skip


def test_scores_have_the_order_of_the_costs():
    scores = {name: read_costs.score(table, POLICY) for name, table in ZOO.items()}
    assert list(scores.values()) == sorted(scores.values(), reverse=True), scores
    assert scores["one file"] == 100
    assert scores["a dangling delete file"] == 99
    assert scores["12 files of 1.4 MB"] > 50
    assert scores["960 files with 120 manifests"] < 10
    assert len(set(scores.values())) == len(scores), "different costs have different scores"


@pytest.mark.parametrize("name", ZOO)
def test_the_points_of_the_reasons_add_up(name):
    health = read_costs.assess(ZOO[name], POLICY)
    lost = sum(cost.points for cost in health.costs)
    assert lost == pytest.approx(100 - health.score, abs=1 + 0.05 * len(health.costs))
    assert [cost.bytes for cost in health.costs] == sorted(
        (cost.bytes for cost in health.costs), reverse=True
    )


def test_the_reasons_are_named():
    table = replace(small(12), manifests=3, delete_files=2, dangling_position_deletes=1)
    health = read_costs.assess(table, POLICY)
    assert [(cost.reason, cost.bytes) for cost in health.costs] == [
        ("11 files more than necessary", 22 * REQUEST),
        ("1 delete files more than necessary", 2 * REQUEST),
        ("2 manifests more than necessary", 2 * REQUEST),
        ("1 delete files that apply to no data file", REQUEST // 10),
    ]


def test_compaction_removes_the_deletes_of_the_files_that_it_rewrites():
    """A merge would leave as many delete files, because each applies to another data file."""
    deletes = {"delete_files": 8, "rewritten_delete_files": 8, "deletion_vectors": 4}
    half = replace(small(12), files=24, **deletes)
    reasons = {cost.reason: cost.bytes for cost in read_costs.assess(half, POLICY).costs}
    assert reasons["4 delete files more than necessary"] == 8 * REQUEST
    assert reasons["2 deletion vectors more than necessary"] == 2 * REQUEST
    untouched = replace(GOOD, files=24, **deletes)
    assert read_costs.assess(untouched, POLICY).costs == ()


def test_files_that_maintenance_cannot_merge_cost_nothing():
    partitions = replace(GOOD, files=500, small_files=500)
    assert read_costs.assess(partitions, POLICY).costs == ()
    assert read_costs.score(partitions, POLICY) == 100


def test_the_recall_of_a_badly_trained_index_counts():
    worn = replace(LANCE, indexes=1, built_indexes=(BuiltIndex("v", 1, MIB, 4, 100_000),))
    (cost,) = read_costs.assess(worn, POLICY).costs
    assert cost.reason == "recall of 'v', trained before 900000 rows were added"
    assert cost.bytes == round(0.25 * 0.9 * 100 * MIB)


@pytest.mark.parametrize(
    ("reads", "weight"), [(None, 1.0), (0.0, 0.25), (10.0, 1.0), (1000.0, 1.0)]
)
def test_a_table_that_nobody_reads_waits(reads, weight):
    assert read_costs.use_weight(reads) == weight
    full = 100 - read_costs.score(small(960), POLICY)
    lost = 100 - read_costs.score(replace(small(960), reads_per_day=reads), POLICY)
    assert lost == pytest.approx(weight * full, abs=1)


def test_use_counts_more_with_each_read():
    weights = [read_costs.use_weight(reads) for reads in (0, 0.1, 1, 5, 10)]
    assert weights == sorted(weights)
    assert len(set(weights)) == 5
