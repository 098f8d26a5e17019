"""pytest-xdist runs the tests of a group in one process."""

import subprocess
import sys
from pathlib import Path

_TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range({count}))
{mark}
def test_process(number, record_property):
    with open("processes", "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")
"""
_ALONE = ("-p", "no:django", "-p", "no:cacheprovider", "-p", "tests.groups")
PROJECT = Path(__file__).resolve().parents[2]


def processes(directory: Path, mark: str) -> set[str]:
    """The processes that run eight tests with a mark."""
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "test_group.py").write_text(_TESTS.format(count=8, mark=mark))
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *_ALONE,
            "-n",
            "2",
            "--dist",
            "loadgroup",
            "test_group.py",
        ],
        cwd=directory,
        env={"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    names = (directory / "processes").read_text().split()
    assert len(names) == 8
    return set(names)


def test_a_group_runs_in_one_process(tmp_path):
    assert len(processes(tmp_path, "@pytest.mark.xdist_group('the group')")) == 1


def test_other_tests_run_in_all_processes(tmp_path):
    assert processes(tmp_path, "") == {"gw0", "gw1"}
