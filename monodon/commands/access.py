"""Commands for access: grant, revoke, explain, keys."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from monodon.client import UNSET, models, pages
from monodon.client.transport import Unset
from monodon.commands.app import (
    NAME,
    App,
    command,
    confirm,
    display,
    dry_run_option,
    fail,
    root,
    yes_option,
)
from monodon.commands.catalog import annotations_of
from monodon.commands.texts import echo

Parts = tuple[str, ...]
_loss_option = click.option(
    "--dry-run", is_flag=True, help="Print what the principal would lose; no change."
)


@command(root, "grant")
@click.argument("principal")
@click.argument("privileges")
@click.argument("name", type=NAME)
@click.option(
    "--until", metavar="TIME", help="The end of the grant: 2027-01-31T12:00:00Z. Default: no end."
)
@_loss_option
def grant(
    app: App, *, principal: str, privileges: str, name: Parts, until: str | None, dry_run: bool
) -> None:
    """Set the direct grant of PRINCIPAL on a table or namespace.

    PRIVILEGES are separated by commas. They and the end replace those of an existing grant: read,write.
    """
    client, is_namespace = app.client, _is_namespace(app, name)
    listed = [text for text in privileges.split(",") if text]
    end = UNSET if until is None else _moment("--until", until)  # older servers accept no null
    operation = client.set_namespace_grant if is_namespace else client.set_table_grant
    if dry_run:
        operation(name, principal=principal, privileges=listed, expires_at=end, dry_run=True)
        _what_if(app, principal, listed, name)
        return
    answer = operation(name, principal=principal, privileges=listed, expires_at=end)
    if app.as_json:
        app.json(answer)
    last = f" until {answer['expires_at']}" if answer.get("expires_at") else ""
    app.say(f"{principal} has {', '.join(answer['privileges'])} on {display(name)}{last}.")


def _moment(option: str, text: str) -> str:
    """The text of a time with a zone, as the server gets it. Exits if it is none."""
    try:
        has_zone = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        has_zone = False
    if not has_zone:
        fail(f"{option}: '{text}' is not a time with a zone, such as 2027-01-31T12:00:00Z", 2)
    return text


@command(root, "revoke")
@click.argument("principal")
@click.argument("name", type=NAME)
@_loss_option
def revoke(app: App, *, principal: str, name: Parts, dry_run: bool) -> None:
    """Remove the direct grant of PRINCIPAL on a table or namespace."""
    client, is_namespace = app.client, _is_namespace(app, name)
    operation = client.set_namespace_grant if is_namespace else client.set_table_grant
    if dry_run:
        operation(name, principal=principal, privileges=[], dry_run=True)
        _what_if(app, principal, [], name)
        return
    answer = operation(name, principal=principal, privileges=[])
    if app.as_json:
        app.json({"principal": principal, "name": name, "remaining": answer.get("remaining")})
    app.say(f"Removed the direct grant of {principal} on {display(name)}.")
    _say_remaining(app, answer)


@command(root, "explain")
@click.argument("name", type=NAME)
@click.option("--principal", help="Only this principal.")
def explain(app: App, *, name: Parts, principal: str | None) -> None:
    """Show who has which privileges on an object, and why."""
    client = app.client
    operation = (
        client.explain_namespace_access if _is_namespace(app, name) else client.explain_table_access
    )
    holders = list(pages(operation, name, principal=principal))
    app.rows(
        holders,
        ["principal", "privileges", "because", "on", "through", "expires at"],
        [
            (
                holder["principal"],
                source["privileges"],
                source["because"],
                source.get("on"),
                source["through"],
                source.get("expires_at"),
            )
            for holder in holders
            for source in holder["sources"]
        ],
        empty="Nobody has privileges here.",
    )


@root.group("keys")
def keys() -> None:
    """API keys: yours, and all keys for administrators."""


@command(keys, "ls")
@click.option("--principal", help="Only keys of this principal.")
def ls(app: App, *, principal: str | None) -> None:
    """List API keys."""
    rows = list(pages(app.client.list_keys, principal=principal))
    app.rows(
        rows,
        ["name", "principal", "prefix", "expires at", "last used at", "revoked at"],
        [
            (
                row["name"],
                row["principal"],
                row["prefix"],
                row["expires_at"] or "never",
                row["last_used_at"],
                row["revoked_at"],
            )
            for row in rows
        ],
    )


@command(keys, "create")
@click.argument("name")
@click.option("--principal", required=True, help="The owner of the key.")
@click.option("--scope", "scopes", multiple=True, help="A privilege of the key; repeatable.")
@click.option("--namespace", type=NAME, help="Use the key only in this namespace and below.")
@click.option("--days", type=click.IntRange(1), help="The lifetime; default: 90.")
@dry_run_option
def create(
    app: App,
    *,
    name: str,
    principal: str,
    scopes: Sequence[str],
    namespace: Parts | None,
    days: int | None,
    dry_run: bool,
) -> None:
    """Create an API key, and print it. It is not shown again."""
    answer = app.client.create_key(
        principal=principal,
        name=name,
        scopes=list(scopes) or UNSET,
        namespace=UNSET if namespace is None else list(namespace),
        expires_at=_in_days(days),
        dry_run=dry_run or UNSET,
    )
    if dry_run:
        _show_key(app, answer["details"])
        return
    _show(app, answer["key"], answer)


@command(keys, "rotate")
@click.argument("name")
@click.option(
    "--overlap",
    type=click.IntRange(0),
    default=3600,
    show_default=True,
    metavar="SECONDS",
    help="How long the old key stays valid.",
)
@click.option(
    "--days", type=click.IntRange(1), help="The lifetime of the new key; default: as the old one."
)
@dry_run_option
def rotate(app: App, *, name: str, overlap: int, days: int | None, dry_run: bool) -> None:
    """Replace the key NAME by a new key with the same rights."""
    answer = app.client.rotate_key(
        name, overlap_seconds=overlap, expires_at=_in_days(days), dry_run=dry_run or UNSET
    )
    if dry_run:
        _show_key(app, answer["details"])
        return
    _show(app, answer["key"], answer)


@command(keys, "revoke")
@click.argument("name")
@dry_run_option
@yes_option
def revoke_key(app: App, *, name: str, dry_run: bool, yes: bool) -> None:
    """Revoke an API key. This cannot be undone."""
    if dry_run:
        # Who may see a key may revoke it, except that a limited key revokes only itself.
        row = app.client.get_key(name)
        _show_key(app, row)
        is_revoked = row["revoked_at"] is not None
        app.say("It is revoked already." if is_revoked else "It would be revoked.")
        return
    confirm(f"Revoke key '{name}'?", yes=yes)
    answer = app.client.revoke_key(name)
    if app.as_json:
        app.json(answer)
    app.say(f"Revoked key '{answer['name']}'.")
    _say_remaining(app, answer)


def _in_days(days: int | None) -> str | Unset:
    """The time in so many days, or UNSET: the server's default."""
    if days is None:
        return UNSET
    try:
        return (datetime.now(UTC) + timedelta(days=days)).isoformat()
    except OverflowError:
        fail(f"--days {days} is too large", 2)


