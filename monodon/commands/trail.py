"""Commands for the audit trail and events: audit export, events tail."""

import json
import time
from collections.abc import Iterator
from typing import IO, Any

import click

from monodon.client import Client, RequestFailed, Unreachable
from monodon.commands.app import NAME, App, command, root
from monodon.commands.following import PAUSE
from monodon.commands.texts import echo, printable

Parts = tuple[str, ...]
_RETRIES = 5


@root.group("audit")
def audit() -> None:
    """The audit trail."""


@command(audit, "export")
@click.option("--format", "form", type=click.Choice(["jsonl", "csv"]), default="jsonl")
@click.option("--output", type=click.File("w"), default="-", help="A file; default: stdout.")
@click.option("--table", type=NAME, help="Only events of this table.")
@click.option("--actor", help="Only events of this principal.")
@click.option("--action", help="Such as table.drop.")
@click.option("--since", metavar="TIME", help="Such as 2026-11-01T00:00:00Z.")
@click.option("--until", metavar="TIME")
def export(
    app: App,
    *,
    form: Any,
    output: IO[str],
    table: Parts | None,
    actor: str | None,
    action: str | None,
    since: str | None,
    until: str | None,
) -> None:
    """Export audit events, oldest first."""
    for line in app.client.export_audit(
        format=form, table=table, actor=actor, action=action, since=since, until=until
    ):
        output.write(f"{printable(line) if output.isatty() else line}\n")


@root.group("events")
def events() -> None:
    """Events of the catalog."""


@command(events, "tail")
@click.option("--types", help="Such as table.create,view.*.")
@click.option("--namespace", type=NAME, help="Only events in this namespace and below.")
@click.option("--after", metavar="ID", help="Start after this event; 0-0: at the beginning.")
@click.option("-n", "--number", type=click.IntRange(1), help="End after this many events.")
def tail(
    app: App,
    *,
    types: str | None,
    namespace: Parts | None,
    after: str | None,
    number: int | None,
) -> None:
    """Print events as they happen, until interrupted."""
    for count, event in enumerate(_events(app.client, types, namespace, after), 1):
        if app.as_json:
            app.json_line(event)
        else:
            kind, subject = event["type"].removeprefix("monodon."), event.get("subject", "")
            echo(f"{event['time']}  {kind:<24}  {subject}")
        if count == number:
            return


def _events(
    client: Client, types: str | None, namespace: Parts | None, after: str | None
) -> Iterator[dict[str, Any]]:
    """Events of the stream, which is opened again after its end or a lost connection.

    Raises RequestFailed, and Unreachable if the server does not come back.
    """
    failures = 0
    while True:
        try:
            lines = client.stream_events(after=after, types=types, namespace=namespace)
            for position, event in _messages(lines):
                after = position or after
                failures = 0
                if event is not None:
                    yield event
            time.sleep(PAUSE)
        except (Unreachable, RequestFailed) as error:
            if isinstance(error, RequestFailed) and error.status < 500:
                raise
            failures += 1
            if failures > _RETRIES:
                raise
            time.sleep(min(2.0**failures, 15.0))


def _messages(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """The id and the event of each server-sent message; messages without data have no event."""
    position, data = "", []
    for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "id":
            position = value
        elif field == "data":
            data.append(value)
        elif not line and (position or data):
            yield position, json.loads("\n".join(data)) if data else None
            position, data = "", []
