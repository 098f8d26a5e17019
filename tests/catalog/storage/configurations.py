"""Configurations of stores for tests, without rows in the database."""

import itertools
from typing import Any

from catalog.storage.configuration import Key, ServerIdentity, StoreConfiguration, StoreKind
from tests.stores.s3 import S3Store

_versions = itertools.count(1)


def of_store(store: S3Store, bucket: str, **changes: Any) -> StoreConfiguration:
    """A configuration with a static key for a bucket of a store."""
    values: dict[str, Any] = {
        "profile": "lake",
        "version": 1,
        "kind": StoreKind.S3,
        "roots": (f"s3://{bucket}",),
        "region": store.region,
        "endpoint": store.endpoint,
        "sts_endpoint": store.sts_endpoint,
        "path_style": True,
        "identity": ServerIdentity.KEY,
        "key": Key(store.access_key, store.secret_key),
    }
    return StoreConfiguration(**values | changes)


def of_endpoint(endpoint: str, **changes: Any) -> StoreConfiguration:
    """A configuration with a static key for the bucket ``lake`` at a URL.

    Each has a version of its own: servers of several tests may have had the same port, and processes
    keep the state of a store by its configuration.
    """
    values: dict[str, Any] = {
        "profile": "lake",
        "version": next(_versions),
        "kind": StoreKind.S3,
        "roots": ("s3://lake/root",),
        "region": "eu-central-1",
        "endpoint": endpoint,
        "path_style": True,
        "identity": ServerIdentity.KEY,
        "key": Key("AKIDPROFILE", "profile-secret"),
    }
    return StoreConfiguration(**values | changes)
