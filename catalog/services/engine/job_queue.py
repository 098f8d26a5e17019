"""The jobs that may run next, and their limits.

One limit applies to the jobs that the scheduler started under one policy, another to the jobs of an engine
profile.
"""

from datetime import timedelta

from django.db.models import (
    Case,
    Count,
    Exists,
    F,
    Max,
    OuterRef,
    Q,
    QuerySet,
    TextField,
    Value,
    When,
    Window,
)
from django.db.models.functions import RowNumber

from catalog import message_broker
from catalog.engine_profiles import DEFAULT, MAX_CONCURRENCY
from catalog.models import EngineProfile, Job, JobStatus
from catalog.scheduling.queue import Places, Rank, Use, rank
from catalog.services.engine import locks
from catalog.services.engine.database_clock import after, database_now

_ROUND_SECONDS = 60  # beat starts the scheduler that often
_HISTORY = timedelta(days=1)
"""Jobs that ended longer ago do not influence whose turn it is on an engine profile."""


def ready(jobs: "QuerySet[Job]") -> "QuerySet[Job]":
    """The jobs that may be taken: due, with no running and no earlier due job of their table."""
    due = Q(status=JobStatus.QUEUED) & (Q(lease_until=None) | Q(lease_until__lt=database_now()))
    others = Job.objects.filter(table=OuterRef("table")).exclude(pk=OuterRef("pk"))
    return jobs.filter(
        due,
        ~Exists(others.filter(status=JobStatus.RUNNING)),
        ~Exists(others.filter(due, pk__lt=OuterRef("pk"))),
    )


def next_jobs(number: int) -> list[Job]:
    """Jobs that a worker would take now, in turn for each policy and each principal, oldest first.

    Otherwise the many jobs of one of them would keep the others waiting. On an engine profile, those with
    fewer running jobs come first, then those whose last job began earlier. Jobs whose limit is reached are
    left out: workers would discard their messages.
    """
    return _select(_places(), Job.objects.all(), number)


_COLUMNS = ("engine_profile", "limit_key", "limit", "created_at")


def _places() -> Places:
    """The places that limits and engine profiles leave to further jobs. Three statements."""
    at_work = Job.objects.filter(status=JobStatus.RUNNING).exclude(limit_key="")
    running = dict(at_work.values_list("limit_key").annotate(number=Count("pk")))
    return Places(running, free_drivers())


def _select(places: Places, jobs: "QuerySet[Job]", number: int) -> list[Job]:
    """The jobs to begin next, which use up the places. Two statements.

    Jobs whose profile has no room are left out first, so that no job of the same policy and principal
    waits behind them.
    """
    free = places.free_drivers
    limited = When(engine_profile__in=list(free), then=F("engine_profile"))
    turn = Window(
        RowNumber(),
        partition_by=[
            Case(limited, default=Value(""), output_field=TextField()),
            F("limit_key"),
            F("transaction__actor"),
        ],
        order_by=[F("created_at"), F("pk")],
    )
    full = [name for name, drivers in free.items() if drivers <= 0]
    rows = ready(jobs).exclude(engine_profile__in=full)
    rows = rows.annotate(turn=turn, actor=F("transaction__actor")).filter(turn__lte=number)
    use = _use_of([name for name, drivers in free.items() if drivers > 0])

    def rank_of(job: Job) -> Rank:
        pair = job.engine_profile, job.limit_key, job.actor  # type: ignore[attr-defined]
        return rank(job.turn, use.get(pair, Use()), job.created_at, job.pk)  # type: ignore[attr-defined]

    return places.select(sorted(rows.only(*_COLUMNS), key=rank_of), number)


_Pair = tuple[str, str, str | None]
"""An engine profile, the key of a limit, and the principal."""


def _use_of(profiles: list[str]) -> dict[_Pair, Use]:
    """For each pair of limit and principal on these profiles: its running jobs, and its last start.

    One statement; none without profiles.
    """
    if not profiles:
        return {}
    recent = Q(finished_at__gt=after(database_now(), -_HISTORY)) | Q(
        status__in=(JobStatus.QUEUED, JobStatus.RUNNING)
    )
    rows = (
        Job.objects.filter(recent, engine_profile__in=profiles, started_at__isnull=False)
        .values_list("engine_profile", "limit_key", "transaction__actor")
        .annotate(
            running=Count("pk", filter=Q(status=JobStatus.RUNNING)), last_start=Max("started_at")
        )
    )
    return {(name, key, actor): Use(running, last) for name, key, actor, running, last in rows}


def free_drivers() -> dict[str, int]:
    """For each engine profile, the number of jobs that may begin now. Two statements."""
    at_work = Job.objects.filter(status=JobStatus.RUNNING).exclude(engine_profile="")
    running = dict(at_work.values_list("engine_profile").annotate(number=Count("pk")))
    concurrency = EngineProfile.objects.values_list("name", "concurrency")
    return {name: number - running.get(name, 0) for name, number in concurrency}


def has_room(pk: int) -> bool:
    """True if fewer jobs than allowed run with the same limit, and on the same engine profile.

    Call it in a transaction. The locks are held until it ends, so two workers cannot both take the last
    place; the lock on the limit comes first.
    """
    columns = ("limit_key", "limit", "engine_profile")
    row = Job.objects.filter(pk=pk).values_list(*columns).first()
    key, limit, profile = row or ("", None, "")
    if key and limit is not None:
        locks.lock_key(f"jobs of {key}")
        if Job.objects.filter(limit_key=key, status=JobStatus.RUNNING).count() >= limit:
            return False
    if profile in {"", DEFAULT}:
        return True
    locks.lock_key(f"jobs on {profile}")
    allowed = EngineProfile.objects.filter(name=profile).values_list("concurrency", flat=True)
    at_work = Job.objects.filter(engine_profile=profile, status=JobStatus.RUNNING)
    # A job whose profile was deleted runs, and reports that.
    return at_work.count() < (allowed.first() or MAX_CONCURRENCY)


def next_under_limits_of(job: Job) -> list[Job]:
    """The next jobs that waited for a limit or a profile which a job that has ended counted against.

    If none can begin under the limit of its policy, the scheduler is started.
    """
    has_profile = job.engine_profile not in {"", DEFAULT}
    if not job.limit_key and not has_profile:
        return []
    places = _places()
    waiting = []
    if has_profile:
        waiting = _select(places, Job.objects.filter(engine_profile=job.engine_profile), 1)
    if job.limit_key and all(row.limit_key != job.limit_key for row in waiting):
        same_limit = _select(places, Job.objects.filter(limit_key=job.limit_key), 1)
        if not same_limit:
            send_scheduler()
        waiting += same_limit
    return waiting


def send_scheduler() -> None:
    """Start the scheduler now, because a policy has no queued job left."""
    message_broker.send(
        "tasks.maintenance.start_due",
        [[]],
        expires=_ROUND_SECONDS,
        effect="the scheduler starts in beat's next round",
    )
