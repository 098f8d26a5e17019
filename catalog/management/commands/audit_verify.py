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
        "Recompute the chain of hashes over the audit trail. Exit status 1, and one line for each"
        " finding, when an event or a seal was altered, removed or inserted."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--table", help="only this one: namespace$table, a.b.table or its UUID")
        parser.add_argument("--since", type=moment, help="only what was sealed since then (UTC)")
        parser.add_argument("--seal", action="store_true", help="seal what waits before that")
        parser.add_argument(
            "--expect",
            metavar="NUMBER:HASH",
            help="a seal that was noted elsewhere; it must be in the chain as it was",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["seal"]:
            audit_chain.seal()
        expected = _expected(options["expect"])
        table = _table(options["table"]) if options["table"] else None
        found = audit_verification.verify(table=table, since=options["since"], expected=expected)
        for finding in found.findings:
            self.stdout.write(f"{finding.kind}: {finding.text}")
        if found.more_findings:
            self.stdout.write(f"... and {found.more_findings} more")
        self.stdout.write(
            f"{found.seals} seals, {found.retired} of them of events that a retention removed;"
            f" {found.waiting} events wait for their seal"
        )
        if found.head is not None:
            self.stdout.write(f"newest seal: {found.head.number}:{found.head.hash.hex()}")
        if not found.is_sound:
            count = len(found.findings) + found.more_findings
            raise CommandError(f"The audit trail is not as it was sealed: {count} findings")
        self.stdout.write("The audit trail is as it was sealed")


def _expected(text: str | None) -> tuple[int, bytes] | None:
    if text is None:
        return None
    number, _, digest = text.partition(":")
    try:
        return int(number), bytes.fromhex(digest)
    except ValueError:
        raise CommandError(f"--expect is {text!r}; use the number and the hash of a seal") from None


def _table(text: str) -> uuid.UUID:
    """The UUID of a table that is there, or of one that is gone."""
    try:
        return uuid.UUID(text)
    except ValueError:
        pass
    delimiter = identifiers.DEFAULT_DELIMITER
    path = tuple(text.split(delimiter if delimiter in text else "."))
    row = Table.objects.named(path).first()
    if row is None:
        raise CommandError(f"Table '{text}' does not exist; of one that is gone give the UUID")
    return row.uuid
