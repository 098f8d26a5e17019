"""The bodies of requests and answers."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictBool
from pydantic_core import CoreSchema, core_schema

from catalog import maintenance_actions
from catalog.models import Job, JobEvent, JobStatus, TableFormat, TableHealth, job_kinds
from catalog.planning import Planned
from catalog.policies import EffectivePolicy, Rule, Unit
from catalog.services.maintenance.health import HealthHistory
from catalog.services.maintenance.job_control import Summary, Tally
from catalog.services.maintenance.measurements import Measurement


class _Request(BaseModel):
    # What is misspelled must not be taken for left out: a dry run would be a run.
    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """Why a request was refused (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str


class AnyJobKind(str):
    """A kind of job. Its schema is made with the document, so that it has all registered actions."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        return core_schema.str_schema(ref="JobKind")

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, Any]:
        return {"title": "JobKind", "type": "string", "enum": list(job_kinds())}


def _describe_action(schema: dict[str, Any]) -> None:
    lines = [f"- `{action.key}`: {action.help}" for action in maintenance_actions.registered()]
    schema["description"] = "\n".join(["The kind of maintenance:", *lines])


def _describe_indexes(schema: dict[str, Any]) -> None:
    accepting = [
        action.key for action in maintenance_actions.registered() if action.accepts_indexes
    ]
    schema["description"] = (
        f"Names of the indexes to process, for {' and '.join(accepting)}. Default: all indexes that"
        " lack rows, or all indexes."
    )


# --- policies --------------------------------------------------------------------------------------


class RuleModel(BaseModel):
    """One thing that a policy can say."""

    name: str
    unit: Unit
    default: Any
    help: str
    formats: list[TableFormat]
    minimum: int | float | None = Field(description="None for modes and times.")
    maximum: int | float | None

    @classmethod
    def of(cls, rule: Rule) -> Self:
        bounded = rule.unit not in {Unit.MODE, Unit.TIME}
        return cls(
            name=rule.name,
            unit=rule.unit,
            default=rule.default,
            help=rule.help,
            formats=sorted(TableFormat(format_) for format_ in rule.formats),
            minimum=rule.low if bounded else None,
            maximum=rule.high if bounded else None,
        )


class Rules(BaseModel):
    rules: list[RuleModel]


class PolicyValue(BaseModel):
    value: Any
    source: str = Field(description="Whose policy says so; empty: it is the default.")


class Policy(BaseModel):
    """The effective policy, and the values set directly at this place; the others are inherited."""

    effective: dict[str, PolicyValue]
    direct: dict[str, Any]

    @classmethod
    def of(cls, policy: EffectivePolicy, direct: Mapping[str, Any]) -> Self:
        effective = {
            name: PolicyValue(value=value.value, source=value.source)
            for name, value in policy.values.items()
        }
        return cls(effective=effective, direct=dict(direct))


class SetPolicyRequest(_Request):
    values: dict[str, Any] = Field(description="All that is to be said here, by the rules' names.")


# --- health ----------------------------------------------------------------------------------------


class PlannedJob(BaseModel):
    """Something that is worth doing."""

    kind: AnyJobKind
    mode: str
    reason: str
    files_gone: int
    bytes_read: int
    is_for_spark: bool
    parameters: dict[str, Any]

    @classmethod
    def of(cls, found: Planned) -> Self:
        return cls(**found.as_json())


class Health(BaseModel):
    """How well a table was when it was measured last."""

    table: list[str]
    format: TableFormat
    measured_at: datetime
    score: int = Field(description="From 0, all waits, to 100, all is well.")
    planned: list[PlannedJob]
    files_gone: int
    bytes_read: int
    error: str = Field(description="Why it could not be measured, or empty.")

    @classmethod
    def of(cls, row: TableHealth) -> Self:
        return cls(**_health(row))


def _health(row: TableHealth) -> dict[str, Any]:
    return {
        "table": row.table.identifier,
        "format": row.table.format,
        "measured_at": row.measured_at,
        "score": row.score,
        "planned": row.planned,
        "files_gone": row.files_gone,
        "bytes_read": row.bytes_read,
        "error": row.statistics.get("error", ""),
    }


class HealthPage(BaseModel):
    tables: list[Health]
    next_page_token: str | None


class HealthWithFigures(Health):
    statistics: dict[str, Any]

    @classmethod
    def of(cls, row: TableHealth) -> Self:
        figures = {name: value for name, value in row.statistics.items() if name != "error"}
        return cls(**_health(row), statistics=figures)


class HealthPoint(BaseModel):
    measured_at: datetime
    score: int
    rows: int | None
    bytes: int | None
    files: int | None
    small_files: int | None
    deleted_rows: int | None
    versions: int | None

    @classmethod
    def of(cls, row: TableHealth) -> Self:
        figures = {name: row.statistics.get(name) for name in cls.model_fields}
        return cls(**{**figures, "measured_at": row.measured_at, "score": row.score})


class TableCourse(BaseModel):
    """How a table is, and how it was."""

    newest: HealthWithFigures | None = Field(description="None: it was not measured yet.")
    series: list[HealthPoint] = Field(description="Oldest first.")

    @classmethod
    def of(cls, found: HealthHistory) -> Self:
        newest = None if found.newest is None else HealthWithFigures.of(found.newest)
        return cls(newest=newest, series=[HealthPoint.of(row) for row in found.series])


class Plan(BaseModel):
    """What would be done to a table."""

    table: list[str]
    format: TableFormat
    score: int
    statistics: dict[str, Any]
    planned: list[PlannedJob]

    @classmethod
    def of(cls, found: Measurement) -> Self:
        return cls(
            table=list(found.table.identifier),
            format=TableFormat(found.table.format),
            score=found.score,
            statistics=found.statistics.as_json(),
            planned=[PlannedJob.of(job) for job in found.planned],
        )


# --- jobs ------------------------------------------------------------------------------------------


class StartMaintenanceRequest(_Request):
    kind: str = Field(json_schema_extra=_describe_action)
    dry_run: StrictBool = Field(default=False, description="Tell what it would do, and do nothing.")
    indexes: list[str] | None = Field(default=None, json_schema_extra=_describe_indexes)


class JobModel(BaseModel):
    """A job, of maintenance or any other."""

    id: int
    kind: AnyJobKind
    status: JobStatus
    table: list[str]
    format: TableFormat
    dry_run: bool
    attempts: int
    progress: int
    total: int | None
    unit: str
    message: str = Field(description="Why it failed, or a remark.")
    cancel_requested: bool
    actor: str
    transaction_id: UUID | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, row: Job) -> Self:
        return cls(**_job(row))


def _job(row: Job) -> dict[str, Any]:
    return {
        "id": row.pk,
        "kind": row.kind,
        "status": row.status,
        "table": row.table.identifier,
        "format": row.table.format,
        "dry_run": row.is_dry_run,
        "attempts": row.attempts,
        "progress": row.progress,
        "total": row.total,
        "unit": row.unit,
        "message": row.error,
        "cancel_requested": row.cancel_requested,
        "actor": row.transaction.actor if row.transaction else "",
        "transaction_id": row.transaction_id,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }


class JobPage(BaseModel):
    jobs: list[JobModel]
    next_page_token: str | None


class JobLine(BaseModel):
    """A line of a job's log."""

    at: datetime
    level: str
    message: str
    data: Any

    @classmethod
    def of(cls, row: JobEvent) -> Self:
        return cls(at=row.at, level=row.level, message=row.message, data=row.data)


class JobWithLog(JobModel):
    parameters: dict[str, Any]
    result: dict[str, Any] | None
    summary: str = Field(description="The result of maintenance as a phrase, or empty.")
    log: list[JobLine]
    next_page_token: str | None

    @classmethod
    def with_log(cls, row: Job, log: list[JobEvent], token: str | None) -> Self:
        return cls(
            **_job(row),
            parameters=row.parameters,
            result=row.result,
            summary=row.summary,
            log=[JobLine.of(event) for event in log],
            next_page_token=token,
        )


class TallyModel(BaseModel):
    succeeded: int
    failed: int
    canceled: int
    dry_runs: int
    files_removed: int = Field(description="From storage.")
    bytes_reclaimed: int = Field(description="In storage, as far as the jobs tell.")
    files_merged: int = Field(description="How many data files fewer the tables have.")

    @classmethod
    def of(cls, found: Tally) -> Self:
        return cls(**{name: getattr(found, name) for name in cls.model_fields})


class SummaryModel(BaseModel):
    """What maintenance did on the last days, and what goes on now."""

    since: datetime
    queued: int
    running: int
    total: TallyModel
    by_kind: dict[str, TallyModel]

    @classmethod
    def of(cls, found: Summary) -> Self:
        return cls(
            since=found.since,
            queued=found.queued,
            running=found.running,
            total=TallyModel.of(found.total),
            by_kind={kind: TallyModel.of(tally) for kind, tally in sorted(found.by_kind.items())},
        )
