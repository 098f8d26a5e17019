"""Limits on concurrent requests of one client address and of one principal.

All counts belong to one process, whose event loop changes them, so there are no locks.
"""

import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django.conf import settings

from api.errors import TooManyRequests
from catalog.errors import CatalogError

RETRY_SECONDS = 1
Owner = str | int | None
"""The name of a principal, or a credential whose principal is not known; None: no credential, or not checked."""
_PROVEN_SECONDS = 30.0
_MAX_PROVEN = 10_000
_IMMEDIATE_PER_SECOND = 500
"""A tenth of the time of the event loop at most."""
_IPV6_NETWORK = 64
"""Length of the prefix of one household or machine."""


class Limits:
    """Concurrent requests by address and by principal."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds."""
        self._clock = clock
        self._by_address: Counter[str] = Counter()
        self._by_principal: Counter[str | int] = Counter()
        self._proven: OrderedDict[int, tuple[str, float]] = OrderedDict()
        self._immediate: Counter[str] = Counter()
        self._immediate_second = 0

    def enter(self, address: str, principal: Owner) -> CatalogError | None:
        """Count a request. If it exceeds a limit, return the refusal instead."""
        most = settings.MONODON_REQUESTS_PER_ADDRESS
        if most and self._by_address[address] >= most:
            return TooManyRequests(f"address {address}", most, RETRY_SECONDS)
        if principal is not None:
            most = settings.MONODON_REQUESTS_PER_PRINCIPAL
            if most and self._by_principal[principal] >= most:
                return TooManyRequests("these credentials", most, RETRY_SECONDS)
            self._by_principal[principal] += 1
        self._by_address[address] += 1
        return None

    def leave(self, address: str, principal: Owner) -> None:
        _decrement(self._by_address, address)
        if principal is not None:
            _decrement(self._by_principal, principal)

    def has_immediate_share(self, principal: str) -> bool:
        """Count a request that could be answered in the event loop. False if the principal had its share of this
        second."""
        second = int(self._clock())
        if second != self._immediate_second:
            self._immediate_second = second
            self._immediate.clear()
        self._immediate[principal] += 1
        return self._immediate[principal] <= _IMMEDIATE_PER_SECOND

    # -- credentials

    def principal(self, credential: int | None) -> Owner:
        """The principal to which a credential belonged when it was last used, otherwise the
        credential."""
        if credential is None:
            return None
        proof = self._proven.get(credential)
        return credential if proof is None else proof[0]

    def is_proven(self, credential: int) -> bool:
        """True if the credential was valid recently, so that the body may be read immediately.

        Only the reading of the body depends on this: the request is always authenticated.
        """
        proof = self._proven.get(credential)
        return proof is not None and proof[1] > self._clock()

    def prove(self, credential: int, principal: str) -> None:
        self._proven[credential] = (principal, self._clock() + _PROVEN_SECONDS)
        self._proven.move_to_end(credential)
        if len(self._proven) > _MAX_PROVEN:
            self._proven.popitem(last=False)

    def forget(self, credential: int) -> None:
        """Forget to which principal a credential belonged, because it was refused."""
        self._proven.pop(credential, None)


def spell(owner: Owner) -> str:
    """Name an owner in a message."""
    return f"'{owner}'" if isinstance(owner, str) else "clients without credentials"


def _decrement(counter: Counter[Any], key: Any) -> None:
    if counter[key] <= 1:
        del counter[key]
    else:
        counter[key] -= 1


@lru_cache(maxsize=4096)
def network(address: str) -> str:
    """The address, or the network of an IPv6 address, because a client usually has the whole
    network."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, _IPV6_NETWORK), strict=False))
    return address
