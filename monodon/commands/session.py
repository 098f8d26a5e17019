"""Commands for the connection: login, logout, profiles, completion."""

import os
import sys
import time
from datetime import UTC, datetime

import click

from monodon.client import Client, RequestFailed
from monodon.client.transport import is_loopback
from monodon.commands import completing
from monodon.commands.app import App, command, fail, root
from monodon.commands.texts import echo
from monodon.profiles import DEFAULT_URL, Profiles, Server
from monodon.sign_on import device, tokens
from monodon.sign_on.errors import SignOnFailed, SignOnRefused
from monodon.sign_on.issuer import DeviceClient, Issuer, client_of
from monodon.sign_on.requests import require_safe


@command(root, "login")
@click.argument("url", required=False)
@click.option("--name", metavar="PROFILE", help="The profile's name; default: 'default'.")
@click.option(
    "--sign-on/--ask-key",
    default=None,
    help="Single sign-on, or an API key; default: on a terminal, single sign-on if the server offers it.",
)
@click.option("--browser", is_flag=True, help="Open the address of the sign-in in a browser.")
def login(
    app: App, *, url: str | None, name: str | None, sign_on: bool | None, browser: bool
) -> None:
    """Log in to a server, and use it from now on.

    With single sign-on or an API key. The key is read from the terminal or from standard input, never from the command line.
    """
    profiles = Profiles.load()
    name = name or app.profile or profiles.current or "default"
    previous = profiles.servers.get(name)
    stored = previous.url if previous else DEFAULT_URL
    address = (url or app.url or os.environ.get("MONODON_URL") or stored).rstrip("/")
    if not address.lower().startswith(("http://", "https://")):
        fail(f"'{address}' is not a URL such as https://catalog.example.com", 2)
    client = _offered_client(app, address, sign_on)
    server = (
        _ask_key(app, address)
        if client is None
        else _sign_in(app, address, client, browser=browser)
    )
    try:
        with Profiles.locked() as profiles:
            # Tokens that were there are not revoked: some issuers would revoke the new ones with them.
            profiles.servers[name] = server
            profiles.current = name
            profiles.save()
    except BaseException:
        _revoke(app, server)
        raise
    app.say(f"Logged in to {address}. Profile '{name}' is in {profiles.path}.")
    if app.as_json:
        app.json({"profile": name, "url": address, "credentials": server.credentials})


def _offered_client(app: App, address: str, sign_on: bool | None) -> DeviceClient | None:
    """The client for single sign-on; None: ask for a key."""
    if sign_on is False or (sign_on is None and not sys.stdin.isatty()):
        return None
    try:
        require_safe(address, "The URL of the server")
    except SignOnFailed:
        if sign_on:
            raise
        return None
    client = client_of(address, app.transport)
    if client is None and sign_on:
        raise SignOnFailed(
            f"{address} offers no single sign-on for the command line; use a key: monodon login --ask-key"
        )
    return client


def _ask_key(app: App, address: str) -> Server:
    """Read a key that the server accepts. Raises RequestFailed, Unreachable."""
    if address.lower().startswith("http://") and not is_loopback(address):
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
    return Server(address, key)


def _sign_in(app: App, address: str, client: DeviceClient, *, browser: bool) -> Server:
    """Sign a person in. Raises SignOnFailed, and RequestFailed if the server does not accept the person."""
    with Issuer(client.issuer, app.transport) as issuer:
        authorization = device.start(issuer, client)
        minutes = max(1, round(authorization.expires_in / 60))
        echo(f"Sign-in at {client.issuer} as client {client.client_id}, for {address}.", err=True)
        echo(f"Open    {authorization.verification_uri}", err=True)
        echo(f"Enter   {authorization.user_code}", err=True)
        echo(f"Waiting for at most {minutes} min. Ctrl-C cancels.", err=True)
        if browser:
            complete = authorization.verification_uri_complete
            click.launch(complete or authorization.verification_uri)
        granted = device.wait(issuer, client, authorization)
    server = Server(address, sign_on=tokens.stored(client, granted))
    try:
        with Client(
            address, token=lambda: granted.access_token, transport=app.transport
        ) as monodon:
            _check(monodon)
    except BaseException as error:
        _revoke(app, server)  # otherwise tokens would stay valid that no profile has
        if isinstance(error, RequestFailed) and error.status == 401:
            raise SignOnRefused(f"{address} does not accept the sign-on: {error}") from error
        raise
    return server


def _revoke(app: App, server: Server) -> None:
    """Revoke the tokens of a sign-on at its issuer, or report that they are still valid."""
    if server.sign_on is None:
        return
    try:
        is_revoked = tokens.revoke(server.sign_on, app.transport)
        problem = "" if is_revoked else f"{server.sign_on.issuer} offers no revocation"
    except SignOnFailed as error:
        problem = str(error)
    if problem:
        echo(f"The tokens stay valid until they expire: {problem}.", err=True)


@command(root, "logout")
@click.argument("profile", required=False, shell_complete=completing.profiles)
def logout(app: App, *, profile: str | None) -> None:
    """Remove a profile from this machine. Tokens of a sign-on are revoked; a key stays valid."""
    with Profiles.locked() as profiles:
        name = profile or app.profile or profiles.current
        if not name:
            fail("There are no profiles.", 4)
        if name not in profiles.servers:
            fail(f"There is no profile '{name}'.", 4)
        server = profiles.servers.pop(name)
        if profiles.current == name:
            profiles.current = next(iter(profiles.servers), "")
        profiles.save()
    _revoke(app, server)
    if server.sign_on is not None and server.sign_on.expires_at > time.time():
        end = datetime.fromtimestamp(server.sign_on.expires_at, UTC)
        app.say(f"Monodon accepts the last access token until {end:%Y-%m-%d %H:%M:%S} UTC.")
    app.say(f"Removed profile '{name}'.")


@command(root, "profiles")
@click.option(
    "--use",
    metavar="NAME",
    shell_complete=completing.profiles,
    help="Make this profile the current one.",
)
def profiles(app: App, *, use: str | None) -> None:
    """List the profiles, or choose the current one."""
    if use is None:
        stored = Profiles.load()
    else:
        with Profiles.locked() as stored:
            if use not in stored.servers:
                fail(f"There is no profile '{use}': monodon --profile {use} login URL", 4)
            stored.current = use
            stored.save()
    listed = [
        {
            "name": name,
            "url": server.url,
            "credentials": server.credentials,
            "current": name == stored.current,
        }
        for name, server in stored.servers.items()
    ]
    app.rows(
        listed,
        ["profile", "url", "credentials", "current"],
        [
            (row["name"], row["url"], row["credentials"], "*" if row["current"] else "")
            for row in listed
        ],
        empty="No profiles: monodon login URL",
    )


@root.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    In bash: eval "$(monodon completion bash)"
    """
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
