"""Tokens of a sign-on: their renewal in the file of profiles, and their revocation (RFC 7009)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from monodon.profiles import Profiles, SignOn
from monodon.sign_on.errors import SignOnFailed, SignOnRefused
from monodon.sign_on.issuer import DeviceClient, Issuer, reason, require_issuer, seconds

if TYPE_CHECKING:
    import httpx

_LONGEST_TOKEN = 16 * 1024
"""The server accepts no longer ones."""
_DEFAULT_SECONDS, _MARGIN_SECONDS = 300.0, 30.0
_JWT = re.compile(r"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Tokens:
    """The tokens in an answer of an issuer. Times are in seconds since the epoch."""

    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    """Empty: the sign-on ends with the access token."""
    refresh_at: float
    expires_at: float


def tokens_of(issuer: str, content: Mapping[str, Any]) -> Tokens:
    """The tokens of a successful answer (RFC 6749, section 5.1). Raises SignOnFailed."""
    access_token, refresh_token = content.get("access_token"), content.get("refresh_token", "")
    if not (isinstance(access_token, str) and isinstance(refresh_token, str)):
        raise SignOnFailed(f"{issuer} answered without a token")
    if str(content.get("token_type")).lower() != "bearer":
        raise SignOnFailed(f"{issuer} answered with a token of another type than Bearer")
    if max(len(access_token), len(refresh_token)) > _LONGEST_TOKEN:
        raise SignOnFailed(f"{issuer} answered with a token of more than 16 KiB")
    if not _JWT.fullmatch(access_token):
        raise SignOnFailed(
            f"{issuer} issues access tokens that are not JWTs, which the server cannot verify;"
            " docs/sign-on.md describes how to set up the identity provider"
        )
    lifetime = seconds(content.get("expires_in")) or _DEFAULT_SECONDS
    now = time.time()
    refresh_at = now + lifetime - min(_MARGIN_SECONDS, lifetime / 2)
    return Tokens(access_token, refresh_token, refresh_at, now + lifetime)


def stored(client: DeviceClient, tokens: Tokens) -> SignOn:
    """The sign-on as a profile has it."""
    return SignOn(
        issuer=client.issuer,
        client_id=client.client_id,
        access_token=tokens.access_token,
        refresh_token=tokens.refresh_token,
        refresh_at=tokens.refresh_at,
        expires_at=tokens.expires_at,
    )


class TokenSource:
    """Returns the access token of a profile, and renews it before it expires.

    One process at a time renews: it locks the file of profiles, and reads it again, because another process may
    have renewed the token. The issuer may accept a refresh token only once.
    """

    def __init__(
        self,
        profile: str,
        url: str,
        sign_on: SignOn,
        *,
        environment: Mapping[str, str] = os.environ,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._profile, self._url, self._sign_on = profile, url, sign_on
        self._environment, self._transport = environment, transport

    def __call__(self) -> str:
        """Raises SignOnRefused if the sign-on has ended, SignOnFailed, SignOnUnavailable, ProfileError."""
        if time.time() >= self._sign_on.refresh_at:
            with Profiles.locked(self._environment) as profiles:
                self._sign_on = self._renewed(profiles)
        return self._sign_on.access_token

    def _renewed(self, profiles: Profiles) -> SignOn:
        server = profiles.servers.get(self._profile)
        if server is None or server.url != self._url or server.sign_on is None:
            raise self._ended()
        current, now = server.sign_on, time.time()
        if now < current.refresh_at:
            return current
        try:
            if not current.refresh_token:
                raise self._ended()
            renewed = self._renew(current)
        except SignOnRefused:
            # A refresh token that the issuer refused is not sent again.
            if current.refresh_token:
                server.sign_on = replace(current, refresh_token="")
                profiles.save()
            if now < current.expires_at:
                return current
            raise
        except SignOnFailed:
            if now < current.expires_at:
                return current
            raise
        server.sign_on = renewed
        profiles.save()
        return renewed

    def _renew(self, current: SignOn) -> SignOn:
        require_issuer(current.issuer, self._url)
        form = {
            "grant_type": "refresh_token",
            "refresh_token": current.refresh_token,
            "client_id": current.client_id,
        }
        with Issuer(current.issuer, self._transport) as issuer:
            status, content = issuer.post("token_endpoint", form)
        if content.get("error") == "invalid_grant":
            raise self._ended()
        if status != 200:
            raise SignOnFailed(
                f"{current.issuer} did not renew the token: {reason(status, content)}"
            )
        tokens = tokens_of(current.issuer, content)
        return replace(
            current,
            access_token=tokens.access_token,
            refresh_token=tokens.refresh_token or current.refresh_token,
            refresh_at=tokens.refresh_at,
            expires_at=tokens.expires_at,
        )

    def _ended(self) -> SignOnRefused:
        return SignOnRefused(
            f"The sign-on of profile '{self._profile}' has ended: monodon --profile {self._profile}"
            f" login {self._url}"
        )


def revoke(sign_on: SignOn, transport: httpx.BaseTransport | None = None) -> bool:
    """Revoke the tokens at the issuer; False: it offers no revocation. Raises SignOnFailed."""
    token = sign_on.refresh_token or sign_on.access_token
    hint = "refresh_token" if sign_on.refresh_token else "access_token"
    form = {"token": token, "token_type_hint": hint, "client_id": sign_on.client_id}
    with Issuer(sign_on.issuer, transport) as issuer:
        if issuer.endpoint("revocation_endpoint") is None:
            return False
        status, content = issuer.post("revocation_endpoint", form)
    if status != 200:
        raise SignOnFailed(f"{sign_on.issuer} did not revoke the tokens: {reason(status, content)}")
    return True
