"""Serializers of policies, health, jobs and maintenance."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.management import fields
from api.management.serializers.base import QuerySerializer, Serializer
from catalog import maintenance_actions
from catalog.models import Job, JobStatus, TableFormat, TableHealth, job_kinds
from catalog.policies import TEXT_UNITS, EffectivePolicy, Rule, Unit
from catalog.services.maintenance import health, job_control
from catalog.services.maintenance.measurements import Measurement

_NAMESPACE = "Only this namespace and everything below it; spelled as in a path."

# --- kinds of jobs ---------------------------------------------------------------------------------
# Their choices and texts come from the registry of actions.


class JobKindField(serializers.ChoiceField):
    """A kind of job: any maintenance action, or another job."""

    def __init__(self, **options: Any) -> None:
        super().__init__(choices=[], **options)

    @property
    def choices(self) -> dict[str, str]:
        """The kinds of this moment: the lists of jobs keep one field for the life of the process."""
        return {kind: kind for kind in job_kinds()}

    @choices.setter
    def choices(self, choices: Any) -> None:
        pass

    def to_representation(self, value: Any) -> str:
        return str(value)


@extend_schema_field(OpenApiTypes.STR)
class JobKindsParameter(fields.Parameter, serializers.Field[Any, Any, Any, Any]):
    """Kinds of jobs, separated by commas."""

    def __init__(self, **options: Any) -> None:
        help_text = f"Some of {', '.join(job_kinds())}, separated by commas."
        super().__init__(default=list, help_text=help_text, **options)

    def to_internal_value(self, data: str) -> list[str]:
        words, kinds = data.split(","), job_kinds()
        if not kinds.keys() >= set(words):
            raise serializers.ValidationError(
                f"use {', '.join(kinds)}, with commas between several", code="invalid"
            )
        return words


class _ActionField(fields.TextField):
    """The key of a maintenance action."""

    def __init__(self, **options: Any) -> None:
        lines = [f"- `{action.key}`: {action.help}" for action in maintenance_actions.registered()]
        help_text = "\n".join(["The kind of maintenance:", *lines])
        super().__init__(**{"help_text": help_text, **options})


class _IndexesField(fields.ListField):
    """The names of indexes, for the actions that accept them."""

    def __init__(self, **options: Any) -> None:
        actions = [a.key for a in maintenance_actions.registered() if a.accepts_indexes]
        help_text = (
            f"Names of the indexes to process, for {' and '.join(actions)}. Default: all indexes"
            " that lack rows, or all indexes."
        )
        super().__init__(**{"help_text": help_text, **options})


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
        return None if rule.unit in TEXT_UNITS else rule.high


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
        left_out = {"error", "costs"}
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
        return measurement.statistics.as_json()

    @extend_schema_field(PlannedJobSerializer(many=True))
    def get_planned(self, measurement: Measurement) -> list[dict[str, Any]]:
        return [job.as_json() for job in measurement.planned]


class HealthQuery(QuerySerializer):
    """Filters of the list of tables by health."""

    namespace = fields.TextParameter(help_text=_NAMESPACE)
    format = fields.EnumParameter(TableFormat)
    max_score = fields.CountParameter(
        min_value=0, max_value=100, help_text="Only tables up to this score."
    )


class TableHealthQuery(QuerySerializer):
    """The extent of a table's history."""

    days = fields.CountParameter(default=health.DAYS, max_value=health.MAX_DAYS)
    points = fields.CountParameter(
        default=health.POINTS,
        max_value=health.MAX_POINTS,
        help_text="The most measurements, evenly selected.",
    )


# --- jobs ------------------------------------------------------------------------------------------


class StartMaintenanceSerializer(Serializer):
    """The maintenance to start."""

    kind = _ActionField()
    dry_run = fields.FlagField(default=False, help_text="Report what it would do; change nothing.")
    indexes = _IndexesField(**fields.OPTIONAL)


class StageSerializer(Serializer):
    """A stage of a job."""

    name = serializers.CharField()
    began_at = serializers.DateTimeField()
    bytes = serializers.IntegerField(
        required=False, help_text="Bytes that the stage has processed so far, if known."
    )


