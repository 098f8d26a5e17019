"""Shell code of the pages, as a reader runs it in a checkout beside a running server.

`manage.py` takes more than a second to load. Therefore one process loads Django, and each command of the
shell is a fork of it: `python -m tests.docs.commands SOCKET`.
"""

import array
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from server.options import PROJECT

PROGRAMS = ("bash", "curl", "jq")
_SECONDS = 120
_READY = "ready"
_CLIENT = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(os.environ["MANAGE_SOCKET"])
    request = json.dumps([os.getcwd(), dict(os.environ), sys.argv[1:]]).encode()
    socket.send_fds(connection, [len(request).to_bytes(4, "big")], [0, 1, 2])
    connection.sendall(request)
    sys.exit((connection.recv(1) or b"\\x7f")[0])
"""
_PYTHON = """#!/bin/sh
case "$1" in
manage.py) shift; exec {python} -IS "$MANAGE_CLIENT" "$@" ;;
esac
exec {python} "$@"
"""
_MONODON = """#!/bin/sh
exec {python} -m monodon "$@"
"""
_CURLRC = """
fail-with-body
silent
show-error
max-time = 60
retry = 3
"""


class Shell:
    """Runs blocks of shell code in a directory. Their variables remain for the next block."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self._programs = directory / "bin"
        self._programs.mkdir()
        virtual = directory / ".venv" / "bin"
        virtual.mkdir(parents=True)
        for path, text in (
            (self._programs / "python", _PYTHON),
            (self._programs / "monodon", _MONODON),
            (virtual / "python", _PYTHON),
        ):
            path.write_text(text.format(python=sys.executable))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        client = directory / "bin" / "client.py"
        client.write_text(_CLIENT)
        (directory / ".curlrc").write_text(_CURLRC)
        self._state = self._programs / "variables"
        self._state.touch()
        self._environment = {
            "HOME": str(directory),
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(PROJECT),
            "MANAGE_CLIENT": str(client),
            "LANG": "C.UTF-8",
            **environment,
        }

    def run(self, code: str) -> str:
        """The output. Raises AssertionError if a command fails, or uses a variable that is not set."""
        script = f'. "{self._state}"\nset -aeu -o pipefail\n{code}\nexport -p > "{self._state}"\n'
        ended = subprocess.run(
            ["bash", "-c", script],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, f"{code}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout


class Manage:
    """The process that runs the commands of manage.py, with the environment of a server."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self.socket = path
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(path)],
            cwd=PROJECT,
            env={**environment, "DJANGO_SETTINGS_MODULE": "config.settings"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == _READY

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def serve(path: str) -> None:
    import django
    from django.core.management import get_commands, load_command_class

    django.setup()
    for name, application in get_commands().items():
        if application == "catalog":
            load_command_class(application, name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the results of forks are not collected
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print(_READY, flush=True)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _run(connection)
                os._exit(0)
            connection.close()


def _run(connection: socket.socket) -> None:
    """Run a command in this process with the directory, variables and streams of its client."""
    from django.core.management import execute_from_command_line

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(connection, 4, 3)
    size = int.from_bytes(head, "big")
    request = b""
    while len(request) < size:
        request += connection.recv(size - len(request))
    directory, environment, arguments = json.loads(request)
    for number, stream in enumerate(array.array("i", streams)):
        os.dup2(stream, number)
    os.chdir(directory)
    os.environ.update(environment)
    status = 1
    try:
        execute_from_command_line(["manage.py", *arguments])
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else bool(error.code)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(bytes([status]))


if __name__ == "__main__":
    serve(sys.argv[1])
