"""A pytest plugin: a throwaway PostgreSQL and Valkey for the whole run, unless the environment names servers.

Loaded by `-p` in pyproject.toml, because it must run before pytest-django reads the settings. Only the
process that the user started gets here with nothing set; pytest-xdist's workers inherit the addresses.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from server.postgres import Postgres
from server.valkey import Valkey
from tests import templates

_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 12 * 1024**3
_PREFIX = "mt"
"""Short, because the path of a socket has at most 107 bytes."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    _keep_bytecode()
    if "PYTEST_XDIST_WORKER" in os.environ or {"-h", "--help", "-V", "--version"} & set(args):
        return
    _use_memory(early_config, args)
    if home := os.environ.get("MONODON_TEST_HOME"):  # of sessions that share their settings
        root = Path(home)
    else:
        root = Path(tempfile.mkdtemp(prefix="monodon-test-"))
        early_config.add_cleanup(lambda: shutil.rmtree(root, ignore_errors=True))
    root.chmod(
        0o711
    )  # as root, PostgreSQL runs as another user, which must be able to enter the directory
    _remove_settings_of_the_shell()
    os.environ["MONODON_HOME"] = str(root / "home")
    # Dropped objects are purged immediately, unless a test sets another retention.
    os.environ["MONODON_TRASH_SECONDS"] = "0"
    os.environ["MONODON_MAVEN_URL"] = "off"
    # Versions at these paths need no manifest file, for tests that are not about files.
    os.environ["MONODON_MANIFEST_PATHS"] = "elsewhere/,x/"
    templates.choose_name()
    with contextlib.ExitStack() as stack:
        if not os.environ.get("DATABASE_URL"):
            database = Postgres(root / "postgres", root / "run", durable=False)
            stack.callback(database.stop)
            database.start()
            os.environ["DATABASE_URL"] = database.url
        else:
            stack.callback(templates.drop)
        if not os.environ.get("REDIS_URL"):
            broker = Valkey(root / "valkey", root / "run", durable=False)
            stack.callback(broker.stop)
            broker.start()
            os.environ["REDIS_URL"] = broker.url
        early_config.add_cleanup(stack.pop_all().close)  # also after Ctrl-C and failed imports


def _use_memory(config: pytest.Config, args: list[str]) -> None:
    """Let the temporary files of a run with several processes be in memory if there is enough, among them the
    database's: the tests remove many files."""
    has_processes = any(argument.startswith(("-n", "--numprocesses")) for argument in args)
    is_chosen = "TMPDIR" in os.environ or any(a.startswith("--basetemp") for a in args)
    if is_chosen or not has_processes or not _MEMORY.is_dir():
        return
    if min(shutil.disk_usage(_MEMORY).free, psutil.virtual_memory().available) < _MEMORY_BYTES:
        return
    for directory in _MEMORY.glob(f"{_PREFIX}[0-9]*"):
        if not psutil.pid_exists(int(directory.name.removeprefix(_PREFIX))):
            # Its session was killed. Python's rmtree fails in trees of more than about 1,000 levels, which some tests make.
            subprocess.run(["rm", "-rf", str(directory)], check=False)
    directory = _MEMORY / f"{_PREFIX}{os.getpid()}"
    directory.mkdir(mode=0o711)
    os.environ["TMPDIR"] = str(directory)
    tempfile.tempdir = None  # chosen again
    args.insert(0, f"--basetemp={directory}/t")
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


def _keep_bytecode() -> None:
    """Let Python store compiled modules, for this process and those that tests start: to compile the
    project again takes each of them more than a second."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


# Settings of the tests.
_TEST_SETTINGS = {
    "MONODON_TEST_HOME",
    "MONODON_UPGRADE_FROM",
    "MONODON_CHAOS_ROUNDS",
    "MONODON_SPEC_DIR",
    "MONODON_JARS",
    "MONODON_REQUIRE_ENGINES",
    "MONODON_REQUIRE_KIT",
    "MONODON_REQUIRE_SPARK",
    "MONODON_REQUIRE_BROWSER",
    "MONODON_CHROMIUM",
    "MONODON_SCREENS",
    "MONODON_STORES",
    "MONODON_REQUIRE_STORES",
    "MONODON_REQUIRE_WRK",
    "MONODON_TEST_S3_ENDPOINT",
    "MONODON_TEST_S3_STS_ENDPOINT",
    "MONODON_TEST_S3_REGION",
    "MONODON_TEST_S3_ACCESS_KEY",
    "MONODON_TEST_S3_SECRET_KEY",
    "MONODON_TEST_S3_BUCKET",
}


def _remove_settings_of_the_shell() -> None:
    for name in list(os.environ):
        if name.startswith("MONODON_") and name not in _TEST_SETTINGS:
            del os.environ[name]
