"""``manage.py backup``: back up the catalog while it runs."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from catalog.errors import CatalogError
from catalog.services.recovery import backup


class Command(BaseCommand):
    help = (
        "Back up the database, the secret key and the settings to a new directory, while the server"
        " runs. The directory contains secrets."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("directory", type=Path)
        parser.add_argument(
            "--warehouse", action="store_true", help="also copy the local warehouse"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            manifest = backup.create(options["directory"], warehouse=options["warehouse"])
        except CatalogError as refused:
            raise CommandError(refused.message) from refused
        for table, count in manifest.counts.items():
            self.stdout.write(f"{count:>10}  {table.removeprefix('catalog_')}")
        if manifest.seal is not None:
            self.stdout.write(f"newest audit seal: {manifest.seal[0]}:{manifest.seal[1]}")
        self.stdout.write(f"The backup is in {options['directory']}")
