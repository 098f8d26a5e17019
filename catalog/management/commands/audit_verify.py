"""Verify the audit trail against its seals."""

import uuid
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from catalog import identifiers
from catalog.management.audit_arguments import moment
from catalog.models import Table
from catalog.services.audit import chain as audit_chain
from catalog.services.audit import verification as audit_verification


class Command(BaseCommand):
    help = (
        "Recompute the hash chain of the audit trail. If an event or a seal was altered, removed or"
        " inserted, print a line for each finding and exit with status 1."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--table", help="only this table, such as prod.users, or its UUID")
        parser.add_argument("--since", type=moment, help="only events sealed since then (UTC)")
        parser.add_argument("--seal", action="store_true", help="seal pending events first")
        parser.add_argument(
            "--expect",
            metavar="NUMBER:HASH",
            help="a seal that was recorded elsewhere; the chain must contain it unchanged",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["seal"]:
            audit_chain.seal()
        expected = _expected(options["expect"])
        table = _table(options["table"]) if options["table"] else None
        verification = audit_verification.verify(
            table=table, since=options["since"], expected=expected
        )
        for finding in verification.findings:
            self.stdout.write(f"{finding.kind}: {finding.text}")
        if verification.more_findings:
            self.stdout.write(f"... and {verification.more_findings} more")
        self.stdout.write(
            f"{verification.seals} seals, of which {verification.retired} are of events removed by"
            f" retention; {verification.waiting} events are not sealed yet"
        )
        if verification.head is not None:
            self.stdout.write(
                f"newest seal: {verification.head.number}:{verification.head.hash.hex()}"
            )
        if not verification.is_sound:
            count = len(verification.findings) + verification.more_findings
            raise CommandError(f"The audit trail does not match its seals: {count} findings")
        self.stdout.write("The audit trail matches its seals")


def _expected(text: str | None) -> tuple[int, bytes] | None:
    if text is None:
        return None
    number, _, digest = text.partition(":")
    try:
        return int(number), bytes.fromhex(digest)
    except ValueError:
        raise CommandError(
            f"--expect is {text!r}; give the number and the hash of a seal as NUMBER:HASH"
        ) from None


def _table(text: str) -> uuid.UUID:
    """The UUID of a table by its name, or the given UUID, also of a dropped table."""
    try:
        return uuid.UUID(text)
    except ValueError:
        pass
    row = Table.objects.filter(digest=identifiers.lookup(text)).first()
    if row is None:
        raise CommandError(f"Table '{text}' does not exist; give the UUID of a dropped table")
    return row.uuid
