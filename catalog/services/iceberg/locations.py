"""The locations of Iceberg tables and views, and the paths that their metadata names."""

import uuid
from collections.abc import Sequence

from catalog import access
from catalog.access import Principal
from catalog.errors import InvalidLocation, InvalidMetadata, ServiceUnavailable
from catalog.formats.iceberg.files import PATH_PROPERTIES
from catalog.identifiers import Identifier, slug
from catalog.models import Namespace
from catalog.regular_files import NotRegular, TooLarge
from catalog.services.iceberg.metadata_files import Document
from catalog.services.iceberg.tables import LoadedTable
from catalog.services.storage import iceberg_paths, namespace_locations, object_placement
from catalog.services.storage.file_owners import Belonging, Holder
from catalog.services.storage.table_files import TableFiles
from catalog.services.tables.table_operations import require_free_location
from catalog.storage import locations as storage_locations
from catalog.storage import stores
from catalog.storage.stores import AccessDenied, StorageUnavailable

_LOCATION_PROVIDER = "write.location-provider.impl"
_OWN_PROVIDERS = "org.apache.iceberg.LocationProviders$"


def new_location(actor: Principal, table: Identifier, namespaces: Sequence[Namespace]) -> str:
    """A new location for a table: below the ``location`` of its namespace, which may be inherited.

    ``namespaces`` are its namespace and those above, the root first. Raises InvalidLocation and LocationTaken if no table may lie below that ``location``.
    """
    base = namespace_locations.explicit_location_of(namespaces)
    if base:
        location = f"{base.rstrip('/')}/{slug(table[-1:], 60)}-{uuid.uuid4().hex}"
        require_free_location(actor, storage_locations.iceberg_path(location))
        return location
    return location_in_warehouse(table)


def location_in_warehouse(table: Identifier) -> str:
    """A new location for a table to whose namespace no location applies."""
    return storage_locations.iceberg_uri(storage_locations.new_location(slug(table[-1:], 60)))


def chosen_location(
    actor: Principal, table: Identifier, location: str | None, namespaces: Sequence[Namespace]
) -> str:
    """The location of a new table: the client's choice, or a new one in these namespaces.

    A relative location is resolved against that of the namespace. Raises InvalidLocation and
    LocationTaken.
    """
    if location is None:
        return new_location(actor, table, namespaces)
    if storage_locations.is_relative_iceberg_path(location):
        return namespace_locations.resolve(table[:-1], location)
    return location  # check_paths checks it


def check_paths(
    actor: Principal,
    table: Identifier,
    document: Document,
    base: LoadedTable | None = None,
    *,
    is_new: bool = False,
    replaced: int = 0,
) -> str:
    """Check the location and the paths of a table's document; returns the canonical location.

    Afterwards the location and the paths count as the table's, so that files there are read for it. Paths that
    ``base`` has already are not checked again, nor is a location that the server has just chosen (``is_new``).
    ``replaced`` is the table that is replaced by this one. Raises InvalidLocation, LocationTaken, and InvalidMetadata
    for a class that chooses paths.
    """
    base_document = base.document if base is not None else {}
    properties, checked = document.get("properties", {}), base_document.get("properties", {})
    provider = properties.get(_LOCATION_PROVIDER)
    if provider != checked.get(_LOCATION_PROVIDER):
        _require_own_provider(provider)
    new = {
        storage_locations.iceberg_path(properties[name])
        for name in PATH_PROPERTIES
        if name in properties and properties[name] != checked.get(name)
    }
    if base is not None and document["location"] == base_document["location"]:
        location = base.location
    else:
        location = storage_locations.iceberg_path(document["location"])
        _require_usable(actor, table, {location})
    outside = {path for path in new if not storage_locations.is_below_any(path, [location])}
    _require_usable(actor, table, outside)
    _refuse_paths_of_others(actor, new, location, base.pk if base is not None else 0)
    for path in sorted(new):
        if location not in (path, *storage_locations.parents(path)):
            namespace_locations.require_directory(actor, path)
    if not is_new and (base is None or location != base.location):
        require_free_location(actor, location, pk=replaced if base is None else base.pk)
    return location


