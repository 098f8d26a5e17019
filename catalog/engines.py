"""The choice of the engine for work on a Lance table. Pure functions."""

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


def choose_for_removal(
    policy: _Values | Mapping[str, Any], files: int, *, is_object: bool
) -> tuple[str, str]:
    """``worker`` or ``spark`` for the removal of ``files`` files, and the reason.

    One process removes files of a file system several times as fast as Spark, and objects half as fast.
    """
    engine = policy["engine"]
    if engine != "auto":
        return engine, f"the policy sets 'engine' to '{engine}'"
    limit = policy["spark_above_files"]
    if files <= limit:
        return "worker", (
            f"{files} files must be removed, not more than 'spark_above_files' ({limit})"
        )
    if not is_object:
        return "worker", "the files are in a file system, where Spark removes none faster"
    return "spark", f"{files} files must be removed, more than 'spark_above_files' ({limit})"


def _text(size: int) -> str:
    for factor, unit in _UNITS:
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
