"""Serializers of jobs and their results."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.management import fields
from api.management.serializers.base import QuerySerializer, Serializer
from catalog import maintenance_actions
from catalog.layouts import Strategy
from catalog.models import Job, JobStatus, TableFormat, job_kinds
from catalog.services.maintenance import job_control

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


# --- jobs ------------------------------------------------------------------------------------------


class StartMaintenanceSerializer(Serializer):
    """The maintenance to start."""

    kind = _ActionField()
    dry_run = fields.FlagField(default=False, help_text="Report what it would do; change nothing.")
    indexes = _IndexesField(**fields.OPTIONAL)
    engine_profile = fields.TextField(
        **fields.OPTIONAL,
        help_text="The engine profile of a job on Spark. Default: that of the policy.",
    )
    strategy = fields.EnumField(
        Strategy,
        **fields.OPTIONAL,
        help_text="The order of rows after the compaction of an Iceberg table. Default: that of the"
        " policy.",
    )
    sort_order = fields.TextField(
        **fields.OPTIONAL,
        help_text="The columns of the strategies `sort` and `zorder`, such as `country, created_at"
        " desc nulls last`. Default: those of the policy.",
    )


class StageSerializer(Serializer):
    """A stage of a job."""

    name = serializers.CharField()
    began_at = serializers.DateTimeField()
    bytes = serializers.SerializerMethodField(
        help_text="Bytes that the stage has processed so far, if known."
    )

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_bytes(self, stage: Any) -> int | None:
        return getattr(stage, "bytes", None)


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
    engine_profile = serializers.CharField(
        help_text="The engine profile. Empty: the job does not use Spark."
    )
    engine_reason = serializers.CharField(help_text="Why this engine was chosen.")
    stages = StageSerializer(
        many=True, help_text="The stages of the last attempt, the current one last."
    )
    spark_ui = serializers.CharField(help_text="The URL of Spark's own pages, or empty.")
    has_details = serializers.BooleanField(
        help_text="False: parameters, result, message and log are withheld, because they require `read`"
        " on the table."
    )
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

    days = fields.CountParameter(
        default=30,
        max_value=job_control.MAX_DAYS,
        help_text="The last days, which the summary covers.",
    )
