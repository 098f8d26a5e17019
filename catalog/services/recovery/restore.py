"""Restore a backup into a catalog without tables, and verify it."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.db.models import Max

from catalog import encryption
from catalog.access import credentials
from catalog.errors import CatalogError, InvalidInput
from catalog.formats.lance import naming
from catalog.models import (
    ApiKey,
    Namespace,
    StorageProfile,
    Table,
    TableFormat,
    TableVersion,
    Webhook,
)
from catalog.postgresql import programs
from catalog.services.audit import verification
from catalog.services.recovery import backup
from catalog.services.recovery.backup import Manifest
from catalog.storage import stores

_COPY = ".restored"
"""The directory of the warehouse with its future files, while the database is loaded."""
_HINT = "latest_version_hint.json"
"""Lance's note of the newest version, which it writes again."""


@dataclass(frozen=True)
class Check:
    """A part of the verification; ``fault`` is empty if it passed."""

    title: str
    fault: str = ""


def read_manifest(directory: Path) -> Manifest:
    """Raises InvalidInput if the directory is not a complete backup."""
    try:
        content = json.loads((directory / backup.MANIFEST).read_text())
        if content["format"] != backup.FORMAT:
            raise InvalidInput(f"{directory} has format {content['format']}, which is not known")
        content["seal"] = None if content["seal"] is None else tuple(content["seal"])
        return Manifest(**content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{directory} is not a complete backup: {error}") from error


def restore(directory: Path) -> Manifest:
    """Replace the database, the secret key and, if the backup has it, the warehouse.

    The database is replaced in one transaction. Raises InvalidInput before any change if the catalog has
    objects, if MONODON_SECRET_KEY is another key, if the warehouse has another path or is not empty, or if
    the dump cannot be loaded. A restore that fails before the database is replaced can be repeated.
    """
    manifest = read_manifest(directory)
    key = (directory / backup.SECRET_KEY).read_text().strip()
    _check_target(manifest, key)
    with _copied_warehouse(directory / backup.WAREHOUSE if manifest.has_warehouse else None):
        _load(directory / backup.DATABASE)
    _set_secret_key(key)
    call_command("migrate", interactive=False, verbosity=0)
    _set_admin_key(directory / backup.ADMIN_KEY)
    if manifest.has_warehouse:
        _remove_later_versions()
    return manifest


def _remove_later_versions() -> None:
    """Remove the manifests of versions that clients committed after the dump, while the warehouse was copied.

    Lance finds the newest version by listing them, so the next commit would continue from a version that the
    catalog does not have. The backup keeps the files.
    """
    root = f"{os.path.realpath(settings.MONODON_WAREHOUSE)}/"
    for table in Table.objects.filter(format=TableFormat.LANCE, location__startswith=root):
        for branch in ("", *table.branches.values_list("name", flat=True)):
            _remove_versions_above(table, branch)


def _remove_versions_above(table: Table, branch: str) -> None:
    versions = TableVersion.objects.filter(table=table).on(branch)
    newest = versions.aggregate(most=Max("version"))["most"]
    if newest is None:
        return
    store, directory = stores.store_of(table.location), naming.versions_directory(branch)
    later = [
        file.name
        for file in store.list_files(table.location, directory)
        if (name := naming.parse_manifest_name(file.name)) and name.version > newest
    ]
    for file in [*later, _HINT] if later else ():
        store.remove(f"{table.location}/{directory}/{file}")


def _check_target(manifest: Manifest, key: str) -> None:
    if Table.objects.exists() or Namespace.objects.exclude(path=[]).exists():
        raise InvalidInput(
            "The catalog has namespaces or tables. A backup is restored into a new database only"
        )
    configured = os.environ.get("MONODON_SECRET_KEY")
    if configured and configured != key:
        raise InvalidInput(
            "MONODON_SECRET_KEY is another key than that of the backup: set it to the content of"
            f" the file {backup.SECRET_KEY}"
        )
    if not manifest.has_warehouse:
        return
    target = Path(settings.MONODON_WAREHOUSE)
    if str(target) != manifest.warehouse:
        raise InvalidInput(
            f"The tables of the backup are in {manifest.warehouse}, and MONODON_WAREHOUSE is {target}:"
            " set it to the path of the backup"
        )
    if target.exists() and any(path.name != _COPY for path in target.iterdir()):
        raise InvalidInput(f"{target} is not empty")


@contextmanager
def _copied_warehouse(source: Path | None) -> Iterator[None]:
    """Copy the files of the warehouse beside their places, and move them there after the block.

    If the block or the copy fails, the warehouse is empty again.
    """
    if source is None:
        yield
        return
    target = Path(settings.MONODON_WAREHOUSE)
    copy = target / _COPY
    try:
        shutil.rmtree(copy, ignore_errors=True)  # of a restore that was interrupted
        shutil.copytree(source, copy, symlinks=True)
        yield
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    for path in copy.iterdir():
        path.rename(target / path.name)
    copy.rmdir()


def _load(dump: Path) -> None:
    """Replace the content of the database in one transaction."""
    program = programs.find("pg_restore", at_least=connection.pg_version // 10_000)  # type: ignore[attr-defined]
    with tempfile.TemporaryFile() as script:
        script.write(b"DROP SCHEMA public CASCADE;\n")  # the dump creates it
        script.flush()
        result = subprocess.run(  # noqa: S603
            [str(program), "--no-owner", "--no-privileges", "--file=-", str(dump)],
            stdout=script,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            raise InvalidInput(f"pg_restore cannot read {dump}: {result.stderr.strip()}")
        script.seek(0)
        programs.run(
            "psql", "--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1",
            "--file=-", stdin=script,
        )  # fmt: skip
    connection.close()  # its prepared statements refer to the old tables


def _set_secret_key(key: str) -> None:
    settings.SECRET_KEY = key
    if os.environ.get("MONODON_SECRET_KEY"):
        return
    path = Path(settings.MONODON_HOME) / backup.SECRET_KEY
    draft = path.with_name(f"{backup.SECRET_KEY}.restored")
    backup._write(draft, f"{key}\n")  # noqa: SLF001
    draft.replace(path)


def _set_admin_key(saved: Path) -> None:
    """Let the file of the home directory contain a valid key, or remove it."""
    path = Path(settings.MONODON_HOME) / backup.ADMIN_KEY
    if saved.is_file() and _is_valid(saved.read_text().strip()):
        backup._write(path, saved.read_text())  # noqa: SLF001
    elif path.is_file() and not _is_valid(path.read_text().strip()):
        path.unlink()


def _is_valid(key: str) -> bool:
    digest = credentials.key_digest(key)
    return ApiKey.objects.filter(digest=digest, revoked_at=None).exists()


def verify(manifest: Manifest) -> Iterator[Check]:
    """Compare the catalog with the manifest of the backup, one check after another."""
    yield Check("counts", _count_fault(manifest.counts))
    yield Check("audit trail", _audit_fault(manifest.seal))
    secrets = [
        *((f"webhook {row.name}", row.secret) for row in Webhook.objects.order_by("name")),
        *(
            (f"storage profile {row.name}", row.secret)
            for row in StorageProfile.objects.order_by("name")
            if row.secret
        ),
    ]
    for title, secret in secrets:
        yield Check(f"secret of {title}", _secret_fault(bytes(secret)))
    path = Path(settings.MONODON_HOME) / backup.ADMIN_KEY
    if path.is_file():
        is_valid = _is_valid(path.read_text().strip())
        yield Check(str(path), "" if is_valid else "the key is not valid")
    missing = _missing_locations() if manifest.has_warehouse else []
    yield Check("warehouse", f"missing: {', '.join(missing[:5])}" if missing else "")


def _count_fault(expected: dict[str, int]) -> str:
    present = backup.counts()
    return "; ".join(
        f"{table} has {present.get(table)} rows, the backup {count}"
        for table, count in expected.items()
        # The server that is already running may have added audit events and seals.
        if present.get(table, 0) < count
    )


def _audit_fault(seal: tuple[int, str] | None) -> str:
    expected = None if seal is None else (seal[0], bytes.fromhex(seal[1]))
    result = verification.verify(expected=expected)
    return "; ".join(finding.text for finding in result.findings)


def _secret_fault(secret: bytes) -> str:
    try:
        encryption.decrypt(secret)
    except CatalogError as error:
        return error.message
    return ""


def _missing_locations() -> list[str]:
    """Directories of tables with versions in the local warehouse that do not exist."""
    root = str(settings.MONODON_WAREHOUSE)
    locations = Table.objects.filter(location__startswith=root, versions__isnull=False).values_list(
        "location", flat=True
    )
    return sorted({text for text in locations.distinct() if not Path(text).is_dir()})
