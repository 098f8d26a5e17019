"""Figures as a table, as bars, as an SVG and as JSON."""

import dataclasses
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from benchmarks.compare import MAX_FOREIGN_SHARE, Outcome

RESULTS = Path(__file__).with_name("results")
GOAL_CONNECTIONS = 8
WEB_MEGABYTES = 300

SIDES = {
    "monodon": "Monodon",
    "reference": "RestAdapter",
    "naive": "parse and render",
    "other": "other catalog",
    "pgbench-simple": "pgbench",
    "pgbench-prepared": "pgbench -M prepared",
}
COLOURS = {
    "monodon": "#0f766e",
    "reference": "#b45309",
    "naive": "#b45309",
    "other": "#7c3aed",
    "pgbench-simple": "#94a3b8",
    "pgbench-prepared": "#64748b",
}


@dataclass(frozen=True)
class Goal:
    text: str
    target: float
    measured: float | None
    at_most: bool = False

    @property
    def reached(self) -> bool:
        if self.measured is None:
            return False
        return self.measured < self.target if self.at_most else self.measured >= self.target


def goals(outcome: Outcome) -> list[Goal]:
    """Goals whose operations were measured."""
    if GOAL_CONNECTIONS not in outcome.plan.connections:
        return []

    def ratio(operation: str, other: str, other_operation: str = "") -> float | None:
        return outcome.ratio(operation, GOAL_CONNECTIONS, other, other_operation)

    result = [
        Goal("describe / RestAdapter", 4, ratio("describe", "reference")),
        Goal("describe / pgbench select", 0.12, ratio("describe", "pgbench-simple")),
        Goal("exists / RestAdapter", 4, ratio("exists", "reference")),
        Goal("exists / pgbench select", 0.12, ratio("exists", "pgbench-simple")),
        Goal("list of 100 tables / RestAdapter", 5, ratio("list", "reference")),
        Goal("newest version / RestAdapter", 6, ratio("latest", "reference")),
        Goal("list of 100 versions / RestAdapter", 4, ratio("versions", "reference")),
        Goal("create a version / RestAdapter", 3, ratio("create", "reference")),
        Goal("operations in batches of 10 / singly", 5, ratio("batch", "monodon", "record")),
        Goal("largest web process, MB", WEB_MEGABYTES, max(outcome.web_megabytes), at_most=True),
    ]
    return [goal for goal in result if goal.measured is not None]


def table(outcome: Outcome) -> str:
    head = ["operation", "conns", "side", "ops/s", "p50 ms", "p99 ms", "CPU µs", "ops/s ×", "CPU ×"]
    rows = []
    for operation in outcome.plan.operations:
        for connections in outcome.plan.connections:
            own_cpu = _reader(outcome, operation, "monodon", connections)("cpu_us")
            for side, label in SIDES.items():
                if (operation, side, connections) not in outcome.samples:
                    continue
                median = _reader(outcome, operation, side, connections)
                ratio = outcome.ratio(operation, connections, side)
                rows.append(
                    [
                        operation if side == "monodon" else "",
                        str(connections) if side == "monodon" else "",
                        label,
                        f"{median('operations_per_second'):,.0f}",
                        f"{median('p50_ms'):.2f}",
                        f"{median('p99_ms'):.2f}",
                        f"{median('cpu_us'):,.0f}",
                        "" if side == "monodon" or ratio is None else f"{ratio:.2f}",
                        ""
                        if ratio is None
                        or side == "monodon"
                        or not median("cpu_us")  # of another machine
                        else f"{median('cpu_us') / own_cpu:.2f}",
                    ]
                )
    return columns(head, rows, left_aligned={0, 2})


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], left_aligned: set[int]) -> str:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            cell.ljust(width) if i in left_aligned else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()

    return "\n".join([line(head), line(["-" * width for width in widths]), *map(line, rows)])


def bars(outcome: Outcome, connections: int, names: Mapping[str, str]) -> str:
    """Each operation has its own scale: they differ by orders of magnitude."""
    lines = []
    for operation in outcome.plan.operations:
        rates = _rates(outcome, operation, connections)
        most = max(rates.values(), default=1.0)
        lines.append(names[operation])
        for side, rate in rates.items():
            lines.append(
                f"  {SIDES[side]:<20}{'█' * max(1, round(rate / most * 40)):<41}{rate:,.0f}/s"
            )
    return "\n".join(lines)


