"""Run the failed tests of `make test` once more: `python .ci/unstable.py test-results.xml`.

Some tests kill servers, race writers or drive a browser, and a busy machine can make them fail. At most three
failed tests run again, each in a process of its own. Exits with 0 only if all of them pass then. It prints their
names as unstable, so that they are repaired. A run that ended early, or with more failures, is not repeated.
"""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

LIMIT = 3
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def failures(results: Path) -> int | None:
    """The number of tests in pytest's report that failed, or None if the run itself failed."""
    try:
        cases = list(ET.parse(results).iter("testcase"))  # noqa: S314
    except (OSError, ET.ParseError):
        return None
    failed = [
        case for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    if any(case.get("classname") == "pytest" for case in failed):  # an internal error of pytest
        return None
    # The call and the teardown of one test are two cases if both fail.
    return len({(case.get("classname"), case.get("name")) for case in failed})


def main(results: Path) -> str | None:
    """Return the reason to fail, or None."""
    count = failures(results)
    if not count:
        return "the run itself failed, so no test runs again"
    if count > LIMIT:
        return f"{count} tests failed; at most {LIMIT} run again"
    tests = sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []
    if len(tests) != count:
        return f"pytest's report has {count} failed tests, its cache {len(tests)}"
    for test in tests:
        print(f"unstable: running {test} again", flush=True)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "-q",
            test,
        ]
        if subprocess.run(command, check=False).returncode:  # noqa: S603
            return f"{test} failed twice"
    print("UNSTABLE: these tests failed once and passed in a process of their own. Repair them:")
    print(*(f"  {test}" for test in tests), sep="\n")
    return None


if __name__ == "__main__":
    if reason := main(Path(sys.argv[1])):
        sys.exit(f"unstable: {reason}")
