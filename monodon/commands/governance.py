"""Commands for governance files: export, diff, apply."""

import sys
from pathlib import Path
from typing import Any

import click

from monodon.client import models
from monodon.commands.app import DIFFERENT, NAME, App, command, confirm, fail, root, yes_option
from monodon.commands.texts import echo

Parts = tuple[str, ...]


@root.group("governance")
def governance() -> None:
    """Grants, owners, labels and other settings as a YAML file."""


@command(governance, "export")
@click.option("--namespace", type=NAME, help="Only this namespace and below.")
@click.option("--output", type=click.File("w"), default="-", help="A file; default: stdout.")
def export(app: App, *, namespace: Parts | None, output: Any) -> None:
    """Export the current state."""
    state = app.client.get_governance(namespace=namespace)
    if app.as_json:
        app.json(state)
        return
    from monodon.commands import yaml_files

    yaml_files.write(state, output)


@command(governance, "diff")
@click.argument("file")
@click.option("--exit-code", is_flag=True, help="Exit with 8 if there are changes.")
def diff(app: App, *, file: str, exit_code: bool) -> None:
    """Show the changes that applying FILE would make.

    - for standard input.
    """
    changes = app.client.plan_governance(**_document(file))
    _show(app, changes, "would change")
    if exit_code and changes["changes"]:
        raise click.exceptions.Exit(DIFFERENT)


@command(governance, "apply")
@click.argument("file")
@click.option("--dry-run", is_flag=True, help="Only show the changes, like diff.")
@yes_option
def apply(app: App, *, file: str, dry_run: bool, yes: bool) -> None:
    """Apply FILE, completely or not at all; - for standard input."""
    document = _document(file)
    if dry_run:
        _show(app, app.client.plan_governance(**document), "would change")
        return
    if not yes:
        planned = app.client.plan_governance(**document)
        _show(app, planned, "would change")
        if not planned["changes"]:
            return
        confirm("Apply these changes?", yes=yes)
    _show(app, app.client.apply_governance(**document), "changed")


def _document(file: str) -> dict[str, Any]:
    """The document of a YAML or JSON file, which the server checks."""
    from monodon.commands import yaml_files

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        document = yaml_files.load(text)
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}", 2)
    except ValueError as error:
        fail(f"{file} is not a valid YAML file: {error}", 2)
    sections = set(models.Document.__annotations__)
    if not isinstance(document, dict) or not sections.issuperset(document):
        listed = ", ".join(sorted(sections))
        fail(f"{file} is not a governance file: its entries must be {listed}", 2)
    if "version" not in document:
        fail(f"{file} has no version: add the line version: 1", 2)
    return document


def _show(app: App, changes: models.Changes, verb: str) -> None:
    if app.as_json:
        app.json(changes["changes"])
        return
    for change in changes["changes"]:
        before, after = change["before"], change["after"]
        echo(f"{change['target']}: {change['field']}: {before!r} -> {after!r}")
    echo(f"{len(changes['changes']) or 'nothing'} {verb}")
