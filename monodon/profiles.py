"""Profiles: the servers that a user works with, and the keys or tokens for them.

They are in a JSON file of mode 0600: ``$MONODON_CONFIG``, by default ``~/.config/monodon/profiles.json``. Processes that
change it lock another file, ``profiles.json.lock``, because each change replaces the file itself.
"""

import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_URL = "http://127.0.0.1:2333"
_LOCK_SECONDS = 60.0
"""Longer than the renewal of a token takes if the issuer does not answer."""
_PAUSE_SECONDS = 0.05


class ProfileError(Exception):
    """The file or a profile cannot be used. The message names the remedy."""


@dataclass(frozen=True)
class SignOn:
    """The tokens of a person, and the public client at the issuer that they belong to."""

    issuer: str
    client_id: str
    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    """Empty: the sign-on ends with the access token."""
    refresh_at: float
    """When to renew the access token, in seconds since the epoch."""
    expires_at: float
    """When the access token expires, in seconds since the epoch."""


@dataclass
class Server:
    """A server with a key, or with the tokens of a sign-on."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    sign_on: SignOn | None = None

    @property
    def credentials(self) -> str:
        """Their kind."""
        return "key" if self.sign_on is None else "sign-on"

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> "Server":
        """Raises KeyError, TypeError and ValueError for an entry that cannot be read."""
        if "sign_on" not in entry:
            return cls(str(entry["url"]), str(entry["api_key"]))
        tokens = entry["sign_on"]
        sign_on = SignOn(
            issuer=str(tokens["issuer"]),
            client_id=str(tokens["client_id"]),
            access_token=str(tokens["access_token"]),
            refresh_token=str(tokens["refresh_token"]),
            refresh_at=float(tokens["refresh_at"]),
            expires_at=float(tokens["expires_at"]),
        )
        return cls(str(entry["url"]), sign_on=sign_on)

    def write(self) -> dict[str, Any]:
        if self.sign_on is None:
            return {"url": self.url, "api_key": self.api_key}
        return {"url": self.url, "sign_on": asdict(self.sign_on)}


@dataclass(frozen=True)
class Connection:
    """The server of a command, and the key or the sign-on for it."""

    url: str
    api_key: str | None = None
    sign_on: SignOn | None = None
    profile: str = ""
    """The profile of the key or the sign-on; empty: there is none."""


@dataclass
class Profiles:
    path: Path
    current: str = ""
    servers: dict[str, Server] = field(default_factory=dict)
    """By the name of the profile."""

    @classmethod
    def load(cls, environment: Mapping[str, str] = os.environ) -> "Profiles":
        """Raises ProfileError if the file cannot be read, or other users can read it."""
        path = _path(environment)
        try:
            mode = path.stat().st_mode
            content = path.read_bytes()
        except FileNotFoundError:
            return cls(path)
        except OSError as error:
            raise ProfileError(f"{path} cannot be read: {error.strerror}") from error
        if stat.S_IMODE(mode) & 0o077:
            raise ProfileError(
                f"{path} contains keys, and other users may read it: chmod 600 {path}"
            )
        try:
            document: dict[str, Any] = json.loads(content)
            servers = {name: Server.read(entry) for name, entry in document["profiles"].items()}
            return cls(path, str(document["current"]), servers)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProfileError(
                f"{path} is not a file of profiles: remove it, and log in"
            ) from error

    @classmethod
    @contextmanager
    def locked(cls, environment: Mapping[str, str] = os.environ) -> Iterator["Profiles"]:
        """The profiles, which no other process changes meanwhile. Raises as ``load``."""
        path = _path(environment)
        lock = path.with_name(f"{path.name}.lock")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ProfileError(f"{lock} cannot be written: {error.strerror}") from error
        try:
            _lock(descriptor, lock)
            yield cls.load(environment)
        finally:
            os.close(descriptor)

    def save(self) -> None:
        """Replace the file. Raises ProfileError."""
        servers = {name: server.write() for name, server in self.servers.items()}
        content = json.dumps({"current": self.current, "profiles": servers}, indent=2)
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # mkstemp creates files of mode 0600.
            descriptor, draft = tempfile.mkstemp(dir=self.path.parent)
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{content}\n")
            Path(draft).replace(self.path)
        except OSError as error:
            raise ProfileError(f"{self.path} cannot be written: {error.strerror}") from error

    def connection(
        self,
        *,
        profile: str | None = None,
        url: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> Connection:
        """The server of a command, with its key or sign-on: options come before the environment, then the profile.

        The key and the tokens of a profile are sent only to the URL of the profile. Raises ProfileError for an
        unknown profile.
        """
        name = profile or environment.get("MONODON_PROFILE") or self.current
        if name and name not in self.servers:
            raise ProfileError(f"There is no profile '{name}': monodon --profile {name} login URL")
        stored = self.servers.get(name)
        address = (url or "").rstrip("/")
        if not address and not profile:
            address = environment.get("MONODON_URL", "").strip().rstrip("/")
        address = address or (stored.url if stored else DEFAULT_URL)
        if (key := environment.get("MONODON_API_KEY")) and not profile:
            return Connection(address, key)
        if stored is not None and stored.url == address:
            return Connection(address, stored.api_key, stored.sign_on, name)
        return Connection(address)


def _lock(descriptor: int, path: Path) -> None:
    """Lock the open file. Raises ProfileError after a minute."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ProfileError(f"{path} is locked by another process") from None
            time.sleep(_PAUSE_SECONDS)
        except OSError as error:
            raise ProfileError(f"{path} cannot be locked: {error.strerror}") from error
        else:
            return


def _path(environment: Mapping[str, str]) -> Path:
    if path := environment.get("MONODON_CONFIG"):
        return Path(path).expanduser()
    base = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "monodon" / "profiles.json"
