"""Commands that change objects: protect, drop, undrop, register."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click

from monodon.client import UNSET, Client, RequestFailed, pages
from monodon.commands.app import (
    CONFLICT,
    FAILED,
    MISSING,
    NAME,
    App,
    command,
    confirm,
    display,
    dry_run_option,
    fail,
    root,
    shell_name,
    yes_option,
)
from monodon.commands.catalog import annotations_of, entries_of
from monodon.commands.texts import echo

Parts = tuple[str, ...]
_NAMESPACE_NOT_EMPTY = "3"
"""The code of the Lance protocol."""


@command(root, "protect")
@click.argument("name", type=NAME)
@click.option("--off", is_flag=True, help="Remove the protection.")
@click.option("--reason", default="", help="The reason, for the audit trail and approvals.")
@dry_run_option
def protect(app: App, *, name: Parts, off: bool, reason: str, dry_run: bool) -> None:
    """Protect a table or namespace against drops.

    With --off, remove the protection.
    """
    client = app.client
    is_namespace = annotations_of(client, name)["kind"] == "namespace"
    operation = client.set_namespace_protection if is_namespace else client.set_table_protection
    if dry_run:
        read = client.get_namespace_protection if is_namespace else client.get_table_protection
        before = read(name)["protected"]
        after = operation(name, protected=not off, reason=reason, dry_run=True)["protected"]
        if app.as_json:
            app.json({"before": before, "after": after})
        state = f"{'' if after else 'not '}protected"
        app.say(f"{display(name)} {'is already' if before == after else 'would be'} {state}.")
        return
    answer = operation(name, protected=not off, reason=reason)
    if app.as_json:
        app.json(answer)
    app.say(f"{display(name)} is {'' if answer['protected'] else 'not '}protected.")


@command(root, "drop")
@click.argument("name", type=NAME)
@click.option("--cascade", is_flag=True, help="Also drop everything in a namespace.")
@click.option("--dry-run", is_flag=True, help="Print what would be dropped, and what prevents it.")
@yes_option
def drop(app: App, *, name: Parts, cascade: bool, dry_run: bool, yes: bool) -> None:
    """Drop a table, view or namespace. It stays in the trash for its retention time."""
    client = app.client
    annotations = annotations_of(client, name)
    kind, form = annotations["kind"], annotations["format"]
    if cascade and kind != "namespace":
        fail(f"--cascade is for namespaces, and {display(name)} is a {kind}", 2)
    if dry_run:
        _show_drop(app, name, annotations, cascade=cascade)
        return
    content = " and everything in it" if cascade else ""
    impact = "" if yes or kind == "namespace" else _dependent_views(client, name)
    confirm(f"{impact}Drop {kind} {display(name)}{content}?", yes=yes)
    if kind == "namespace":
        _drop_namespace(client, name, cascade=cascade)
    elif form == "lance":
        client.drop_lance_table(name)
    else:
        client.drop_iceberg(name, "views" if kind == "view" else "tables")
    if app.as_json:
        app.json({"kind": kind, "name": name})
    app.say(f"Dropped {kind} {display(name)}. To restore it: monodon undrop {shell_name(name)}")


def _drop_namespace(client: Client, name: Parts, *, cascade: bool) -> None:
    try:
        client.drop_namespace(name, cascade=cascade)
    except RequestFailed as error:
        if error.code == _NAMESPACE_NOT_EMPTY:  # the answer names the field of the protocol
            fail(_not_empty(name), CONFLICT)
        raise


def _not_empty(name: Parts) -> str:
    return f"{display(name)} is not empty: drop it with --cascade."


def _show_drop(app: App, name: Parts, annotations: Any, *, cascade: bool) -> None:
    """Print the objects of a drop. Exits with CONFLICT if the server would refuse it."""
    client, kind = app.client, annotations["kind"]
    objects = [(kind, annotations["format"], name)]
    if kind == "namespace":
        objects += entries_of(client, name, recursive=cascade)
    obstacles = []
    if len(objects) > 1 and not cascade:
        obstacles.append(_not_empty(name))
        objects = objects[:1]
    for dropped_kind, _form, dropped in objects:
        protection = (
            client.get_namespace_protection
            if dropped_kind == "namespace"
            else client.get_table_protection
        )
        if protection(dropped)["protected"]:
            obstacles.append(f"{display(dropped)} is protected.")
    views = "" if kind == "namespace" else _dependent_views(client, name).strip()
    if app.as_json:
        app.json(
            {
                "objects": [
                    {"kind": kind, "format": form, "name": dropped}
                    for kind, form, dropped in objects
                ],
                "dependent_views": views,
                "obstacles": obstacles,
            }
        )
    else:
        app.table(
            ["kind", "format", "name"],
            [(kind, form, display(dropped)) for kind, form, dropped in objects],
        )
        if views:
            echo(views, err=True)
    if obstacles:
        fail(" ".join(obstacles), CONFLICT)


def _dependent_views(client: Client, name: Parts) -> str:
    """A sentence about the views that read a table or view, directly or through others; or empty.

    Tables that only refer to its files, and their views, are not affected by a drop.
    """
    try:
        graph = client.get_table_lineage(name, direction="downstream", hops=10)
    except RequestFailed as error:
        if error.status in (404, 405):  # an older server
            return ""
        raise
    dropped = [node["id"] for node in graph["nodes"] if node["distance"] == 0]
    pending, affected = list(dropped), set(dropped)
    while pending:
        source = pending.pop()
        for edge in graph["edges"]:
            dependent = edge["dependent"]
            is_read = edge["source"] == source and edge["kind"] != "files"
            if is_read and dependent not in affected:
                affected.add(dependent)
                pending.append(dependent)
    affected -= set(dropped)
    views = [display(node["name"]) for node in graph["nodes"] if node["id"] in affected]
    if not views:
        return "" if graph["is_complete"] else "There may be dependent views. "
    least = "" if graph["is_complete"] else "at least "
    return f"Dependent views: {least}{', '.join(views)}. "


@command(root, "trash")
@click.option("--namespace", type=NAME, help="Only what was in this namespace or below it.")
def trash(app: App, *, namespace: Parts | None) -> None:
    """List dropped objects."""
    items = list(pages(app.client.list_trash, namespace=namespace))
    app.rows(
        items,
        ["item", "kind", "name", "dropped at", "by", "purged at", "state"],
        [
            (
                item["id"],
                item["kind"],
                display(item["name"]),
                item["dropped_at"],
                item["dropped_by"],
                item["purge_at"],
                item["state"],
            )
            for item in items
        ],
        empty="The trash is empty.",
    )


@command(root, "undrop")
@click.argument("name", type=NAME)
@click.option("--item", type=int, help="The number of the item, if several have the name.")
@click.option("--new", type=NAME, help="Another name for the object.")
@click.option("--with-parents", is_flag=True, help="Also restore dropped namespaces above it.")
@dry_run_option
def undrop(
    app: App,
    *,
    name: Parts,
    item: int | None,
    new: Parts | None,
    with_parents: bool,
    dry_run: bool,
) -> None:
    """Restore a dropped table, view or namespace from the trash."""
    if item is None:
        items = [row["id"] for row in pages(app.client.list_trash) if tuple(row["name"]) == name]
        if not items:
            fail(f"{display(name)} is not in the trash", MISSING)
        if len(items) > 1:
            listed = ", ".join(map(str, items))
            fail(f"Several dropped objects had this name: choose --item of {listed}", CONFLICT)
        item = items[0]
    answer = app.client.undrop_trash_item(
        item,
        new=None if new is None else list(new),
        with_parents=with_parents,
        dry_run=dry_run or UNSET,
    )
    if dry_run:
        _show_undrop(app, item, tuple(answer["name"]))
        return
    if app.as_json:
        app.json(answer)
    app.say(f"Restored {answer['kind']} {display(answer['name'])}.")


def _show_undrop(app: App, item: int, name: Parts) -> None:
    """Print the objects that the undrop of an item would restore, with their new names."""
    dropped = app.client.get_trash_item(item)
    rows = [dropped]
    if dropped["kind"] == "namespace" and dropped["transaction_id"] is not None:
        place = len(dropped["name"])
        below = pages(app.client.list_trash, namespace=tuple(dropped["name"]))
        rows += [
            row
            for row in below
            if row["transaction_id"] == dropped["transaction_id"]
            and row["name"][:place] == dropped["name"]
            and row["id"] != item
        ]
    objects = sorted(
        ((*name, *row["name"][len(dropped["name"]) :]), row["kind"], row["format"] or "")
        for row in rows
    )
    app.rows(
        [{"kind": kind, "format": form, "name": name} for name, kind, form in objects],
        ["kind", "format", "name"],
        [(kind, form, display(name)) for name, kind, form in objects],
    )


@command(root, "register")
@click.argument("location", required=False)
@click.option("--into", type=NAME, default="$", help="The namespace for the tables.")
@click.option("--format", "formats", multiple=True, type=click.Choice(["lance", "iceberg"]))
@click.option("--output", type=click.Path(path_type=Path), help="Write the plan, to be edited.")
@click.option("--plan", type=click.Path(path_type=Path, exists=True), help="A written plan.")
@click.option("--dry-run", is_flag=True, help="Only print the plan.")
@yes_option
def register(
    app: App,
    *,
    location: str | None,
    into: Parts,
    formats: Any,
    output: Path | None,
    plan: Path | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Find the tables below a location, and register them."""
    if (location is None) == (plan is None):
        fail("Name either a location or a plan with --plan", 2)
    if plan is not None:
        try:
            entries = json.loads(plan.read_text())["tables"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            fail(f"{plan} is not a plan of `monodon register --output`: {error}", 2)
    else:
        entries = _planned(app, str(location), into, formats)
    if output is not None:
        try:
            output.write_text(json.dumps({"tables": entries}, indent=2) + "\n")
        except OSError as error:
            fail(f"{output} cannot be written: {error.strerror}")
    if dry_run or output is not None or not entries:
        return
    confirm(f"Register {len(entries)} tables?", yes=yes)
    results = app.client.register_stored_tables(tables=entries)["results"]
    if app.as_json:
        app.json(results)
    else:
        app.table(
            ["table", "outcome", "message"],
            [(display(row["table"]), row["outcome"], row["message"]) for row in results],
        )
    if any(row["outcome"] == "refused" for row in results):
        raise click.exceptions.Exit(FAILED)


def _planned(app: App, location: str, into: Parts, formats: Any) -> list[Any]:
    """Print the plan of a location, and return the entries of its new tables."""
    answer = app.client.plan_registrations(
        location=location, namespace=list(into), formats=list(formats)
    )
    candidates = answer["candidates"]
    if app.as_json:
        app.json(answer)
    else:
        app.table(
            ["status", "format", "table", "location"],
            [
                (
                    row["status"],
                    row["format"],
                    display(row["table"]),
                    row["metadata_location"] or row["location"],
                )
                for row in candidates
            ],
            empty=f"No tables are below {location}.",
        )
        counts = Counter(row["status"] for row in candidates)
        app.say(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    if not answer["is_complete"]:
        click.echo("There are more tables; plan the directories separately.", err=True)
    return [
        {
            "format": row["format"],
            "table": row["table"],
            "location": row["metadata_location"] or row["location"],
        }
        for row in candidates
        if row["status"] == "new"
    ]
