"""A backup of the catalog: the database, the secret key, the settings and, if requested, the local warehouse.

    DIR/manifest.json     what is in the backup, and what a restore must find again
    DIR/database.dump     pg_dump's custom format
    DIR/secret_key        decrypts the secrets in the database
    DIR/settings.env      the settings from the environment, without the addresses of the stores
    DIR/admin_api_key     the generated key of the home directory, if there is one
    DIR/warehouse/        with ``warehouse``

The dump has the schema ``public``, in which all tables are. The dump and the counts of the manifest are of
one snapshot, while the server continues.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from catalog.errors import InvalidInput
from catalog.models import Job
from catalog.postgresql import programs
from catalog.services.audit import chain

FORMAT = 1
MANIFEST, DATABASE, WAREHOUSE = "manifest.json", "database.dump", "warehouse"
SECRET_KEY, ADMIN_KEY, SETTINGS = "secret_key", "admin_api_key", "settings.env"
COUNTED = (
    *("catalog_namespace", "catalog_table", "catalog_tableversion", "catalog_icebergmetadata"),
    *("catalog_auditevent", "catalog_auditseal", "catalog_principal", "catalog_apikey"),
    *("catalog_grant", "catalog_webhook", "catalog_storageprofile", "catalog_job"),
    "catalog_engineprofile",
)
_REMOVING = ("purge_table", "clean_up", "remove_orphans")
"""Jobs that remove files, which the dump may still refer to."""
_OF_THE_PLACE = {
    *("DATABASE_URL", "REDIS_URL", "MONODON_HOME", "MONODON_SECRET_KEY", "MONODON_CONFIG"),
    *("MONODON_API_KEY", "MONODON_PROFILE", "MONODON_RUN"),
}
"""Variables that a restore must not take over."""


@dataclass(frozen=True)
class Manifest:
    """``counts``: rows by table. ``seal``: number and hash of the newest audit seal."""

    created_at: str
    postgresql: int
    counts: dict[str, int]
    seal: tuple[int, str] | None
    warehouse: str
    """The directory of the warehouse, whose path the database contains."""
    has_warehouse: bool
    format: int = field(default=FORMAT)


def create(directory: Path, *, warehouse: bool = False) -> Manifest:
    """Write a backup to a new or empty directory, which only the current user can read.

    Raises InvalidInput if the directory is not empty or belongs to another user, if pg_dump fails, or if jobs
    removed files while the warehouse was copied; the backup is then not complete.
    """
    _prepare(directory)
    manifest = _dump(directory / DATABASE, has_warehouse=warehouse)
    _write(directory / SECRET_KEY, f"{settings.SECRET_KEY}\n")
    _write(directory / SETTINGS, "".join(f"{line}\n" for line in _settings()))
    key = Path(settings.MONODON_HOME) / ADMIN_KEY
    if key.is_file():
        _write(directory / ADMIN_KEY, key.read_text())
    if warehouse:
        _copy_warehouse(directory / WAREHOUSE, since=manifest.created_at)
    # Last: a directory without a manifest is not a backup.
    _write(directory / MANIFEST, json.dumps(asdict(manifest), indent=2) + "\n")
    return manifest


def _prepare(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Another owner could place links in it, to files that others can read.
        is_own = directory.stat().st_uid == os.geteuid()
        is_empty = not any(directory.iterdir())
        if is_own and is_empty:
            directory.chmod(0o700)
    except OSError as error:
        raise InvalidInput(f"{directory} cannot be used: {error.strerror}") from error
    if not is_own:
        raise InvalidInput(f"{directory} belongs to another user; a backup needs a new directory")
    if not is_empty:
        raise InvalidInput(f"{directory} is not empty; a backup needs a new directory")


def _dump(file: Path, *, has_warehouse: bool) -> Manifest:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        # The session waits for pg_dump, however long that takes.
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        cursor.execute("SELECT pg_export_snapshot()")
        (snapshot,) = cursor.fetchone()
        created_at = timezone.now().isoformat()
        facts = counts(), newest_seal()
        _write(file, "")
        programs.run(
            "pg_dump", "--format=custom", "--no-owner", "--no-privileges", "--schema=public",
            f"--snapshot={snapshot}", f"--file={file}",
        )  # fmt: skip
    return Manifest(
        created_at=created_at,
        postgresql=connection.pg_version // 10_000,  # type: ignore[attr-defined]
        counts=facts[0],
        seal=facts[1],
        warehouse=str(settings.MONODON_WAREHOUSE),
        has_warehouse=has_warehouse,
    )


def counts() -> dict[str, int]:
    """The number of rows of each important table."""
    with connection.cursor() as cursor:
        rows: dict[str, int] = {}
        for table in COUNTED:
            cursor.execute(f'SELECT count(*) FROM "{table}"')  # noqa: S608 -- a constant
            (rows[table],) = cursor.fetchone()
        return rows


def newest_seal() -> tuple[int, str] | None:
    seal = chain.newest_seal()
    return None if seal is None else (seal.number, seal.hash.hex())


def _settings() -> list[str]:
    """Lines for the option env_file of Docker Compose, or for a shell that reads them literally."""
    return [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if (name.startswith("MONODON_") or name == "SPARK_MASTER")
        and name not in _OF_THE_PLACE
        and "\n" not in value
    ]


def _copy_warehouse(target: Path, *, since: str) -> None:
    _refuse_removals(since)
    source = Path(settings.MONODON_WAREHOUSE)
    try:
        shutil.copytree(source, target, symlinks=True, copy_function=_copy)
    except shutil.Error as error:
        failures: list[Any] = error.args[0]
        raise InvalidInput(f"The warehouse cannot be copied: {failures[0]}") from error
    except OSError as error:
        raise InvalidInput(f"The warehouse cannot be copied: {error}") from error
    _refuse_removals(since)


def _copy(source: str, target: str) -> None:
    """Copy a file, unless it was a staged file that has its final name now."""
    try:
        shutil.copy2(source, target, follow_symlinks=False)
    except FileNotFoundError:
        if Path(source).exists():
            raise


def _refuse_removals(since: str) -> None:
    jobs = Job.objects.filter(kind__in=_REMOVING, started_at__isnull=False)
    active = jobs.exclude(finished_at__lt=since).values_list("pk", flat=True)
    if active:
        listed = ", ".join(map(str, active[:5]))
        raise InvalidInput(
            f"Jobs removed files during the backup ({listed}): the copy of the warehouse is not"
            " complete. Repeat the backup, or stop the workers first"
        )


def _write(path: Path, content: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
