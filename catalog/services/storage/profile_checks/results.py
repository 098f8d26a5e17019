"""Results of checks, and the exceptions with which a check ends unless it passes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self


class CheckStatus(StrEnum):
    """The outcome of a check."""

    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    key: str
    """Name of the check, such as ``conditional_write``."""
    title: str
    status: CheckStatus
    seconds: float
    """Duration."""
    cause: str = ""
    """Why the check did not pass; details if it did."""
    remedy: str = ""
    """How to make the check pass; empty if it passed or was skipped."""

    def as_json(self) -> dict[str, Any]:
        """The result as JSON for the row of the test."""
        return asdict(self) | {"status": str(self.status), "seconds": round(self.seconds, 3)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The result from the row of the test."""
        return cls(**{**fields, "status": CheckStatus(fields["status"])})


class CheckEnded(Exception):
    """A check has ended and has not passed."""

    status = CheckStatus.FAILED

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy


class CheckFailed(CheckEnded):
    """The store cannot be used as configured."""


class CheckWarned(CheckEnded):
    """The store can be used, with a risk or a cost."""

    status = CheckStatus.WARNING


class CheckSkipped(CheckEnded):
    """The check does not apply, or depends on a check that failed."""

    status = CheckStatus.SKIPPED
