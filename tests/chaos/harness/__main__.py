"""``python -m tests.chaos.harness --minutes 60``: the long run."""

import argparse
import functools
import random
import sys
import tempfile
from pathlib import Path

from tests.chaos.harness.nemesis import Pace
from tests.chaos.harness.run import Plan, run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.harness",
        description="Load and break a Monodon of its own, and judge every answer.",
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="of load and faults")
    parser.add_argument("--seed", type=int, help="repeats the choices, though not the races")
    parser.add_argument("--kills", type=int, default=0, help="go on until there were so many")
    parser.add_argument("--operations", type=int, default=0, help="go on until so many are judged")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--replica", action="store_true", help="a second PostgreSQL, and failovers")
    parser.add_argument("--no-disks", action="store_true", help="do not fill file systems")
    parser.add_argument("--fault", action="append", default=[], help="only this; may be repeated")
    parser.add_argument(
        "--pause", type=float, help="seconds between faults, on average, instead of a steady pace"
    )
    parser.add_argument("--kills-per-minute", type=float, default=17.0)
    parser.add_argument("--others-per-minute", type=float, default=4.0, help="faults but kills")
    parser.add_argument("--results", type=Path, help="directory for the result and the history")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    directory = options.results or Path(tempfile.gettempdir()) / "monodon-chaos-results"
    directory.mkdir(parents=True, exist_ok=True)
    is_paced = options.pause is None
    plan = Plan(
        seconds=options.minutes * 60,
        seed=seed,
        clients=options.clients,
        spaces=8,
        engine_pause=2.0,
        disks=not options.no_disks,
        replica=options.replica,
        faults=tuple(options.fault),
        pause=1.5 if is_paced else options.pause,
        pace=Pace(options.kills_per_minute, options.others_per_minute) if is_paced else None,
        kills=options.kills,
        operations=options.operations,
        keep=directory,
    )
    result = run(plan, functools.partial(print, flush=True))
    file = directory / f"result-{seed}.json"
    file.write_text(result.as_json() + "\n", encoding="utf-8")
    print(result.summary())
    print(f"the result is in {file}")
    return 1 if result.anomalies or result.undecided else 0


if __name__ == "__main__":
    sys.exit(main())
