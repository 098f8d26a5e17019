"""``manage.py repair``: make the newest version of a Lance table readable."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from catalog import identifiers
from catalog.access import COMMAND
from catalog.errors import CatalogError
from catalog.services.recovery import lance_repair


class Command(BaseCommand):
    help = (
        "Compare a Lance table's ledger with its storage, and repair a damaged newest version by"
        " publishing a copy of the last whole one."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("table", help="the table, such as prod.users")
        parser.add_argument(
            "--dry-run", action="store_true", help="report without changing anything"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            repair = lance_repair.repair(
                actor=COMMAND,
                table=identifiers.typed(options["table"]),
                is_dry_run=options["dry_run"],
            )
        except CatalogError as refused:
            detail = f". {refused.detail}" if refused.detail else ""
            raise CommandError(f"{refused.message}{detail}") from refused
        for report in repair.branches:
            name = report.branch or "main"
            self.stdout.write(f"{name}: newest {report.newest}; {report.fault or 'ok'}")
            if report.missing:
                self.stdout.write(f"  without a manifest: {_numbers(report.missing)}")
            if report.unlisted:
                self.stdout.write(f"  not in the ledger: {_numbers(report.unlisted)}")
            version = repair.published.get(report.branch)
            if version is not None:
                verb = "would publish" if repair.is_dry_run else "published"
                self.stdout.write(
                    f"  {verb} version {version}, a copy of version {report.last_complete}"
                )


def _numbers(versions: tuple[int, ...]) -> str:
    return ", ".join(map(str, versions[:20])) + (" …" if len(versions) > 20 else "")
