"""The command that changes labels."""

from collections.abc import Sequence

import click

from monodon.client import UNSET, models
from monodon.commands.app import NAME, App, command, display, dry_run_option, fail, root
from monodon.commands.catalog import annotations_of

Parts = tuple[str, ...]


@command(root, "label")
@click.argument("name", type=NAME)
@click.argument("labels", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--column", metavar="PATH", help="Label this column of the table.")
@click.option("--remove", multiple=True, metavar="KEY", help="Remove a label; repeatable.")
@dry_run_option
def label(
    app: App,
    *,
    name: Parts,
    labels: Sequence[str],
    column: str | None,
    remove: Sequence[str],
    dry_run: bool,
) -> None:
    """Set labels of a table, namespace or column. KEY=A,B sets two values.

    Without labels, list those of the object.
    """
    annotations = before = annotations_of(app.client, name)
    changes: dict[str, list[str]] = {key: [] for key in remove}
    for text in labels:
        key, equals, values = text.partition("=")
        if not equals:
            fail(f"'{text}' is not KEY=VALUE", 2)
        changes[key] = [value for value in values.split(",") if value]
    if changes and annotations["kind"] == "namespace":
        if column is not None:
            fail(f"{display(name)} is a namespace and has no columns", 2)
        annotations = app.client.update_namespace_annotations(
            name, labels=changes, dry_run=dry_run or UNSET
        )
    elif changes and column is not None:
        annotations = app.client.update_table_annotations(
            name, columns={column: {"labels": changes}}, dry_run=dry_run or UNSET
        )
    elif changes:
        annotations = app.client.update_table_annotations(
            name, labels=changes, dry_run=dry_run or UNSET
        )
    if dry_run:
        _show_label_changes(app, _labels(before, column), _labels(annotations, column))
        return
    listed = _labels(annotations, column)
    if app.as_json:
        app.json([{"column": path, **label} for path, label in listed])
        return
    app.table(
        ["column", "label", "values", "from"],
        [(path, label["key"], label["values"], label["source"]) for path, label in listed],
        empty="No labels.",
    )


def _labels(
    annotations: models.Annotations, column: str | None
) -> list[tuple[str, models.GivenLabel]]:
    """The labels of an object and its columns, or of one column, with the paths of the columns."""
    return [
        *((("", label) for label in annotations["labels"]) if column is None else ()),
        *(
            (described["path"], label)
            for described in annotations["columns"]
            if column in (None, described["path"])
            for label in described["labels"]
        ),
    ]


def _show_label_changes(
    app: App,
    before: list[tuple[str, models.GivenLabel]],
    after: list[tuple[str, models.GivenLabel]],
) -> None:
    old = {(path, label["key"]): label["values"] for path, label in before}
    new = {(path, label["key"]): label["values"] for path, label in after}
    changes = [
        {"column": path, "key": key, "before": values, "after": new_values}
        for path, key in sorted(old.keys() | new.keys())
        for values, new_values in [(old.get((path, key)), new.get((path, key)))]
        if values != new_values
    ]
    app.rows(
        changes,
        ["column", "label", "before", "after"],
        [(row["column"], row["key"], row["before"], row["after"]) for row in changes],
        empty="Nothing would change.",
    )
