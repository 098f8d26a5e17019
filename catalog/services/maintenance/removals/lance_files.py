"""The files of a Lance table that a clean-up removes.

Lance removes old versions together with the files that no version in storage names and that are older than a week. It
knows no clones in other tables. These may need such files: those of a version whose manifest a client removed.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from lance.dataset import LanceDataset

from catalog.errors import ServiceUnavailable
from catalog.formats.lance import naming as lance_naming
from catalog.models import Table, TableVersion
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.errors import no_panic
from catalog.services.lance.ledger.needed_files import NeededFiles
from catalog.services.maintenance.removals.spark_removal import MANIFEST, File, Removed
from catalog.storage import locations, stores

_MAX_FILES = 10_000_000
_AT_ONCE = 500


def open_branch(table: Table, branch: str) -> LanceDataset:
    """Open the newest version of a branch as a dataset that may be used to remove files.

    Raises ServiceUnavailable while the manifest of a newest version, which was committed a moment
    ago, does not have its final name.
    """
    newest = newest_versions(table, branch)
    try:
        dataset: LanceDataset = LanceDataset(
            table.location,
            newest[""],
            **lance_datasets.store_access(table.location, table.identifier),
        )
        return dataset.checkout_version((branch, newest[branch])) if branch else dataset
    except ValueError as error:  # Lance raises no narrower class for a missing version
        if "was not found" not in str(error):
            raise
        raise not_settled() from error


def newest_versions(table: Table, branch: str) -> dict[str, int]:
    """The newest versions of main, under the empty name, and of a branch."""
    return {
        name: TableVersion.objects.visible()
        .on(name)
        .filter(table=table)
        .order_by("-version")
        .values_list("version", flat=True)[0]
        for name in {"", branch}
    }


def versions_in_storage(table: Table, branch: str) -> set[int]:
    """Versions whose manifests have their final names."""
    names = (
        lance_naming.parse_manifest_name(file.name)
        for file in stores.store_of(table.location).list_files(
            table.location, lance_naming.versions_directory(branch)
        )
    )
    return {name.version for name in names if name is not None}


def explain(
    table: Table, branch: str, requested: Sequence[int], needed: NeededFiles
) -> tuple[list[int], list[File]]:
    """The versions that Lance would remove, and all files, without those that other tables need.

    The manifests come last: while one exists, a clean-up that was interrupted finds the version again.
    """
    if not requested:
        return [], []
    with no_panic():
        explanation = open_branch(table, branch).explain_cleanup_old_versions(
            versions=list(requested),
            error_if_tagged_old_versions=False,
            include_files=True,
            max_files=_MAX_FILES,
        )
    versions = {
        version
        for file in explanation.candidate_files
        if file.kind == MANIFEST and (version := version_of(table, branch, file.path)) is not None
    }
    root = locations.store_path(table.location, "")
    files = [
        (file.path[len(root) :], file.kind, file.size_bytes)
        for file in explanation.candidate_files
        if file.path.startswith(root)
    ]
    if needed:
        files = [file for file in files if not needed.has(f"{table.location}/{file[0]}")]
    files.sort(key=lambda file: file[1] == MANIFEST)
    return sorted(versions & set(requested)), files


def remove(table: Table, files: Sequence[File], renew: Callable[[], object]) -> Removed:
    """Remove these files. ``renew`` is called repeatedly, and may raise to stop. Raises OSError."""
    store = stores.store_of(table.location)
    remaining = iter(files)
    removed = Removed(0, 0, 0)
    while part := list(islice(remaining, _AT_ONCE)):
        renew()
        by_path = {f"{table.location}/{path}": (kind, size) for path, kind, size in part}
        for path in store.remove_many(by_path):
            kind, size = by_path[path]
            removed.files += 1
            removed.bytes += size
            removed.versions += kind == MANIFEST
    return removed


def version_of(table: Table, branch: str, path: str) -> int | None:
    """The version whose manifest has this path; None unless it is a final name on this branch."""
    directory = locations.store_path(table.location, f"{lance_naming.versions_directory(branch)}/")
    if not path.startswith(directory):
        return None
    parsed = lance_naming.parse_manifest_name(path[len(directory) :])
    return None if parsed is None else parsed.version


def not_settled() -> ServiceUnavailable:
    return ServiceUnavailable(
        "A manifest does not have its final name yet, so no files can be removed; retry later"
    )
