"""Names and properties of tenants' tables, as far as the server's Spark reads them."""

from types import SimpleNamespace
from typing import Any

import pytest

from catalog.access import SYSTEM, tokens
from catalog.engine_profiles import DEFAULT, SparkEngine
from catalog.errors import InvalidMetadata, Unsupported
from catalog.models import Job, JobStatus, TableFormat
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.iceberg.jobs import files as job_files
from catalog.services.maintenance import job_runner
from catalog.services.storage.file_owners import FutureTable
from catalog.services.tables import job_operations
from tasks.jobs.iceberg import session as job_session
from tasks.jobs.iceberg.table import literal, quoted
from tasks.spark import configuration
from tests.api.iceberg.client import Iceberg
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import make_iceberg_table, make_namespace, unchanged
from tests.tasks.test_spark_libraries import Classes

SECRET = "${env:AWS_SECRET_ACCESS_KEY}"


class Builder:
    """Records the settings of a session, instead of starting it."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def appName(self, name: str) -> "Builder":  # noqa: N802 -- as PySpark names it
        return self

    def config(self, name: str, value: Any) -> "Builder":
        self.settings[name] = value
        return self

    def getOrCreate(self) -> None:  # noqa: N802
        raise InterruptedError


def test_the_session_does_not_replace_variables_in_names(monkeypatch):
    """Spark would look for a table with the name of the secret, and quote it in its error."""
    builder = Builder()
    monkeypatch.setattr(job_session, "SparkSession", type("Session", (), {"builder": builder}))
    with pytest.raises(InterruptedError):
        job_session.start_session({"action": "compact", "table": ["ns", SECRET]})
    assert builder.settings["spark.sql.variable.substitute"] == "false"


def test_the_operator_cannot_switch_it_on_by_mistake(settings, tmp_path):
    settings.MONODON_SPARK_CONF = {"spark.sql.variable.substitute": "true"}
    conf = configuration._conf(SparkEngine(DEFAULT, "local[2]", 2, ""), [], tmp_path)
    assert conf["spark.sql.variable.substitute"] == "false"


@pytest.mark.parametrize("name", ["a'b", "a\\'b", "a\\", "a`b", "'); DROP TABLE x; --", "a\nb"])
def test_names_stay_inside_their_quotes(name):
    text = literal(quoted(name))
    inner = text[1:-1].replace("\\\\", "").replace("\\'", "")
    assert text[0] == text[-1] == "'"
    assert "'" not in inner
    assert not inner.endswith("\\")
    assert quoted(name)[1:-1].replace("``", "").count("`") == 0


@pytest.mark.parametrize(
    "name",
    [
        "com.evil.Provider",
        "javax.script.ScriptEngineManager",
        "",
        "org.apache.iceberg.LocationProviders",
    ],
)
@pytest.mark.django_db
@pytest.mark.usefixtures("warehouse")
def test_a_table_cannot_name_a_class_that_spark_would_load(name):
    properties = {"write.location-provider.impl": name}
    make_iceberg_table("ns", "t")
    update = {"action": "set-properties", "updates": properties}
    change = TableChange(table=("ns", "t"), requirements=[], updates=[update])
    with unchanged(), pytest.raises(InvalidMetadata, match="names the class"):
        iceberg_commits.commit_table(actor=SYSTEM, change=change)
    make_namespace("other")
    with unchanged(), pytest.raises(InvalidMetadata, match="names the class"):
        make_iceberg_table("other", "t", properties=properties)


@pytest.mark.django_db
@pytest.mark.usefixtures("warehouse")
def test_the_classes_of_iceberg_may_be_named():
    name = "org.apache.iceberg.LocationProviders$ObjectStoreLocationProvider"
    make_iceberg_table("ns", "t", properties={"write.location-provider.impl": name})


HADOOP = {
    # Iceberg's writers give them to Hadoop, which puts the secret into its error.
    "write.parquet.compression-level": "${env.AWS_SECRET_ACCESS_KEY}",
    "zlib.compress.level": "${env.AWS_SECRET_ACCESS_KEY}",
    "orc.write.format": "${spark.hadoop.fs.s3a.secret.key}",
    "comment": "of ${user.home}",
    # They configure the libraries themselves.
    "orc.key.provider": "hadoop",
    "hadoop.security.key.provider.path": "kms://http@127.0.0.1:1/kms",
    "parquet.crypto.factory.class": "org.apache.parquet.crypto.keytools.PropertiesDrivenCryptoFactory",
}
USABLE = {
    "write.parquet.compression-codec": "gzip",
    "gc.enabled": "false",
    "history.expire.min-snapshots-to-keep": "3",
    "encryption.key-id": "k",
    "write.metadata.metrics.column.$price": "full",
}


class Procedure:
    """Loads the table and commits to it as Iceberg's procedures do."""

    def __init__(self) -> None:
        self.answers: list[dict[str, str]] = []

    def __call__(self, job: Job, *arguments: Any, **options: Any) -> dict[str, Any]:
        client = Iceberg(tokens.issue_job_token(job.pk, job.attempts))
        update = {"action": "set-properties", "updates": {"commit.retry.num-retries": "3"}}
        for method, query, body in (
            ("GET", "", None),
            ("GET", "?snapshots=refs", None),
            ("POST", "", {"requirements": [], "updates": [update]}),
        ):
            response = client.call(method, f"namespaces/ns/tables/t{query}", body)
            assert response.status_code == 200, response.content
            self.answers.append(response.json()["metadata"]["properties"])
        return {}


