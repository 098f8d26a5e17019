"""The settings of Spark in a new process."""

import runpy
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from config import settings as module

NAMES = ("MONODON_URL", "MONODON_HOST", "MONODON_PORT", "SPARK_MASTER", "MONODON_SPARK_CONF")


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


@pytest.mark.parametrize("wrong", ["secret", "spark.a", "fs.key=secret", "spark.a='secret"])
def test_errors_in_settings_do_not_contain_secrets(read, wrong: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"^MONODON_SPARK_CONF must be pairs") as refused:
        read(MONODON_SPARK_CONF=wrong)
    assert "secret" not in str(refused.value)
