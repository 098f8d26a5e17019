"""Settings from the environment, and errors for invalid values.

All functions raise ImproperlyConfigured with the name of the variable, its value unless that may be
a secret, and the allowed values.
"""

import os
import secrets
import shlex
from pathlib import Path
from urllib.parse import quote, urlsplit

from django.core.exceptions import ImproperlyConfigured
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict


def wrong(name: str, value: str, allowed: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"{name} is {value!r}; it must be {allowed}")


def flag(name: str, *, default: bool = False) -> bool:
    value = os.environ.get(name, "").strip().lower() or str(default).lower()
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"", "0", "false", "no", "off"}:
        return False
    raise wrong(name, value, "true or false")


def choice(name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = os.environ.get(name, "").strip().lower() or default
    if value not in allowed:
        raise wrong(name, value, f"one of {', '.join(allowed)}")
    return value


def number(name: str, default: int, *, least: int = 1) -> int:
    value = os.environ.get(name, "").strip() or str(default)
    if not (value.isascii() and value.isdigit() and len(value) < 19 and int(value) >= least):
        raise wrong(name, value, "a positive number" if least else "0 or a positive number")
    return int(value)


def items(name: str) -> list[str]:
    return [item.strip() for item in os.environ.get(name, "").split(",") if item.strip()]


def manifest_paths(name: str) -> list[str]:
    """Prefixes of paths and URIs. The single word 'inside' means none."""
    values = items(name)
    prefixes = [] if [value.lower() for value in values] == ["inside"] else values
    if not all("/" in prefix for prefix in prefixes):
        allowed = "inside, or prefixes such as /mnt/staging/ or s3://bucket/staging/"
        raise wrong(name, ",".join(values), allowed)
    return prefixes


def web_url(name: str, value: str) -> str:
    """A URL to which secrets may be sent: https, or on this machine."""
    try:
        parts = urlsplit(value)
        is_fine = parts.scheme == "https" or (
            parts.scheme == "http" and parts.hostname in {"localhost", "127.0.0.1", "::1"}
        )
    except ValueError:
        is_fine = False
    if not is_fine or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise wrong(name, value, "an https:// URL without a query; http:// only on this machine")
    return value


def spark_conf(text: str) -> dict[str, str]:
    """Pairs such as spark.executor.memory=4g, separated by spaces. Values with spaces are quoted."""
    try:
        pairs = [item.partition("=") for item in shlex.split(text)]
    except ValueError:
        pairs = [("", "", "")]
    for name, equals, _ in pairs:
        if not (name.startswith("spark.") and equals):
            # Not the text: a value may be a secret.
            raise ImproperlyConfigured(
                "MONODON_SPARK_CONF must be pairs such as spark.executor.memory=4g, with blanks between"
            )
    return {name: value for name, _, value in pairs}


def spark_masters(text: str) -> list[str]:
    """Masters of clusters, separated by spaces: spark://host:7077 yarn k8s://https://host:6443."""
    masters = text.split()
    for master in masters:
        if master != "yarn" and not master.startswith(("spark://", "k8s://")):
            allowed = "masters such as spark://host:7077, yarn and k8s://https://host:6443"
            raise wrong("MONODON_SPARK_MASTERS", text, f"{allowed}, with spaces between")
    return masters


def spark_names(text: str) -> list[str]:
    """Names of settings of Spark, separated by spaces."""
    names = text.split()
    if not all(name.startswith("spark.") and "=" not in name for name in names):
        allowed = "names such as spark.kubernetes.container.image, with spaces between"
        raise wrong("MONODON_SPARK_PROFILE_CONF", text, allowed)
    return names


def maven_url(text: str) -> str:
    """The URL of a Maven repository, by default that of Maven Central; empty for ``off``."""
    url = text.strip().rstrip("/") or "https://repo1.maven.org/maven2"
    if url.lower() == "off":
        return ""
    if urlsplit(url).scheme not in {"http", "https", "file"}:
        raise wrong("MONODON_MAVEN_URL", text, "off, or a URL that begins with https://")
    return url


def database(url: str) -> dict[str, object]:
    """Django's DATABASES entry for a libpq URI, which may have every parameter of libpq."""
    scheme = url.partition(":")[0] if "://" in url else ""
    if scheme not in {"postgres", "postgresql"}:
        raise ImproperlyConfigured(
            f"DATABASE_URL names {scheme or 'no scheme'}; Monodon needs postgresql://, because its "
            "commits rest on PostgreSQL's row locks"
        )
    try:
        parameters = conninfo_to_dict(url)
    except ProgrammingError:
        # Neither the value nor libpq's message, which repeats it: it may contain a password.
        raise ImproperlyConfigured(
            "DATABASE_URL cannot be read; it must be a URI that libpq knows, such as "
            "postgresql://user:password@host:5432/database"
        ) from None
    # No statement waits for a lock indefinitely, and a process that was stopped inside a commit
    # loses its
    # locks: PostgreSQL ends the former with an error, and the session of the latter.
    timeouts = "-c lock_timeout=30s -c idle_in_transaction_session_timeout=60s"
    parameters["options"] = f"{timeouts} {parameters.get('options') or ''}".strip()
    parameters.setdefault("connect_timeout", "5")
    return {
        "ENGINE": "catalog.postgresql",
        "NAME": parameters.pop("dbname", "monodon"),
        "USER": parameters.pop("user", ""),
        "PASSWORD": parameters.pop("password", ""),
        "HOST": parameters.pop("host", ""),
        "PORT": parameters.pop("port", ""),
        "CONN_MAX_AGE": None,
        "OPTIONS": {
            # Prepared statements on the server: reads 1.6 times, writes 1.5 times faster.
            "server_side_binding": True,
            "prepare_threshold": 2,
            **parameters,
        },
    }


def secret_key(home: Path) -> str:
    """The signing key: from the environment, otherwise generated once and stored in this directory."""
    if key := os.environ.get("MONODON_SECRET_KEY"):
        return key
    path = home / "secret_key"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        pass
    home.mkdir(parents=True, exist_ok=True)
    key = secrets.token_urlsafe(48)
    draft = path.with_name(f"secret_key.{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_text(key)
    try:
        # A hard link publishes the complete file atomically, and only if no other process was first.
        os.link(draft, path)
    except FileExistsError:
        key = path.read_text().strip()
    finally:
        draft.unlink()
    return key


def database_url(home: Path) -> str:
    """The URL of the database: DATABASE_URL, or the embedded server of this directory if it runs."""
    if url := os.environ.get("DATABASE_URL"):
        return url
    sockets, file = home / "run" / "postgres", home / "postgres.password"
    if (sockets / ".s.PGSQL.5432").exists():
        host, passfile = quote(str(sockets), safe=""), quote(str(file), safe="")
        return f"postgresql://monodon@/monodon?host={host}&passfile={passfile}"
    return "postgresql:///monodon"


def redis_url(home: Path) -> str:
    """The URL of the broker: REDIS_URL, or the embedded server of this directory if it runs."""
    if url := os.environ.get("REDIS_URL"):
        return _broker(url)
    socket = home / "run" / "valkey.sock"
    if socket.exists():
        return f"unix://{quote(str(socket))}"
    return "redis://localhost:6379/0"


def _broker(url: str) -> str:
    """Return the URL. Raises ImproperlyConfigured, whose message does not contain its password."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"redis", "rediss", "unix"} and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ImproperlyConfigured(
            "REDIS_URL cannot be read; it must be a URL such as redis://:password@host:6379/0, rediss://host:6379/0 "
            "or unix:///path"
        )
    return url


def own_url() -> str:
    """The URL at which jobs reach this catalog: MONODON_URL, or the loopback of this machine."""
    if url := os.environ.get("MONODON_URL", "").strip():
        return url.rstrip("/")
    host = os.environ.get("MONODON_HOST", "").strip() or "127.0.0.1"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    port = os.environ.get("MONODON_PORT", "").strip() or "2333"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
