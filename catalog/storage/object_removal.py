"""Removing objects: single ones, pages of them, and all with a prefix."""

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import uuid4

import obstore

from catalog.storage import object_listing, role_sessions
from catalog.storage.configuration import StoreKind
from catalog.storage.object_clients import ObjectClient, is_addressable
from catalog.storage.object_errors import Unlistable
from catalog.storage.stores import StorageUnavailable, is_missing

PAGE = 1000
"""S3 removes at most this number of objects by one request."""


def delete(client: ObjectClient, key: str) -> None:
    """Remove an object that may be missing."""
    try:
        client.call(lambda: obstore.delete(client.store, key), key)
    except OSError as error:
        if not is_missing(error):
            raise


def delete_page(client: ObjectClient, keys: list[str]) -> Iterator[OSError | None]:
    """Remove objects; yields for each an error, or None if it is gone."""
    try:
        client.call(lambda: obstore.delete(client.bulk_store, keys), of_file=False)
    except StorageUnavailable:
        pass  # one by one: it tells which, and some stores remove only single objects
    except OSError as error:
        if not isinstance(error, PermissionError):
            raise
    else:
        yield from (None for _ in keys)
        return
    for key in keys:
        try:
            delete(client, key)
        except PermissionError as error:
            yield error
        else:
            yield None


def remove_tree(client: ObjectClient, directory: str) -> Iterator[int]:
    """See ``Store.remove_tree``. By the store's clock, which an object that is written now shows.

    Clocks of stores may count whole seconds, so what was written within the second of the call is
    removed, too. The caller keeps the location reserved, so nobody else writes there by then.
    """
    prefix = object_listing.prefix_of(client, directory)
    moment = _store_time(client, prefix)
    removed = 0
    exact = True
    try:
        for page in object_listing.pages(client, prefix):
            keys = []
            for entry in page:
                if entry.modified_at > moment:
                    continue
                if not entry.key.startswith(prefix) or object_listing.is_mark(client, entry):
                    exact = False
                else:
                    keys.append(entry.key)
            removed += _delete_all(client, keys)
            yield removed
    except Unlistable:
        exact = False
    if exact or client.configuration.kind != StoreKind.S3:
        return
    raw = object_listing.raw_client(client)
    entries = object_listing.raw_entries(client, prefix)
    old = (entry.key for entry in entries if entry.modified_at <= moment)
    while keys := list(islice(old, PAGE)):
        removed += _delete_all(client, [key for key in keys if is_addressable(key)])
        for key in keys:
            if not is_addressable(key):
                _delete_raw(client, raw, key)
                removed += 1
        yield removed


def _delete_all(client: ObjectClient, keys: list[str]) -> int:
    """Remove objects; returns their number. Raises OSError for the first that cannot be removed."""
    if keys:
        errors = [error for error in delete_page(client, keys) if error is not None]
        if errors:
            raise errors[0]
    return len(keys)


def _delete_raw(client: ObjectClient, raw: Any, key: str) -> None:
    """Remove an object that obstore cannot address: the mark of a directory, or a foreign name."""
    bucket = client.bucket.partition("://")[2]
    role_sessions.call(client.profile, lambda: raw.delete_object(Bucket=bucket, Key=key))


def _store_time(client: ObjectClient, prefix: str) -> datetime:
    """The present time of the store, as its lists show it: that of an object written now."""
    directory = f"{prefix}.time-{uuid4().hex}"
    key = f"{directory}/now"
    client.call(lambda: obstore.put(client.store, key, b"-"), key, of_file=False)
    try:
        entries = [
            entry for page in object_listing.pages(client, f"{directory}/") for entry in page
        ]
    finally:
        delete(client, key)
    if not entries:
        raise StorageUnavailable(client.profile, "it does not list a new object")
    return entries[0].modified_at