def _require_own_provider(name: str | None) -> None:
    """Refuse a class that is not Iceberg's own: jobs on Spark would load it, and call its constructor."""
    if name is not None and not name.startswith(_OWN_PROVIDERS):
        raise InvalidMetadata(
            f"Property '{_LOCATION_PROVIDER}' names the class {name!r}, which engines would load; only"
            " classes of Iceberg itself may be named there"
        )


def _require_usable(actor: Principal, table: Identifier, paths: set[str]) -> None:
    """Refuse new locations and paths in object stores that the actor may not choose.

    One statement if there is any. Raises InvalidLocation.
    """
    in_object_stores = {path for path in paths if storage_locations.is_object(path)}
    if in_object_stores:
        rows = namespace_locations.line(table[:-1])
        for path in sorted(in_object_stores):
            object_placement.require_usable(actor, rows, path)


def files_of(
    table: Holder, document: Document, *locations: str, base: LoadedTable | None = None
) -> TableFiles:
    """The files of a table with this metadata, including those below the paths that it names.

    Paths that ``base`` names too are not resolved again, as a link may have been put there since: the
    table holds the directories that they were when they were entered.
    """
    held = base.document.get("properties", {}) if base is not None else {}
    properties = document.get("properties", {})
    new = {name: path for name, path in properties.items() if held.get(name) != path}
    return TableFiles(table, also=(*iceberg_paths.named(new), *locations))


def _refuse_paths_of_others(actor: Principal, paths: set[str], location: str, pk: int) -> None:
    """Refuse paths inside another table: their files would be removed when that table is purged.

    A directory with files of a table may also contain other tables. Files may lie in a directory
    that another table names only if the actor may manage that table; neither table may change that
    directory from then on.
    """
    paths = {path for path in paths if location not in (path, *storage_locations.parents(path))}
    if not paths:
        return
    iceberg_paths.require_unheld(actor, pk, paths)
    iceberg_paths.require_outside_locations(actor, pk, paths)


# --- registration ------------------------------------------------------------------------------


def require_registrable(actor: Principal, table: Identifier, metadata_location: str) -> str:
    """Where the metadata file lies from which a table is to be registered, before it is read.

    It may be no table's, or one's whose files the actor may read. Raises InvalidLocation for what
    lies where no table may, and ForeignFile; neither tells whether there is such a file.
    """
    storage_locations.iceberg_path(metadata_location)
    files = TableFiles.of_nobody(table)
    owner = files.classify([metadata_location])[metadata_location]
    if owner.path is not None:
        if owner.belonging == Belonging.FREE or owner.is_unclaimed:
            if storage_locations.is_object(owner.path):
                rows = namespace_locations.line(table[:-1])
                object_placement.require_usable(actor, rows, owner.path)
            return owner.path
        if owner.belonging == Belonging.OTHER:
            holders = set(owner.table_ids)
            if access.readable_tables(actor, holders) == holders:
                return owner.path
    raise files.refusal(metadata_location)


def read_metadata(path: str, limit: int) -> bytes:
    """A metadata file that may be read.

    Raises InvalidLocation if it cannot be read, ServiceUnavailable if its store is unavailable.
    """
    try:
        return stores.store_of(path).read(path, limit)[0]
    except TooLarge as error:
        raise InvalidLocation(path, f"is larger than {limit} bytes") from error
    except NotRegular as error:
        raise InvalidLocation(path, "is no file") from error
    except (AccessDenied, StorageUnavailable) as error:
        raise ServiceUnavailable(
            str(error.strerror), retry_seconds=stores.retry_seconds(error)
        ) from error
    except OSError as error:
        raise InvalidLocation(path, f"cannot be read: {error.strerror}") from error
