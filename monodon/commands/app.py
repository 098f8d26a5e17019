"""What all commands share: the connection, the output, and errors with their exit codes."""

import errno
import functools
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import click

from monodon import __version__
from monodon.client import Client, ClientError, InvalidName, RequestFailed, Unreachable, names
from monodon.commands import completing
from monodon.commands.texts import echo, printable, to_json
from monodon.local import NotInstalled
from monodon.profiles import Connection, ProfileError, Profiles
from monodon.sign_on.errors import SignOnRefused, SignOnUnavailable
from monodon.sign_on.tokens import TokenSource

if TYPE_CHECKING:
    import httpx
    from click.shell_completion import CompletionItem
    from rich.console import Console

OK, REFUSED, USAGE, DENIED, MISSING, CONFLICT, UNAVAILABLE, FAILED, DIFFERENT = range(9)
INTERRUPTED = 130
"""Exit codes. docs/command-line.md lists them."""

_BY_STATUS = {401: DENIED, 403: DENIED, 404: MISSING, 409: CONFLICT, 408: UNAVAILABLE}
_REMEDIES = {
    401: "Log in with `monodon login`, or set MONODON_API_KEY.",
    429: "Try again later.",
    503: "Try again later.",
}
_FRACTION = re.compile(r"(?<=^....-..-..T..:..:..)\.[0-9]+Z$")
"""The fraction of the second of a time, which people need not read; JSON has it."""
Row = Sequence[object]


