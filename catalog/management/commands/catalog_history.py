"""Past states and changes of the catalog on the command line."""

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from catalog import history as past
from catalog.access import COMMAND
from catalog.errors import CatalogError
from catalog.identifiers import Identifier, label, typed
from catalog.services.audit import history

_TIME = "a time such as 2027-01-31T12:00:00Z, or a transaction's id"


class Command(BaseCommand):
    help = "Show the catalog at a moment, or the changes between two moments."
    # System checks import the whole API, which takes seconds at every start.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--at", required=True, help=_TIME)
        parser.add_argument(
            "--namespace", default="", help="only this namespace and below, such as prod.sales"
        )
        parser.add_argument("--diff-to", help=f"the second moment of a comparison: {_TIME}")
        parser.add_argument("--json", action="store_true", help="write one JSON object per line")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            moment = past.parse_moment(options["at"])
            namespace = typed(options["namespace"])
            if options["diff_to"] is None:
                self._state(moment, namespace, as_json=options["json"])
            else:
                until = past.parse_moment(options["diff_to"])
                self._changes(moment, until, namespace, as_json=options["json"])
        except CatalogError as refused:
            raise CommandError(refused.message) from refused

    def _state(self, moment: history.Moment, namespace: Identifier, *, as_json: bool) -> None:
        namespaces = tables = 0
        token: str | None = None
        while True:
            page = history.catalog_at(
                actor=COMMAND,
                moment=moment,
                namespace=namespace,
                limit=history.MAX_PAGE,
                page_token=token,
            )
            moment = page.at
            namespaces += len(page.namespaces)
            tables += len(page.tables)
            rows: list[past.NamespaceState | past.TableState] = [*page.namespaces, *page.tables]
            for row in rows:
                self.stdout.write(_json(row) if as_json else _line(row))
            token = page.next_page
            if token is None:
                break
        if not as_json:
            self.stdout.write(f"At {moment}: {namespaces} namespaces, {tables} tables and views.")

    def _changes(
        self, since: history.Moment, until: history.Moment, namespace: Identifier, *, as_json: bool
    ) -> None:
        token: str | None = None
        while True:
            page = history.changes_between(
                actor=COMMAND,
                since=since,
                until=until,
                namespace=namespace,
                limit=history.MAX_PAGE,
                page_token=token,
            )
            since, until = page.since, page.until
            rows: list[past.NamespaceChange | past.TableChange] = [*page.namespaces, *page.tables]
            for row in rows:
                if as_json:
                    self.stdout.write(_json(row))
                else:
                    for line in _change(row):
                        self.stdout.write(line)
            token = page.next_page
            if token is None:
                break
        counts = asdict(
            history.count_changes(actor=COMMAND, since=since, until=until, namespace=namespace)
        )
        if as_json:
            self.stdout.write(_dump({"type": "counts", **counts}))
            return
        del counts["since"], counts["until"]
        summary = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
        self.stdout.write(f"From {since} to {until}: {summary}.")


def _json(row: Any) -> str:
    kinds = {
        past.NamespaceState: "namespace",
        past.NamespaceChange: "namespace",
        past.TableState: "table",
        past.TableChange: "table",
    }
    return _dump({"type": kinds[type(row)], **asdict(row)})


def _dump(document: dict[str, Any]) -> str:
    return json.dumps(document, default=str, ensure_ascii=False)


def _line(row: past.NamespaceState | past.TableState) -> str:
    if isinstance(row, past.NamespaceState):
        return f"namespace  {label(row.identifier)}"
    versions = ", ".join(
        f"{branch.branch or 'main'}@{branch.version} {branch.metadata_location}"
        for branch in row.branches
    )
    return f"{row.kind:10} {label(row.identifier):40} {row.format:8} {versions}".rstrip()


def _change(row: past.NamespaceChange | past.TableChange) -> Iterator[str]:
    words = ", ".join(row.changes)
    actor = f" ({row.actor})" if row.actor else ""
    if isinstance(row, past.NamespaceChange):
        yield f"namespace  {label(row.identifier)}: {words}{actor}"
        return
    name = label(row.identifier)
    if past.Change.RENAMED in row.changes:
        name = f"{label(row.before or ())} -> {name}"
    yield f"{row.kind:10} {name}: {words}{actor}"
    for branch in row.branches:
        ends = [str(end.version) if end else "none" for end in (branch.before, branch.after)]
        commits = f"{branch.commits} commit{'' if branch.commits == 1 else 's'}"
        yield f"  {branch.branch or 'main'}: {ends[0]} -> {ends[1]}, {commits}"
