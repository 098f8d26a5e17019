"""``manage.py restore``: restore a backup into a new database, and verify it."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from catalog.errors import CatalogError
from catalog.services.recovery import restore


class Command(BaseCommand):
    help = (
        "Restore a backup of manage.py backup into a database without namespaces and tables, and verify"
        " it. Restart the server afterwards."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("directory", type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            manifest = restore.restore(options["directory"])
        except (CatalogError, OSError) as refused:
            raise CommandError(str(refused)) from refused
        faults = 0
        for check in restore.verify(manifest):
            faults += bool(check.fault)
            self.stdout.write(f"{'FAILED' if check.fault else 'ok':<7} {check.title} {check.fault}")
        if faults:
            raise CommandError(
                f"The restored catalog differs from the backup: {faults} checks failed"
            )
        self.stdout.write("Restored. Restart the server, so that its processes read the new state.")
