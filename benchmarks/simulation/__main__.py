"""`python -m benchmarks.simulation`: simulate the maintenance scheduler (`make simulate`)."""

import argparse
import os
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "maintenance-simulation.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--tables", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--days", type=int, default=4, help="virtual days (4)")
    parser.add_argument("--workers", type=int, default=0, help="default: one for 20,000 tables")
    parser.add_argument("--write", action="store_true", help=f"put the figures into {PAGE.name}")
    arguments = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

    import django

    django.setup()

    from benchmarks.simulation import report
    from benchmarks.simulation.records import Size
    from benchmarks.simulation.world import World

    size = Size.of(
        arguments.tables,
        arguments.seed,
        days=arguments.days,
        workers=arguments.workers,
    )
    world = World(size)
    world.run(progress=lambda day: print(f"day {day}/{size.days}", file=sys.stderr, flush=True))
    facts = report.rows(world, report.cpu_seconds())
    print(report.text(facts))
    for violation in world.invariants.violations:
        print(violation, file=sys.stderr)
    if arguments.write and not world.invariants.number:
        report.write(PAGE, size.tables, facts)
    return 1 if world.invariants.number else 0


if __name__ == "__main__":
    sys.exit(main())
