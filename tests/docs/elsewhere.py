"""The blocks that tests/docs/test_blocks.py does not run, with the reason and the test that covers them."""

from typing import NamedTuple

from tests.docs.blocks import Block, blocks


class Elsewhere(NamedTuple):
    page: str
    text: str
    """A part of the block, which no other block of the page has."""
    reason: str
    test: str = ""
    """The test that runs or checks the block, if there is one. The module, or a name in it."""

    def blocks(self) -> list[Block]:
        return [block for block in blocks() if block.page == self.page and self.text in block.text]


_INSTALLS = "installs packages into the reader's environment"
_STARTS = "starts a server, which other tests do"
_TUTORIAL = "its test also checks what the code prints"
_JVM = "needs a JVM"
_ENGINES = "needs a program that only `make engines` installs or builds"
_CLOUD = "needs an account of a cloud"
_STORE = "needs the administration of an object store"
_KUBERNETES = "needs a cluster and a registry of images"
_UP = "tests/server/test_up.py"
_TUTORIAL_TEST = "tests/clients/test_tutorial.py::test_the_tutorial"
_LANCE_TEST = "tests/clients/test_lance_guide.py::test_the_guide"
_DUCKDB_TEST = "tests/clients/test_duckdb.py::test_the_guide"
_SPARK_TEST = "tests/clients/test_spark.py::test_the_guide"
_LANCEDB_TEST = "tests/clients/test_lancedb_remote.py::test_the_guide"
_PROFILES_TEST = "tests/stores/test_guide.py::test_commands_of_the_guide_create_profiles"
_FRAMES_TEST = "tests/engines/frames/test_frames.py"
_POINT_IN_TIME_TEST = "tests/catalog/services/recovery/test_point_in_time.py"
_SIGN_ON_TEST = "tests/monodon/test_sign_on.py"