@dataclass
class App:
    """The options of the command line, and the output."""

    profile: str | None = None
    url: str | None = None
    as_json: bool = False
    transport: "httpx.BaseTransport | None" = None
    """Another transport for requests, for tests."""
    timeout: float = 60.0
    """Seconds for connecting, and between two parts of an answer."""
    _client: Client | None = field(default=None, init=False)

    @property
    def client(self) -> Client:
        if self._client is None:
            connection = self.connection()
            self._client = Client(
                connection.url,
                connection.api_key,
                token=self._token_source(connection),
                timeout=self.timeout,
                transport=self.transport,
            )
        return self._client

    def _token_source(self, connection: Connection) -> TokenSource | None:
        if connection.sign_on is None:
            return None
        return TokenSource(
            connection.profile, connection.url, connection.sign_on, transport=self.transport
        )

    def connection(self) -> Connection:
        return Profiles.load().connection(profile=self.profile, url=self.url)

    # -- output

    def json(self, value: object) -> None:
        """Print a value as JSON."""
        click.echo(to_json(value, indent=2))

    def json_line(self, value: object) -> None:
        """Print one of many values as JSON, on one line."""
        click.echo(to_json(value))

    def rows(
        self, value: object, headers: Sequence[str], rows: Iterable[Row], *, empty: str = ""
    ) -> None:
        """Print the value as JSON, or its rows as a table."""
        if self.as_json:
            self.json(value)
        else:
            self.table(headers, rows, empty=empty)

    def table(self, headers: Sequence[str], rows: Iterable[Row], *, empty: str = "") -> None:
        """Print rows: as a table on a terminal, otherwise as lines with tabs."""
        texts = [[_cell(value) for value in row] for row in rows]
        if not sys.stdout.isatty():
            for row in texts:
                click.echo("\t".join(row))
            return
        if not texts:
            echo(empty or "Nothing.")
            return
        from rich.table import Table
        from rich.text import Text

        grid = Table(box=None, pad_edge=False, header_style="bold")
        for header in headers:
            grid.add_column(header, overflow="fold")
        for row in texts:
            grid.add_row(*(Text(text) for text in row))
        self.console().print(grid)

    def facts(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Print names with their values, without those that are empty."""
        filled = [
            (printable(name), _cell(value)) for name, value in pairs if value not in (None, "", [])
        ]
        width = max((len(name) for name, _ in filled), default=0)
        for name, text in filled:
            click.echo(f"{name:<{width}}  {text}")

    def console(self) -> "Console":
        from rich.console import Console

        return Console()

    def say(self, text: str) -> None:
        """Print a message for people, which programs do not read."""
        if not self.as_json:
            echo(text)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(item) for item in value)
    return _FRACTION.sub("Z", printable(str(value)))


pass_app = click.make_pass_decorator(App)


if TYPE_CHECKING:
    _NameBase = click.ParamType[tuple[str, ...]]
else:  # generic since click 8.4
    _NameBase = click.ParamType


limit_option = click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would change; no change.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


class NameType(_NameBase):
    """A name of a namespace or a table: prod.users, prod$users, prod."a.b"."""

    name = "name"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return names.parse(value)
        except InvalidName as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        app, options = ctx.ensure_object(App), ctx.find_root().params
        app.profile, app.url = options.get("profile"), options.get("url")
        app.timeout = completing.SECONDS
        with suppress(ClientError, ProfileError, OSError):
            return [CompletionItem(name) for name in completing.objects(app.client, incomplete)]
        return []


NAME = NameType()


def command(group: click.Group, name: str, **options: Any) -> Callable[[Any], click.Command]:
    """A command with ``--json``, whose function gets the App first."""

    def decorate(function: Callable[..., None]) -> click.Command:
        def set_json(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
            if value:
                context.ensure_object(App).as_json = True

        as_json = click.option(
            "--json",
            is_flag=True,
            expose_value=False,
            callback=set_json,
            help="Print JSON.",
        )
        return group.command(name, **options)(as_json(pass_app(function)))

    return decorate


def handled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Print errors as one line, and exit with their code."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except RequestFailed as error:
            remedy = _REMEDIES.get(error.status, "")
            if error.status >= 500 and error.request_id:
                remedy = f"{remedy} Request {error.request_id}.".strip()
            unavailable = error.status == 429 or error.status >= 500
            code = UNAVAILABLE if unavailable else _BY_STATUS.get(error.status, REFUSED)
            fail(f"{str(error).rstrip('.')}. {remedy}".strip(), code)
        except Unreachable as error:
            fail(f"{error}. Is the URL right? See `monodon profiles`.", UNAVAILABLE)
        except InvalidName as error:
            fail(str(error), USAGE)
        except SignOnRefused as error:
            fail(str(error), DENIED)
        except SignOnUnavailable as error:
            fail(str(error), UNAVAILABLE)
        except (ProfileError, NotInstalled, ClientError) as error:
            fail(str(error), REFUSED)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader, such as head, has ended: click is silent
                raise
            where = "The output" if error.filename is None else error.filename
            fail(f"{where}: {error.strerror or error}", REFUSED)

    return run


_OTHER_NAMES = {"import": "register"}
"""Names that users of other catalogs try, and that the help does not list."""


class _Root(click.Group):
    """Prints errors of all commands as one line."""

    def invoke(self, ctx: click.Context) -> object:
        return handled(super().invoke)(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, _OTHER_NAMES.get(cmd_name, cmd_name))


@click.group(
    cls=_Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog='Names are written as prod.users or prod$users; quotes protect dots: prod."a.b".',
)
@click.version_option(__version__, prog_name="monodon")
@click.option(
    "--profile",
    metavar="NAME",
    shell_complete=completing.profiles,
    help="The profile to use; default: the current one.",
)
@click.option("--url", metavar="URL", help="The server, if it is not that of the profile.")
@click.pass_context
def root(context: click.Context, profile: str | None, url: str | None) -> None:
    """Work with a Monodon server, and run one on this machine."""
    app = context.ensure_object(App)
    app.profile, app.url = profile, url


def fail(message: str, code: int = REFUSED) -> NoReturn:
    echo(f"monodon: {' '.join(message.split())}", err=True)
    sys.exit(code)


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal. Without one, ``--yes`` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"{question} Confirm with --yes.", USAGE)
    if not click.confirm(printable(question), err=True):
        fail("Nothing was changed.", REFUSED)


display = names.display


def shell_name(name: Sequence[str]) -> str:
    """The name as an argument of a shell's command."""
    return shlex.quote(display(name))
