"""Export the audit trail, or a part of it, as CSV or JSON lines."""

import sys
import uuid
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from catalog import identifiers
from catalog.access import COMMAND
from catalog.errors import CatalogError
from catalog.management.audit_arguments import moment
from catalog.models.audit import Interface, Outcome
from catalog.services.audit import trail as audit_trail

_WORDS = ("target", "actor", "action", "key", "request_id")


class Command(BaseCommand):
    help = "Write audit events, oldest first, to a file or to standard output."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--format", choices=list(audit_trail.FORMATS), default="jsonl")
        parser.add_argument("--output", type=Path, help="a new file; by default standard output")
        parser.add_argument("--table", help="only events of this table, such as prod.users")
        parser.add_argument(
            "--table-uuid", type=uuid.UUID, help="only events of this table, which may be dropped"
        )
        for name in _WORDS:
            parser.add_argument(f"--{name.replace('_', '-')}")
        parser.add_argument("--interface", choices=Interface.values)
        parser.add_argument("--outcome", choices=Outcome.values)
        parser.add_argument("--transaction", type=uuid.UUID, dest="transaction_id")
        parser.add_argument(
            "--since", type=moment, help="only events from this day or time (UTC) on"
        )
        parser.add_argument("--until", type=moment, help="only events before this day or time")

    def handle(self, *args: Any, **options: Any) -> None:
        names = ("table_uuid", "interface", "outcome", "transaction_id", "since", "until", *_WORDS)
        try:
            table = identifiers.typed(options["table"]) if options["table"] else None
            search = audit_trail.Search(table=table, **{name: options[name] for name in names})
            pieces = audit_trail.export(actor=COMMAND, search=search, format=options["format"])
        except CatalogError as refused:
            raise CommandError(refused.message) from refused
        if options["output"] is None:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
            sys.stdout.flush()
            return
        try:
            with options["output"].open("xb") as file:
                for piece in pieces:
                    file.write(piece)
        except FileExistsError:
            raise CommandError(f"File {options['output']} already exists") from None