def svg(outcome: Outcome, connections: int, names: Mapping[str, str]) -> str:
    wide, row, gap, left_margin, right = 760, 20, 16, 250, 90
    body, y = [], 64
    for operation in outcome.plan.operations:
        rates = _rates(outcome, operation, connections)
        most = max(rates.values(), default=1.0)
        body.append(
            f'<text x="{left_margin - 12}" y="{y + row * len(rates) / 2 + 4:.0f}" text-anchor="end">'
            f"{escape(names[operation])}</text>"
        )
        for side, rate in rates.items():
            length = (wide - left_margin - right) * rate / most
            body.append(
                f'<rect x="{left_margin}" y="{y + 2}" width="{length:.1f}" height="{row - 4}" rx="2" '
                f'fill="{COLOURS[side]}"/>'
                f'<text x="{left_margin + length + 6:.1f}" y="{y + 14}">{rate:,.0f}</text>'
            )
            y += row
        y += gap
    legend, x = [], left_margin
    measured = {side for _, side, _ in outcome.samples}
    for side, label in SIDES.items():
        if side not in measured:
            continue
        legend.append(
            f'<rect x="{x}" y="38" width="12" height="12" rx="2" fill="{COLOURS[side]}"/>'
            f'<text x="{x + 18}" y="48">{label}</text>'
        )
        x += 30 + 8 * len(label)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {y}" width="{wide}" height="{y}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#334155">\n'
        f'<rect width="{wide}" height="{y}" fill="#ffffff"/>\n'
        f'<text x="16" y="24" font-size="15" font-weight="600">Operations a second, {connections} '
        "connections (each row to its own scale)</text>\n"
        + "\n".join([*legend, *body])
        + "\n</svg>\n"
    )


def write(
    outcome: Outcome, name: str, connections: int, names: Mapping[str, str], wanted: Sequence[Goal]
) -> list[Path]:
    RESULTS.mkdir(exist_ok=True)
    chart, raw = RESULTS / f"{name}.svg", RESULTS / f"{name}.json"
    chart.write_text(svg(outcome, connections, names))
    facts = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "load": outcome.load,
        "foreign_share": outcome.foreign_share,
        "plan": dataclasses.asdict(outcome.plan),
        "web_megabytes": outcome.web_megabytes,
        "goals": [dataclasses.asdict(g) | {"reached": g.reached} for g in wanted],
        "samples": [
            {"operation": operation, "side": side, "connections": number}
            | {"rounds": [dataclasses.asdict(sample) for sample in samples]}
            for (operation, side, number), samples in outcome.samples.items()
        ],
    }
    raw.write_text(json.dumps(facts, indent=1) + "\n")
    return [chart, raw]


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def show(outcome: Outcome, name: str, names: Mapping[str, str], wanted: Sequence[Goal]) -> bool:
    """Print the outcome and write it to files. ``names`` are the labels of the operations.

    False if other programs disturbed the measurement: then there are no ratios, goals and files.
    """
    connections = (
        GOAL_CONNECTIONS
        if GOAL_CONNECTIONS in outcome.plan.connections
        else outcome.plan.connections[-1]
    )
    print(f"\n{machine()}; {outcome.load}")
    print(
        "Medians of the rounds. CPU is of the server's processes with its database, for a request;"
    )
    print(
        "`ops/s ×` is Monodon's rate over this side's, round by round; `CPU ×` is this side's CPU over"
    )
    print("Monodon's, and the steadier of the two where other programs run.")
    print()
    print(table(outcome))
    if outcome.is_disturbed:
        print(
            f"\nOther programs took {outcome.foreign_share:.0%} of the processors' time, more than"
            f" {MAX_FOREIGN_SHARE:.0%}: no ratios, no goals. Repeat on an idle machine."
        )
        return False
    print(f"\nOperations a second, {connections} connections (each group to its own scale)\n")
    print(bars(outcome, connections, names))
    megabytes = ", ".join(f"{size:.0f}" for size in outcome.web_megabytes)
    print(f"\nWeb processes, MB resident: {megabytes}\n")
    for goal in wanted:
        relation = "<" if goal.at_most else "≥"
        verdict = "reached" if goal.reached else "MISSED"
        print(f"  {verdict:<8} {goal.text}: {goal.measured:.2f} (goal {relation} {goal.target:g})")
    written = write(outcome, name, connections, names, wanted)
    print(f"\n{outcome.seconds:.0f} s; wrote {', '.join(_short(path) for path in written)}")
    return True


def _short(path: Path) -> str:
    return str(path.relative_to(RESULTS.parent.parent))


def _rates(outcome: Outcome, operation: str, connections: int) -> dict[str, float]:
    rates = {
        side: outcome.median(operation, side, connections, "operations_per_second")
        for side in SIDES
    }
    return {side: rate for side, rate in rates.items() if rate is not None}


def _reader(
    outcome: Outcome, operation: str, side: str, connections: int
) -> Callable[[str], float]:
    return lambda figure: outcome.median(operation, side, connections, figure) or 0.0
