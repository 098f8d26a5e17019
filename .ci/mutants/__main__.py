"""Change one expression at a time and run the tests that reach it: `make mutants`.

mutmut makes the mutants and forks a process for each. This program adds a seeded sample, a map of the
tests that execute each line (coverage.py), a copy of a migrated database for each mutant, a list of
equivalent mutants, and a summary. A mutant never reaches the disk: it replaces the code of a function
in its process. Exits with 1 if fewer than 90 % of a package's mutants are killed.
"""

import argparse
import contextlib
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from copied_database import CopiedDatabase
from equivalence import general_reason, listed_reasons
from line_map import LineMap, Recorder
from mutations import Mutant, activate, mutants_of
from mutmut.runners.harness import TestRunner
from mutmut.workers.isolation import ForkServerRunner, run_in_fork_with_result

from server.postgres import Postgres
from server.valkey import Valkey

# The packages, each with the tests that mirror it. These run first.
PACKAGES = {
    "catalog/services/engine": ("tests/catalog/services/engine/",),
    "catalog/access": ("tests/catalog/access/", "tests/catalog/services/access/", "tests/access/"),
    "catalog/services/access": (
        *("tests/catalog/services/access/", "tests/catalog/admin/access/", "tests/access/"),
        *("tests/api/test_oidc.py", "tests/api/test_attempts.py"),
    ),
    "catalog/formats/iceberg": ("tests/catalog/formats/iceberg/",),
    "catalog/services/iceberg": (
        *("tests/catalog/services/iceberg/", "tests/api/iceberg/"),
        *("tests/security/test_unread_references.py", "tests/security/test_continued_manifests.py"),
    ),
}
# Further tests that reach them.
OTHERS = (
    *("tests/catalog/access", "tests/catalog/formats", "tests/catalog/services", "tests/access"),
    *("tests/api/iceberg", "tests/api/lance", "tests/api/management", "tests/catalog/admin/access"),
    *(
        "tests/api/test_attempts.py",
        "tests/api/test_credential_matrix.py",
        "tests/api/test_oidc.py",
    ),
    *("tests/api/test_unauthenticated.py", "tests/catalog/admin/tables/test_list_terms.py"),
    # Previews, profiles, tags and branches of Iceberg tables are shown in the admin only.
    *("tests/catalog/admin/iceberg", "tests/catalog/admin/tables/test_preview.py"),
    "tests/catalog/admin/test_history_actions.py",
    *("tests/catalog/test_create_key.py", "tests/catalog/test_layouts.py"),
    # References between the files of tables, and the files that jobs open or remove.
    *("tests/security/test_unread_references.py", "tests/security/test_registered_references.py"),
    *("tests/security/test_continued_manifests.py", "tests/security/test_cached_commits.py"),
    *(
        "tests/security/test_foreign_files_iceberg.py",
        "tests/security/test_foreign_files_iceberg_use.py",
        "tests/security/test_foreign_statistics.py",
        "tests/security/test_links_in_iceberg_tables.py",
        "tests/security/test_snapshots_in_use.py",
        "tests/security/test_swapped_directories.py",
        "tests/security/test_swapped_manifests.py",
    ),
)
OWN = tuple({folder for folders in PACKAGES.values() for folder in folders})
MAP = Path(".mutants.json")
LEAST_SHARE = 0.9
LEAST_TESTS = 10
OUTCOMES = {0: "survived", 1: "killed", 2: "killed", 3: "killed", 33: "untested", -24: "timeout"}
SURVIVORS = {"survived", "untested"}
PYTEST = ["-q", "-n", "0", "-p", "no:cacheprovider", "--tb=no"]


class Tests(TestRunner):
    """The runs of pytest, each in a process of its own, which is forked from one that has imported all tests."""

    def __init__(self, folders: list[str], mutants: dict[str, Mutant]) -> None:
        self._folders = folders
        self._mutants = mutants

    def warm_up(self) -> None:
        self._run([*PYTEST, "--collect-only", *self._folders])

    def measure(self) -> LineMap:
        """The lines of each test. Tests that fail without a mutant are left out."""
        recorder = Recorder((f"{package}/*" for package in PACKAGES), OWN)
        self._run([*PYTEST, *self._folders], recorder)
        for name in sorted(recorder.failed):
            print(f"left out, because it fails without a mutant: {name}")
        return recorder.result()

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        activate(self._mutants[mutant_name or ""])
        return self._run([*PYTEST, "-x", *tests])

    def _run(self, arguments: list[str], *plugins: object) -> int:
        home = Path(os.environ["MONODON_TEST_HOME"])
        shutil.rmtree(home / "home", ignore_errors=True)  # files of the previous run
        return int(pytest.main(arguments, plugins=[CopiedDatabase(), *plugins]))


