"""Scores of a zoo of Lance tables have the order of the measured savings of maintenance.

The cost of a read is what Lance counts: requests and bytes, before and after the maintenance.
"""

from itertools import permutations
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from catalog import policies, read_costs
from catalog.planning import StaleIndex, Statistics
from catalog.services.maintenance import lance_compaction

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


def expected(dataset: lance.LanceDataset) -> int:
    """The score from metadata, as it is measured."""
    layout = lance_compaction.lay_out(dataset, POLICY)
    plan = lance_compaction.plan(dataset, layout, POLICY)
    missing = dataset.stats.index_stats("id_idx")["num_unindexed_rows"]
    figures = layout.figures() | {"versions": 1, "old_versions": 0}
    statistics = Statistics(
        format="lance",
        rewrite_files=plan.files,
        rewrite_bytes=plan.bytes,
        rewritten_files=plan.new_files,
        indexes=1,
        stale_indexes=(StaleIndex("id_idx", missing),) if missing else (),
        **figures,
    )
    return read_costs.score(statistics, POLICY)


def cost(dataset: lance.LanceDataset) -> int:
    """What Lance reads for a scan and a search, in bytes."""
    dataset.io_stats_incremental()
    dataset.to_table()
    dataset.to_table(columns=["id"], filter="id = 17")
    stats = dataset.io_stats_incremental()
    return int(stats.read_bytes + read_costs.REQUEST * stats.read_iops)


@pytest.mark.filterwarnings("ignore")
def test_scores_have_the_order_of_the_measured_costs(tmp_path):
    tables = {}
    for number, layout in enumerate(ZOO):
        dataset = build(tmp_path / str(number), *layout)
        score, before = expected(dataset), cost(dataset)
        dataset.optimize.optimize_indices()
        dataset.optimize.compact_files(target_rows_per_fragment=10**6)
        tables[layout] = score, before / cost(lance.dataset(tmp_path / str(number)))
    for (score, ratio), (other_score, other_ratio) in permutations(tables.values(), 2):
        if ratio > 1.3 * other_ratio:
            assert score <= other_score, tables
        if ratio > 2 * other_ratio:
            assert score < other_score, tables
    assert tables[ZOO[0]] == (100, pytest.approx(1, abs=0.1))
    assert max(ratio for _, ratio in tables.values()) > 10
