"""Spark drivers of a worker, with scripts that print the events of a driver."""

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.utils import timezone

from catalog.access import SYSTEM, tokens
from catalog.errors import CommitConflict, ServiceUnavailable, Unauthenticated, Unsupported
from catalog.models import Job, JobEvent, JobStatus, TableFormat
from catalog.privileges import READ_ONLY
from catalog.services.access import authentication
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.maintenance import job_runner
from catalog.services.tables import job_operations
from tasks import spark
from tasks.spark import driver, libraries, pool, requirements, runner
from tests.factories import make_iceberg_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
READ = (
    "import json, os, sys, time\nrequest = json.loads(sys.stdin.readline())\n"
    "print(json.dumps({'event': 'accepted', 'job': request['job']}), flush=True)\n"
)


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)


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
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Function that writes a script, and returns its name."""
    monkeypatch.setattr(driver, "SCRIPT", tmp_path / "fake.py")
    monkeypatch.setattr(requirements, "java_home", lambda: "")

    def write(text: str) -> str:
        (tmp_path / "fake.py").write_text(READ + text)
        return "fake"

    yield write
    pool.end_all()


SUBMIT = """
import shlex, subprocess
output, command = [], [os.environ["SPARK_HOME"] + "/bin/spark-submit", "--verbose"]
command += shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])  # as PySpark does
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
printing = {**os.environ, "SPARK_PRINT_LAUNCH_COMMAND": "1"}
with subprocess.Popen(command, text=True, env=printing, **pipes) as child:
    for line in child.stdout:
        output.append(line)
        if line.startswith("Classpath elements"):
            break
    child.kill()
report = {
    "output": "".join(output),
    "command": command,
    "python": os.environ["PYSPARK_PYTHON"],
    "hostname": os.environ.get("SPARK_LOCAL_HOSTNAME"),
}
print(json.dumps({"event": "result", "data": report}))
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of temporary files, with a space in its name, of a worker for YARN."""
    temporary = tmp_path / "a temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/lake/bin/python3")
    return temporary


@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
@pytest.mark.parametrize(
    "cluster",
    [
        {"spark.master": "local[2,4]"},
        {"spark.master": "spark://10.0.0.7:7077", "spark.executor.instances": "4"},
        {
            "spark.master": "yarn",
            "spark.yarn.queue": "night shift",
            "spark.driver.host": "10.0.0.9",
        },
        {
            "spark.master": "k8s://https://10.0.0.7:6443",
            "spark.kubernetes.container.image": "lake/spark:4.1",
            "spark.kubernetes.namespace": "lake",
        },
    ],
    ids=["local", "standalone", "yarn", "kubernetes"],
)
def test_spark_submit_receives_the_settings(  # noqa: PLR0917 -- fixtures
    job, script, settings, temporary, monkeypatch, cluster
):
    """The settings that ``spark-submit`` prints before it connects to a cluster."""
    extra = dict(cluster)
    settings.SPARK_MASTER = master = extra.pop("spark.master")
    settings.MONODON_SPARK_CONF = {"spark.executor.memory": "4g", "spark.fs.key": "s3cret", **extra}
    settings.MONODON_SPARK_JARS = ["/opt/lake/iceberg.jar"]
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dlake=1")
    result = spark.run(job, script(SUBMIT), {}, nothing)
    output = result["output"]
    _, main, conf = re.split("Main class:|Spark config:", output)
    properties = dict(re.findall(r"^\((spark\.[^,]+),(.*)\)$", conf, re.MULTILINE))
    is_local = master.startswith("local")
    host = "127.0.0.1" if is_local else extra.get("spark.driver.host")
    assert "org.apache.spark.api.python.PythonGatewayServer" in main
    assert {name: properties.get(name) for name in cluster} == cluster
    assert properties["spark.executor.memory"] == "4g"
    assert properties.get("spark.driver.host") == host
    assert properties.get("spark.submit.deployMode", "client") == "client"
    assert "/opt/lake/iceberg.jar" in conf
    assert ("spark.local.dir" in properties) is is_local
    assert result["python"] == (sys.executable if is_local else "/opt/lake/bin/python3")
    assert result["hostname"] == ("localhost" if is_local else None)
    assert "s3cret" not in " ".join(result["command"])
    assert re.search(rf" -Dlake=1 -Djava\.io\.tmpdir={temporary}/monodon-spark-\w+ ", output)
    pool.end_all()
    assert not any(temporary.iterdir())


def nothing(completed: int, total: int | None = None) -> None:
    """A progress callback that does nothing."""


def events(job: Job) -> list[tuple[str, str]]:
    return list(JobEvent.objects.filter(job=job).order_by("id").values_list("level", "message"))


# --- messages of a driver ------------------------------------------------------------------------


def test_progress_log_and_result_are_stored(job: Job, script: Callable[[str], str]) -> None:
    reports: list[tuple[int, int | None]] = []
    name = script(
        "print('Spark says whatever it likes')\n"
        "print('[1, 2]')\n"
        "print(json.dumps({'event': 'progress', 'done': 3, 'total': 8}))\n"
        "print(json.dumps({'event': 'log', 'message': 'half', 'level': 'warning'}))\n"
        "print(json.dumps({'event': 'progress', 'done': 8}))\n"
        "print(json.dumps({'event': 'result', 'data': {'x': request['x'], 'job': request['job']}}))\n"
    )

    result = spark.run(job, name, {"x": 5}, lambda *progress: reports.append(progress))

    assert result == {"x": 5, "job": job.pk}
    assert (3, 8) in reports
    assert reports[-1] == (8, 8)
    assert events(job) == [("warning", "half")]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("refused", Unsupported),
        ("conflict", CommitConflict),
        ("stopped", ServiceUnavailable),
        ("error", RuntimeError),
    ],
)
def test_kinds_of_failures_become_errors(
    job: Job,
    script: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    error: type[Exception],
) -> None:
    monkeypatch.setattr(runner, "_NOTICE_SECONDS", 0.1)
    name = script(
        f"print(json.dumps({{'event': 'failed', 'kind': {kind!r}, 'message': 'it was so'}}))\n"
        "sys.exit(1)"
    )

    with pytest.raises(error, match="it was so"):
        spark.run(job, name, {}, nothing)

    assert events(job) == [("error", "it was so")]


def test_the_error_of_a_killed_driver_has_its_last_output(
    job: Job, script: Callable[[str], str]
) -> None:
    name = script(
        "print('out of memory, said', request['token'], file=sys.stderr, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )

    with pytest.raises(RuntimeError, match=r"was killed by SIGKILL: out of memory, said \*\*\*"):
        spark.run(job, name, {}, nothing)


# --- stopping ------------------------------------------------------------------------------------


def test_a_canceled_driver_ends_with_its_children(
    job: Job, script: Callable[[str], str], tmp_path: Path
) -> None:
    """Even if they ignore SIGTERM. They end within 10 s, of which 2 are the lease's."""
    name = script(
        "import signal, subprocess\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}\\n')\n"
        "print(json.dumps({'event': 'progress', 'done': 1}), flush=True)\n"
        "time.sleep(600)"
    )
    canceled_at: list[float] = []

    def report(completed: int, total: int | None = None) -> None:
        if completed:
            canceled_at.append(time.monotonic())
            raise jobs.JobCanceled("canceled on request")

    with pytest.raises(jobs.JobCanceled):
        spark.run(job, name, {}, report)

    deadline = canceled_at[0] + 6
    assert time.monotonic() < deadline
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        while not has_ended(pid):  # the kernel ends a killed process a moment after the signal
            assert time.monotonic() < deadline, pid
            time.sleep(0.01)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_driver_ends_with_its_worker(tmp_path: Path) -> None:
    """The driver's standard input ends when its worker does, in whatever way."""
    scripts = driver.SCRIPT.parent
    driver_script, worker_script = tmp_path / "driver.py", tmp_path / "worker.py"
    driver_script.write_text(
        f"import sys, time; sys.path.insert(0, {str(scripts)!r}); import driver, queue\n"
        "print(1, flush=True); driver.read_requests(queue.SimpleQueue())"
    )
    worker_script.write_text(
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, {str(driver_script)!r}], start_new_session=True,"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    command = [sys.executable, str(worker_script)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        child = psutil.Process(int(holder.stdout.readline()))
        holder.send_signal(signal.SIGKILL)
    child.wait(10)


