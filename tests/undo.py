"""Attempts that are undone, so that one test tries many requests on the same example catalog."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import transaction

from catalog import message_broker
from catalog.access import cached_grants
from catalog.services.access import known_keys
from catalog.services.access.throttle import throttle
from catalog.services.audit import refusals
from catalog.services.engine import table_cache
from catalog.services.iceberg import manifest_cache
from catalog.services.maintenance import iceberg_statistics
from catalog.services.storage import credentials, profiles
from catalog.services.storage.client_sessions import token_services
from catalog.storage import stores


def empty_caches() -> None:
    """Clear the caches of keys, grants, namespaces and tables, which describe rows that no longer exist."""
    known_keys.forget_keys()
    cached_grants.cache.clear()
    throttle.reset()
    table_cache.namespaces.clear()
    table_cache.unplaced_namespaces.clear()
    table_cache.tables.clear()
    table_cache.documents.clear()
    refusals.ledger.forget()
    profiles.discard_cache()
    stores.rereads.refill()
    credentials.discard_cache()
    token_services.forget()
    manifest_cache.cache.clear()
    iceberg_statistics.discard_cache()
    message_broker.resume()


@contextmanager
def undone(warehouse: Path) -> Iterator[None]:
    """Undo the changes of the block to rows and to the files in the warehouse.

    The copy of the files remains beside the warehouse, for the next block that begins with the same files.
    """
    before = _files(warehouse)
    copy = warehouse.with_name(f"copy of {warehouse.name}")
    if not copy.is_dir() or _files(copy) != before:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(warehouse, copy, symlinks=True)
    try:
        with transaction.atomic():
            yield
            transaction.set_rollback(True)
    finally:
        if _files(warehouse) != before:
            shutil.rmtree(warehouse)
            shutil.copytree(copy, warehouse, symlinks=True)
        empty_caches()


def _files(directory: Path) -> dict[Path, tuple[int, ...]]:
    """What a change of each file and directory changes too."""
    return {
        path.relative_to(directory): (status.st_mode, status.st_size, status.st_mtime_ns)
        for path in (directory, *directory.rglob("*"))
        for status in (path.lstat(),)
    }
