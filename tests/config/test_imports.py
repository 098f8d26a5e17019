"""Heavy libraries are imported by web processes before they serve, and by workers, but not by other
processes."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.config.programs import BEAT, HELP, SETUP, WEB, WORKER

PROJECT = Path(__file__).resolve().parents[2]
HEAVY = (
    *("botocore", "lance", "lance_namespace", "numpy", "obstore", "pandas", "pyarrow", "pyiceberg"),
    "pyspark",
)


def heavy_imports(program: str) -> set[str]:
    """The heavy libraries that a new process has imported after a program."""
    report = f"print('HEAVY', *({set(HEAVY)!r} & sys.modules.keys()))"
    completed = subprocess.run(
        [sys.executable, "-c", f"import sys\n{textwrap.dedent(program)}\n{report}"],
        cwd=PROJECT,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "config.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return set(completed.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "program", [SETUP, HELP, BEAT], ids=["django.setup", "manage.py --help", "beat"]
)
def test_manage_and_beat_start_without_heavy_libraries(program):
    assert heavy_imports(program) == set()


def test_web_processes_import_heavy_libraries_at_start_and_can_be_forked():
    """Otherwise the first request would wait. Web processes are forks, in which threads and connections of
    their parent would not work."""
    program = f"""
        {WEB}
        import threading
        from django.db import connections
        assert threading.enumerate() == [threading.main_thread()]
        assert all(each.connection is None for each in connections.all(initialized_only=True))
    """
    assert heavy_imports(program) >= set(HEAVY) - {"pyspark"}


def test_a_worker_imports_heavy_libraries_at_start_and_has_every_periodic_task():
    """Otherwise every process of its pool would import them."""
    tasks = """
        from config.schedule import SCHEDULE
        missing = {entry["task"] for entry in SCHEDULE.values()} - celery_app.tasks.keys()
        assert not missing, missing
        assert "tasks.maintenance.run_job" in celery_app.tasks
    """
    program = textwrap.dedent(WORKER) + textwrap.dedent(tasks)
    assert heavy_imports(program) >= set(HEAVY) - {"pyspark"}


def test_system_checks_include_the_pages_of_the_admin():
    program = """
        import django
        django.setup()
        from django.contrib import admin
        from django.core import checks
        assert not admin.site._registry
        messages = checks.run_checks(tags=[checks.Tags.admin])
        assert not [message for message in messages if not message.is_silenced()]
        assert len(admin.site._registry) > 10
    """
    heavy_imports(program)
