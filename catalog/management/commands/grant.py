"""Set, list and explain grants on the command line."""

from argparse import ArgumentParser
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from catalog import identifiers
from catalog.access import COMMAND, On
from catalog.errors import CatalogError, InvalidInput
from catalog.privileges import SINGLE, Privilege, essence, parse
from catalog.services.access import grants


class Command(BaseCommand):
    help = "Grant privileges on a namespace or a table, and show who has which."
    # System checks import the whole API, which takes seconds at every start.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        names = ",".join(privilege.word for privilege in SINGLE)
        actions = parser.add_subparsers(dest="action", required=True)
        set_ = actions.add_parser("set", help="replace the grant of a principal")
        set_.add_argument("principal", help="etl, user:ada, group:analysts")
        set_.add_argument("privileges", help=f"a list of {names}, or all")
        set_.add_argument("--until", help="the end of the grant, such as 2027-01-31T12:00:00Z")
        remove = actions.add_parser("remove", help="revoke the grant of a principal")
        remove.add_argument("principal")
        list_ = actions.add_parser("list", help="list the direct grants")
        explain = actions.add_parser("explain", help="show who has which privileges, and why")
        explain.add_argument("principal", nargs="?", help="only this principal")
        what_if = actions.add_parser("what-if", help="show the effect of revoking a grant")
        what_if.add_argument("principal")
        for subparser in (set_, remove, list_, explain, what_if):
            where = subparser.add_mutually_exclusive_group(required=True)
            where.add_argument("--namespace", help="a namespace; $ for the root")
            where.add_argument("--table", help="a table or view, such as prod.users")

    def handle(self, *args: Any, **options: Any) -> None:
        action = options["action"].replace("-", "_")
        try:
            getattr(self, f"_{action}")(_on(options), options)
        except CatalogError as refused:
            raise CommandError(refused.message) from refused

    def _set(self, on: On, options: Mapping[str, Any]) -> None:
        privileges = parse(options["privileges"].split(","))
        self._grant(on, options["principal"], privileges, _moment(options["until"]))

    def _remove(self, on: On, options: Mapping[str, Any]) -> None:
        self._grant(on, options["principal"], parse([]), None)

    def _grant(
        self, on: On, principal: str, privileges: Privilege, expires_at: datetime | None
    ) -> None:
        change = grants.set_grant(
            actor=COMMAND, on=on, principal=principal, privileges=privileges, expires_at=expires_at
        )
        end = _until(change.expires_at)
        self.stdout.write(f"{principal} is granted {_words(change.privileges)} on {on}{end}")

    def _list(self, on: On, options: Mapping[str, Any]) -> None:
        token = None
        while True:
            rows, token = grants.list_grants(actor=COMMAND, on=on, page_token=token)
            for row in rows:
                by = f"  by {row.granted_by}" if row.granted_by else ""
                end = f" {_until(row.expires_at)}" if row.expires_at else ""
                self.stdout.write(f"{row.principal.name:24} {_words(row.privileges)}{by}{end}")
            if token is None:
                return

    def _explain(self, on: On, options: Mapping[str, Any]) -> None:
        token = None
        while True:
            holders, token = grants.explain(
                actor=COMMAND, on=on, principal=options["principal"], page_token=token
            )
            for holder in holders:
                state = "" if holder.is_active else "  (not active)"
                self.stdout.write(f"{holder.principal.name:24} {_words(holder.held)}{state}")
                for source in holder.sources:
                    self.stdout.write(f"    {source}: {_words(source.privileges)}")
                for key in holder.keys:
                    self.stdout.write(f"    with key '{key.name}': {_words(key.privileges)}")
            if token is None:
                return

    def _what_if(self, on: On, options: Mapping[str, Any]) -> None:
        token = None
        while True:
            losses, token = grants.what_if(
                actor=COMMAND, on=on, principal=options["principal"], page_token=token
            )
            for loss in losses:
                self.stdout.write(
                    f"{loss.principal.name:24} loses {_words(loss.lost)}; no longer sees"
                    f" {loss.namespaces} namespaces and {loss.tables} tables"
                )
            if token is None:
                return


def _on(options: Mapping[str, Any]) -> On:
    if options["table"] is not None:
        return On.table(identifiers.typed(options["table"]))
    return On.namespace(identifiers.typed(options["namespace"]))


def _moment(text: str | None) -> datetime | None:
    """The time that ``--until`` names, with a zone. Raises InvalidInput."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise InvalidInput(
        f"'{text}' of --until is not a time with a zone, such as 2027-01-31T12:00:00Z"
    )


def _until(end: datetime | None) -> str:
    return "" if end is None else f" until {end:%Y-%m-%d %H:%M} UTC"


def _words(privileges: Privilege) -> str:
    return "all" if privileges == Privilege.ALL else ", ".join(essence(privileges)) or "nothing"