ELSEWHERE = [
    # -- installation and start
    Elsewhere("README.md", "make up", _STARTS, _UP),
    Elsewhere("quickstart.md", "make up", _STARTS, _UP),
    Elsewhere("quickstart.md", "make demo", _STARTS, "tests/clients/test_demo.py"),
    Elsewhere("tutorial.md", "make up", _STARTS, _UP),
    Elsewhere("tutorial.md", "pip install", _INSTALLS, "tests/monodon/test_wheel.py"),
    Elsewhere(
        "tutorial.md", "export MONODON_URL", "its values are set by the test", _TUTORIAL_TEST
    ),
    Elsewhere("command-line.md", "pip install", _INSTALLS, "tests/monodon/test_wheel.py"),
    Elsewhere("daft.md", "pip install", _INSTALLS, _FRAMES_TEST),
    Elsewhere("polars.md", "pip install", _INSTALLS, _FRAMES_TEST),
    Elsewhere("ray.md", "pip install", _INSTALLS, _FRAMES_TEST),
    Elsewhere("lancedb.md", "pip install", _INSTALLS),
    # -- pages with a test of their own
    *(
        Elsewhere("tutorial.md", text, _TUTORIAL, _TUTORIAL_TEST)
        for text in (
            "import lance\n",
            "orders.append(sales)",
            "monodon ls shop",
            "best = (",
            "nearest = ",
            "for start in",
            "monodon history",
            "set_namespace_policy",
            "monodon maintain plan",
            "monodon maintain run",
            '"fragment")',
            "monodon explain",
            "monodon trash",
        )
    ),
    *(
        Elsewhere("lance-clients.md", text, _TUTORIAL, _LANCE_TEST)
        for text in (
            "\ncatalog = RestNamespace(",
            "def stream(",
            "TABLES=",
            "import lancedb",
            "import duckdb",
        )
    ),
    *(
        Elsewhere("lancedb.md", text, _TUTORIAL, _LANCEDB_TEST)
        for text in ("table.search([0.9, 0.1])", 'db = lancedb.connect("db://zoo"', "old.search()")
    ),
    *(
        Elsewhere("iceberg-clients.md", text, _TUTORIAL, _DUCKDB_TEST)
        for text in (
            "import pyarrow as pa\nfrom",
            "print(catalog.list_tables",
            "LOAD iceberg",
            "by_credential (",
        )
    ),
    # -- engines
    *(
        Elsewhere("iceberg-clients.md", text, _JVM, _SPARK_TEST)
        for text in ("spark-sql \\", "MERGE INTO lake.sales.orders t")
    ),
    Elsewhere(
        "iceberg-clients.md",
        "iceberg-aws-bundle",
        _JVM,
        "tests/clients/test_iceberg_maintenance_objects.py",
    ),
    *(
        Elsewhere("iceberg-clients.md", text, _ENGINES, f"tests/engines/{test}")
        for text, test in (
            ("connector.name=iceberg", "trino/test_trino.py::test_statements"),
            ("CREATE SCHEMA lake.trino", "trino/test_trino.py::test_statements"),
            ("CREATE CATALOG lake", "flink/test_flink.py::test_statements"),
            ("export SAIL_CATALOG__LIST", "sail/test_sail.py::test_statements"),
            ("sc://127.0.0.1:50051", "sail/test_sail.py::test_statements"),
            ("CREATE NAMESPACE sail;", "sail/test_sail.py::test_statements"),
            ("DataLakeCatalog(", "clickhouse/test_clickhouse.py::test_statements"),
            ("[iceberg_catalog]", "dlt/test_dlt.py::test_program"),
            ("import dlt\n", "dlt/test_dlt.py::test_program"),
            ("import org.apache.iceberg.DataFile", "java/test_java.py::test_program"),
            ("package main", "go/test_go.py::test_program"),
            ('[package]\nname = "orders"', "rust/test_rust.py::test_program"),
            ("use futures::", "rust/test_rust.py::test_program"),
        )
    ),
    Elsewhere(
        "lance-clients.md",
        "LanceNamespaceSparkCatalog",
        "no release of the connector runs on this Spark",
    ),
    *(
        Elsewhere("lance-clients.md", text, _JVM, "tests/clients/test_lance_spark.py")
        for text in ("createOrReplaceTempView", "parallelize")
    ),
    Elsewhere(
        "credentials.md", "Access-Delegation", _JVM, "tests/clients/test_vended_credentials.py"
    ),
    *(
        Elsewhere(page, text, _ENGINES, _FRAMES_TEST)
        for page, text in (
            ("daft.md", "import daft\n"),
            ("daft.md", "from_iceberg"),
            ("ray.md", "import ray\n"),
            ("ray.md", "GreaterThan"),
            ("ray.md", "import lance_ray"),
            ("ray.md", 'mode="append"'),
            ("daft.md", "from_arrow"),
            ("polars.md", "import polars as pl"),
            ("polars.md", "table.history()"),
            ("polars.md", "scan_lance"),
        )
    ),
    Elsewhere(
        "lancedb.md",
        "apiKey",
        _ENGINES,
        "tests/engines/lancedb/test_clients.py::test_typescript",
    ),
    Elsewhere(
        "lancedb.md",
        "lancedb::connect",
        _ENGINES,
        "tests/engines/lancedb/test_clients.py::test_rust",
    ),
    Elsewhere(
        "lancedb.md",
        "LanceDBVectorStore",
        _ENGINES,
        "tests/engines/lancedb/test_clients.py::test_langchain",
    ),
    Elsewhere(
        "maintenance.md",
        "lance_compact.py",
        _JVM,
        "tests/clients/test_lance_maintenance.py::test_the_script_commits_through_the_catalog",
    ),
    Elsewhere(
        "maintenance.md",
        "--strategy zorder",
        _JVM,
        "tests/clients/test_iceberg_layouts.py",
    ),
    Elsewhere(
        "maintenance.md",
        "tasks/jobs/iceberg_maintain.py",
        _JVM,
        "tests/clients/test_iceberg_maintenance.py::test_the_script_runs_from_the_command_line",
    ),
    # -- clouds, clusters and stores
    *(
        Elsewhere("amazon-s3.md", text, _CLOUD)
        for text in (
            "create-bucket --bucket lake --region",
            "create-user --user-name",
            "create-role",
        )
    ),
    *(
        Elsewhere(f"{page}.md", text, reason, _PROFILES_TEST)
        for page, text, reason in (
            ("amazon-s3", "--key-id AKIA...", _CLOUD),
            (
                "amazon-s3",
                "--preset aws --root s3://lake/tables --region eu-central-1 \\\n",
                _CLOUD,
            ),
            ("cloudflare-r2", "--preset r2", _CLOUD),
            ("google-cloud-storage", "--preset gcs", _CLOUD),
            ("azure-data-lake-storage", "--hns true", _CLOUD),
            ("azure-data-lake-storage", "Storage Blob Data Contributor", _CLOUD),
            ("versitygw", "versitygw --port", _STORE),
            ("seaweedfs", "weed mini", _STORE),
            ("ceph", "radosgw-admin user create", _STORE),
            ("minio", "mc mb", _STORE),
        )
    ),
    Elsewhere("object-stores.md", "storage bind NAMESPACE", "NAMESPACE is a placeholder"),
    Elsewhere("seaweedfs.md", "storage update lake --client-access sts", _STORE),
    *(
        Elsewhere("kubernetes.md", text, _KUBERNETES, "tests/engines/helm/test_chart.py")
        for text in ("docker build", "kubectl create secret", "helm upgrade")
    ),
    *(
        Elsewhere(
            "terraform.md", text, _ENGINES, f"tests/engines/terraform/test_terraform.py{test}"
        )
        for text, test in (
            ("go build", ""),
            ("tofu plan", "::test_the_example"),
            ("tofu import", "::test_import"),
        )
    ),
    # -- operators
    Elsewhere(
        "audit.md",
        "--expect",
        "the seal of another catalog",
        "tests/catalog/services/audit/test_chain.py",
    ),
    Elsewhere(
        "audit.md",
        "audit_grants",
        "needs a second role of the database",
        "tests/catalog/services/engine/test_audit_records.py",
    ),
    Elsewhere("command-line.md", "--profile staging", "needs two servers", _SIGN_ON_TEST),
    Elsewhere("command-line.md", "WDJB-MJHT", "needs an identity provider", _SIGN_ON_TEST),
    Elsewhere(
        "events.md",
        "curl -N",
        "ends after five minutes",
        "tests/api/management/test_event_streams.py",
    ),
    Elsewhere("operations.md", "changepassword", "asks for a password"),
    *(
        Elsewhere("operations.md", text, "needs a PostgreSQL of its own", _POINT_IN_TIME_TEST)
        for text in ("archive_command", "pg_basebackup", "restore_command")
    ),
    Elsewhere(
        "operations.md",
        "monodon restore",
        "needs a second installation",
        "tests/catalog/services/recovery/test_backup.py",
    ),
    *(
        Elsewhere("correctness.md", text, "runs for minutes", "tests/chaos/test_harness.py")
        for text in ("make chaos", "--fault ")
    ),
    Elsewhere("storage-profiles.md", "storage test lake", "lists commands, in no order"),
]


def listed() -> dict[Block, Elsewhere]:
    return {block: entry for entry in ELSEWHERE for block in entry.blocks()}
