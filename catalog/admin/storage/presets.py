"""Presets of storage profiles: values of the form for the common stores."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Values for a kind of store. Texts in angle brackets are to be replaced by the user."""

    key: str
    title: str
    hint: str
    values: dict[str, Any] = field(default_factory=dict)


# Every preset sets the same fields, so that choosing another one leaves nothing behind.
_DEFAULTS: dict[str, Any] = {
    "kind": "s3",
    "roots": "s3://<bucket>/<prefix>",
    "region": "",
    "endpoint": "",
    "sts_endpoint": "",
    "path_style": False,
    "conditional_writes": True,
    "identity": "key",
    "role": "",
    "client_access": "none",
    "lifetime_seconds": 3600,
}


def _preset(key: str, title: str, hint: str, **values: Any) -> Preset:
    return Preset(key, title, hint, _DEFAULTS | values)


PRESETS = (
    _preset(
        "aws",
        "AWS S3",
        "The server uses its instance profile or environment, and assumes a role for each table that a"
        " client opens.",
        region="<region>",
        identity="environment",
        role="arn:aws:iam::<account>:role/<role>",
        client_access="sts",
    ),
    _preset(
        "minio",
        "MinIO and compatible",
        "The token service is at the endpoint of the store. MinIO ignores the role, but requires one.",
        region="us-east-1",
        endpoint="https://<host>:9000",
        path_style=True,
        role="arn:aws:iam::000000000000:role/monodon",
        client_access="sts",
    ),
    _preset(
        "r2",
        "Cloudflare R2",
        "The region is always auto. R2 has no AssumeRole: the server signs the requests of clients.",
        region="auto",
        endpoint="https://<account>.r2.cloudflarestorage.com",
        path_style=True,
        client_access="signing",
    ),
    _preset(
        "ceph",
        "Ceph (RADOS Gateway)",
        "Requires rgw_s3_auth_use_sts and a role that the key may assume.",
        region="default",
        endpoint="https://<host>",
        path_style=True,
        role="arn:aws:iam:::role/<role>",
        client_access="sts",
    ),
    _preset(
        "seaweedfs",
        "SeaweedFS",
        "The server signs the requests of clients.",
        region="us-east-1",
        endpoint="http://<host>:8333",
        path_style=True,
        client_access="signing",
    ),
    _preset(
        "gcs",
        "Google Cloud Storage",
        "Enter the JSON of a service account's key as the secret, or use the environment of the server.",
        kind="gcs",
        roots="gs://<bucket>/<prefix>",
        identity="environment",
    ),
    _preset(
        "azure",
        "Azure Data Lake Storage",
        "The key id is the name of the storage account, the secret its account key.",
        kind="adls",
        roots="abfss://<container>@<account>.dfs.core.windows.net/<prefix>",
    ),
)


def find(key: str) -> Preset | None:
    return next((preset for preset in PRESETS if preset.key == key), None)
