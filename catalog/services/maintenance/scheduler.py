"""Maintenance scheduler: start the jobs that policies require, or that people request.

    measurements.measure_due ──▶ TableHealth: figures, a score, and the planned maintenance
    start_due                ──▶ a Job for each planned maintenance that the policy switches on
    start                    ──▶ a Job on request

Maintenance is planned again from the recorded figures whenever jobs are started, so a changed policy
takes effect at once. A dry run is a job that changes nothing; only people request dry runs.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import DatabaseError
from django.utils import timezone

from catalog import access, maintenance_actions
from catalog.access import SYSTEM, On, Principal
from catalog.errors import (
    CatalogError,
    InvalidInput,
    InvalidJobState,
    JobNotFound,
    TableHasNoData,
    TableNotFound,
    Unsupported,
)
from catalog.identifiers import Identifier
from catalog.models import (
    Job,
    JobStatus,
    Table,
    TableFormat,
    TableHealth,
    TableState,
)
from catalog.policies import EffectivePolicy, Mode, require_runnable
from catalog.privileges import Privilege
from catalog.scheduling.fairness import FairQueue
from catalog.scheduling.rounds import Choice, Round
from catalog.services.engine import locks
from catalog.services.engine.commit import commit
from catalog.services.maintenance import policies
from catalog.services.maintenance.requests import arguments
from catalog.services.maintenance.requests.arguments import NO_OVERRIDES, Overrides
from catalog.services.maintenance.scheduling import candidates, job_costs
from catalog.services.maintenance.scheduling.candidates import Candidate
from catalog.services.tables import job_operations, tables

log = logging.getLogger(__name__)

ACTIVE = (JobStatus.QUEUED, JobStatus.RUNNING)
_UNSUCCESSFUL = (JobStatus.FAILED, JobStatus.CANCELED)
_ROUND = timedelta(minutes=1)


def start(
    *,
    actor: Principal,
    table: Identifier,
    kind: str,
    is_dry_run: bool = False,
    indexes: Sequence[str] | None = None,
    overrides: Overrides = NO_OVERRIDES,
) -> Job:
    """Start maintenance of a table now, regardless of its policy's mode and window.

    ``kind`` is the key of an action. ``indexes`` names the indexes to optimize or rebuild; None
    means all stale indexes, or all indexes. ``overrides`` are settings in place of the policy's.
    Raises TableNotFound, TableHasNoData, IndexNotFound, Unsupported if no worker can run the job, and
    InvalidInput for a kind that the format does not have, unsuitable overrides or a bad policy, and a
    rebuild of a table without indexes.
    """
    access.require(actor, Privilege.MAINTAIN, On.table(table))
    row = tables.find_any(actor=actor, table=table)
    action = maintenance_actions.require(kind)
    if row.format not in action.formats:
        raise InvalidInput(f"Tables in {row.get_format_display()} format do not support '{kind}'")
    if row.state == TableState.DECLARED:
        raise TableHasNoData(table)
    policy = overrides.apply(row, action, policies.effective_policy(row))
    if reason := candidates.obstacles(row.format, policy).get(action.key):
        raise Unsupported(f"No worker can run this kind of job: {reason}")
    parameters = dict(arguments.index_parameters(row, action, indexes))
    if overrides.values:
        parameters["overrides"] = overrides.values
    return _start(actor, row, kind, policy, parameters, is_dry_run=is_dry_run)


def retry(*, actor: Principal, job: int) -> Job:
    """Start failed or canceled maintenance again, as a new job under the current policy.

    Raises JobNotFound, InvalidJobState, TableNotFound, and InvalidInput for jobs that are not
    maintenance: those are requested again by the operation that started them.
    """
    old = Job.objects.select_related("table__namespace").filter(pk=job).first()
    if old is None or not access.holds(actor, Privilege.BROWSE, old.table):
        raise JobNotFound(job)
    access.require(actor, Privilege.MAINTAIN, old.table)
    if maintenance_actions.find(old.kind) is None:
        raise InvalidInput(
            f"Job {job} is '{old.kind}', which is not maintenance; repeat the operation that started it"
        )
    if old.status not in _UNSUCCESSFUL:
        raise InvalidJobState(job, old.status, "retried")
    row = old.table
    if row.state == TableState.DROPPED:
        raise TableNotFound(row.identifier)
    parameters = {name: value for name, value in old.parameters.items() if name != "policy"}
    overrides = Overrides(**parameters.get("overrides") or {})
    action = maintenance_actions.require(old.kind)
    policy = overrides.apply(row, action, policies.effective_policy(row))
    return _start(actor, row, old.kind, policy, parameters, is_dry_run=old.is_dry_run)


# --- periodic start of jobs -------------------------------------------------------------------------


def start_due() -> int:
    """Start planned maintenance that is switched on; returns the number of jobs.

    Namespaces that have used the least time of workers come first, and within a namespace the tables
    whose turn is the earliest (``catalog.scheduling``). A table has one job at a time. Policies limit
    the number of running jobs and the costs of a window, and jobs start only in that window. A round
    queues as many further jobs of a policy as ended within the last minute.
    """
    with locks.advisory_lock("start_due") as is_alone:
        return _Pass(timezone.now()).run() if is_alone and _is_any_switched_on() else 0


class _Pass:
    """One round over all tables."""

    def __init__(self, now: datetime) -> None:
        costs = job_costs.load()
        self._started = 0
        self._round = Round(
            now=now,
            active=policies.active_jobs(),
            ended=policies.ended_by_policy(now - _ROUND),
            spent=partial(job_costs.spent, now=now, costs=costs),
            costs=costs,
        )

    def run(self) -> int:
        """Start jobs; returns their number."""
        now = self._round.now
        sources = candidates.Candidates(now).by_namespace()
        queue = FairQueue(sources, policies.used_time(now))
        limiting = policies.number_of_limits()
        for _ in self._round.run(queue, self._serve, policies.uniform_namespaces(sources)):
            if len(self._round.full) >= limiting:
                break
        return self._started

    def _serve(self, candidate: Candidate) -> Choice | None:
        """Start maintenance of a table. An unexpected error must not keep other tables waiting."""
        try:
            choice = self._round.choose(candidate)
            if choice is None or not self._start(candidate, choice):
                return None
        except DatabaseError:
            raise
        except Exception:  # a round's outermost frame
            log.exception("Maintenance of %s cannot be planned", candidate.row)
            return None
        self._started += 1
        return choice

    def _start(self, candidate: Candidate, choice: Choice) -> bool:
        """Start a job; False if it was refused. The table then begins to wait again."""
        row, policy = candidate.row, candidate.policy
        try:
            _start(SYSTEM, row, choice.kind, policy, choice.parameters, choice=choice)
        except CatalogError as refused:  # dropped meanwhile, or a job was requested meanwhile
            log.warning("Maintenance of %s was refused: %s", row, refused)
            return False
        now = self._round.now
        TableHealth.objects.newest().filter(table=row).update(due_since=now, turn=now)
        return True


def _is_any_switched_on() -> bool:
    """True if any policy switches an action on; usually none does, and the round ends at once."""
    actions = maintenance_actions.registered()
    if any(action.rules[0].default == Mode.ON for action in actions):
        return True
    return any(
        values.get(action.mode) == Mode.ON
        for values in policies.policy_values()
        for action in actions
    )


def _start(
    actor: Principal,
    row: Table,
    kind: str,
    policy: EffectivePolicy,
    parameters: Mapping[str, Any] | None = None,
    *,
    is_dry_run: bool = False,
    choice: Choice | None = None,
) -> Job:
    """Start a job; ``choice`` is that of the scheduler, whose jobs count against the policy's limits."""
    values = {name: setting.value for name, setting in policy.values.items()}
    if choice is None:  # otherwise the job fails with the same message
        require_runnable(values)
    operation = job_operations.StartMaintenance(
        table=row.identifier,
        format=TableFormat(row.format),
        kind_of_job=kind,
        is_dry_run=is_dry_run,
        only_if_idle=choice is not None,
        engine_profile=candidates.profile(row.format, policy, kind),
        limit_key="" if choice is None else policy.limit_key,
        limit=None if choice is None else int(policy["max_jobs"]),
        planned_bytes=None if choice is None else choice.expected.bytes,
        parameters={"policy": values, **(parameters or {})},
    )
    job: Job = commit([operation], actor=actor).results[0]
    return job