def _say_remaining(app: App, answer: Mapping[str, Any]) -> None:
    """Say until when clients keep access; an older server does not know."""
    remaining = answer.get("remaining")
    if remaining and remaining["text"]:
        app.say(remaining["text"])


def _show_key(app: App, row: models.Key) -> None:
    if app.as_json:
        app.json(row)
        return
    app.facts(
        [
            ("name", row["name"]),
            ("principal", row["principal"]),
            ("scopes", "all" if row["scopes"] is None else row["scopes"]),
            ("namespace", None if row["namespace"] is None else display(row["namespace"])),
            ("expires at", row["expires_at"] or "never"),
        ]
    )


def _show(app: App, key: str, answer: object) -> None:
    """Print only the key to standard output, so that it can be piped."""
    if app.as_json:
        app.json(answer)
        return
    click.echo("The key is shown only once:", err=True)
    echo(key)


def _is_namespace(app: App, name: Parts) -> bool:
    return annotations_of(app.client, name)["kind"] == "namespace"


def _what_if(app: App, principal: str, privileges: list[str], name: Parts) -> None:
    if not principal:
        fail("Name a principal", 2)
    client = app.client
    operation = (
        client.what_if_namespace_grant if _is_namespace(app, name) else client.what_if_table_grant
    )
    losses = list(pages(operation, name, principal=principal, privileges=privileges))
    app.rows(
        losses,
        ["principal", "before", "after", "lost", "namespaces", "tables"],
        [
            (
                row["principal"],
                row["before"],
                row["after"],
                row["lost"],
                row["namespaces"],
                row["tables"],
            )
            for row in losses
        ],
        empty="Nobody would lose a privilege.",
    )
