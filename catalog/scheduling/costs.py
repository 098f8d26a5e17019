"""Expected costs of jobs, learned from past jobs of the same action, format and engine.

    seconds = fixed + per byte × bytes of the plan

Both coefficients are a weighted least-squares fit. Its weights make relative errors count, because
large jobs vary by more seconds than small ones. A few imaginary jobs with the default costs are
included, so that the first past jobs change the estimate gradually.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

MIB = 1024**2
SCALE = 64 * MIB
"""The size up to which all jobs have about the same weight, in bytes."""
_DEFAULT_FIXED = 5.0
"""Seconds of a job that rewrites nothing, before any job has ended."""
_DEFAULT_PER_MIB = 0.05
_IMAGINARY_JOBS = 4
_LEAST_SECONDS = 0.1


class Kind(NamedTuple):
    """Jobs that are expected to cost the same."""

    action: str
    format: str
    engine: str = ""
    """Empty if the engine is not chosen yet."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Weighted sums over past jobs: x is the bytes in units of ``SCALE``, y the seconds.

    The weight of a job is ``1 / (1 + x)²``.
    """

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def plus(self, size: int, seconds: float) -> "Sums":
        """The sums with one more job, of ``size`` bytes."""
        x = size / SCALE
        weight = (1 + x) ** -2
        return Sums(
            self.weight + weight,
            self.x + weight * x,
            self.y + weight * seconds,
            self.xx + weight * x * x,
            self.xy + weight * x * seconds,
        )

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.weight + other.weight,
            self.x + other.x,
            self.y + other.y,
            self.xx + other.xx,
            self.xy + other.xy,
        )

    def times(self, factor: float) -> "Sums":
        """All sums multiplied by a factor below 1, so that older jobs count less."""
        return Sums(
            self.weight * factor,
            self.x * factor,
            self.y * factor,
            self.xx * factor,
            self.xy * factor,
        )


def _imaginary() -> Sums:
    sums = Sums()
    for number in range(_IMAGINARY_JOBS):
        size = SCALE * number
        sums = sums.plus(size, _DEFAULT_FIXED + _DEFAULT_PER_MIB * size / MIB)
    return sums


_PRIOR = _imaginary()


@dataclass(frozen=True, slots=True)
class Line:
    """The expected seconds of a job by the bytes of its plan."""

    fixed: float
    per_scale: float

    def seconds(self, size: int) -> float:
        return max(self.fixed + self.per_scale * size / SCALE, _LEAST_SECONDS)


def fit(sums: Sums) -> Line:
    """The line that fits past jobs. Neither coefficient is negative."""
    s = _PRIOR + sums
    determinant = s.weight * s.xx - s.x * s.x
    per_scale = (s.weight * s.xy - s.x * s.y) / determinant if determinant > 0 else 0.0
    if per_scale <= 0:
        return Line(s.y / s.weight, 0.0)
    fixed = (s.y - per_scale * s.x) / s.weight
    if fixed < 0:
        return Line(0.0, s.xy / s.xx)
    return Line(fixed, per_scale)


@dataclass(slots=True)
class CostModel:
    """The expected costs of jobs by kind."""

    past: Mapping[Kind, Sums] = field(default_factory=dict)
    _lines: dict[Kind, Line] = field(default_factory=dict)

    def seconds(self, kind: Kind, size: int) -> float:
        """The expected seconds of a job whose plan reads and writes ``size`` bytes.

        A job without an engine, because it has not begun, is expected to cost as much as the past
        jobs of its action and format on all engines.
        """
        line = self._lines.get(kind)
        if line is None:
            line = self._lines[kind] = fit(sum(self._sums_of(kind), start=Sums()))
        return line.seconds(size)

    def _sums_of(self, kind: Kind) -> Iterable[Sums]:
        if kind in self.past:
            return [self.past[kind]]
        same = [past for past in self.past if past[:2] == kind[:2]]
        return [self.past[past] for past in same]