@pytest.mark.django_db
@pytest.mark.usefixtures("warehouse")
def test_a_job_gets_no_properties_that_hadoop_would_interpret(monkeypatch):
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    make_iceberg_table("ns", "t")
    open_table("ns", "t").append(rows(1))
    update = {"action": "set-properties", "updates": {**HADOOP, **USABLE}}
    change = TableChange(table=("ns", "t"), requirements=[], updates=[update])
    iceberg_commits.commit_table(actor=SYSTEM, change=change)
    start = job_operations.StartMaintenance(
        table=("ns", "t"), format=TableFormat.ICEBERG, kind_of_job="compute_statistics"
    )
    job = commit([start], actor=SYSTEM).results[0]
    procedure = Procedure()
    job_runner.run_job(job.pk, spark=procedure)
    job.refresh_from_db()
    assert job.status == JobStatus.SUCCEEDED, job.error
    committed = {**USABLE, "commit.retry.num-retries": "3"}
    assert procedure.answers == [USABLE, USABLE, committed]
    loaded = iceberg_tables.load_table(actor=SYSTEM, table=("ns", "t"))
    assert loaded.document["properties"] == {**HADOOP, **committed}


@pytest.mark.django_db
@pytest.mark.usefixtures("warehouse")
def test_a_job_refuses_files_in_another_kind_of_storage(
    make_profile, settings, tmp_path, monkeypatch
):
    """The classes of Iceberg that jobs use open one kind of storage."""
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    settings.MONODON_ALLOWED_ROOTS = [str(tmp_path)]
    make_profile(
        name="lake", roots=["s3://lake/root"], endpoint="http://127.0.0.1:9", key_id="k", secret="s"
    )
    listed = tmp_path / "list.avro"
    listed.write_bytes(b"")
    snapshot = {"snapshot-id": 1, "manifest-list": f"file://{listed}"}
    document = {"snapshots": [snapshot], "current-snapshot-id": 1}
    table = FutureTable(("ns", "t"), "s3://lake/root/t")
    with pytest.raises(Unsupported) as refused:
        job_files.require_readable(table, document, "rewrite_manifests")
    assert refused.value.message == (
        f"File 'file://{listed}' is in another kind of storage than table 'ns.t', so jobs do not open it"
    )


class Hadoop:
    """Hadoop's settings, with one file system, and one of its libraries."""

    providers = 0

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any) -> Any:
        return self

    def keySet(self) -> list[str]:  # noqa: N802 -- as Java names it
        return ["fs.s3a.impl", "fs.file.impl"]

    def hasNext(self) -> bool:  # noqa: N802
        self.providers += 1
        return self.providers == 1

    def getScheme(self) -> str:  # noqa: N802
        return "lustre"


class Session:
    """Records the settings of a session with every library."""

    def __init__(self, scheme: str) -> None:
        self.settings: dict[str, str] = {}
        self.conf = self
        self.sparkContext = SimpleNamespace(_jvm=Classes() if scheme else Hadoop(), _jsc=Hadoop())

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value


@pytest.mark.parametrize(
    ("scheme", "opened_by"),
    [
        ("", "hadoop.HadoopFileIO"),
        ("s3", "aws.s3.S3FileIO"),
        ("gs", "gcp.gcs.GCSFileIO"),
        ("abfss", "azure.adlsv2.ADLSFileIO"),
    ],
)
def test_a_job_opens_one_kind_of_storage(scheme, opened_by):
    session: Any = Session(scheme)
    job_session.prepare_session(
        session, {"scheme": scheme, "url": "http://127.0.0.1:2333", "job": 7}
    )
    name = "spark.sql.catalog.monodon_7.io-impl"
    assert session.settings[name] == f"org.apache.iceberg.{opened_by}"


def test_hadoop_opens_local_files_only_in_the_catalog_of_a_job():
    session: Any = Session("")
    job_session.prepare_session(session, {"scheme": "", "url": "http://127.0.0.1:2333", "job": 7})
    prefix = "spark.sql.catalog.monodon_7.hadoop.fs"
    given = {name: value for name, value in session.settings.items() if name.startswith(prefix)}
    assert given.pop(f"{prefix}.defaultFS") == "file:///"
    schemes = (
        "ftp",
        "har",
        "hdfs",
        "http",
        "https",
        "lustre",
        "s3a",
        "swebhdfs",
        "viewfs",
        "webhdfs",
    )
    uncached = {name for name in given if name.endswith(".impl.disable.cache")}
    assert {given.pop(name) for name in uncached} == {"true"}
    assert given == {
        f"{prefix}.{scheme}.impl": "org.apache.hadoop.fs.LocalFileSystem" for scheme in schemes
    }
    # However the letters of a scheme are written.
    assert len(uncached) == sum(2 ** sum(map(str.isalpha, scheme)) for scheme in schemes)
    assert {
        f"{prefix}.{scheme}.impl.disable.cache" for scheme in (*schemes, "HDFS", "hTtP")
    } <= uncached
    assert {name.lower() for name in uncached} == {
        f"{prefix}.{scheme}.impl.disable.cache".lower() for scheme in schemes
    }
