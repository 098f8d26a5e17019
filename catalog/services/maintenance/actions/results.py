"""Phrases for the results of jobs, as the declarations of actions use them.

A result is JSON of a worker, perhaps of another release, so any value may be missing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from catalog.services.maintenance.plans.promises import number


def change_of(figure: str, noun: str) -> Callable[[Mapping[str, Any]], str]:
    """Summary of a figure before and after: "12 data files before, 1 after"."""

    def summarize(result: Mapping[str, Any]) -> str:
        before, after = number(result, "before", figure), number(result, "after", figure)
        if before is None or after is None:
            return ""
        return f"{before:,} {noun} before, {after:,} after"

    return summarize


def removed_files(result: Mapping[str, Any]) -> str:
    """Summary of the removed files: "12 files removed, 4,096 bytes"."""
    files, size = number(result, "files"), number(result, "bytes")
    if files is None:
        return ""
    return f"{files:,} files removed" + ("" if size is None else f", {size:,} bytes")
