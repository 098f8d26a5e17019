"""``manage.py undrop``: list the trash and restore items."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from catalog import identifiers
from catalog.access import COMMAND
from catalog.errors import CatalogError
from catalog.identifiers import Identifier
from catalog.models import TrashItem
from catalog.services.recovery import undrop


class Command(BaseCommand):
    help = "List the trash, or restore an item."
    # System checks import the whole API, which takes seconds at every start.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "name", nargs="?", help="the object, such as prod.users; by default, list the trash"
        )
        parser.add_argument("--namespace", action="store_true", help="the name is of a namespace")
        parser.add_argument("--item", type=int, help="the number of the item, instead of a name")
        parser.add_argument("--as", dest="new", metavar="name", help="restore under another name")
        parser.add_argument(
            "--with-parents", action="store_true", help="restore parent namespaces as well"
        )
        parser.add_argument(
            "--without-purged", action="store_true", help="skip tables that are already purged"
        )
        parser.add_argument("--limit", type=int, default=50, help="maximum items of the list")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["name"] is None and options["item"] is None:
                self._list(options["limit"])
            else:
                self._undrop(options)
        except CatalogError as refused:
            detail = f". {refused.detail}" if refused.detail else ""
            raise CommandError(f"{refused.message}{detail}") from refused

    def _list(self, limit: int) -> None:
        rows, _ = undrop.list_trash(actor=COMMAND, limit=max(limit, 1))
        if not rows:
            self.stdout.write("The trash is empty.")
        for row in rows:
            until = f"purged at {row.purge_at:%F %T}" if row.purge_at else "kept"
            self.stdout.write(
                f"{row.pk:>8}  {row.kind:9} {row!s:40} {row.state:8} dropped {row.dropped_at:%F %T}"
                f" by {row.dropped_by or '?'}, {until}"
            )

    def _undrop(self, options: dict[str, Any]) -> None:
        new = options["new"]
        row = undrop.undrop(
            actor=COMMAND,
            item=self._find(options).pk,
            new=None if new is None else _identifier(new),
            with_parents=options["with_parents"],
            without_purged=options["without_purged"],
        )
        self.stdout.write(f"Restored '{row}'.")

    @staticmethod
    def _find(options: dict[str, Any]) -> TrashItem:
        if options["item"] is not None:
            return undrop.find_item(actor=COMMAND, item=options["item"])
        name = _identifier(options["name"])
        return undrop.last_dropped(actor=COMMAND, name=name, is_namespace=options["namespace"])


def _identifier(text: str) -> Identifier:
    return identifiers.typed(text)
