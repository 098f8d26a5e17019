"""Signatures of requests to S3, with a key of the server (AWS Signature Version 4)."""

from datetime import UTC, datetime
from typing import Any

from botocore.auth import SIGV4_TIMESTAMP, S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from catalog.storage.role_sessions import SessionCredentials
from catalog.storage.s3.requests import S3Request

_SIGNED = ("content-type", "content-md5", "content-encoding")
"""Headers that are signed beside those of S3. HTTP clients and proxies change the others."""


class _Signature(S3SigV4Auth):  # type: ignore[misc]
    """Signs what the request says of its body, which the server does not have."""

    def payload(self, request: Any) -> str:
        payload: str = request.context["payload"]
        return payload

    def _modify_request_before_signing(self, request: Any) -> None:
        request.context["timestamp"] = request.context["signed_at"].strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)


def sign(
    request: S3Request, key: SessionCredentials, region: str, signed_at: datetime
) -> dict[str, str]:
    """The headers to send with a request: its own, and those of the signature.

    Every header of S3 is signed, so that a store that follows the specification refuses the request
    if one is changed. The signature is valid for 15 minutes after ``signed_at``, as the store decides.
    """
    signed = {
        name: value
        for name, value in request.headers.items()
        if name.startswith("x-amz-") or name in _SIGNED
    }
    message = AWSRequest(method=request.method, url=request.url, headers=signed)
    message.context["payload"] = request.payload
    message.context["signed_at"] = signed_at.astimezone(UTC)
    credentials = Credentials(key.key_id, key.secret, key.token or None)
    _Signature(credentials, "s3", region).add_auth(message)
    return {**request.headers, **{name.lower(): value for name, value in message.headers.items()}}
