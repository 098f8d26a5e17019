"""Export, compare and apply the state of governance as a YAML file."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from catalog import identifiers
from catalog.access import COMMAND
from catalog.errors import CatalogError
from catalog.services.governance import document_export, document_format, yaml_files
from catalog.services.governance import documents as governance_documents


class Command(BaseCommand):
    help = "Export the state of governance as YAML, show what a file would change, or apply it."
    # System checks import the whole API, which takes seconds at every start.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        export = actions.add_parser("export", help="write the present state")
        export.add_argument("--namespace", help="only this namespace and below, such as prod.sales")
        export.add_argument("--output", help="a file; by default standard output")
        diff = actions.add_parser(
            "diff", help="show the changes of applying a file; exit status 1 if there are any"
        )
        apply = actions.add_parser("apply", help="apply a file, completely or not at all")
        for subparser in (diff, apply):
            subparser.add_argument("file", help="a file; - for standard input")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, f"_{options['action']}")(options)
        except CatalogError as refused:
            text = f"{refused.message}. {refused.detail}" if refused.detail else refused.message
            raise CommandError(text) from refused
        except OSError as error:
            raise CommandError(str(error)) from error

    def _export(self, options: dict[str, Any]) -> None:
        text = options["namespace"]
        namespace = identifiers.typed(text) if text else ()
        written = yaml_files.write(document_export.export(actor=COMMAND, namespace=namespace))
        if options["output"]:
            Path(options["output"]).write_text(written, encoding="utf-8")
        else:
            self.stdout.write(written, ending="")

    def _diff(self, options: dict[str, Any]) -> None:
        changes = governance_documents.plan(actor=COMMAND, document=_document(options["file"]))
        self._print(changes, "would change")
        if changes:
            sys.exit(1)

    def _apply(self, options: dict[str, Any]) -> None:
        changes = governance_documents.apply(actor=COMMAND, document=_document(options["file"]))
        self._print(changes, "changed")

    def _print(self, changes: list[governance_documents.Change], verb: str) -> None:
        for change in changes:
            self.stdout.write(str(change))
        self.stdout.write(f"{len(changes) or 'nothing'} {verb}")


def _document(name: str) -> document_format.Document:
    if name == "-":
        return document_format.read(yaml_files.parse(sys.stdin.read()))
    return document_format.read(yaml_files.parse(Path(name).read_text(encoding="utf-8")))
