"""Profiles: the servers that a user works with, and the keys for them.

They are in a JSON file of mode 0600: ``$MONODON_CONFIG``, by default ``~/.config/monodon/profiles.json``.
"""

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_URL = "http://127.0.0.1:2333"


class ProfileError(Exception):
    """The file or a profile cannot be used. The message names the remedy."""


@dataclass(frozen=True)
class Connection:
    """The server of a command, and the key for it. ``source`` says where the key comes from."""

    url: str
    api_key: str | None
    source: str


@dataclass
class Profiles:
    path: Path
    current: str = ""
    servers: dict[str, dict[str, str]] = field(default_factory=dict)
    """``url`` and ``api_key`` by the name of the profile."""

    @classmethod
    def load(cls, environment: Mapping[str, str] = os.environ) -> "Profiles":
        """Raises ProfileError if the file cannot be read, or other users can read it."""
        path = _path(environment)
        try:
            mode = path.stat().st_mode
            content = path.read_text()
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
            return cls(path, document["current"], document["profiles"])
        except (ValueError, KeyError, TypeError) as error:
            raise ProfileError(
                f"{path} is not a file of profiles: remove it, and log in"
            ) from error

    def save(self) -> None:
        """Replace the file. Raises ProfileError."""
        content = json.dumps({"current": self.current, "profiles": self.servers}, indent=2)
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
        """The server and the key of a command: options come before the environment, then the profile.

        The key of a profile is sent only to the URL of the profile. Raises ProfileError for an unknown profile.
        """
        name = profile or environment.get("MONODON_PROFILE") or self.current
        if name and name not in self.servers:
            raise ProfileError(f"There is no profile '{name}': monodon --profile {name} login URL")
        stored = self.servers.get(name, {})
        address = (url or "").rstrip("/")
        if not address and not profile:
            address = environment.get("MONODON_URL", "").strip().rstrip("/")
        address = address or stored.get("url", DEFAULT_URL)
        if (key := environment.get("MONODON_API_KEY")) and not profile:
            return Connection(address, key, "MONODON_API_KEY")
        if stored.get("url") == address:
            return Connection(address, stored.get("api_key"), f"profile {name}")
        return Connection(address, None, "")


def _path(environment: Mapping[str, str]) -> Path:
    if path := environment.get("MONODON_CONFIG"):
        return Path(path).expanduser()
    base = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "monodon" / "profiles.json"
