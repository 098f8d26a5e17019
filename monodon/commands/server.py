"""Commands for a server on this machine: up, manage, backup, restore."""

from collections.abc import Sequence
from pathlib import Path

import click

from monodon import local
from monodon.commands.app import root


@root.command("up")
def up() -> None:
    """Start a server on this machine; Ctrl-C stops it.

    Needs monodon[server]. Settings are environment variables: MONODON_HOME is the directory of its
    files, MONODON_PORT its port, 2333 by default.
    """
    local.start_server()


@root.command("manage", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def manage(arguments: Sequence[str]) -> None:
    """Run a command of manage.py, for operators.

    These commands need access to the database: monodon manage help lists them.
    """
    local.manage(arguments or ["help"])


@root.command("backup")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--warehouse", is_flag=True, help="Also copy the local warehouse.")
def backup(directory: Path, warehouse: bool) -> None:
    """Back up the server of this machine to a new DIRECTORY.

    The backup has the database, the secret key and the settings.
    """
    options = ["--warehouse"] if warehouse else []
    local.manage(["backup", str(directory.absolute()), *options])


@root.command("restore")
@click.argument("directory", type=click.Path(path_type=Path, exists=True))
def restore(directory: Path) -> None:
    """Restore a backup into an empty database, and verify it."""
    local.manage(["restore", str(directory.absolute())])
