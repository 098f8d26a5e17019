"""The server on this machine, which is started as separate processes."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

_PACKAGE = Path(__file__).resolve().parent
_REQUIRED = ("django", "granian", "celery")


class NotInstalled(Exception):
    """The server's packages are missing. The message names the remedy."""


def application() -> Path:
    """The directory with manage.py: in the wheel, or the checkout. Raises NotInstalled."""
    for directory in (_PACKAGE / "_app", _PACKAGE.parent):
        if (directory / "manage.py").is_file():
            missing = [name for name in _REQUIRED if importlib.util.find_spec(name) is None]
            if missing:
                break
            return directory
    raise NotInstalled(
        "The server is not installed here, only the client: pip install 'monodon[server]', or"
        " uvx --from 'monodon[server]' monodon up"
    )


def home(directory: Path) -> Path:
    """The directory for the files of the server: MONODON_HOME, or a directory of the user.

    In a checkout it is the same as that of ``make up``.
    """
    if path := os.environ.get("MONODON_HOME", "").strip():
        return Path(path).expanduser().absolute()
    if directory.name != "_app":
        return directory / ".monodon"
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "monodon"


def start_server() -> NoReturn:
    """Replace this process by the supervisor of the server. Raises NotInstalled."""
    directory = application()
    os.environ["MONODON_HOME"] = str(home(directory))
    if warehouse := os.environ.get("MONODON_WAREHOUSE", "").strip():
        os.environ["MONODON_WAREHOUSE"] = str(Path(warehouse).expanduser().absolute())
    os.chdir(directory)  # the server's packages are found there
    _replace(["-m", "server", "up"])


def manage(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by a command of manage.py. Raises NotInstalled."""
    directory = application()
    os.environ["MONODON_HOME"] = str(home(directory))
    _replace([str(directory / "manage.py"), *arguments])


def _replace(arguments: Sequence[str]) -> NoReturn:
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 -- the interpreter itself
