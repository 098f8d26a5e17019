"""The table of a job, and calls of Iceberg's procedures and actions."""

from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from .events import emit
from .internals import Internals
from .paths import is_local
from .session import catalog_of


class Table:
    """The table of a job in Spark. Methods that call Iceberg raise errors of Spark."""

    def __init__(self, spark: SparkSession, request: dict[str, Any]) -> None:
        context: Any = spark.sparkContext
        self.spark = spark
        self.request = request
        self.jvm: Any = context._jvm  # noqa: SLF001
        self.gateway: Any = context._gateway  # noqa: SLF001
        self.session: Any = spark._jsparkSession  # noqa: SLF001
        self.catalog = quoted(catalog_of(request))
        self._name = ".".join([self.catalog, *map(quoted, request["table"])])
        self.sql_name = literal(self._name)

    def internals(self) -> Internals:
        return Internals(self.jvm, self.gateway)

    def call_for_row(self, procedure: str, **arguments: str) -> dict[str, Any]:
        """Call a procedure that returns one row, or no row if there is no work; returns the row."""
        rows = self.call(procedure, **arguments)
        return rows[0] if rows else {}

    def call(self, procedure: str, **arguments: str) -> list[dict[str, Any]]:
        """Call a procedure with arguments in SQL, without those that are empty; returns the rows."""
        named = {"table": self.sql_name} | {
            name: value for name, value in arguments.items() if value
        }
        text = ", ".join(f"{name} => {value}" for name, value in named.items())
        emit("log", message=f"{procedure}({text})")
        rows = self.spark.sql(f"CALL {self.catalog}.system.{procedure}({text})").collect()
        return [row.asDict(recursive=True) for row in rows]

    def options(self) -> str:
        """The requested options as a map in SQL; empty if there are none."""
        options = self.request.get("options") or {}
        pairs = ", ".join(f"{literal(name)}, {literal(value)}" for name, value in options.items())
        return f"map({pairs})" if pairs else ""

    def load(self) -> Any:
        """The table as a Java object."""
        return self.jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.session, self._name
        )

    def actions(self) -> Any:
        """Iceberg's actions, each of which is built for a table that was loaded."""
        return self.jvm.org.apache.iceberg.spark.actions.SparkActions.get(self.session)

    def frame(self, dataset: Any) -> DataFrame:
        """A dataset of Java as a data frame."""
        return DataFrame(dataset.toDF(), self.spark)

    @cached_property
    def is_in_object_store(self) -> bool:
        """True unless the table is in local files. A table never changes this."""
        return not is_local(str(self.load().location()))


def quoted(name: str) -> str:
    """A name as an identifier of SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: Any) -> str:
    """A text as a literal of SQL."""
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