# --- secrets -------------------------------------------------------------------------------------


def test_secrets_are_neither_on_the_command_line_nor_in_the_environment(
    job: Job, script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.MONODON_SPARK_CONF = {"spark.hadoop.fs.s3a.secret.key": "storage secret: a\\b"}
    monkeypatch.setenv("MONODON_ADMIN_API_KEY", "mnd_of_the_admin")
    monkeypatch.setenv("MONODON_OIDC_CLIENT_SECRET", "secret of the issuer")
    monkeypatch.setenv("LAKE_SECRET_KEY", "key of a storage profile")
    monkeypatch.setenv("PGPASSWORD", "password of the database")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "identity of the machine")
    monkeypatch.setenv("MONODON_RUN", "a mark")
    name = script(
        "arguments = os.environ['PYSPARK_SUBMIT_ARGS']\n"
        "conf = arguments.split()[1]\n"
        "print(json.dumps({'event': 'result', 'data': {'conf': open(conf).read(),"
        " 'mode': oct(os.stat(os.path.dirname(conf)).st_mode & 0o777),"
        " 'open': ' '.join([*sys.argv, *map(str, os.environ.items())]),"
        " 'cmdline': open('/proc/self/cmdline').read(), 'token': request['token'],"
        " 'url': request['url']}}))"
    )

    result = spark.run(job, name, {}, nothing)

    assert "spark.hadoop.fs.s3a.secret.key=storage\\ secret\\:\\ a\\\\b\n" in result["conf"]
    assert result["mode"] == "0o700"
    exposed = result["open"] + result["cmdline"]
    for secret in (
        *(result["token"], "storage secret", "mnd_of_the_admin", settings.SECRET_KEY),
        *("secret of the issuer", "key of a storage profile", "password of the database"),
    ):
        assert secret not in exposed
    assert "identity of the machine" in exposed  # Lance and Iceberg may need it
    for name in ("DATABASE_URL", "REDIS_URL"):
        assert f"'{name}'" not in exposed
    assert "a mark" in exposed  # by this a server identifies the processes that it must end
    assert result["url"] == settings.MONODON_URL


