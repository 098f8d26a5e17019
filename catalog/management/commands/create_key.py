"""Make an API key from the shell. The key alone goes to standard output, so that it can be piped."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from catalog import identifiers
from catalog.access import COMMAND
from catalog.errors import CatalogError, InvalidInput
from catalog.models import PrincipalLevel
from catalog.services.access import api_keys, key_rules


class Command(BaseCommand):
    help = "Make an API key, which is shown this once, for a principal or a new service account."
    # They import the whole API: seconds of every start.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="the key's name, which the audit trail shows")
        parser.add_argument(
            "--principal", help="whose key it is; none: the service account of the key's name"
        )
        parser.add_argument(
            "--level",
            choices=PrincipalLevel.values,
            help="of the service account, if it is made; default: granted, that is nothing until"
            " something is granted to it",
        )
        parser.add_argument(
            "--scope", action="append", help="a privilege that may be used; again for several"
        )
        parser.add_argument("--namespace", help="where it may be used, with all below: a$b")
        lifetime = parser.add_mutually_exclusive_group()
        lifetime.add_argument(
            "--days",
            type=float,
            help=f"how long it is valid; {key_rules.DEFAULT_LIFETIME.days} days if not given",
        )
        lifetime.add_argument(
            "--never-expires", action="store_true", help="make a key that is valid until revoked"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        name, whose = options["name"], options["principal"]
        try:
            expires_at = None
            if options["days"] is not None:
                expires_at = timezone.now() + timedelta(days=options["days"])
            if whose is not None and options["level"] is not None:
                raise InvalidInput(
                    "--level is of a new service account, --principal of a known one"
                )
            row, key = api_keys.create_for(
                actor=COMMAND,
                name=name,
                principal=whose,
                level=PrincipalLevel(options["level"] or PrincipalLevel.GRANTED),
                scopes=options["scope"],
                namespace=_identifier(options["namespace"]),
                expires_at=expires_at,
                never_expires=options["never_expires"],
            )
        except OverflowError:
            raise CommandError(f"--days {options['days']} is too much") from None
        except CatalogError as refused:
            raise CommandError(refused.message) from refused
        self.stderr.write(f"API key '{row}' of '{row.principal}', shown this once:")
        self.stdout.write(key)


def _identifier(text: str | None) -> identifiers.Identifier | None:
    return None if text is None else identifiers.parse(text, identifiers.DEFAULT_DELIMITER)
