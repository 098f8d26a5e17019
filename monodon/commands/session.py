"""Commands for the connection: login, logout, profiles, completion."""

import os
import sys
from urllib.parse import urlsplit

import click

from monodon.client import Client, RequestFailed
from monodon.commands.app import App, command, fail, root
from monodon.profiles import DEFAULT_URL, Profiles


@command(root, "login")
@click.argument("url", required=False)
@click.option("--name", metavar="PROFILE", help="The profile's name; default: 'default'.")
def login(app: App, *, url: str | None, name: str | None) -> None:
    """Store the URL of a server and an API key in a profile, and use it from now on.

    The key is read from the terminal or from standard input, never from the command line.
    """
    profiles = Profiles.load()
    name = name or app.profile or profiles.current or "default"
    stored = profiles.servers.get(name, {}).get("url", DEFAULT_URL)
    address = (url or app.url or os.environ.get("MONODON_URL") or stored).rstrip("/")
    if "://" not in address:
        fail(f"'{address}' is not a URL such as https://catalog.example.com", 2)
    parts = urlsplit(address)
    if parts.scheme == "http" and parts.hostname not in {"localhost", "127.0.0.1", "::1"}:
        click.echo(
            "The connection is not encrypted: others on the network can read the key.", err=True
        )
    if sys.stdin.isatty():
        key = click.prompt("API key", hide_input=True, err=True)
    else:
        key = sys.stdin.readline().strip()
    if not key:
        fail("No key was entered.", 2)
    with Client(address, key, transport=app.transport) as client:
        _check(client)
    profiles.servers[name] = {"url": address, "api_key": key}
    profiles.current = name
    profiles.save()
    app.say(f"Logged in to {address}. Profile '{name}' is in {profiles.path}.")
    if app.as_json:
        app.json({"profile": name, "url": address})


@command(root, "logout")
@click.argument("profile", required=False)
def logout(app: App, *, profile: str | None) -> None:
    """Remove a profile with its key from this machine. The key itself stays valid."""
    profiles = Profiles.load()
    name = profile or app.profile or profiles.current
    if name not in profiles.servers:
        fail(f"There is no profile '{name}'.", 4)
    del profiles.servers[name]
    if profiles.current == name:
        profiles.current = next(iter(profiles.servers), "")
    profiles.save()
    app.say(f"Removed profile '{name}'.")


@command(root, "profiles")
@click.option("--use", metavar="NAME", help="Make this profile the current one.")
def profiles(app: App, *, use: str | None) -> None:
    """List the profiles, or choose the current one."""
    stored = Profiles.load()
    if use is not None:
        if use not in stored.servers:
            fail(f"There is no profile '{use}': monodon --profile {use} login URL", 4)
        stored.current = use
        stored.save()
    listed = [
        {"name": name, "url": server["url"], "current": name == stored.current}
        for name, server in stored.servers.items()
    ]
    if app.as_json:
        app.json(listed)
        return
    app.table(
        ["profile", "url", "current"],
        [(row["name"], row["url"], "*" if row["current"] else "") for row in listed],
        empty="No profiles: monodon login URL",
    )


@root.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: eval "$(monodon completion bash)"."""
    from click.shell_completion import get_completion_class

    generator = get_completion_class(shell)
    assert generator is not None  # noqa: S101 -- one of click's own
    click.echo(generator(root, {}, "monodon", "_MONODON_COMPLETE").source())


def _check(client: Client) -> None:
    """Send a request that every valid key may send. Raises RequestFailed, Unreachable."""
    try:
        client.get_summary(days=1)
    except RequestFailed as error:
        if error.status != 403:  # valid, with few privileges
            raise
