"""The versions of Lance tables from which the catalog's own writes continue."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from lance.dataset import LanceDataset

from catalog.formats.lance import manifest as lance_manifest
from catalog.formats.lance import naming as lance_naming
from catalog.services.lance import datasets
from catalog.services.lance.ledger import files as lance_files
from catalog.services.lance.ledger import links as lance_links
from catalog.services.lance.ledger.snapshots import Snapshot
from catalog.services.lance.ledger.versions import Version, microseconds
from catalog.services.lance.ledger_namespace import ForwardingNamespace, LedgerNamespace
from catalog.storage import lance_options, locations, stores

T = TypeVar("T")
_MAX_MANIFEST = 512 * 1024**2


@contextmanager
def base_entry(snapshot: Snapshot, settings: Mapping[str, str]) -> Iterator[Version]:
    """The ledger's entry of a checked version, with the manifest that Lance reads.

    With settings of Lance's automatic clean-up, this is a copy without them, which is removed at the end.
    Lance restores a version as its manifest describes it, and would run the clean-up after the commit.
    """
    entry, location = snapshot.entry, snapshot.location
    if not settings:
        yield entry
        return
    store = stores.store_of(location)
    path = locations.path_in_table(location, entry.manifest_path)
    content, _ = store.read(f"{location}/{path}", _MAX_MANIFEST)
    copy = lance_manifest.without_auto_cleanup(content)
    directory = lance_naming.versions_directory(snapshot.branch)
    name = lance_naming.manifest_name(snapshot.version, lance_naming.NamingScheme.V2)
    draft = f"{directory}/{name}-{uuid.uuid4()}"
    store.write_new_in_place(f"{location}/{draft}", copy)
    try:
        path = locations.store_path(location, draft)
        yield Version(entry.version, path, len(copy), None, entry.metadata, entry.created_us)
    finally:
        with suppress(OSError):
            store.remove(f"{location}/{draft}")


class OpenVersion:
    """A version from which one writer at a time continues; Lance opens it for the first write."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._catalog = ForwardingNamespace(snapshot.location)
        self._dataset: LanceDataset | None = None
        self._foreign: tuple[str, ...] = ()
        self._options: dict[str, Any] = {}
        self._is_rebased = False
        """True if Lance continued from a version that others committed meanwhile, and nobody checked."""

    def check(self, snapshot: Snapshot, *, is_newest: bool) -> None:
        """Check the owners of the version's files before Lance opens, uses or extends it."""
        lance_links.require_plain_directories(
            snapshot.table,
            snapshot.location,
            snapshot.branch,
            newest=snapshot.version if is_newest else None,
        )
        if self._dataset is not None and self._is_rebased:
            self._foreign = datasets.check(snapshot)
            datasets.require_checked(snapshot, self._dataset)
            self._is_rebased = False
        if self._dataset is None or not lance_files.is_unchanged(snapshot, self._foreign):
            self._foreign = datasets.check(snapshot)
            self._dataset = None  # its manifest may have been replaced in storage
            # Here, and not in the threads of Lance: the profiles are in the database.
            self._options = {
                "storage_options": lance_options.storage_options(snapshot.location),
                "base_store_params": datasets.base_options(snapshot),
            }
        lance_files.require_committed(snapshot, self._foreign)

    def change(self, ledger: LedgerNamespace, work: Callable[[LanceDataset], T]) -> tuple[T, int]:
        """Run the work on the dataset; returns its result and the version of the dataset after it."""
        self._catalog.ledger = ledger
        dataset = self._dataset or self._open()
        result = work(dataset)
        self._dataset = dataset
        return result, dataset.version

    def keep(self, ledger: LedgerNamespace, last: int) -> None:
        """Keep the dataset for the next writer that finds the new version to be the newest."""
        if ledger.committed is None or ledger.last != last:
            return
        row = ledger.committed.results[0]
        before = self._snapshot
        self._is_rebased = row.version != before.version + 1
        entry = Version(
            row.version,
            row.manifest_path,
            row.manifest_size,
            row.e_tag,
            row.metadata,
            microseconds(row.created_at),
        )
        self._snapshot = replace(before, entry=entry)
        self._catalog.ledger = None
        datasets.session_for(self._snapshot)  # the session has cached the manifest
        cost = datasets.open_cost(entry.manifest_size)
        datasets.writers.put(datasets.cache_key(self._snapshot), self, cost=cost)

    def _open(self) -> LanceDataset:
        snapshot = self._snapshot
        dataset = LanceDataset(
            snapshot.location,
            None if snapshot.branch else snapshot.version,
            session=datasets.session_for(snapshot),
            namespace_client=self._catalog,
            table_id=list(snapshot.table),
            namespace_client_managed_versioning=True,
            **self._options,
        )
        if snapshot.branch:
            dataset = dataset.checkout_version((snapshot.branch, snapshot.version))
        datasets.require_checked(snapshot, dataset)
        return dataset
