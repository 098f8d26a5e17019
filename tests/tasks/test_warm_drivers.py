"""Drivers that run several jobs, their replacement, and the libraries that they need."""

import fcntl
import hashlib
import importlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from catalog.access import SYSTEM
from catalog.engine_profiles import EngineKind
from catalog.errors import CommitConflict, Unsupported
from catalog.models import Job, JobEvent, TableFormat
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.maintenance.engine_profiles import profiles
from catalog.services.tables import job_operations
from tasks import spark
from tasks.spark import driver, libraries, pool, requirements
from tests.factories import make_iceberg_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
LOOP = """
import json, os, sys
environment = dict(os.environ)
numbers = 0
for line in sys.stdin:
    request = json.loads(line)
    numbers += 1
    def emit(event, **facts):
        print(json.dumps({"event": event, **facts}), flush=True)
    emit("accepted", job=request["job"])
    facts = {"pid": os.getpid(), "number": numbers, "token": request["token"]}
"""
ANSWER = "    emit('result', data=facts)\n"


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)


@pytest.fixture(autouse=True)
def _end_drivers() -> Iterator[None]:
    yield
    pool.end_all()


@pytest.fixture
def job() -> Job:
    make_iceberg_table("ws", "t")
    start = job_operations.StartMaintenance(
        table=("ws", "t"), format=TableFormat.ICEBERG, kind_of_job="compute_statistics"
    )
    row: Job = commit([start], actor=SYSTEM).results[0]
    taken = jobs.take(row.pk)
    assert taken is not None
    return taken


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Function that writes the script of drivers: the body of its loop over requests."""
    monkeypatch.setattr(driver, "SCRIPT", tmp_path / "fake.py")
    monkeypatch.setattr(requirements, "java_home", lambda: "")

    def write(body: str) -> None:
        (tmp_path / "fake.py").write_text(LOOP + body)

    return write


def nothing(completed: int, total: int | None = None) -> None:
    """A progress callback that does nothing."""


def run(job: Job, **request: Any) -> dict[str, Any]:
    return spark.run(job, "iceberg", request, nothing)


def test_a_driver_runs_one_job_after_another(job, loop):
    loop(ANSWER)
    first, second = run(job), run(job)
    assert (first["number"], second["number"]) == (1, 2)
    assert first["pid"] == second["pid"]


def test_a_driver_is_replaced_after_the_configured_number_of_jobs(job, loop, settings):
    settings.MONODON_SPARK_JOBS = 2
    loop(ANSWER)
    answers = [run(job) for _ in range(3)]
    assert [answer["number"] for answer in answers] == [1, 2, 1]


def test_a_driver_whose_memory_is_full_is_replaced(job, loop):
    loop("    emit('result', data=facts, recycle='900 MiB of its memory are in use')\n")
    assert [run(job)["number"] for _ in range(2)] == [1, 1]


def test_a_driver_is_replaced_after_an_error_but_not_after_a_conflict(job, loop):
    loop(
        "    if request['kind']:\n"
        "        emit('failed', kind=request['kind'], message='as requested')\n"
        "        continue\n" + ANSWER
    )
    with pytest.raises(CommitConflict, match="as requested"):
        run(job, kind="conflict")
    assert run(job, kind="")["number"] == 2
    with pytest.raises(RuntimeError, match="as requested"):
        run(job, kind="error")
    assert run(job, kind="")["number"] == 1


@pytest.mark.parametrize("kind", ["refused", "conflict"])
def test_a_driver_that_could_not_be_cleaned_up_is_replaced_after_a_failure_too(job, loop, kind):
    """Signed requests of the failed job would be in the cache of the next one."""
    loop(
        "    if request['fails']:\n"
        f"        emit('failed', kind={kind!r}, message='as requested', recycle='signed requests')\n"
        "        continue\n" + ANSWER
    )
    with pytest.raises((CommitConflict, Unsupported), match="as requested"):
        run(job, fails=True)
    assert run(job, fails=False)["number"] == 1


@pytest.mark.parametrize("error", [ValueError("it failed"), RuntimeError("it failed")])
def test_the_outcome_of_a_failed_job_says_whether_the_driver_was_cleaned_up(
    monkeypatch, capsys, error
):
    assert outcome_of_failure(error, monkeypatch, capsys) == {
        "event": "failed",
        "kind": "conflict",
        "message": "it failed",
        "recycle": "signed requests",
    }


@pytest.mark.parametrize("error", [ConnectionRefusedError(), Py4JNetworkError()])
def test_the_outcome_says_how_the_jvm_ended(monkeypatch, capsys, error):
    """Otherwise it would be a refused connection, such as of a process without memory."""
    jvm = subprocess.Popen(["sleep", "60"])
    jvm.kill()
    monkeypatch.setattr("pyspark.SparkContext._gateway", SimpleNamespace(proc=jvm))
    outcome = outcome_of_failure(error, monkeypatch, capsys)
    assert (outcome["kind"], outcome["message"]) == (
        "error",
        "Spark's JVM was killed by SIGKILL",
    )


def test_a_running_jvm_is_not_the_reason_of_an_error(monkeypatch, capsys):
    program = loaded_program()
    monkeypatch.setattr(program, "_END_SECONDS", 0.01)
    jvm = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr("pyspark.SparkContext._gateway", SimpleNamespace(proc=jvm))
    try:
        outcome = outcome_of_failure(OSError("no such file"), monkeypatch, capsys)
    finally:
        jvm.kill()
        jvm.wait()
    assert (outcome["kind"], outcome["message"]) == ("conflict", "no such file")


def outcome_of_failure(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """The last event of a driver whose job raises an error."""

    class Base:
        def newSession(self) -> "Base":  # noqa: N802 -- as PySpark names it
            return self

    class Script:
        @staticmethod
        def run(*_: Any) -> None:
            raise error

        @staticmethod
        def describe(failure: BaseException) -> tuple[str, str]:
            return "conflict", str(failure)

    program = loaded_program()
    for name, value in {"_script": Script(), "_start": Base(), "_activate": None}.items():
        monkeypatch.setattr(program.Driver, name, lambda *_, value=value: value)
    monkeypatch.setattr(program.Driver, "_clean_up", lambda *_: "signed requests")
    program.Driver().run({"job": 7, "script": "fake"})
    _, outcome = map(json.loads, capsys.readouterr().out.splitlines())
    assert isinstance(outcome, dict)
    return outcome


def loaded_program() -> Any:
    """The module of the driver."""
    return importlib.import_module("tasks.jobs.driver")


def test_late_events_of_the_previous_job_are_ignored(job, loop):
    loop(
        "    if numbers == 1:\n"
        "        emit('result', data=facts)\n"
        "        emit('stage', name='committing')\n"
        "        emit('failed', kind='refused', message='of the table secret.plans')\n"
        "        continue\n" + ANSWER
    )
    assert run(job)["number"] == 1
    assert run(job)["number"] == 2
    assert not JobEvent.objects.exists()


def test_readers_of_a_job_do_not_see_the_output_of_earlier_jobs(job, loop, caplog):
    """A thread of Spark may write about the table of an earlier job at any time."""
    loop(
        "    if numbers == 2:\n"
        "        print('no file /secret/plans', file=sys.stderr, flush=True)\n"
        "        emit('failed', kind='error', message='it failed')\n"
        "        continue\n" + ANSWER
    )
    run(job)
    with pytest.raises(RuntimeError, match=r"^it failed$"):
        run(job)
    shown = list(JobEvent.objects.values_list("message", "data"))
    assert shown == [("it failed", None)]
    assert "/secret/plans" in caplog.text


def test_a_result_may_contain_any_character(job, loop):
    loop("    emit('result', data={'path': 'a\\0b'})\n")
    assert run(job) == {"path": "a\ufffdb"}


def test_another_driver_takes_a_job_that_an_idle_one_did_not_begin(job, loop):
    """An idle driver may end at the moment at which the request is sent."""
    loop(ANSWER + "    if numbers == 1: sys.stdin.readline(); sys.exit(0)\n")
    assert run(job)["number"] == 1
    assert run(job)["number"] == 1
    assert not JobEvent.objects.filter(level="error").exists()


def test_a_driver_that_dies_after_it_began_a_job_fails_the_attempt(job, loop):
    loop("    sys.exit(7)\n")
    with pytest.raises(RuntimeError, match="ended with status 7"):
        run(job)


def test_other_settings_start_another_driver(job, loop, settings):
    loop(ANSWER)
    first = run(job)
    settings.MONODON_SPARK_CONF = {"spark.executor.memory": "2g"}
    second = run(job)
    assert second["number"] == 1
    assert second["pid"] != first["pid"]


def test_drivers_of_other_profiles_stay_warm(job, loop):
    loop(ANSWER)
    profiles.create_profile(actor=SYSTEM, name="small", kind=EngineKind.LOCAL, cores=1)
    profiles.create_profile(actor=SYSTEM, name="large", kind=EngineKind.LOCAL, cores=8)
    first = {}
    for name in ("default", "small", "default", "small"):
        job.engine_profile = name
        answer = run(job)
        assert answer["pid"] == first.setdefault(name, answer)["pid"]
        assert answer["number"] == 1 + (answer is not first[name])
    job.engine_profile = "large"  # the driver that waits longest ends
    run(job)
    assert [waiting.profile for waiting in pool._idle] == ["small", "large"]
    job.engine_profile = "default"
    assert run(job)["number"] == 1


def test_a_changed_profile_starts_another_driver(job, loop):
    loop(ANSWER)
    profiles.create_profile(actor=SYSTEM, name="small", kind=EngineKind.LOCAL, cores=1)
    job.engine_profile = "small"
    before = run(job)
    profiles.update_profile(actor=SYSTEM, name="small", changes=profiles.Changes(cores=2))
    after = run(job)
    assert (after["number"], after["pid"] == before["pid"]) == (1, False)
    assert len(pool._idle) == 1


def test_a_job_of_a_deleted_profile_starts_no_driver(job, loop):
    loop(ANSWER)
    job.engine_profile = "deleted"
    with pytest.raises(Unsupported, match="'deleted' of the job does not exist"):
        run(job)
    assert pool._idle == []


def test_stages_and_bytes_are_recorded(job, loop):
    loop(
        "    emit('stage', name='planning')\n"
        "    emit('stage', name='rewriting')\n"
        "    emit('progress', done=3, total=4, bytes=900)\n"
        "    emit('spark', version='4.1.1', application='local-1', ui='http://127.0.0.1:4040')\n"
        + ANSWER
    )
    run(job)
    row = Job.objects.get(pk=job.pk)
    assert [stage["name"] for stage in row.stages] == ["planning", "rewriting"]
    assert [stage.get("bytes") for stage in row.stages] == [None, 900]
    assert row.spark_ui == "http://127.0.0.1:4040"
    messages = list(JobEvent.objects.order_by("id").values_list("message", flat=True))
    assert messages == ["planning", "rewriting", "Spark 4.1.1 runs as local-1"]


def test_an_idle_driver_leaves_no_files(job, loop, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    loop(ANSWER + "    sys.exit(0)\n")
    run(job)
    deadline = time.monotonic() + 30
    while list(tmp_path.glob("monodon-spark-*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- libraries -----------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven repository on disk with the Iceberg runtime; returns the file."""
    settings.MONODON_HOME = tmp_path / "home"
    settings.MONODON_MAVEN_URL = (tmp_path / "maven").as_uri()
    content = b"the Iceberg runtime"
    runtime = libraries.Library("runtime", "1.0", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(libraries, "RUNTIME", runtime)
    file = tmp_path / "maven/org/apache/iceberg/runtime/1.0/runtime-1.0.jar"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    return file


def test_a_library_is_fetched_once_and_verified(repository):
    lines: list[str] = []
    (path,) = libraries.require("", lines.append)
    assert path.read_bytes() == repository.read_bytes()
    assert lines[0].startswith("Fetching file:///")
    assert lines[-1] == "Fetched and verified runtime-1.0.jar"
    repository.unlink()
    assert libraries.require("", lines.append) == [path] == libraries.present()
    assert len(lines) == 2


def test_a_library_with_another_checksum_is_refused(repository):
    repository.write_bytes(b"other content")
    with pytest.raises(Unsupported, match=r"the SHA-256 is .* and it must be"):
        libraries.require("", lambda _: None)
    assert libraries.present() == []
    assert [path.name for path in libraries.directory().iterdir()] == [".runtime-1.0.jar.lock"]


def test_a_file_that_was_changed_is_not_used(repository):
    """A driver would load its classes, whatever they are."""
    (path,) = libraries.require("", lambda _: None)
    content, before = path.read_bytes(), path.stat()
    path.write_bytes(content[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert libraries.present() == []
    assert libraries.require("", lambda _: None) == [path]
    assert path.read_bytes() == content


def test_a_copied_file_with_another_checksum_is_not_used(repository):
    libraries.directory().mkdir(parents=True)
    libraries.RUNTIME.path.write_bytes(b"half a fi")
    assert libraries.present() == []


@pytest.mark.parametrize("url", ["ftp//nowhere", "http://[::1/x", "http://a b/"])
def test_a_wrong_url_is_reported(repository, settings, url):
    settings.MONODON_MAVEN_URL = url
    with pytest.raises(Unsupported, match="cannot be fetched from"):
        libraries.require("", lambda _: None)


def test_an_endless_answer_is_refused(repository, monkeypatch):
    monkeypatch.setattr(libraries, "_MAX_BYTES", 10)
    with pytest.raises(Unsupported, match="it is larger than"):
        libraries.require("", lambda _: None)
    assert [path.name for path in libraries.directory().iterdir()] == [".runtime-1.0.jar.lock"]


def test_a_job_can_be_stopped_while_another_process_fetches(repository):
    libraries.directory().mkdir(parents=True)

    def stop(_text: str) -> None:
        raise jobs.JobCanceled("canceled on request")

    with (libraries.directory() / ".runtime-1.0.jar.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(jobs.JobCanceled):
            libraries.require("", stop)
    assert libraries.present() == []


def test_a_copied_library_needs_no_network(repository, settings):
    settings.MONODON_MAVEN_URL = ""
    assert "copy runtime-1.0.jar to" in libraries.problem()
    libraries.directory().mkdir(parents=True)
    repository.rename(libraries.RUNTIME.path)
    assert libraries.problem() == ""
    assert libraries.require("", lambda _: None) == [libraries.RUNTIME.path]


def test_a_download_that_the_job_stops_leaves_nothing(repository):
    def stop(_text: str) -> None:
        raise jobs.JobCanceled("canceled on request")

    with pytest.raises(jobs.JobCanceled):
        libraries.require("", stop)
    assert libraries.present() == []


def test_given_libraries_are_not_fetched(repository, settings):
    settings.MONODON_SPARK_PACKAGES = ["org.example:runtime:1.0"]
    assert libraries.require("", lambda _: None) == []
    assert not libraries.directory().exists()
