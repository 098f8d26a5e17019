"""Scores of a zoo of Lance tables have the order of the measured savings of maintenance, and predict them.

The cost of a read is what Lance counts: requests and bytes, before and after the maintenance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from catalog import policies, read_costs
from catalog.planning import StaleIndex, Statistics
from catalog.services.maintenance import lance_compaction

pytestmark = pytest.mark.xdist_group("measured costs")  # the tables are measured once

ROWS, WIDTH = 40_000, 25
POLICY = policies.effective([])
# Fragments, the share of deleted rows, and the share of rows that the index lacks.
ZOO = [
    *((fragments, 0.0, 0.0) for fragments in (1, 2, 5, 12, 40, 100)),
    *((1, deleted, 0.0) for deleted in (0.2, 0.6)),
    *((4, 0.0, unindexed) for unindexed in (0.25, 0.75)),
    (12, 0.4, 0.0),
    (40, 0.4, 0.5),
]


def build(uri: Path, fragments: int, deleted: float, unindexed: float) -> lance.LanceDataset:
    """A table with this layout; every one has the same rows, and 8 MB."""
    rows = ROWS // fragments
    generator = np.random.default_rng(1)
    indexed = round(fragments * (1 - unindexed))
    for number in range(fragments):
        first = number * rows
        values = pa.FixedSizeListArray.from_arrays(generator.random(rows * WIDTH), WIDTH)
        data = pa.table({"id": np.arange(first, first + rows), "v": values})
        lance.write_dataset(data, uri, mode="append")
        if number + 1 == indexed:
            lance.dataset(uri).create_scalar_index("id", "BTREE")
    dataset = lance.dataset(uri)
    if deleted:
        dataset.delete(f"id % 10 < {round(10 * deleted)}")
    return lance.dataset(uri)


def expected(dataset: lance.LanceDataset) -> Statistics:
    """The figures from metadata, as they are measured."""
    layout = lance_compaction.lay_out(dataset, POLICY)
    plan = lance_compaction.plan(dataset, layout, POLICY)
    missing = dataset.stats.index_stats("id_idx")["num_unindexed_rows"]
    figures = layout.figures() | {"versions": 1, "old_versions": 0}
    return Statistics(
        format="lance",
        rewrite_files=plan.files,
        rewrite_bytes=plan.bytes,
        rewritten_files=plan.new_files,
        indexes=1,
        stale_indexes=(StaleIndex("id_idx", missing),) if missing else (),
        **figures,
    )


def cost(dataset: lance.LanceDataset) -> int:
    """What Lance reads for a scan and a search, in bytes."""
    dataset.io_stats_incremental()
    dataset.to_table()
    dataset.to_table(columns=["id"], filter="id = 17")
    stats = dataset.io_stats_incremental()
    return int(stats.read_bytes + read_costs.REQUEST * stats.read_iops)


@dataclass(frozen=True)
class Measured:
    score: int
    before: int
    after: int
    expected_before: float
    expected_after: float

    @property
    def ratio(self) -> float:
        return self.before / self.after


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, float, float], Measured]:
    """The zoo, with the cost of reads before and after maintenance."""
    directory = tmp_path_factory.mktemp("zoo")
    measured = {}
    for number, layout in enumerate(ZOO):
        dataset = build(directory / str(number), *layout)
        statistics, before = expected(dataset), cost(dataset)
        health = read_costs.assess(statistics, POLICY)
        saving = sum(part.bytes for part in health.costs)
        after = read_costs.BASE + read_costs._ideal(statistics)
        dataset.optimize.optimize_indices()
        dataset.optimize.compact_files(target_rows_per_fragment=10**6)
        measured[layout] = Measured(
            health.score,
            before,
            cost(lance.dataset(directory / str(number))),
            after + saving,
            after,
        )
    return measured


@pytest.mark.filterwarnings("ignore")
def test_scores_have_the_order_of_the_measured_costs(tables):
    for one, other in permutations(tables.values(), 2):
        if one.ratio > 1.3 * other.ratio:
            assert one.score <= other.score, tables
        if one.ratio > 2 * other.ratio:
            assert one.score < other.score, tables
    assert tables[ZOO[0]].score == 100
    assert tables[ZOO[0]].ratio == pytest.approx(1, abs=0.1)
    assert max(table.ratio for table in tables.values()) > 10


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(8))
def test_the_expected_saving_is_that_of_a_skewed_workload(tables, seed):
    """The n-th table in a random order has the n-th part of the reads of the first one."""
    order = np.random.default_rng(seed).permutation(len(ZOO))
    reads = {ZOO[number]: 1 / (rank + 1) for rank, number in enumerate(order)}

    def total(figure: Callable[[Measured], float]) -> float:
        return sum(share * figure(tables[layout]) for layout, share in reads.items())

    measured = 1 - total(lambda table: table.after) / total(lambda table: table.before)
    predicted = 1 - total(lambda table: table.expected_after) / total(
        lambda table: table.expected_before
    )
    assert measured > 0.4
    assert predicted == pytest.approx(measured, rel=0.25), (predicted, measured)
