"""Print grants for an application role that does not own the tables."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection

from catalog.services.audit import partitions as audit_partitions


class Command(BaseCommand):
    help = (
        "Print the SQL that lets a role read the audit trail and append to it, and nothing else."
        " Run it as the owner of the tables, after each migration."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("role", help="the role in DATABASE_URL of web servers and workers")

    def handle(self, *args: Any, **options: Any) -> None:
        role = connection.ops.quote_name(options["role"])
        for statement in audit_partitions.grants(role):
            self.stdout.write(f"{statement};")
