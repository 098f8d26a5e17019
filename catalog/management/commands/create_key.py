"""Create an API key on the command line. Standard output gets only the key, for use in pipes."""

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
    help = "Create an API key for a principal or a new service account. It is shown only once."
    # System checks import the whole API, which takes seconds at every start.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="the key's name, which the audit trail shows")
        parser.add_argument(
            "--principal",
            help="the owner of the key; by default a service account with the key's name",
        )
        parser.add_argument(
            "--level",
            choices=PrincipalLevel.values,
            help="the level of a new service account; by default 'granted', which allows nothing"
            " without grants",
        )
        parser.add_argument(
            "--scope", action="append", help="a privilege that the key may use; repeatable"
        )
        parser.add_argument(
            "--namespace", help="use the key only in this namespace and below, such as prod.sales"
        )
        lifetime = parser.add_mutually_exclusive_group()
        lifetime.add_argument(
            "--days",
            type=float,
            help=f"the lifetime in days; by default {key_rules.DEFAULT_LIFETIME.days}",
        )
        lifetime.add_argument(
            "--never-expires", action="store_true", help="create a key without an expiry"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        name, principal = options["name"], options["principal"]
        try:
            expires_at = None
            if options["days"] is not None:
                expires_at = timezone.now() + timedelta(days=options["days"])
            if principal is not None and options["level"] is not None:
                raise InvalidInput(
                    "--level is only for a new service account; do not combine it with --principal"
                )
            row, key = api_keys.create_for(
                actor=COMMAND,
                name=name,
                principal=principal,
                level=PrincipalLevel(options["level"] or PrincipalLevel.GRANTED),
                scopes=options["scope"],
                namespace=_identifier(options["namespace"]),
                expires_at=expires_at,
                never_expires=options["never_expires"],
            )
        except OverflowError:
            raise CommandError(f"--days {options['days']} is too large") from None
        except CatalogError as refused:
            raise CommandError(refused.message) from refused
        self.stderr.write(f"API key '{row}' of '{row.principal}', shown only once:")
        self.stdout.write(key)


def _identifier(text: str | None) -> identifiers.Identifier | None:
    return None if text is None else identifiers.typed(text)
