"""The images of the Dockerfile run the catalog: web server, worker with Spark, and beat."""

import io
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from server.options import PROJECT
from tests import templates
from tests.engines import image, toolkit
from tests.engines.image import relay
from tests.ports import free_port

pytestmark = [pytest.mark.engines, pytest.mark.timeout(3600)]

_SECONDS = 180.0
_KEY = "key-of-the-administrator-of-the-images"


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    toolkit.require(image.prepare)
    for target in image.TARGETS:
        image.build(target)


@pytest.fixture(scope="module")
def containers(prepared: None) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(image.container(name)) for name in image.TARGETS}


def run(container: str, *arguments: str, **environment: str) -> str:
    """Output of a program in a container."""
    completed = subprocess.run(
        image.command(container, *arguments, environment=environment),
        env=image.environment(),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


@pytest.mark.parametrize("target", image.TARGETS)
def test_processes_are_not_root_and_cannot_change_the_program(containers, target):
    container = containers[target]
    assert run(container, "id", "-u").strip() == "10001"
    assert image.inspect(target, "{{.OCIv1.Config.User}}") == "monodon"
    writable = (
        "import os; print([p for p in ('/app', '/opt/venv', '/usr/bin') if os.access(p, os.W_OK)])"
    )
    assert run(container, "python", "-c", writable).strip() == "[]"
    assert (
        run(container, "sh", "-c", "ls -A /app/tests /app/benchmarks 2>&1 || true").count("No such")
        == 2
    )


def test_only_the_worker_has_java_and_spark(containers):
    modules = "import importlib.util as u; print(bool(u.find_spec('pyspark')))"
    java = "command -v java || echo none"
    assert run(containers["web"], "python", "-c", modules).strip() == "False"
    assert run(containers["web"], "sh", "-c", java).strip() == "none"
    assert run(containers["worker"], "python", "-c", modules).strip() == "True"
    assert run(containers["worker"], "sh", "-c", java).strip() == "/usr/bin/java"


def test_the_commands_are_those_of_the_compose_file() -> None:
    services = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"]
    web = image.inspect("web", "{{range .OCIv1.Config.Cmd}}{{println .}}{{end}}").split()
    assert services["web"]["command"][: len(web)] == web


# --- a server of both images -----------------------------------------------------------------------


class Server:
    """The containers' processes with a database, a broker and a home of their own."""

    def __init__(
        self, containers: dict[str, str], home: Path, *, database_url: str, broker_url: str
    ) -> None:
        self._containers, self._home = containers, home
        self._port = free_port()
        self._log_path = home / "images.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = {
            "DATABASE_URL": database_url,
            "REDIS_URL": broker_url,
            "MONODON_QUEUE": database_url.rpartition("/")[2],
            "MONODON_HOME": str(home),
            "MONODON_URL": f"http://127.0.0.1:{self._port}",
            "MONODON_SECRET_KEY": "secret-key-of-the-images-which-is-long-enough-for-django-to-accept-it",
            "MONODON_ADMIN_API_KEY": _KEY,
        }

    def start(self) -> None:
        bootstrap = self._start("web", "manage.py", "bootstrap")
        assert bootstrap.wait(_SECONDS) == 0, self.log
        address = ("--host", "127.0.0.1", "--port", str(self._port))
        self._start("web", "-m", "config.web", *address)
        celery = ("-m", "celery", "--quiet", "--skip-checks", "-A", "tasks")
        self._start("worker", *celery, "worker", "--concurrency", "2", "--loglevel", "info")
        beat = ("--scheduler", "django_celery_beat.schedulers:DatabaseScheduler", "--pidfile", "")
        self._start("web", *celery, "beat", *beat)

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def call(self, method: str, path: str, body: bytes | dict[str, Any] | None = None) -> Any:
        is_json = not isinstance(body, bytes)
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            method=method,
            data=json.dumps(body).encode() if is_json and body is not None else body,
            headers={
                "x-api-key": _KEY,
                "content-type": "application/json"
                if is_json
                else "application/vnd.apache.arrow.stream",
            },
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
            is_json = "json" in answer.headers["content-type"]
            return json.loads(content) if is_json else content

    def wait(self, condition: Callable[[], Any]) -> Any:
        """Wait until the condition is true, and return it; the server may refuse connections meanwhile."""
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                if result := condition():
                    return result
            except (urllib.error.URLError, ConnectionError):
                pass
            assert time.monotonic() < deadline, self.log
            time.sleep(0.5)

    def _start(self, target: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log_path.open("ab") as log:
            process = subprocess.Popen(
                image.command(
                    self._containers[target],
                    *("python", *arguments),
                    environment=self._environment,
                    volumes=(self._home,),
                ),
                env=image.environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process


@contextmanager
def empty_database() -> Iterator[str]:
    name = f"monodon_images_{os.getpid()}"
    templates.execute("CREATE DATABASE {}", name)
    try:
        yield templates.url_of(name)
    finally:
        templates.execute("DROP DATABASE {} WITH (FORCE)", name)


@pytest.fixture
def server(containers: dict[str, str], tmp_path: Path) -> Iterator[Server]:
    tmp_path.chmod(0o711)
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o777)  # for the user of the image
    with (
        empty_database() as own_url,
        relay.database(own_url) as database_url,
        relay.broker(os.environ["REDIS_URL"]) as broker_url,
    ):
        server = Server(containers, home, database_url=database_url, broker_url=broker_url)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def stream(start: int) -> bytes:
    table = pa.table({"id": pa.array(range(start, start + 10), pa.int64())})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_rows_are_written_and_compacted_on_spark(server: Server) -> None:
    server.wait(lambda: server.call("GET", "/health/ready")["status"] == "ok")
    assert b"<title>" in server.call("GET", "/help/")
    server.call("POST", "/v1/namespace/sea/create", {})
    table = "/v1/table/sea$whales"
    server.call("POST", f"{table}/create", stream(0))
    for number in range(1, 5):
        server.call("POST", f"{table}/insert", stream(10 * number))
    server.call(
        "PUT",
        "/management/v1/tables/sea$whales/policy",
        {"values": {"engine": "spark", "min_small_files": 2}},
    )
    job = server.call("POST", "/management/v1/tables/sea$whales/maintenance", {"kind": "compact"})
    path = f"/management/v1/jobs/{job['id']}"
    ended = server.wait(
        lambda: (job := server.call("GET", path))["status"] in {"succeeded", "failed"} and job
    )
    assert (ended["status"], ended["engine"]) == ("succeeded", "spark"), (ended, server.log)
    assert server.call("POST", f"{table}/count_rows", {}) == 50
    described = server.call("POST", f"{table}/describe", {"load_detailed_metadata": True})
    assert described["stats"]["num_fragments"] == 1
