"""Plan, run and follow maintenance on the command line."""

import json
import time
from argparse import ArgumentParser
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from catalog import identifiers, maintenance_actions
from catalog.access import COMMAND
from catalog.errors import CatalogError, InvalidInput
from catalog.identifiers import Identifier
from catalog.layouts import Strategy
from catalog.models import Job, JobStatus, TableFormat
from catalog.policies import TEXT_UNITS, EffectivePolicy, Unit, require_rule
from catalog.services.maintenance import health, job_control, job_runner, measurements, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.maintenance.requests.arguments import Overrides

_BAR = 30
_POLL_SECONDS = 0.2
_DEFAULT = "default"


class Command(BaseCommand):
    help = "Plan, run and follow maintenance such as compaction and cleanup."
    # System checks import the whole API, which takes seconds at every start.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        plan = actions.add_parser("plan", help="show the plan of a table, or the worst tables")
        plan.add_argument(
            "table",
            nargs="?",
            help="the table, such as prod.users; by default, list the worst tables",
        )
        plan.add_argument("--namespace", help="list the worst tables of this namespace and below")
        plan.add_argument("--limit", type=_positive, default=20)
        run = actions.add_parser("run", help="run a job")
        run.add_argument("table", help="the table, such as prod.users")
        run.add_argument("kind", choices=maintenance_actions.keys())
        run.add_argument("--dry-run", action="store_true", help="report what the job would do")
        run.add_argument(
            "--index",
            action="append",
            metavar="name",
            help="for index jobs, only this index; repeatable",
        )
        run.add_argument("--engine-profile", help="the engine profile of a job on Spark")
        run.add_argument(
            "--strategy", choices=list(Strategy), help="the order of rows of an Iceberg compaction"
        )
        run.add_argument(
            "--sort-order", help="the columns of the strategy, such as 'country, created_at desc'"
        )
        how = run.add_mutually_exclusive_group()
        how.add_argument("--here", action="store_true", help="run in this process, not in a worker")
        how.add_argument("--no-wait", action="store_true", help="do not wait for the worker")
        status = actions.add_parser("status", help="list active and recent jobs")
        status.add_argument("job", nargs="?", type=_positive, help="show a job with its log")
        status.add_argument("--hours", type=float, default=24.0)
        status.add_argument("--limit", type=_positive, default=100)
        listing = actions.add_parser("actions", help="list the kinds of maintenance")
        listing.add_argument(
            "--markdown", choices=TableFormat.values, help="print the table of the documentation"
        )
        policy = actions.add_parser("policy", help="show or set the policy of a table or namespace")
        policy.add_argument(
            "target", help="a table such as prod.users, or a namespace with --namespace"
        )
        policy.add_argument(
            "--namespace", action="store_true", help="the target is a namespace; $ for the root"
        )
        policy.add_argument("--set", action="append", default=[], metavar="name=value")
        policy.add_argument("--unset", action="append", default=[], metavar="name")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, f"_{options['action']}")(options)
        except CatalogError as refused:
            raise CommandError(refused.message) from refused

    # -- plan

    def _plan(self, options: Mapping[str, Any]) -> None:
        if options["table"] is None:
            self._worst(options)
            return
        plan = measurements.plan(actor=COMMAND, table=_identifier(options["table"]))
        self.stdout.write(f"{plan.table}: health {plan.score} of 100")
        for name, value in plan.statistics.as_json().items():
            self.stdout.write(f"  {name:22} {value}")
        if not plan.planned:
            self.stdout.write("Nothing needs to be done.")
        for job in plan.planned:
            where = "Spark" if job.is_for_spark else "the worker"
            self.stdout.write(f"{job.kind} ({job.mode}, by {where}): {job.reason}")

    def _worst(self, options: Mapping[str, Any]) -> None:
        namespace = _identifier(options["namespace"]) if options["namespace"] else ()
        rows, _ = health.list_health(actor=COMMAND, namespace=namespace, limit=options["limit"])
        if not rows:
            self.stdout.write("No table has been measured yet.")
        for row in rows:
            needs = ", ".join(job["kind"] for job in row.planned) or "nothing"
            error = row.statistics.get("error")
            self.stdout.write(f"{row.score:3}  {row.table!s:40} {error or needs}")

    # -- run

    def _run(self, options: Mapping[str, Any]) -> None:
        job = maintenance_scheduler.start(
            actor=COMMAND,
            table=_identifier(options["table"]),
            kind=options["kind"],
            is_dry_run=options["dry_run"],
            indexes=options["index"],
            overrides=Overrides(
                engine_profile=options["engine_profile"],
                strategy=options["strategy"],
                sort_order=options["sort_order"],
            ),
        )
        if options["no_wait"]:
            self.stdout.write(f"Job {job.pk}: {_line(job)}")
            return
        if options["here"]:
            job_runner.run_job(job.pk)
            job.refresh_from_db()
            if job.status == JobStatus.QUEUED:
                why = job.error or "another job of the table comes first"
                raise CommandError(f"Job {job.pk} is queued for a worker: {why}")
        try:
            self._follow(job)
        except KeyboardInterrupt:
            raise CommandError(
                f"Job {job.pk} continues; run manage.py maintain status {job.pk} to see it"
            ) from None
        if job.status != JobStatus.SUCCEEDED:
            raise CommandError(f"Job {job.pk} has {_ended(job)}: {job.error}")
        if job.error:
            self.stdout.write(job.error)
        self.stdout.write(json.dumps(job.result or {}, indent=2, sort_keys=True))

    def _follow(self, job: Job) -> None:
        """Show a job's progress until it ends: a bar on a terminal, otherwise a line per status."""
        is_terminal = self.stdout.isatty()
        last_line = ""
        while True:
            job.refresh_from_db()
            line = f"Job {job.pk}: {_line(job, with_bar=is_terminal)}"
            is_over = job.status not in maintenance_scheduler.ACTIVE
            if is_terminal and line != last_line:
                blank = " " * max(len(last_line) - len(line), 0)
                self.stdout.write(f"\r{line}{blank}", ending="\n" if is_over else "")
                self.stdout.flush()
                last_line = line
            elif not is_terminal and (job.status != last_line or is_over):
                self.stdout.write(line)
                last_line = job.status
            if is_over:
                return
            time.sleep(_POLL_SECONDS)

    # -- status

    def _status(self, options: Mapping[str, Any]) -> None:
        if options["job"]:
            self._show_job(options["job"])
            return
        try:
            since = timezone.now() - timedelta(hours=options["hours"])
        except (OverflowError, ValueError):
            raise CommandError(f"--hours {options['hours']} is out of range") from None
        jobs, _ = job_control.list_jobs(
            actor=COMMAND,
            kinds=maintenance_actions.keys(),
            since=since,
            limit=options["limit"],
        )
        if not jobs:
            self.stdout.write("No maintenance ran.")
        for job in jobs:
            self.stdout.write(f"{job.pk:>8}  {job.table!s:40} {_line(job)} {job.error}".rstrip())

    def _show_job(self, pk: int) -> None:
        job = job_control.find_job(actor=COMMAND, job=pk)
        self.stdout.write(f"Job {job.pk}, {job.table}: {_line(job)} {job.error}".rstrip())
        token: str | None = None
        while True:
            events, token = job_control.list_events(actor=COMMAND, job=job, page_token=token)
            for event in events:
                data = f" {json.dumps(event.data)}" if event.data else ""
                self.stdout.write(f"{event.at:%F %T}  {event.level:8} {event.message}{data}")
            if token is None:
                break
        if job.summary:
            self.stdout.write(job.summary)
        if job.result:
            self.stdout.write(json.dumps(job.result, indent=2, sort_keys=True))

    # -- actions

    def _actions(self, options: Mapping[str, Any]) -> None:
        if options["markdown"]:
            self.stdout.write(maintenance_actions.documentation(options["markdown"]), ending="")
            return
        for action in maintenance_actions.registered():
            formats = ", ".join(sorted(action.formats))
            self.stdout.write(f"{action.key} ({formats}; mode: {action.mode}): {action.help}")

    # -- policy

    def _policy(self, options: Mapping[str, Any]) -> None:
        target = _identifier(options["target"])
        effective, own_values = self._held(target, options)
        if options["set"] or options["unset"]:
            values = {
                name: value for name, value in own_values.items() if name not in options["unset"]
            }
            values |= dict(map(_value, options["set"]))
            for name in options["unset"]:
                _rule(name)
            if options["namespace"]:
                policies.set_namespace_policy(actor=COMMAND, namespace=target, values=values)
            else:
                policies.set_table_policy(actor=COMMAND, table=target, values=values)
            effective, own_values = self._held(target, options)
        for name, value in effective.values.items():
            source = f"set here, {value.source}" if name in own_values else value.source or _DEFAULT
            self.stdout.write(f"{name:18} {value.value!s:12} {source}")

    @staticmethod
    def _held(
        target: Identifier, options: Mapping[str, Any]
    ) -> tuple[EffectivePolicy, dict[str, Any]]:
        if options["namespace"]:
            return policies.policy_of_namespace(actor=COMMAND, namespace=target)
        return policies.policy_of_table(actor=COMMAND, table=target)


def _identifier(text: str) -> Identifier:
    return identifiers.typed(text)


def _positive(text: str) -> int:
    value = int(text)
    if not 0 < value < 2**63:
        raise ValueError
    return value


def _rule(name: str) -> Unit:
    return require_rule(name).unit


def _value(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInput(f"'{text}' does not have the form name=value")
    if _rule(name) in TEXT_UNITS:
        return name, value
    try:
        return name, float(value) if _rule(name) is Unit.RATIO else int(value)
    except ValueError:
        return name, value  # the rule reports the error


def _ended(job: Job) -> str:
    return "been canceled" if job.status == JobStatus.CANCELED else job.status


def _line(job: Job, *, with_bar: bool = False) -> str:
    summary = f"{job.kind}{' (dry run)' if job.is_dry_run else ''} {job.status}"
    if not job.total:
        return f"{summary} {job.progress} {job.unit}" if job.progress else summary
    progress = f"{job.progress}/{job.total} {job.unit}"
    if not with_bar:
        return f"{summary} {progress}"
    filled = min(_BAR, _BAR * job.progress // job.total)
    return f"{summary} [{'#' * filled}{'.' * (_BAR - filled)}] {progress}"
