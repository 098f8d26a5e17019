"""Names and properties of tenants' tables, as far as the server's Spark reads them."""

from typing import Any

import pytest

from catalog.access import SYSTEM
from catalog.engine_profiles import DEFAULT, SparkEngine
from catalog.errors import InvalidMetadata
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg.changes import TableChange
from tasks.jobs import iceberg as script
from tasks.spark import configuration
from tests.factories import make_iceberg_table, make_namespace, unchanged

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
    monkeypatch.setattr(script, "SparkSession", type("Session", (), {"builder": builder}))
    with pytest.raises(InterruptedError):
        script.start_session({"action": "compact", "table": ["ns", SECRET]})
    assert builder.settings["spark.sql.variable.substitute"] == "false"


def test_the_operator_cannot_switch_it_on_by_mistake(settings, tmp_path):
    settings.MONODON_SPARK_CONF = {"spark.sql.variable.substitute": "true"}
    conf = configuration._conf(SparkEngine(DEFAULT, "local[2]", 2, ""), [], tmp_path)
    assert conf["spark.sql.variable.substitute"] == "false"


@pytest.mark.parametrize("name", ["a'b", "a\\'b", "a\\", "a`b", "'); DROP TABLE x; --", "a\nb"])
def test_names_stay_inside_their_quotes(name):
    quoted = script._text(script._quoted(name))
    inner = quoted[1:-1].replace("\\\\", "").replace("\\'", "")
    assert quoted[0] == quoted[-1] == "'"
    assert "'" not in inner
    assert not inner.endswith("\\")
    assert script._quoted(name)[1:-1].replace("``", "").count("`") == 0


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