class JobSerializer(Serializer):
    """A job of any kind."""

    id = serializers.IntegerField(source="pk")
    kind = JobKindField()
    status = fields.EnumField(JobStatus)
    table = fields.NamesField(source="table.identifier")
    format = fields.EnumField(TableFormat, source="table.format")
    dry_run = serializers.BooleanField(source="is_dry_run")
    attempts = serializers.IntegerField()
    progress = serializers.IntegerField()
    total = serializers.IntegerField(allow_null=True)
    unit = serializers.CharField()
    engine = serializers.CharField(help_text="worker or spark. Empty: not chosen yet.")
    engine_reason = serializers.CharField(help_text="Why this engine was chosen.")
    stages = StageSerializer(
        many=True, help_text="The stages of the last attempt, the current one last."
    )
    spark_ui = serializers.CharField(help_text="The URL of Spark's own pages, or empty.")
    message = serializers.CharField(source="error", help_text="Why it failed, or a remark.")
    cancel_requested = serializers.BooleanField()
    actor = serializers.SerializerMethodField()
    transaction_id = serializers.UUIDField(allow_null=True)
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)

    def get_actor(self, row: Job) -> str:
        return row.transaction.actor if row.transaction else ""


class JobEventSerializer(Serializer):
    """A line of a job's log."""

    at = serializers.DateTimeField()
    level = serializers.CharField()
    message = serializers.CharField()
    data = serializers.JSONField(allow_null=True)  # type: ignore[assignment]


class JobWithLogSerializer(JobSerializer):
    """A job with its parameters, its result, and a page of its log.

    The context has ``log`` and ``next_page_token``.
    """

    parameters = serializers.DictField()
    result = serializers.DictField(allow_null=True)
    summary = serializers.CharField(help_text="The result of maintenance as a phrase, or empty.")
    log = serializers.SerializerMethodField()
    next_page_token = serializers.SerializerMethodField()

    @extend_schema_field(JobEventSerializer(many=True))
    def get_log(self, row: Job) -> Any:
        return JobEventSerializer(self.context["log"], many=True).data

    def get_next_page_token(self, row: Job) -> str | None:
        token: str | None = self.context["next_page_token"]
        return token


class TallySerializer(Serializer):
    """Results of jobs."""

    succeeded = serializers.IntegerField()
    failed = serializers.IntegerField()
    canceled = serializers.IntegerField()
    dry_runs = serializers.IntegerField()
    files_removed = serializers.IntegerField(help_text="From storage.")
    bytes_reclaimed = serializers.IntegerField(
        help_text="In storage, as far as the jobs report it."
    )
    files_merged = serializers.IntegerField(
        help_text="The number of data files by which the tables were reduced."
    )
    plans_kept = serializers.IntegerField(
        help_text="Jobs whose files and bytes were within 10 % of the plan."
    )
    plans_broken = serializers.IntegerField(help_text="Jobs that differed from the plan.")


class SummarySerializer(Serializer):
    """The results of maintenance in the last days, and the active jobs."""

    since = serializers.DateTimeField()
    queued = serializers.IntegerField()
    running = serializers.IntegerField()
    total = TallySerializer()
    by_kind = serializers.SerializerMethodField()

    @extend_schema_field(serializers.DictField(child=TallySerializer()))
    def get_by_kind(self, summary: job_control.Summary) -> dict[str, Any]:
        return {
            kind: TallySerializer(tally).data for kind, tally in sorted(summary.by_kind.items())
        }


class JobQuery(QuerySerializer):
    """Filters of the list of jobs."""

    status = fields.EnumsParameter(JobStatus)
    kind = JobKindsParameter()
    table = fields.TextParameter(help_text="Spelled as in a path.")
    since = fields.MomentParameter(help_text="Jobs that are active, or ended since then.")


class SummaryQuery(QuerySerializer):
    """The extent of the summary."""

    days = fields.CountParameter(default=30, max_value=job_control.MAX_DAYS)
