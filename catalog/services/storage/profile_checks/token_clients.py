"""Requests of a client of Azure or Google Cloud Storage, with temporary credentials for one table."""

from collections.abc import Mapping
from urllib.parse import quote, urlencode

import urllib3

from catalog.services.storage.profile_checks.s3_client import TIMEOUT, Answer, fetch
from catalog.storage.configuration import Key, StoreConfiguration, StoreKind
from catalog.storage.object_clients import azure_address, gcs_endpoint
from catalog.storage.object_locations import bucket_of

_AZURE_VERSION = "2021-12-02"


class TokenClient:
    """Requests to one bucket or container. Never retries, and follows no redirect."""

    def __init__(self, configuration: StoreConfiguration, root: str, key: Key) -> None:
        bucket = bucket_of(root)
        name = bucket.partition("://")[2].partition("@")[0]
        self._is_azure = configuration.kind is StoreKind.ADLS
        self._query = ""
        if self._is_azure:
            self._base = f"{azure_address(configuration, bucket)[1]}/{name}"
            self._query = key.token
            self._headers = {"x-ms-version": _AZURE_VERSION}
        else:
            self._base = f"{gcs_endpoint(configuration)}/{name}"
            self._headers = {"authorization": f"Bearer {key.token}"}
        self._pool = urllib3.PoolManager(timeout=TIMEOUT, retries=False)

    def send(self, method: str, key: str) -> Answer:
        """Send a request for an object. Raises urllib3's HTTPError."""
        return self._send(method, f"/{quote(key, safe='/~')}", {}, {})

    def put(self, key: str, body: bytes) -> Answer:
        headers = {"x-ms-blob-type": "BlockBlob"} if self._is_azure else {}
        return self._send("PUT", f"/{quote(key, safe='/~')}", {}, headers, body)

    def list_keys(self, prefix: str) -> Answer:
        """List up to one key below a prefix."""
        if self._is_azure:
            query = {"restype": "container", "comp": "list", "maxresults": "1", "prefix": prefix}
        else:
            query = {"list-type": "2", "max-keys": "1", "prefix": prefix}
        return self._send("GET", "", query, {})

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes = b"",
    ) -> Answer:
        text = "&".join(filter(None, (urlencode(query), self._query)))
        url = f"{self._base}{path}" + (f"?{text}" if text else "")
        return fetch(self._pool, method, url, {**self._headers, **headers}, body)
