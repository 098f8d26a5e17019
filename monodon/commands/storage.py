"""Commands for storage profiles: ls, test."""

import time

import click

from monodon.client import models, pages
from monodon.commands.app import FAILED, App, command, root
from monodon.commands.following import PAUSE

_ACTIVE = {"queued", "running"}


@root.group("storage")
def storage() -> None:
    """Storage profiles, for administrators."""


@command(storage, "ls")
def ls(app: App) -> None:
    """List storage profiles."""
    rows = list(pages(app.client.list_storage_profiles))
    app.rows(
        rows,
        ["profile", "kind", "roots", "endpoint", "identity", "access of clients"],
        [
            (
                row["name"],
                row["kind"],
                row["roots"],
                row["endpoint"],
                row["identity"],
                row["client_access"],
            )
            for row in rows
        ],
    )


@command(storage, "test")
@click.argument("profile")
def test(app: App, *, profile: str) -> None:
    """Test a storage profile, and print each check with its remedy."""
    row = app.client.test_storage_profile(profile)
    printed = 0
    while True:
        printed = _print(app, row, printed)
        if row["status"] not in _ACTIVE:
            break
        time.sleep(PAUSE)
        row = app.client.get_storage_test(profile, row["id"])
    if app.as_json:
        app.json(row)
    app.say(f"Test {row['id']} of {profile} {row['status']}.")
    if row["status"] != "passed":
        raise click.exceptions.Exit(FAILED)


def _print(app: App, test: models.StorageTest, printed: int) -> int:
    """Print the new checks, and return the number of all."""
    for check in test["checks"][printed:]:
        app.say(f"{check['status']:<8} {check['title']} ({check['seconds']:.1f} s)")
        for text in (check["cause"], check["remedy"]):
            if text:
                app.say(f"         {text}")
    return len(test["checks"])
