"""Serializers of policies, health and plans of maintenance."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.management import fields
from api.management.serializers.base import QuerySerializer, Serializer
from api.management.serializers.jobs import JobKindField
from catalog.models import TableFormat, TableHealth
from catalog.policies import TEXT_UNITS, EffectivePolicy, Rule, Unit
from catalog.services.maintenance import health
from catalog.services.maintenance.measurements import Measurement

_OF_READERS = {"largest_partitions"}
"""Figures with values of columns, which are for readers of a table only."""
_NAMESPACE = "Only this namespace and everything below it; spelled as in a path."

# --- policies --------------------------------------------------------------------------------------


class RuleSerializer(Serializer):
    """A setting of policies."""

    name = serializers.CharField()
    unit = fields.EnumField(Unit)
    default = serializers.JSONField(allow_null=True)
    help = serializers.CharField()
    formats = serializers.SerializerMethodField()
    minimum = serializers.SerializerMethodField(help_text="Null for modes, times and engines.")
    maximum = serializers.SerializerMethodField(help_text="Null for modes, times and engines.")

    @extend_schema_field(serializers.ListField(child=fields.EnumField(TableFormat)))
    def get_formats(self, rule: Rule) -> list[str]:
        return sorted(rule.formats)

    def get_minimum(self, rule: Rule) -> float | None:
        return None if rule.unit in TEXT_UNITS else rule.low

    def get_maximum(self, rule: Rule) -> float | None:
        return None if rule.unit in TEXT_UNITS else rule.highest


class RulesSerializer(Serializer):
    """All settings of policies."""

    rules = RuleSerializer(many=True)


class PolicyValueSerializer(Serializer):
    """An effective value of a policy."""

    value = serializers.JSONField()
    source = serializers.CharField(help_text="The object that sets it. Empty: the default.")  # type: ignore[assignment]


class PolicySerializer(Serializer):
    """The effective policy, and the values set directly on the object; the others are inherited.

    The instance is a pair of both.
    """

    effective = serializers.SerializerMethodField()
    direct = serializers.SerializerMethodField()

    @extend_schema_field(serializers.DictField(child=PolicyValueSerializer()))
    def get_effective(self, pair: tuple[EffectivePolicy, Any]) -> dict[str, Any]:
        return {
            name: {"value": value.value, "source": value.source}
            for name, value in pair[0].values.items()
        }

    def get_direct(self, pair: tuple[Any, Any]) -> dict[str, Any]:
        return dict(pair[1])


class SetPolicySerializer(Serializer):
    """All direct values of a policy."""

    values = serializers.DictField(
        help_text="All values to set on the object, by name. The others are inherited."
    )


# --- health ----------------------------------------------------------------------------------------


class PlannedJobSerializer(Serializer):
    """A job that maintenance would start."""

    kind = JobKindField()
    mode = serializers.CharField()
    reason = serializers.CharField()
    files_gone = serializers.IntegerField(help_text="The reduction of the number of files.")
    bytes_gone = serializers.IntegerField(default=0, help_text="Bytes that are freed in storage.")
    is_estimate = serializers.BooleanField(
        default=False, help_text="Whether the numbers are estimated."
    )
    bytes_read = serializers.IntegerField()
    is_for_spark = serializers.BooleanField()
    parameters = serializers.DictField()


class CostSerializer(Serializer):
    """A part of the cost of reading a table that maintenance removes."""

    reason = serializers.CharField()
    bytes = serializers.IntegerField(help_text="The cost; a request counts as 4 MiB.")
    points = serializers.FloatField(help_text="The points of the score that it costs.")


class HealthSerializer(Serializer):
    """The health of a table when it was last measured."""

    table = fields.NamesField(source="table.identifier")
    format = fields.EnumField(TableFormat, source="table.format")
    measured_at = serializers.DateTimeField()
    score = serializers.IntegerField(help_text="From 0 (lowest) to 100.")
    costs = serializers.SerializerMethodField(
        help_text="What the table lost points for, the most expensive first."
    )
    planned = serializers.SerializerMethodField()
    files_gone = serializers.IntegerField()
    bytes_read = serializers.IntegerField()
    error = serializers.SerializerMethodField(
        help_text="Why the table could not be measured. Empty: it was measured."
    )

    @extend_schema_field(CostSerializer(many=True))
    def get_costs(self, row: TableHealth) -> list[dict[str, Any]]:
        costs: list[dict[str, Any]] = row.statistics.get("costs", [])
        return costs

    @extend_schema_field(PlannedJobSerializer(many=True))
    def get_planned(self, row: TableHealth) -> list[dict[str, Any]]:
        planned: list[dict[str, Any]] = row.planned
        return planned

    def get_error(self, row: TableHealth) -> str:
        return str(row.statistics.get("error", ""))


class HealthWithStatisticsSerializer(HealthSerializer):
    """The health of a table with its statistics."""

    statistics = serializers.SerializerMethodField()

    def get_statistics(self, row: TableHealth) -> dict[str, Any]:
        left_out = {"error", "costs", *_OF_READERS}
        return {name: value for name, value in row.statistics.items() if name not in left_out}


_POINT = ("rows", "bytes", "files", "small_files", "deleted_rows", "versions")


class HealthPointSerializer(Serializer):
    """A measurement."""

    measured_at = serializers.DateTimeField()
    score = serializers.IntegerField()

    def get_fields(self) -> dict[str, Any]:
        figures = {name: serializers.IntegerField(allow_null=True) for name in _POINT}
        return {**super().get_fields(), **figures}

    def to_representation(self, instance: TableHealth) -> dict[str, Any]:
        figures = {name: instance.statistics.get(name) for name in _POINT}
        return {"measured_at": instance.measured_at, "score": instance.score, **figures}


class TableHealthSerializer(Serializer):
    """The health of a table now and in the past."""

    newest = HealthWithStatisticsSerializer(
        allow_null=True, help_text="Null: the table was not measured yet."
    )
    series = HealthPointSerializer(many=True, help_text="Oldest first.")


class VersionRetentionSerializer(Serializer):
    """A version of a Lance table, or a snapshot of an Iceberg table."""

    branch = serializers.CharField(help_text="Empty: the main branch, or a snapshot.")
    version = serializers.IntegerField(help_text="The version, or the id of the snapshot.")
    reasons = serializers.ListField(
        child=serializers.CharField(), help_text="Why a clean-up keeps it."
    )
    expires = serializers.BooleanField(help_text="Whether a clean-up removes it.")


class PlanSerializer(Serializer):
    """The maintenance that a table needs."""

    table = fields.NamesField(source="table.identifier")
    format = fields.EnumField(TableFormat, source="table.format")
    score = serializers.IntegerField()
    costs = serializers.SerializerMethodField()
    statistics = serializers.SerializerMethodField()
    planned = serializers.SerializerMethodField()
    retention = serializers.SerializerMethodField(
        help_text="The newest 1,000 versions, and why each of them stays."
    )

    @extend_schema_field(VersionRetentionSerializer(many=True))
    def get_retention(self, measurement: Measurement) -> list[dict[str, Any]]:
        return [version.as_json() for version in measurement.retention]

    @extend_schema_field(CostSerializer(many=True))
    def get_costs(self, measurement: Measurement) -> list[dict[str, Any]]:
        return [cost.as_json() for cost in measurement.costs]

    def get_statistics(self, measurement: Measurement) -> dict[str, Any]:
        statistics = measurement.statistics.as_json()
        return {name: value for name, value in statistics.items() if name not in _OF_READERS}

    @extend_schema_field(PlannedJobSerializer(many=True))
    def get_planned(self, measurement: Measurement) -> list[dict[str, Any]]:
        return [job.as_json() for job in measurement.planned]


class HealthQuery(QuerySerializer):
    """Filters of the list of tables by health."""

    namespace = fields.TextParameter(help_text=_NAMESPACE)
    format = fields.EnumParameter(TableFormat, help_text="Only tables of this format.")
    max_score = fields.CountParameter(
        min_value=0, max_value=100, help_text="Only tables up to this score."
    )


class TableHealthQuery(QuerySerializer):
    """The extent of a table's history."""

    days = fields.CountParameter(
        default=health.DAYS, max_value=health.MAX_DAYS, help_text="The last days, which are listed."
    )
    points = fields.CountParameter(
        default=health.POINTS,
        max_value=health.MAX_POINTS,
        help_text="The most measurements, evenly selected.",
    )
