"""The choice of the engine that compacts a Lance table. Pure functions."""

from collections.abc import Mapping
from typing import Any, Protocol

_UNITS = ((1024**3, "GB"), (1024**2, "MB"), (1024, "KB"))


class _Values(Protocol):
    def __getitem__(self, name: str, /) -> Any: ...


def choose(policy: _Values | Mapping[str, Any], size: int) -> tuple[str, str]:
    """``worker`` or ``spark`` for a rewrite of ``size`` bytes, and the reason."""
    engine = policy["engine"]
    if engine != "auto":
        return engine, f"the policy sets 'engine' to '{engine}'"
    limit = policy["spark_above"]
    if size > limit:
        return "spark", f"{_text(size)} must be rewritten, more than 'spark_above' ({_text(limit)})"
    return "worker", (
        f"{_text(size)} must be rewritten, not more than 'spark_above' ({_text(limit)})"
    )


def _text(size: int) -> str:
    for factor, unit in _UNITS:
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
