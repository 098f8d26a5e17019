"""Commands that read the catalog: ls, describe, search, lineage, history, diff."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal

import click

from monodon.client import Client, RequestFailed, models
from monodon.commands.app import (
    DIFFERENT,
    MISSING,
    NAME,
    App,
    command,
    display,
    fail,
    limit_option,
    root,
    shell_name,
)
from monodon.commands.schemas import Column, compare, iceberg_columns, lance_columns
from monodon.commands.texts import echo

Parts = tuple[str, ...]


@command(root, "ls")
@click.argument("namespace", type=NAME, default="$")
@click.option("-r", "--recursive", is_flag=True, help="Also list what is in namespaces below.")
def ls(app: App, *, namespace: Parts, recursive: bool) -> None:
    """List namespaces, tables and views.

    Those of NAMESPACE; default: the root.
    """
    entries = entries_of(app.client, namespace, recursive=recursive)
    if app.as_json:
        app.json([{"kind": kind, "format": form, "name": name} for kind, form, name in entries])
        return
    app.table(
        ["kind", "format", "name"],
        [(kind, form, display(name)) for kind, form, name in entries],
        empty=f"{display(namespace)} is empty.",
    )


@command(root, "describe")
@click.argument("name", type=NAME)
def describe(app: App, *, name: Parts) -> None:
    """Show a table, view or namespace.

    Its location, columns, owner and labels.
    """
    annotations = annotations_of(app.client, name)
    details = _details(app.client, name, annotations)
    if app.as_json:
        app.json({**annotations, **details})
        return
    app.facts(
        [
            ("name", display(name)),
            ("kind", annotations["kind"]),
            ("format", annotations["format"]),
            ("location", details.get("location")),
            ("version", details.get("version")),
            ("owner", annotations["owner"]),
            ("sensitivity", annotations["sensitivity"]),
            ("labels", [_label(label) for label in annotations["labels"]]),
            ("description", annotations["description"]),
            *sorted((details.get("properties") or {}).items()),
        ]
    )
    columns = details.get("columns", [])
    if columns:
        texts = {column["path"]: column["description"] for column in annotations["columns"]}
        echo()
        app.table(
            ["column", "type", "required", "description"],
            [
                (column["name"], column["type"], column["required"], texts.get(column["name"]))
                for column in columns
            ],
        )


@command(root, "search")
@click.argument("query", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True)
def search(app: App, *, query: Sequence[str], limit: int) -> None:
    """Search tables, views and namespaces.

    With words, or filters such as owner:ada or label:pii.
    """
    page = app.client.search(q=" ".join(query), limit=limit)
    if app.as_json:
        app.json(page)
        return
    if page["is_corrected"]:
        app.say("No object matches exactly; these are similar.")
    app.table(
        ["kind", "format", "name", "owner", "description"],
        [
            (
                row["kind"],
                row["format"],
                display(row["identifier"]),
                row["owner"],
                row["description"][:80],
            )
            for row in page["results"]
        ],
        empty="No results.",
    )


@command(root, "lineage")
@click.argument("table", type=NAME)
@click.option(
    "--hops", type=click.IntRange(1, 10), default=3, show_default=True, help="Steps from TABLE."
)
@click.option(
    "--direction",
    type=click.Choice(["upstream", "downstream", "both"]),
    default="both",
    show_default=True,
)
def lineage(
    app: App,
    *,
    table: Parts,
    hops: int,
    direction: Literal["upstream", "downstream", "both"],
) -> None:
    """Show the sources and the dependents of a table or view."""
    graph = app.client.get_table_lineage(table, hops=hops, direction=direction)
    if app.as_json:
        app.json(graph)
        return
    nodes = {node["id"]: node for node in graph["nodes"]}
    app.table(
        ["source", "dependent", "kind", "steps"],
        [
            (
                display(source["name"]),
                display(dependent["name"]),
                edge["kind"],
                max(abs(source["distance"]), abs(dependent["distance"])),
            )
            for edge in graph["edges"]
            for source, dependent in [(nodes[edge["source"]], nodes[edge["dependent"]])]
        ],
        empty="No sources or dependents that you may browse.",
    )
    for node in graph["nodes"]:
        if node["problem"]:
            app.say(f"{display(node['name'])}: {node['problem']}")
    if graph["unresolved"]:
        app.say("Not an object that you may browse: " + ", ".join(graph["unresolved"]))
    if not graph["is_complete"]:
        app.say("There are more objects than the graph may have.")


@command(root, "history")
@click.argument("table", type=NAME)
@limit_option
def history(app: App, *, table: Parts, limit: int) -> None:
    """List the versions of a table, newest first."""
    versions = _versions(app.client, table, limit)
    app.rows(
        versions,
        ["version", "committed at", "operation"],
        [(row["version"], row["committed_at"], row["operation"]) for row in versions],
    )


@command(root, "diff")
@click.argument("table", type=NAME)
@click.argument("before", type=int)
@click.argument("after", type=int, required=False)
@click.option("--exit-code", is_flag=True, help="Exit with 8 if the schemas differ.")
def diff(app: App, *, table: Parts, before: int, after: int | None, exit_code: bool) -> None:
    """Compare the schemas of two versions of a table.

    Versions of Lance, snapshots of Iceberg. Without AFTER, compare with the current schema.
    """
    client = app.client
    form = format_of(client, table)
    changes = compare(_schema(client, table, form, before), _schema(client, table, form, after))
    if app.as_json:
        app.json(changes)
    else:
        for change in changes:
            echo(str(change["text"]))
        if not changes:
            echo("The schemas are equal.")
    if changes and exit_code:
        raise click.exceptions.Exit(DIFFERENT)


def annotations_of(client: Client, name: Parts) -> models.Annotations:
    """The annotations of a table, a view or, if there is none, a namespace."""
    if name:
        try:
            return client.get_table_annotations(name)
        except RequestFailed as error:
            missing = error
            if error.status != 404:
                raise
    try:
        return client.get_namespace_annotations(name)
    except RequestFailed as error:
        if not name or error.status != 404:
            raise
        if missing.code != "table-not-found":
            raise missing from None
        fail(f"Table, view or namespace '{display(name)}' does not exist.", MISSING)


def format_of(client: Client, table: Parts) -> str:
    """``lance`` or ``iceberg``. Views have the format of their protocol. Raises RequestFailed."""
    return str(client.get_table_annotations(table)["format"])


def _label(label: models.GivenLabel) -> str:
    return f"{label['key']}={','.join(label['values'])}" if label["values"] else label["key"]


def entries_of(
    client: Client, namespace: Parts, *, recursive: bool
) -> Iterator[tuple[str, str, Parts]]:
    """Kind, format and name of each object."""
    for name in sorted(client.list_namespaces(namespace)):
        below = (*namespace, name)
        yield "namespace", "", below
        if recursive:
            yield from entries_of(client, below, recursive=True)
    objects = [("table", "lance", name) for name in client.list_lance_tables(namespace)]
    objects += [("table", "iceberg", name) for name in client.list_iceberg_tables(namespace)]
    objects += [("view", "iceberg", name) for name in client.list_iceberg_views(namespace)]
    for kind, form, name in sorted(objects, key=lambda item: item[2]):
        yield kind, form, (*namespace, name)


def _details(client: Client, name: Parts, annotations: models.Annotations) -> dict[str, Any]:
    """Location, version, properties and columns, as far as the caller may read them."""
    if annotations["kind"] == "namespace":
        return {}
    if annotations["kind"] == "view" and annotations["format"] != "lance":
        metadata = client.load_iceberg_view(name)["metadata"]
        version = metadata["current-version-id"]
    elif annotations["format"] == "iceberg":
        metadata = client.load_iceberg_table(name)["metadata"]
        version = metadata.get("current-snapshot-id")
    else:
        answer = client.describe_lance_table(name)
        return {
            "location": answer.get("location"),
            "version": answer.get("version"),
            "properties": answer.get("properties") or {},
            "columns": [_column(column) for column in lance_columns(answer.get("schema") or {})],
        }
    return {
        "location": metadata["location"],
        "version": version,
        "properties": metadata.get("properties", {}),
        "columns": [_column(column) for column in iceberg_columns(metadata)],
    }


def _column(column: Column) -> dict[str, object]:
    return {"name": column.name, "type": column.type, "required": column.required}


def _versions(client: Client, table: Parts, limit: int) -> list[dict[str, object]]:
    if format_of(client, table) == "lance":
        return [
            {
                "version": row["version"],
                "committed_at": _time(row.get("timestamp_millis")),
                "operation": (row.get("metadata") or {}).get("operation", ""),
            }
            for row in client.list_lance_versions(table, limit)
        ]
    metadata = client.load_iceberg_table(table)["metadata"]
    snapshots = sorted(
        metadata.get("snapshots", []), key=lambda row: row["timestamp-ms"], reverse=True
    )
    return [
        {
            "version": row["snapshot-id"],
            "committed_at": _time(row["timestamp-ms"]),
            "operation": row.get("summary", {}).get("operation", ""),
        }
        for row in islice(snapshots, limit)
    ]


def _time(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def _schema(client: Client, table: Parts, form: str, version: int | None) -> list[Column]:
    if form == "lance":
        answer = client.describe_lance_table(table, version=version)
        return lance_columns(answer.get("schema") or {})
    metadata = client.load_iceberg_table(table)["metadata"]
    if version is None:
        return iceberg_columns(metadata)
    schemas = {row["snapshot-id"]: row.get("schema-id") for row in metadata.get("snapshots", [])}
    if version in schemas:
        return iceberg_columns(metadata, schemas[version])
    return fail(
        f"{display(table)} has no snapshot {version}: monodon history {shell_name(table)}", MISSING
    )