def test_secrets_of_a_store_are_not_in_the_error(job: Job, script: Callable[[str], str]) -> None:
    name = script(
        "print(request['storage_options'], file=sys.stderr, flush=True)\nos.kill(os.getpid(), 9)"
    )
    options = {"aws_secret_access_key": "s3cret", "aws_region": "eu-west-1"}
    with pytest.raises(RuntimeError, match="eu-west-1") as raised:
        spark.run(job, name, {"storage_options": options}, nothing)
    assert "s3cret" not in str(raised.value)


def test_a_token_is_valid_for_one_attempt_of_a_running_job(job: Job) -> None:
    token = tokens.issue_job_token(job.pk, job.attempts)
    assert authentication.authenticate(token).name == "system"
    # The job may read, and has all privileges on its own table only.
    assert authentication.authenticate(token).everywhere == READ_ONLY
    assert authentication.authenticate(token).tables == (job.table_id,)

    other = tokens.issue_job_token(job.pk, job.attempts + 1)
    for wrong in (other, token + "x", "mnj_", tokens.JOB_PREFIX + "a.b.c"):
        with pytest.raises(Unauthenticated):
            authentication.authenticate(wrong)
    for change in (
        {"cancel_requested": True},
        {"lease_until": timezone.now()},
        {"status": JobStatus.SUCCEEDED},
        {"attempts": job.attempts + 1},
    ):
        before = Job.objects.filter(pk=job.pk).values(*change).get()
        Job.objects.filter(pk=job.pk).update(**change)
        with pytest.raises(Unauthenticated):
            authentication.authenticate(token)
        Job.objects.filter(pk=job.pk).update(**before)
    assert authentication.authenticate(token).name == "system"


# --- missing requirements ------------------------------------------------------------------------


@pytest.fixture
def queued(job: Job) -> Job:
    """The job, before it starts."""
    Job.objects.filter(pk=job.pk).update(status=JobStatus.QUEUED, lease_until=None, attempts=0)
    return job


def failed(job: Job) -> str:
    """The error with which the job failed in its first attempt."""
    job.refresh_from_db()
    assert (job.status, job.attempts) == (JobStatus.FAILED, 1)
    return job.error


@pytest.mark.parametrize(
    ("environment", "conf", "text"),
    [
        (
            {"JAVA_HOME": "/nowhere"},
            {},
            "Java 17 to 23, and there is none in JAVA_HOME (/nowhere): install one and set JAVA_HOME",
        ),
        (
            {"JAVA_HOME": "", "PATH": "/nowhere"},
            {},
            "Spark needs Java 17 to 23, and none is installed: install one and set JAVA_HOME",
        ),
        (
            {},
            {"MONODON_SPARK_JARS": [], "MONODON_SPARK_PACKAGES": []},
            f"copy {libraries.RUNTIME.name} to",
        ),
        (
            {},
            {"MONODON_SPARK_JARS": ["/nowhere/iceberg.jar"]},
            "MONODON_SPARK_JARS names '/nowhere/iceberg.jar', and there is no such file",
        ),
    ],
)
def test_missing_requirements_fail_the_job_immediately(  # noqa: PLR0917 -- fixtures
    queued: Job,
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
    environment: dict[str, str],
    conf: dict[str, Any],
    text: str,
) -> None:
    monkeypatch.setattr(
        "catalog.services.maintenance.iceberg_actions._has_snapshots", lambda _: True
    )
    if not environment:
        monkeypatch.setattr(requirements, "java_home", lambda: "")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name, value in conf.items():
        setattr(settings, name, value)

    job_runner.run_job(queued.pk, spark=spark.run)

    assert text in failed(queued)


def test_a_package_that_cannot_be_fetched_is_reported(
    job: Job, script: Callable[[str], str], settings: Any
) -> None:
    """The error is Ivy's message; the script only reports that the JVM exited."""
    settings.MONODON_SPARK_PACKAGES = ["org.example:nothing:1.0"]
    name = script(
        "print('[unresolved dependency: org.example#nothing;1.0: not found]', file=sys.stderr)\n"
        "print('at a.b.c\\n' * 50, file=sys.stderr)\n"
        "print(json.dumps({'event': 'failed', 'kind': 'error', 'message': 'gateway exited'}))\n"
        "sys.exit(1)"
    )

    with pytest.raises(Unsupported, match=r"Spark cannot fetch org\.example:nothing"):
        spark.run(job, name, {}, nothing)


def test_an_old_java_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(Unsupported, match="Java 17 to 23, not 11"):
        spark.run(job, "iceberg", {}, nothing)


def test_a_worker_without_spark_fails_the_job(queued: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "catalog.services.maintenance.iceberg_actions._has_snapshots", lambda _: True
    )

    job_runner.run_job(queued.pk)

    assert failed(queued) == "Maintenance of Iceberg tables requires a worker with Spark"
