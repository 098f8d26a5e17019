"""The rules of engine profiles: nothing that loads code or reads files."""

from typing import Any

import pytest

from catalog.engine_profiles import (
    EngineKind,
    Limits,
    allowed_names,
    check,
    check_name,
    kind_of,
    local_master,
)
from catalog.errors import InvalidInput

LIMITS = Limits(
    ("spark://one:7077", "yarn"),
    ("spark.kubernetes.container.image", "spark.master"),
)
FIELDS: dict[str, Any] = {
    "kind": EngineKind.STANDALONE,
    "master": "spark://one:7077",
    "cores": 4,
    "memory": "2g",
    "concurrency": 1,
    "conf": {"spark.sql.shuffle.partitions": "64", "spark.io.compression.codec": "zstd"},
}


def test_a_profile_of_allowed_values() -> None:
    check(**FIELDS, limits=LIMITS)
    check(**{**FIELDS, "kind": EngineKind.LOCAL, "master": "", "conf": {}}, limits=Limits())
    image = {"spark.kubernetes.container.image": "registry.example.com/spark:4.1"}
    check(**{**FIELDS, "conf": image}, limits=LIMITS)
    assert "spark.master" not in allowed_names(LIMITS)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"master": "spark://other:7077"}, "master"),
        ({"master": ""}, "master"),
        ({"kind": EngineKind.YARN}, "master"),
        ({"kind": EngineKind.LOCAL}, "master"),
        ({"kind": EngineKind.LOCAL, "master": "local-cluster[2,1,1024]"}, "master"),
        ({"cores": 0}, "cores"),
        ({"cores": True}, "cores"),
        ({"concurrency": 1001}, "concurrency"),
        ({"memory": "2g -javaagent:x"}, "memory"),
        ({"memory": "2"}, "memory"),
    ],
)
def test_refused_fields(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: "):
        check(**{**FIELDS, **changed}, limits=LIMITS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # They load code, or read or write files.
        ("spark.jars", "http://example.com/a.jar"),
        ("spark.jars.packages", "org.example:a:1"),
        ("spark.jars.ivySettings", "/etc/passwd"),
        ("spark.driver.extraJavaOptions", "-javaagent:/tmp/a.jar"),
        ("spark.executor.extraClassPath", "/tmp"),
        ("spark.submit.pyFiles", "/tmp/a.zip"),
        ("spark.archives", "/tmp/a.zip"),
        ("spark.files", "/etc/passwd"),
        ("spark.plugins", "org.example.Plugin"),
        ("spark.extraListeners", "org.example.Listener"),
        ("spark.sql.extensions", "org.example.Extensions"),
        ("spark.sql.catalog.x", "org.example.Catalog"),
        ("spark.serializer", "org.example.Serializer"),
        ("spark.pyspark.python", "/tmp/python"),
        ("spark.executorEnv.LD_PRELOAD", "/tmp/a.so"),
        ("spark.eventLog.dir", "file:///etc"),
        ("spark.hadoop.fs.s3a.endpoint", "http://example.com"),
        ("spark.kubernetes.authenticate.oauthTokenFile", "/etc/passwd"),
        ("spark.kubernetes.executor.podTemplateFile", "/etc/passwd"),
        ("spark.ui.enabled", "true"),
        # The worker sets them.
        ("spark.master", "local[64]"),
        ("spark.sql.variable.substitute", "true"),
        ("spark.submit.deployMode", "cluster"),
        # A class, which Spark would load.
        ("spark.io.compression.codec", "org.example.Codec"),
        ("spark.sql.shuffle.partitions", "64\nspark.jars=/tmp/a.jar"),
        ("spark.sql.shuffle.partitions", "${env:SECRET}"),
        ("spark.executor.memoryOverhead", "1g 2g"),
        ("spark.yarn.queue", "a b"),
        ("spark.speculation", "TRUE"),
        ("spark.kubernetes.container.image", "a\nb"),
        ("spark.kubernetes.container.image", "x" * 1001),
        ("spark.sql.shuffle.partitions", 64),
        ("spark.executor.cores", "0"),
        ("spark.task.cpus", "00"),
        ("spark.sql.shuffle.partitions\nspark.jars", "1"),
    ],
)
def test_refused_settings(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^conf: "):
        check(**{**FIELDS, "conf": {name: value}}, limits=LIMITS)


@pytest.mark.parametrize("name", ["", "a b", "../a", "a/b", "-a", "a" * 101, "a\n"])
def test_refused_names(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"^name: "):
        check_name(name)


def test_kinds_of_masters() -> None:
    assert kind_of(local_master(8)) is EngineKind.LOCAL
    assert local_master(8) == "local[8,4]"
    assert kind_of("k8s://https://one:6443") is EngineKind.KUBERNETES
    assert kind_of("mesos://one") is None