@contextlib.contextmanager
def servers() -> Iterator[None]:
    """Start the PostgreSQL and the Valkey of all processes; tests/embedded.py uses them."""
    with (
        tempfile.TemporaryDirectory(prefix="monodon-mutants-") as folder,
        contextlib.ExitStack() as stack,
    ):
        root = Path(folder)
        root.chmod(0o711)  # as root, PostgreSQL runs as another user
        database = Postgres(root / "postgres", root / "run", durable=False)
        broker = Valkey(root / "valkey", root / "run", durable=False)
        for server in (database, broker):
            stack.callback(server.stop)
            server.start()
        os.environ |= {
            "DATABASE_URL": database.url,
            "REDIS_URL": broker.url,
            "MONODON_TEST_HOME": str(root),
        }
        yield


def package_of(path: Path) -> str:
    return next(package for package in PACKAGES if path.is_relative_to(package))


def choose(packages: list[str], sample: int, seed: int) -> list[Mutant]:
    """A random sample with an equal share of every package."""
    chosen: list[Mutant] = []
    for package in packages:
        files = sorted(Path(package).rglob("*.py"))
        candidates = [mutant for file in files for mutant in mutants_of(file)]
        share = min(sample // len(packages), len(candidates))
        dice = random.Random(f"{seed} {package}")  # noqa: S311 -- no secret
        chosen += [render() for render in dice.sample(candidates, share)]
        print(f"{package}: {share} of {len(candidates)} mutants", flush=True)
    return chosen


def by_name(names: list[str]) -> list[Mutant]:
    """Single mutants, as a summary names them. Exits for a name that no mutant has."""
    files = [file for package in PACKAGES for file in sorted(Path(package).rglob("*.py"))]
    chosen = []
    for file in files:
        module = ".".join(file.with_suffix("").parts) + "."
        numbers = {name: name.partition("#")[2] for name in names if name.startswith(module)}
        rendered = mutants_of(file) if numbers else []
        for name, number in numbers.items():
            is_index = number.isdecimal() and int(number) < len(rendered)
            mutant = rendered[int(number)]() if is_index else None
            if mutant is not None and mutant.name == name:
                chosen.append(mutant)
    missing = set(names) - {mutant.name for mutant in chosen}
    if missing:
        sys.exit(f"There is no mutant {', '.join(sorted(missing))}")
    return chosen


def tests_of(mutant: Mutant, line_map: LineMap, seconds: float) -> list[str]:
    """Tests that reach the mutant and take at most these seconds together, but ten at least.

    The package's own tests come first, and the first case of each test before the second case of any.
    """
    own_folders = PACKAGES[package_of(mutant.path)]
    cases: Counter[tuple[bool, str]] = Counter()
    ranked = []
    for test in line_map.reaching(mutant.path, mutant.lines()):
        kind = not test.startswith(own_folders), test.partition("[")[0]
        cases[kind] += 1
        ranked.append((kind[0], cases[kind], line_map.seconds[test], test))
    tests: list[str] = []
    for *_, duration, test in sorted(ranked):
        if len(tests) >= LEAST_TESTS and duration > seconds:
            continue
        seconds -= duration
        tests.append(test)
    return tests


def run(
    runner: ForkServerRunner, mutants: list[Mutant], line_map: LineMap, options: argparse.Namespace
) -> Iterator[tuple[Mutant, str]]:
    work = []
    for mutant in mutants:
        tests = tests_of(mutant, line_map, options.tests_seconds)
        work.append((sum(line_map.seconds[test] for test in tests), mutant, tests))
    runner.startup()
    try:
        for expected, mutant, tests in sorted(work, key=lambda entry: entry[0]):
            started = time.monotonic()
            # The fork server ends a mutant after half of these seconds.
            runner.submit(mutant.name, tests, 2 * int(options.limit + 5 * expected), expected)
            status = runner.wait_for_result().exit_code
            outcome = OUTCOMES.get(status, f"exit status {status}")
            seconds = time.monotonic() - started
            print(f"{outcome:<9}{seconds:6.1f} s {len(tests):4} tests  {mutant.name}", flush=True)
            yield mutant, outcome
    finally:
        runner.signal_work_complete()
        runner.shutdown()


def summarise(outcomes: list[tuple[Mutant, str]]) -> int:
    """Print survivors, equivalent mutants and a line per package. Returns the exit status."""
    listed = listed_reasons()
    counts: dict[str, Counter[str]] = {}
    for mutant, outcome in outcomes:
        reason = listed.get((mutant.qualified_name, tuple(mutant.change)))
        kind = "survived" if outcome in SURVIVORS else outcome
        if reason is None and kind == "survived":
            reason = general_reason(mutant.change)
        if reason is not None:
            kind = "equivalent" if kind == "survived" else kind
            print(f"\n# {mutant.name}: {outcome}, listed as equivalent: {reason}")
        elif kind not in ("killed", "timeout"):
            print(f"\n# {mutant.name}: {outcome}")
        if reason is not None or kind not in ("killed", "timeout"):
            print("\n".join(mutant.diff))
        counts.setdefault(package_of(mutant.path), Counter())[kind] += 1
    status = 0
    print(f"\n{'':26}sampled  killed  timeout  survived  equivalent  other  score")
    for package, count in counts.items():
        columns = [count.pop(k, 0) for k in ("killed", "timeout", "survived", "equivalent")]
        other = count.total()
        killed = columns[0] + columns[1]
        relevant = killed + columns[2] + other
        score = killed / relevant if relevant else 1.0
        if score < LEAST_SHARE:
            status = 1
        widths = zip((8, 9, 10, 12), columns, strict=True)
        cells = "".join(f"{number:{width}}" for width, number in widths)
        print(f"{package:26}{sum(columns) + other:7}{cells}{other:7}{score:7.0%}")
    return status


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=150, help="mutants of all packages together")
    parser.add_argument("--seed", type=int, help="repeats a sample; otherwise a new one is drawn")
    parser.add_argument("--package", choices=list(PACKAGES), action="append")
    parser.add_argument("--limit", type=float, default=30, help="seconds for each mutant")
    parser.add_argument("--tests-seconds", type=float, default=20, help="tests for each mutant")
    parser.add_argument("--tests", action="append", help="tests to run instead of all that may")
    parser.add_argument("--keep", action="store_true", help=f"use the tests' lines in {MAP}")
    parser.add_argument("--update", action="append", help="tests whose lines are measured again")
    parser.add_argument("names", nargs="*", help="mutants to run instead of a sample")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    for number in (signal.SIGINT, signal.SIGTERM):  # stop with a summary, also in the background
        signal.signal(number, signal.default_int_handler)
    logging.getLogger("mutmut").propagate = False  # tests close the stream of the root's handler
    warnings.filterwarnings("ignore", "lance is not fork-safe")  # it is forked before it is used
    started = time.monotonic()
    seed = options.seed if options.seed is not None else random.randrange(10**6)  # noqa: S311
    print(f"seed {seed}", flush=True)
    folders = options.tests or list(OTHERS)
    if options.names:
        mutants = by_name(options.names)
    else:
        mutants = choose(options.package or list(PACKAGES), options.sample, seed)
    with servers():
        by_mutant = {mutant.name: mutant for mutant in mutants}
        runner = ForkServerRunner(1, Tests, {"folders": folders, "mutants": by_mutant})
        if options.keep:
            line_map = LineMap.load(MAP)
            if options.update:
                measure = Tests(options.update, {}).measure
                line_map = line_map.updated(run_in_fork_with_result(measure))
        else:
            line_map = run_in_fork_with_result(Tests(folders, {}).measure)
        line_map.save(MAP)
        print(f"{len(line_map.seconds)} tests, {time.monotonic() - started:.0f} s", flush=True)
        outcomes: list[tuple[Mutant, str]] = []
        with contextlib.suppress(KeyboardInterrupt):
            outcomes.extend(run(runner, mutants, line_map, options))
    status = summarise(outcomes)
    print(f"seed {seed}, {time.monotonic() - started:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
