"""Presets of storage profiles: the fields that fit a kind of store, with hints for the others.

``manage.py storage`` and the admin fill in a new profile from a preset; every field can be changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from catalog.storage.configuration import ClientAccess, ServerIdentity, StoreKind


@dataclass(frozen=True)
class Preset:
    """Values for a new profile."""

    name: str
    title: str
    kind: StoreKind
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields of ``profile_operations.create_profile``."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """Examples and remarks for fields that the preset cannot know."""


_S3_ROOTS = "s3://bucket/tables"
_SIGNING = {
    "identity": ServerIdentity.KEY,
    "client_access": ClientAccess.SIGNING,
    "conditional_writes": True,
}

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "aws",
            "Amazon S3",
            StoreKind.S3,
            {
                "path_style": False,
                "identity": ServerIdentity.ENVIRONMENT,
                "client_access": ClientAccess.STS,
                "lifetime_seconds": 3600,
                "conditional_writes": True,
            },
            {
                "roots": _S3_ROOTS,
                "region": "the region of the bucket, such as eu-central-1",
                "role": "the role that clients get: arn:aws:iam::123456789012:role/lake",
            },
        ),
        Preset(
            "r2",
            "Cloudflare R2",
            StoreKind.S3,
            {"path_style": True, "region": "auto", **_SIGNING},
            {
                "roots": _S3_ROOTS,
                "endpoint": "https://ACCOUNT.r2.cloudflarestorage.com",
                "client_access": "R2 has no token service of AWS; the server signs requests",
            },
        ),
        Preset(
            "ceph",
            "Ceph RADOS Gateway",
            StoreKind.S3,
            {
                "path_style": True,
                "region": "default",
                "identity": ServerIdentity.KEY,
                "client_access": ClientAccess.STS,
                "conditional_writes": True,
            },
            {
                "roots": _S3_ROOTS,
                "endpoint": "https://rgw.example.com",
                "role": "arn:aws:iam:::role/lake; radosgw-admin role create",
                "conditional_writes": "If-None-Match needs Ceph 19 (Squid) or later",
            },
        ),
        Preset(
            "seaweedfs",
            "SeaweedFS",
            StoreKind.S3,
            {"path_style": True, "region": "us-east-1", **_SIGNING},
            {
                "roots": _S3_ROOTS,
                "endpoint": "http://seaweedfs.example.com:8333",
                "conditional_writes": "test it: older releases ignore If-None-Match",
            },
        ),
        Preset(
            "minio",
            "MinIO and compatible stores",
            StoreKind.S3,
            {
                "path_style": True,
                "region": "us-east-1",
                "identity": ServerIdentity.KEY,
                "role": "arn:minio:iam:::role/any",
                "client_access": ClientAccess.STS,
                "conditional_writes": True,
            },
            {
                "roots": _S3_ROOTS,
                "endpoint": "https://minio.example.com:9000",
                "role": "any ARN: MinIO gives the rights of the profile's key, limited to a table",
            },
        ),
        Preset(
            "gcs",
            "Google Cloud Storage",
            StoreKind.GCS,
            {
                "identity": ServerIdentity.KEY,
                "client_access": ClientAccess.STS,
                "lifetime_seconds": 3600,
                "conditional_writes": True,
            },
            {
                "roots": "gs://bucket/tables",
                "secret": "the JSON of a service account's key",
                "client_access": "sts needs uniform bucket-level access",
            },
        ),
        Preset(
            "azure",
            "Azure Data Lake Storage",
            StoreKind.ADLS,
            {
                "identity": ServerIdentity.KEY,
                "client_access": ClientAccess.STS,
                "lifetime_seconds": 3600,
                "conditional_writes": True,
            },
            {
                "roots": "abfss://container@account.dfs.core.windows.net/tables",
                "client_access": "sts needs an account with a hierarchical namespace",
                "key_id": "the name of the storage account",
                "secret": "a key of the storage account",
            },
        ),
    )
}
