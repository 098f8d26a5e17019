"""``python -m tests.chaos.harness --minutes 60``: the long run."""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.chaos.harness.run import Plan, run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.harness",
        description="Load and break a Monodon of its own, and judge every answer.",
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="of load and faults")
    parser.add_argument("--seed", type=int, help="repeats the choices, though not the races")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--no-disks", action="store_true", help="do not fill file systems")
    parser.add_argument("--fault", action="append", default=[], help="only this; may be repeated")
    parser.add_argument(
        "--pause", type=float, default=1.5, help="seconds between faults, on average"
    )
    parser.add_argument("--results", type=Path, help="directory for the result and the history")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    directory = options.results or Path(tempfile.gettempdir()) / "monodon-chaos-results"
    directory.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        seconds=options.minutes * 60,
        seed=seed,
        clients=options.clients,
        disks=not options.no_disks,
        faults=tuple(options.fault),
        pause=options.pause,
        keep=directory,
    )
    result = run(plan)
    file = directory / f"result-{seed}.json"
    file.write_text(result.as_json() + "\n", encoding="utf-8")
    print(result.summary())
    print(f"the result is in {file}")
    return 1 if result.anomalies or result.undecided else 0


if __name__ == "__main__":
    sys.exit(main())
