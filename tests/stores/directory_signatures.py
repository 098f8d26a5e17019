"""A gate before Azurite that accepts signatures for directories, which Azurite does not know.

It evaluates them as Azure documents it for accounts with a hierarchical namespace: the signature over
the fields, the expiry, the permissions, and the directory of the object or of the listed prefix. Only
what it accepts reaches Azurite, with a signature for the account. Other requests pass unchanged.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

from tests.stores import faults
from tests.stores.emulators import Azurite

_SIGNED = (
    *("sp", "st", "se", "", "si", "sip", "spr", "sv", "sr", "", "ses"),
    *("rscc", "rscd", "rsce", "rscl", "rsct"),
)
"""The fields of the signed text in order; the fourth is the directory."""
_SAS_FIELDS = {*_SIGNED, "sig", "sdd"} - {""}
_PERMISSIONS = {"GET": "r", "HEAD": "r", "DELETE": "d", "PUT": "cw"}
_REFUSED = (
    b'<?xml version="1.0" encoding="utf-8"?><Error><Code>AuthorizationPermissionMismatch</Code>'
    b"<Message>This request is not authorized to perform this operation.</Message></Error>"
)


class DirectoryGate(faults.FaultProxy):
    def __init__(self, azurite: Azurite) -> None:
        super().__init__(azurite.endpoint)
        self._azurite = azurite
        self.refused: list[str] = []
        """The requests that were refused, as ``METHOD path``."""

    def __enter__(self) -> Self:
        super().__enter__()
        self._server.RequestHandlerClass = _Handler
        self.endpoint = f"{self.url}/{self._azurite.account}"
        return self

    def accepts(self, method: str, path: str, query: Mapping[str, str]) -> bool:
        """True if the signature is valid and permits the request. ``path``: below the account."""
        container, _, key = path.partition("/")
        directory = self._signed_directory(container, key, query)
        text = "\n".join(
            f"/blob/{self._azurite.account}/{container}/{directory}"
            if position == 3
            else query.get(field, "")
            for position, field in enumerate(_SIGNED)
        )
        secret = base64.b64decode(self._azurite.key)
        expected = base64.b64encode(hmac.digest(secret, text.encode(), hashlib.sha256)).decode()
        if not hmac.compare_digest(expected, query["sig"]):
            return False
        if datetime.fromisoformat(query["se"]) <= datetime.now(UTC):
            return False
        needed = "l" if not key else _PERMISSIONS[method]
        return bool(set(needed) & set(query["sp"]))

    def _signed_directory(self, container: str, key: str, query: Mapping[str, str]) -> str:
        """The directory that a valid signature must be for: the first levels of what is requested."""
        depth = int(query["sdd"])
        # A prefix without a slash at its end would also list directories beside this one.
        requested = key or query.get("prefix", "").rpartition("/")[0]
        return "/".join(requested.split("/")[:depth])

    def with_account_signature(self, path: str, query: Mapping[str, str]) -> str:
        signature = generate_account_sas(
            self._azurite.account,
            self._azurite.key,
            ResourceTypes(service=True, container=True, object=True),
            AccountSasPermissions(read=True, write=True, delete=True, list=True, create=True),
            datetime.now(UTC) + timedelta(minutes=5),
        )
        others = urlencode({k: v for k, v in query.items() if k not in _SAS_FIELDS})
        return f"{path}?{others}&{signature}"


class _Handler(faults._Handler):
    def _forward(self, body: bytes) -> tuple[int, str, list[tuple[str, str]], bytes]:
        gate: Any = self.server.proxy
        target = urlsplit(self.path)
        query = dict(parse_qsl(target.query, keep_blank_values=True))
        if query.get("sr") == "d":
            path = unquote(target.path).lstrip("/").partition("/")[2]
            if not gate.accepts(self.command, path, query):
                gate.refused.append(f"{self.command} {path}")
                return 403, "Forbidden", [("Content-Type", "application/xml")], _REFUSED
            self.path = gate.with_account_signature(target.path, query)
        return super()._forward(body)
