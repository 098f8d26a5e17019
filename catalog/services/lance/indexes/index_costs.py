"""The cost of a build of a vector index: the number of rows of a BTREE that take as long."""

from collections.abc import Mapping
from typing import Any

_DIMENSION = 128
"""The dimension of the vectors with which the costs of types were measured."""
_M, _EF_CONSTRUCTION = 20, 150
_SAMPLE_RATE, _ITERATIONS = 256, 50
_TRAINED_AT_COST = 20_000
"""Numbers that the training of partitions multiplies, for each unit of cost."""


def of_vectors(cost: int, rows: int, dimension: int, options: Mapping[str, Any]) -> int:
    """The cost for vectors of this dimension, with the options of Lance, from that of the type."""
    cost = cost * max(dimension, _DIMENSION) // _DIMENSION
    return int(cost * _graph_factor(options)) + _training(rows, dimension, options)


def _graph_factor(options: Mapping[str, float]) -> float:
    """How many times longer a graph takes than with the parameters that Lance would choose."""
    candidates = max(options.get("ef_construction", 0) / _EF_CONSTRUCTION, 1.0)
    return candidates * max(options.get("m", 0) / _M, 1.0)


def _training(rows: int, dimension: int, options: Mapping[str, Any]) -> int:
    """The cost of the training of partitions."""
    partitions = options.get("num_partitions", 1)
    if "target_partition_size" in options:
        partitions = max(partitions, rows // options["target_partition_size"])
    sample = min(rows, options.get("sample_rate", _SAMPLE_RATE) * partitions)
    iterations = options.get("max_iters", _ITERATIONS)
    return int(sample * partitions * iterations * dimension // _TRAINED_AT_COST)
