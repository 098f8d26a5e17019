"""The settings of Spark in a new process."""

import runpy
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from catalog.engine_profiles import SparkEngine
from catalog.services.maintenance.engine_profiles import engines
from config import settings as module
from tasks.spark import configuration

NAMES = (
    *("MONODON_URL", "MONODON_HOST", "MONODON_PORT"),
    *("SPARK_MASTER", "MONODON_SPARK_CONF"),
    *("MONODON_SPARK_MASTERS", "MONODON_SPARK_PROFILE_CONF"),
)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("MONODON_HOME", str(tmp_path))
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)

    def settings(**environment: str) -> dict[str, Any]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return runpy.run_path(module.__file__)

    return settings


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, "http://127.0.0.1:2333"),
        ({"MONODON_HOST": "0.0.0.0", "MONODON_PORT": "8000"}, "http://127.0.0.1:8000"),
        ({"MONODON_HOST": "::"}, "http://[::1]:2333"),
        ({"MONODON_HOST": "10.0.0.7"}, "http://10.0.0.7:2333"),
        ({"MONODON_URL": "https://lake.example/", "MONODON_PORT": "1"}, "https://lake.example"),
    ],
)
def test_jobs_reach_the_catalog_at_the_configured_url(
    read, environment: dict[str, str], url: str
) -> None:
    assert read(**environment)["MONODON_URL"] == url


def test_settings_of_spark_are_parsed(read) -> None:
    assert read()["SPARK_MASTER"] == "local[2,4]"
    assert read()["MONODON_SPARK_CONF"] == {}
    text = "spark.executor.memory=4g 'spark.driver.extraJavaOptions=-Da=b -Dc'"
    assert read(MONODON_SPARK_CONF=text)["MONODON_SPARK_CONF"] == {
        "spark.executor.memory": "4g",
        "spark.driver.extraJavaOptions": "-Da=b -Dc",
    }


def test_clusters_and_settings_of_engine_profiles_are_parsed(read) -> None:
    assert read()["MONODON_SPARK_MASTERS"] == read()["MONODON_SPARK_PROFILE_CONF"] == []
    settings = read(
        MONODON_SPARK_MASTERS="spark://one:7077,two:7077 yarn  k8s://https://one:6443",
        MONODON_SPARK_PROFILE_CONF="spark.ui.enabled spark.kubernetes.container.image",
    )
    assert settings["MONODON_SPARK_MASTERS"] == [
        "spark://one:7077,two:7077",
        "yarn",
        "k8s://https://one:6443",
    ]
    assert settings["MONODON_SPARK_PROFILE_CONF"] == [
        "spark.ui.enabled",
        "spark.kubernetes.container.image",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MONODON_SPARK_MASTERS", "local[4]"),
        ("MONODON_SPARK_MASTERS", "spark://one:7077 mesos://two"),
        ("MONODON_SPARK_PROFILE_CONF", "spark.ui.enabled=true"),
        ("MONODON_SPARK_PROFILE_CONF", "fs.key"),
    ],
)
def test_other_clusters_and_settings_of_engine_profiles_are_refused(read, name, value) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"^{name} is"):
        read(**{name: value})


def conf_of(engine: SparkEngine) -> dict[str, str]:
    return configuration._conf(engine, [], Path("/tmp/driver"))


def test_settings_of_the_operator_override_the_built_in_profile(settings: Any) -> None:
    settings.SPARK_MASTER = "spark://one:7077"
    settings.MONODON_SPARK_CONF = {"spark.cores.max": "9", "spark.network.timeout": "60s"}
    conf = conf_of(engines.default_engine())
    assert (conf["spark.master"], conf["spark.cores.max"]) == ("spark://one:7077", "9")
    assert conf["spark.dynamicAllocation.maxExecutors"] == "2"


def test_a_profile_overrides_the_settings_of_the_operator(settings: Any) -> None:
    settings.MONODON_SPARK_CONF = {
        "spark.cores.max": "9",
        "spark.executor.instances": "4",
        "spark.driver.memory": "1g",
        "spark.network.timeout": "60s",
        "spark.network.crypto.enabled": "true",
        "spark.master": "spark://other:7077",
    }
    own = {"spark.network.timeout": "90s", "spark.executor.cores": "4"}
    conf = conf_of(SparkEngine("nightly", "spark://one:7077", 8, "4g", own))
    assert conf["spark.master"] == "spark://one:7077"
    assert (conf["spark.cores.max"], conf["spark.executor.cores"]) == ("8", "4")
    assert conf["spark.dynamicAllocation.maxExecutors"] == "2"
    assert conf["spark.driver.memory"] == conf["spark.executor.memory"] == "4g"
    assert (conf["spark.network.timeout"], conf["spark.network.crypto.enabled"]) == ("90s", "true")
    assert "spark.executor.instances" not in conf
    assert conf["spark.sql.variable.substitute"] == "false"


def test_a_local_profile_has_its_own_threads(settings: Any) -> None:
    settings.SPARK_MASTER = "spark://one:7077"
    settings.MONODON_SPARK_MEMORY = "1g"
    conf = conf_of(SparkEngine("small", "local[3,4]", 3, ""))
    assert (conf["spark.master"], conf["spark.driver.host"]) == ("local[3,4]", "127.0.0.1")
    assert "spark.driver.memory" not in conf
    assert "spark.cores.max" not in conf


@pytest.mark.parametrize("wrong", ["secret", "spark.a", "fs.key=secret", "spark.a='secret"])
def test_errors_in_settings_do_not_contain_secrets(read, wrong: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"^MONODON_SPARK_CONF must be pairs") as refused:
        read(MONODON_SPARK_CONF=wrong)
    assert "secret" not in str(refused.value)
