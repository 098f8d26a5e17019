"""`.ci/unstable.py`: a few failed tests run once more, and every other failure stays one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "unstable.py"
FAILS_ONCE = """
from pathlib import Path

def test_{name}():
    if not (mark := Path("{name}")).exists():
        mark.touch()
        raise AssertionError
"""


def run(directory: Path, *files: str, content: str) -> tuple[int, str]:
    """Run these test files, then the script; return its exit status and its output."""
    for name in files:
        (directory / f"test_{name}.py").write_text(content.format(name=name))
    # The plugins take most of the time of a start. The script needs that of -n.
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    options = {"cwd": directory, "env": os.environ | plugins}
    options |= {"capture_output": True, "text": True, "timeout": 200}
    first = [sys.executable, "-m", "pytest", "-q", "--junitxml=results.xml"]
    subprocess.run(first, check=False, **options)
    second = [sys.executable, str(SCRIPT), "results.xml"]
    process = subprocess.run(second, check=False, **options)
    return process.returncode, process.stdout + process.stderr


def test_a_test_that_passes_the_second_time_is_reported(tmp_path):
    status, output = run(tmp_path, "a", "b", content=FAILS_ONCE)

    assert status == 0
    assert "UNSTABLE" in output
    assert "  test_a.py::test_a\n  test_b.py::test_b\n" in output


def test_a_test_that_fails_twice_fails_the_run(tmp_path):
    status, output = run(tmp_path, "a", content="def test_{name}():\n    assert False\n")

    assert status == 1
    assert "test_a.py::test_a failed twice" in output


def test_many_failures_do_not_run_again(tmp_path):
    status, output = run(tmp_path, "a", "b", "c", "d", content=FAILS_ONCE)

    assert status == 1
    assert "4 tests failed; at most 3 run again" in output


@pytest.mark.parametrize(
    "conftest",
    [
        "def pytest_runtest_logfinish():\n    raise RuntimeError\n",
        "raise RuntimeError\n",
    ],
    ids=["internal error", "no test ran"],
)
def test_a_run_that_ended_early_is_not_repeated(tmp_path, conftest):
    (tmp_path / "conftest.py").write_text(conftest)

    status, output = run(tmp_path, "a", content=FAILS_ONCE)

    assert status == 1
    assert "the run itself failed" in output
