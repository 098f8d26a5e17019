"""Temporary credentials for Google Cloud Storage: access tokens with a Credential Access Boundary.

Google exchanges a token of the server for one that opens the objects below given prefixes only. It
ends when the server's token ends, which is an hour after Google has issued that one.
"""

import datetime as dt
import json
import re
import threading
import time
from functools import lru_cache, partial
from typing import Any

import google.auth
import google.auth.transport.requests
import requests
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.oauth2 import service_account, sts

from catalog.services.storage.client_sessions.token_services import Failure, Session
from catalog.storage import object_clients, object_locations
from catalog.storage.configuration import Key, ServerIdentity, StoreConfiguration
from catalog.storage.stores import AccessDenied

TOKEN_SERVICE = "https://sts.googleapis.com/v1/token"  # noqa: S105 -- an address
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 -- a type
_MAX_RULES = 10
_REQUEST_SECONDS = 10
_RENEW_SECONDS = 600
"""The server's own token is renewed when less than this has remained of its hour for ten minutes: tokens
of clients then last for at least 50 minutes."""
_TOKEN_SECONDS = 3600
_READ, _WRITE = "inRole:roles/storage.objectViewer", "inRole:roles/storage.objectUser"
_OF_ONE_TABLE = frozenset({"invalid_request"})
"""Errors that may be about a boundary, such as one of a long location: they must not stop others."""
_CODE = re.compile(r"(?:Error code )?([a-z]+(?:_[a-z]+)+):")


def request(
    configuration: StoreConfiguration,
    directories: tuple[str, ...],
    *,
    write: bool,
    principal: str,  # noqa: ARG001 -- of all kinds
) -> Session | Failure:
    """A token for directories, or why there is none. Google's logs name the server, not ``principal``."""
    opened = directories if len(directories) <= _MAX_RULES else directories[:1]
    try:
        source = _source(configuration)
        token, expires_at = source.current()
        service: Any = sts.Client  # without types
        answer = service(configuration.sts_endpoint or TOKEN_SERVICE).exchange_token(
            source.transport,
            _EXCHANGE,
            token,
            _ACCESS_TOKEN,
            requested_token_type=_ACCESS_TOKEN,
            additional_options=access_boundary(opened, write=write),
        )
        if "expires_in" in answer:  # missing if the token ends with the server's
            expires_at = min(expires_at, time.time() + int(answer["expires_in"]))
        return Session(Key(token=str(answer["access_token"])), expires_at, opened)
    except AccessDenied as error:
        return Failure(
            str(error.strerror), "Correct the key of the profile, or the server's environment"
        )
    except DefaultCredentialsError:
        return Failure(
            "the server has no credentials in its environment",
            "Give the server's environment credentials, or the profile a key",
        )
    except (GoogleAuthError, KeyError, TypeError, ValueError) as error:
        return _failure(error)


def access_boundary(directories: tuple[str, ...], *, write: bool) -> dict[str, Any]:
    """A Credential Access Boundary that opens the objects below canonical directories, and their lists."""
    rules = []
    for directory in directories:
        bucket = object_locations.bucket_of(directory).partition("://")[2]
        prefix = object_locations.key_of(directory) + "/"
        objects = _literal(f"projects/_/buckets/{bucket}/objects/{prefix}")
        lists = "api.getAttribute('storage.googleapis.com/objectListPrefix', '')"
        condition = f"resource.name.startsWith({objects}) || {lists}.startsWith({_literal(prefix)})"
        rules.append(
            {
                "availableResource": f"//storage.googleapis.com/projects/_/buckets/{bucket}",
                "availablePermissions": [_WRITE if write else _READ],
                "availabilityCondition": {"expression": condition},
            }
        )
    return {"accessBoundary": {"accessBoundaryRules": rules}}


def _literal(text: str) -> str:
    """A string of the Common Expression Language, whose escapes include those of JSON."""
    return json.dumps(text, ensure_ascii=False)


class _Source:
    """The server's own token, renewed in time. Safe for threads."""

    def __init__(self, configuration: StoreConfiguration) -> None:
        session = requests.Session()
        session.max_redirects = 0  # tokens go to the configured address, and nowhere else
        self.transport: Any = partial(
            google.auth.transport.requests.Request(session), timeout=_REQUEST_SECONDS
        )
        self._lock = threading.Lock()
        self._renew_at = 0.0
        if configuration.identity == ServerIdentity.KEY:
            secret = object_clients.secret_of(configuration, object_clients.GCS_IDENTITIES)
            account: Any = service_account.Credentials  # without types
            self._credentials: Any = account.from_service_account_info(
                json.loads(secret), scopes=[_SCOPE]
            )
        else:
            self._credentials, _ = google.auth.default(scopes=[_SCOPE])

    def current(self) -> tuple[str, float]:
        """The token, and when it expires in seconds since 1970. Raises GoogleAuthError."""
        with self._lock:
            now = time.time()
            if now >= self._renew_at:
                self._credentials.refresh(self.transport)
                lifetime = self._expires_at() - now
                self._renew_at = now + min(_RENEW_SECONDS, lifetime / 2)
            return str(self._credentials.token), self._expires_at()

    def _expires_at(self) -> float:
        expiry = self._credentials.expiry  # without a zone, in UTC
        if expiry is None:
            return time.time() + _TOKEN_SECONDS
        return float(expiry.replace(tzinfo=dt.UTC).timestamp())


@lru_cache(maxsize=64)
def _source(configuration: StoreConfiguration) -> _Source:
    return _Source(configuration)


def _failure(error: Exception) -> Failure:
    """Of the library's message only the code, because the rest may quote the request."""
    code = _CODE.match(str(error.args[0])) if error.args else None
    if code is not None:
        return Failure(
            f"the token service refuses: {code[1]}",
            "Check the service account of the profile, its key and its roles on the bucket",
            is_of_one_table=code[1] in _OF_ONE_TABLE,
        )
    return Failure(
        f"the token service does not answer as expected: {type(error).__name__}",
        "Check the profile's key and sts_endpoint, and that the server reaches the token service",
    )
