"""Drop old months of the audit trail."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from catalog.access import COMMAND
from catalog.errors import CatalogError
from catalog.services.audit import partitions as audit_partitions


class Command(BaseCommand):
    help = (
        "Drop past months of the audit trail, as the owner of the tables. Each dropped month leaves"
        " an audit event, and the remaining months can still be verified."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--keep-months",
            type=int,
            required=True,
            metavar="N",
            help="keep the present month and the N months before it",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            dropped = audit_partitions.drop_months(
                actor=COMMAND, keep_months=options["keep_months"]
            )
        except CatalogError as refused:
            raise CommandError(refused.message) from refused
        except DatabaseError as error:
            raise CommandError(
                f"The database refused: {str(error).partition(chr(10))[0]}"
            ) from error
        for month in dropped:
            self.stdout.write(f"{month.month}: {month.events} events dropped")
        if not dropped:
            self.stdout.write("No month is old enough to drop")
