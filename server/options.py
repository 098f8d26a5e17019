"""The environment variables that `python -m server up` reads."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from server.errors import ServerError

PROJECT = Path(__file__).resolve().parent.parent


def _number(environment: Mapping[str, str], name: str, default: int, *, low: int, high: int) -> int:
    text = environment.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ServerError(f"{name} must be a number from {low} to {high}, not {text!r}.")
    return int(text)


@dataclass(frozen=True)
class Options:
    home: Path
    host: str
    port: int
    web_workers: int
    web_threads: int
    max_connections: int
    """Of a web process."""
    worker_concurrency: int
    """The number of jobs that run at once."""
    queue: str
    """The Celery queue of periodic tasks; that of jobs has the same name with ``.jobs``."""
    database_url: str | None
    redis_url: str | None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Options":
        """Raises ServerError on a value that cannot be used."""
        cpus = os.cpu_count() or 2
        home = environment.get("MONODON_HOME", "").strip()
        return cls(
            home=Path(home).expanduser().absolute() if home else PROJECT / ".monodon",
            host=environment.get("MONODON_HOST", "").strip() or "127.0.0.1",
            port=_number(environment, "MONODON_PORT", 2333, low=1, high=65535),
            web_workers=_number(
                environment, "MONODON_WEB_WORKERS", min(max(cpus, 2), 4), low=1, high=64
            ),
            web_threads=_number(environment, "MONODON_WEB_THREADS", 4, low=1, high=128),
            max_connections=_number(
                environment, "MONODON_MAX_CONNECTIONS", 4096, low=64, high=1_000_000
            ),
            worker_concurrency=_number(
                environment, "MONODON_WORKER_CONCURRENCY", min(cpus, 4), low=1, high=64
            ),
            queue=environment.get("MONODON_QUEUE", "").strip() or "monodon",
            database_url=environment.get("DATABASE_URL", "").strip() or None,
            redis_url=environment.get("REDIS_URL", "").strip() or None,
        )

    @property
    def local_url(self) -> str:
        """Where this machine reaches the web server, whatever address it is bound to."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
