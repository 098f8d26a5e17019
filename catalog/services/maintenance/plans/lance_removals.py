"""The effect of a clean-up of a Lance table, from its manifests, before a job starts."""

import logging
from dataclasses import dataclass

from django.db.models import Count, Sum

from catalog.errors import CatalogError
from catalog.models import Table, TableVersion
from catalog.services.lance.ledger.needed_files import OF_REQUESTS, NeededFiles
from catalog.services.maintenance.lance_cleanup import Versions
from catalog.services.maintenance.removals.lance_files import explain, versions_in_storage

log = logging.getLogger(__name__)
_MAX_PLANNED, _MAX_PLANNED_BYTES = 1000, 32 * 1024 * 1024
"""Versions and bytes of the manifests to read for the exact plan of a clean-up."""


@dataclass(frozen=True, slots=True)
class Removable:
    """Files that a clean-up would remove."""

    files: int = 0
    bytes: int = 0
    is_estimate: bool = False


def removable(table: Table, old: Versions) -> Removable:
    """The files that only ``old`` versions refer to, from the manifests.

    If there are too many manifests, or they cannot be read now, an estimate from the ledger: the
    manifests and transactions of these versions, without data files.
    """
    if not old:
        return Removable()
    manifest_bytes = sum(
        TableVersion.objects.on(branch)
        .filter(table=table, version__in=versions)
        .aggregate(size=Sum("manifest_size"))["size"]
        or 0
        for branch, versions in old.items()
    )
    ledger = TableVersion.objects.visible().filter(table=table)
    totals = ledger.aggregate(number=Count("pk"), size=Sum("manifest_size"))
    if totals["number"] <= _MAX_PLANNED and (totals["size"] or 0) <= _MAX_PLANNED_BYTES:
        try:
            return _count_removable(table, old)
        except (CatalogError, OSError, ValueError, RuntimeError):
            log.info("The clean-up of %s is estimated", table, exc_info=True)
    return Removable(2 * sum(map(len, old.values())), manifest_bytes, is_estimate=True)


def _count_removable(table: Table, old: Versions) -> Removable:
    needed = NeededFiles(table, limits=OF_REQUESTS)
    needed.update()
    files = size = 0
    for branch, versions in old.items():
        requested = sorted(set(versions) & versions_in_storage(table, branch))
        if needed:
            requested = needed.unneeded(branch, requested)
        _, more = explain(table, branch, requested, needed)
        files, size = files + len(more), size + sum(bytes_ for _, _, bytes_ in more)
    return Removable(files, size)
