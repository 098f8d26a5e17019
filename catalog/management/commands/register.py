"""``manage.py register``: register the tables that lie below a location."""

import json
from argparse import ArgumentParser
from collections import Counter
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from catalog import identifiers
from catalog.access import COMMAND
from catalog.errors import CatalogError
from catalog.identifiers import label
from catalog.models import TableFormat
from catalog.services.discovery import plans, registration
from catalog.services.discovery.plans import Candidate, CandidateStatus, Plan
from catalog.services.discovery.registration import Entry, Outcome


class Command(BaseCommand):
    help = (
        "Find the Lance and Iceberg tables below a location, and register them. Without --yes, only"
        " print the plan. Tables that are registered already are left as they are, so an interrupted"
        " registration continues when the command is repeated."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("location", nargs="?", help="such as s3://lake/tables or /data/tables")
        parser.add_argument(
            "--into",
            default="",
            metavar="NAMESPACE",
            help="namespace for the tables; default: the root",
        )
        parser.add_argument("--format", choices=[*TableFormat.values], help="only this format")
        parser.add_argument("--yes", action="store_true", help="register the tables of the plan")
        parser.add_argument(
            "--output", type=Path, metavar="FILE", help="write the plan as JSON, to be edited"
        )
        parser.add_argument(
            "--plan", type=Path, metavar="FILE", help="register the tables of a written plan"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["plan"] is not None:
                self._register(_entries(options["plan"]))
                return
            if not options["location"]:
                raise CommandError("Name a location, or a plan with --plan")
            plan = self._plan(options)
            if options["yes"]:
                self._register([_entry(candidate) for candidate in _new(plan)])
        except CatalogError as refused:
            detail = f". {refused.detail}" if refused.detail else ""
            raise CommandError(f"{refused.message}{detail}") from refused

    def _plan(self, options: dict[str, Any]) -> Plan:
        namespace = identifiers.parse(options["into"], ".") if options["into"] else ()
        formats = [TableFormat(options["format"])] if options["format"] else TableFormat
        plan = plans.plan(
            actor=COMMAND,
            location=options["location"],
            namespace=namespace,
            formats=frozenset(formats),
        )
        for candidate in plan.candidates:
            self.stdout.write(
                f"{candidate.status:10}  {candidate.format:7}  {label(candidate.table)}"
                f"  {candidate.metadata_location or candidate.location}"
            )
        counts = Counter(candidate.status for candidate in plan.candidates)
        summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        self.stdout.write(f"{len(plan.candidates)} tables: {summary or 'none'}")
        if not plan.is_complete:
            self.stderr.write("There are more tables; plan the directories one by one.")
        if options["output"] is not None:
            entries = [_as_json(_entry(candidate)) for candidate in _new(plan)]
            options["output"].write_text(json.dumps({"tables": entries}, indent=2) + "\n")
        return plan

    def _register(self, entries: list[Entry]) -> None:
        counts: Counter[Outcome] = Counter()
        for number, result in enumerate(registration.register(actor=COMMAND, entries=entries), 1):
            counts[result.outcome] += 1
            progress = f"[{number}/{len(entries)}] {label(result.table)}: {result.outcome}"
            self.stdout.write(f"{progress}: {result.message}" if result.message else progress)
        if counts[Outcome.REFUSED]:
            raise CommandError(f"{counts[Outcome.REFUSED]} tables were refused")


def _new(plan: Plan) -> list[Candidate]:
    return [candidate for candidate in plan.candidates if candidate.status is CandidateStatus.NEW]


def _entry(candidate: Candidate) -> Entry:
    return Entry(
        candidate.format, candidate.table, candidate.metadata_location or candidate.location
    )


def _as_json(entry: Entry) -> dict[str, Any]:
    return {"format": str(entry.format), "table": [*entry.table], "location": entry.location}


def _entries(file: Path) -> list[Entry]:
    """The tables of a written plan. Raises CommandError."""
    try:
        return [
            Entry(TableFormat(table["format"]), tuple(table["table"]), str(table["location"]))
            for table in json.loads(file.read_text())["tables"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{file} is not a plan: {error}") from error
