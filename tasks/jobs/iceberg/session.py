"""The Spark session of a job, with a catalog that reaches Monodon."""

from typing import Any

from py4j.java_gateway import JavaPackage
from pyspark.sql import SparkSession

from .errors import Failed
from .local_files import open_local_files_only

CATALOG = "monodon"
_DELEGATION = "vended-credentials,remote-signing"
_LIBRARIES = {
    "s3": ("software.amazon.awssdk.services.s3.S3Client", "iceberg-aws-bundle"),
    "gs": ("com.google.cloud.storage.Storage", "iceberg-gcp-bundle"),
    "abfss": ("com.azure.storage.file.datalake.DataLakeFileSystemClient", "iceberg-azure-bundle"),
}
"""The class that Iceberg needs for files of a scheme, and the artifact that contains it."""
_FILE_IO = {
    "": "org.apache.iceberg.hadoop.HadoopFileIO",
    "s3": "org.apache.iceberg.aws.s3.S3FileIO",
    "gs": "org.apache.iceberg.gcp.gcs.GCSFileIO",
    "abfss": "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
}
"""The class that opens the files of a table at a location of a scheme, and no files elsewhere."""


def catalog_of(request: dict[str, Any]) -> str:
    """The name of the catalog in the session. Each job has its own, with its own credentials."""
    if request.get("catalog"):
        return str(request["catalog"])
    return f"{CATALOG}_{request['job']}" if request.get("job") else CATALOG


def start_session(request: dict[str, Any]) -> SparkSession:
    """Start Spark for a script that was started manually."""
    return (
        SparkSession.builder.appName(f"monodon {request['action']} {'.'.join(request['table'])}")
        .config(
            "spark.sql.extensions",
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        )
        # A table may be named ${env:SECRET}.
        .config("spark.sql.variable.substitute", "false")
        .getOrCreate()
    )


def prepare_session(spark: SparkSession, request: dict[str, Any]) -> None:
    """Configure the catalog. Raises Failed if Spark lacks a library."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
    if isinstance(jvm.org.apache.iceberg.EnvironmentContext, JavaPackage):
        raise Failed(
            "refused",
            "Spark has no Iceberg runtime: set MONODON_SPARK_PACKAGES to its Maven coordinates, or"
            " MONODON_SPARK_JARS to the path of its jar",
        )
    require_libraries(jvm, request.get("scheme") or "")
    if not request.get("catalog"):
        # Not as settings of the application, which would be on the command line of the JVM.
        prefix = f"spark.sql.catalog.{catalog_of(request)}"
        spark.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set(f"{prefix}.type", "rest")
        spark.conf.set(f"{prefix}.uri", request["url"])
        spark.conf.set(f"{prefix}.cache-enabled", "false")
        if request.get("scheme") in _FILE_IO:
            # By default Iceberg opens any URI in a manifest, also of a local file, or over HTTP. Writers of the table
            # can replace a manifest after the catalog has checked it.
            spark.conf.set(f"{prefix}.io-impl", _FILE_IO[request["scheme"]])
        if request.get("scheme") == "":
            open_local_files_only(spark, prefix)
        spark.conf.set(f"{prefix}.header.X-Iceberg-Access-Delegation", _DELEGATION)
        if request.get("traceparent"):
            spark.conf.set(f"{prefix}.header.traceparent", request["traceparent"])
        if request.get("token"):
            spark.conf.set(f"{prefix}.token", request["token"])
            spark.conf.set(f"{prefix}.token-refresh-enabled", "false")


def require_libraries(jvm: Any, scheme: str) -> None:
    """Raise Failed if Spark cannot open files in the object store of a table."""
    if scheme not in _LIBRARIES:
        return
    name, artifact = _LIBRARIES[scheme]
    library: Any = jvm
    for segment in name.split("."):
        library = getattr(library, segment)
    if isinstance(library, JavaPackage):
        raise Failed(
            "refused",
            f"Spark has no libraries for {scheme}://: add org.apache.iceberg:{artifact}, in the version"
            " of the Iceberg runtime, to MONODON_SPARK_PACKAGES, or the path of its jar to"
            " MONODON_SPARK_JARS",
        )
