"""A process with Django set up, which runs Python code for a live server.

The start takes seconds, so one process runs all the code of a server.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Mapping

from server.options import PROJECT

_SECONDS = 120
_LOOP = """
import json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import django
django.setup()
from django.db import connections
from tests.undo import empty_caches
for line in sys.stdin:
    error = ""
    try:
        exec(compile(json.loads(line), "<test>", "exec"), {"__name__": "__main__"})
    except BaseException:
        error = traceback.format_exc()
    connections.close_all()
    empty_caches()
    print(json.dumps(error), file=answers, flush=True)
"""


class DjangoProcess:
    """Started by the first call of `run`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**environment, "DJANGO_SETTINGS_MODULE": "config.settings"}
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def run(self, code: str) -> None:
        """Run code in a namespace of its own. Raises AssertionError with the traceback of an error."""
        with self._lock:
            process = self._process or self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            timer = threading.Timer(_SECONDS, process.kill)
            timer.start()
            try:
                process.stdin.write(json.dumps(code) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            finally:
                timer.cancel()
            assert line, f"the process ended, or the code took more than {_SECONDS} s"
            assert not (error := json.loads(line)), error

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> "subprocess.Popen[str]":
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LOOP],
            cwd=PROJECT,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self._process
