"""Signed requests to an S3 store, with the store's answer as it is.

The server reads and writes tables through ``catalog.storage``, whose errors are the same for all kinds of
stores. To find the cause of a failure, the checks need what only the answer tells: its code, its
region and its clock.
"""

import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import quote
from xml.sax.saxutils import escape

import urllib3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from catalog.storage.configuration import Key, StoreConfiguration
from catalog.storage.object_clients import s3_address
from catalog.storage.role_sessions import DEFAULT_REGION

TIMEOUT = urllib3.Timeout(connect=5, read=10)
_MAX_BYTES = 64 * 1024  # of an answer; more than any error
_TEXT = "<{0}>([^<]{{1,2000}})</{0}>"


@dataclass(frozen=True, slots=True)
class Answer:
    """A store's answer to a request."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_refusal(self) -> bool:
        """True if the store denies the request to this key."""
        return self.status in {401, 403}

    @property
    def is_copy(self) -> bool:
        """True if the store has copied an object."""
        return self.is_success and b"CopyObjectResult" in self.body

    @property
    def code(self) -> str:
        """Error code of S3, such as ``NoSuchBucket``; empty if the answer has none."""
        return self.text("Code")

    @property
    def region(self) -> str:
        """The region of the bucket, if the store names it."""
        named = self.headers.get("x-amz-bucket-region", "") or self.text("Region")
        if named:
            return named
        match = re.search(r"expecting '([A-Za-z0-9-]{1,100})'", self.text("Message"))
        return match[1] if match else ""

    @property
    def summary(self) -> str:
        """Status, code and message in one line."""
        parts = [f"HTTP {self.status}", self.code, self.text("Message")[:300]]
        return ", ".join(part for part in parts if part)

    def text(self, element: str) -> str:
        """Text of the first XML element of this name; empty if there is none.

        Control characters are spaces: no header and no column of the database may hold them.
        """
        match = re.search(_TEXT.format(element), self.body.decode(errors="replace"))
        if match is None:
            return ""
        return "".join(letter if letter.isprintable() else " " for letter in match[1]).strip()


class S3Client:
    """Requests to one bucket, signed with one key. Never retries, and follows no redirect."""

    def __init__(
        self,
        configuration: StoreConfiguration,
        bucket: str,
        key: Key,
        *,
        region: str = "",
        path_style: bool | None = None,
    ) -> None:
        """``region`` and ``path_style`` replace those of the configuration."""
        self._key = key
        self._region = region or configuration.region or DEFAULT_REGION
        if path_style is not None:
            configuration = replace(configuration, path_style=path_style)
        self.base = bucket_url(configuration, bucket)
        self._encryption = (
            {
                "x-amz-server-side-encryption": "aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id": configuration.kms_key,
            }
            if configuration.kms_key
            else {}
        )
        self._pool = urllib3.PoolManager(timeout=TIMEOUT, retries=False)

    def send(
        self,
        method: str,
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        unsigned: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        """Send a request for an object, or for the bucket. Raises urllib3's HTTPError.

        ``unsigned`` headers are not part of the signature, so that a proxy that removes them does not
        invalidate it.
        """
        url = self._url(key, query)
        signed = self._signed(method, url, headers, body)
        return fetch(self._pool, method, url, {**signed, **(unsigned or {})}, body)

    def send_with_signature_of(self, signed_key: str, key: str) -> Answer:
        """Read one object with the signature of a request for another."""
        headers = self._signed("GET", self._url(signed_key), None, b"")
        return fetch(self._pool, "GET", self._url(key), headers)

    def send_copy(self, key: str, source: str) -> Answer:
        """Write an object with a header that makes it a copy, which the signature does not cover."""
        return self.send(
            "PUT", key, headers=self._encryption, unsigned={"x-amz-copy-source": source}
        )

    def send_deletion(self, signed_key: str, key: str) -> Answer:
        """Delete one object with the signature of a request that deletes another.

        Both are named in the body, whose hash is signed.
        """
        url, body = self._url("", {"delete": ""}), _deletion(key)
        signed = self._signed("POST", url, None, _deletion(signed_key))
        digest = b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        return fetch(self._pool, "POST", url, {**signed, "Content-MD5": digest}, body)

    def list_keys(self, prefix: str) -> Answer:
        """List up to one key below a prefix."""
        return self.send("GET", query={"list-type": "2", "max-keys": "1", "prefix": prefix})

    def put(self, key: str, body: bytes, *, only_if_absent: bool = False) -> Answer:
        condition = {"If-None-Match": "*"} if only_if_absent else {}
        return self.send("PUT", key, headers=self._encryption, unsigned=condition, body=body)

    def create_upload(self, key: str) -> Answer:
        """Begin a multipart upload; the answer holds its ``UploadId``."""
        return self.send("POST", key, query={"uploads": ""}, headers=self._encryption)

    def _url(self, key: str, query: Mapping[str, str] | None = None) -> str:
        url = f"{self.base}/{quote(key, safe='/~')}"
        if not query:
            return url
        pairs = (f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in query)
        return f"{url}?{'&'.join(pairs)}"

    def _signed(
        self, method: str, url: str, headers: Mapping[str, str] | None, body: bytes
    ) -> dict[str, str]:
        """The headers with those of the signature."""
        request = AWSRequest(method=method, url=url, data=body, headers=dict(headers or {}))
        credentials = Credentials(self._key.id, self._key.secret, self._key.token or None)
        S3SigV4Auth(credentials, "s3", self._region).add_auth(request)
        return dict(request.headers.items())


def _deletion(key: str) -> bytes:
    """The body of a request that deletes one object."""
    return f"<Delete><Object><Key>{escape(key)}</Key></Object></Delete>".encode()


def fetch(
    pool: urllib3.PoolManager, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
) -> Answer:
    """Send a request, and read the beginning of the answer. Raises urllib3's HTTPError."""
    response = pool.request(
        method,
        url,
        headers=dict(headers),
        body=body or None,
        redirect=False,
        preload_content=False,
    )
    try:
        content = response.read(_MAX_BYTES)
        lower = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, lower, content)
    finally:
        response.close()


def endpoint_url(configuration: StoreConfiguration) -> str:
    """URL of the store, without a slash at its end."""
    return s3_address(replace(configuration, path_style=True), "s3://bucket")[0]


def bucket_url(configuration: StoreConfiguration, bucket: str) -> str:
    """URL of a bucket, without a slash at its end."""
    address, has_bucket = s3_address(configuration, f"s3://{bucket}")
    return address if has_bucket else f"{address}/{bucket}"
