"""A throttle for guessing secrets: API keys, tokens, the secrets of OAuth2 clients.

Wrong secrets are counted per address that sends them and per client that they are for. Only distinct
ones count: a program that sends the same revoked key for days guesses nothing. After too many, the
source is refused for the rest of the minute, except for secrets that were right recently, so a
guesser does not lock out legitimate users behind the same address.

Each process counts separately, in bounded memory; the least recently used entries are dropped first.
"""

import hashlib
import ipaddress
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from catalog.errors import TooManyAttempts

WINDOW_SECONDS = 60.0
BY_ADDRESS = 30
BY_CLIENT = 100
_PROVEN_SECONDS = 3600.0
_SIZE = 10_000
_IPV6_NETWORK = 64  # the prefix length of one household or machine


@dataclass(slots=True)
class _Source:
    until: float
    guesses: set[bytes] = field(default_factory=set)


class Throttle:
    """The wrong secrets that this process has counted. All methods are thread-safe."""

    def __init__(self, *, size: int = _SIZE, clock: Callable[[], float] = time.monotonic) -> None:
        self._size, self._clock = size, clock
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self._sources: OrderedDict[str, _Source] = OrderedDict()
        self._proven: OrderedDict[bytes, float] = OrderedDict()

    def check(self, secret: str, address: str, client: str = "") -> None:
        """Raise TooManyAttempts if this source may not try this secret now."""
        if not self._sources:
            return
        now = self._clock()
        with self._lock:
            wait = max(
                self._wait(_by_address(address), BY_ADDRESS, now),
                self._wait(_by_client(client), BY_CLIENT, now) if client else 0.0,
            )
            if wait <= 0 or self._proven.get(_mark(secret), 0.0) > now:
                return
        raise TooManyAttempts(math.ceil(wait))

    def record_failure(self, secret: str, address: str, client: str = "") -> None:
        """Count a wrong secret."""
        now, guess = self._clock(), _mark(secret)
        with self._lock:
            self._proven.pop(guess, None)
            self._count(_by_address(address), BY_ADDRESS, guess, now)
            if client:
                self._count(_by_client(client), BY_CLIENT, guess, now)

    def record_success(self, secret: str) -> None:
        """Exempt a secret that was right."""
        with self._lock:
            mark = _mark(secret)
            self._proven[mark] = self._clock() + _PROVEN_SECONDS
            self._proven.move_to_end(mark)
            if len(self._proven) > self._size:
                self._proven.popitem(last=False)

    def _wait(self, name: str, most: int, now: float) -> float:
        source = self._sources.get(name)
        if source is None:
            return 0.0
        if source.until <= now:
            del self._sources[name]
            return 0.0
        return source.until - now if len(source.guesses) >= most else 0.0

    def _count(self, name: str, most: int, guess: bytes, now: float) -> None:
        source = self._sources.get(name)
        if source is None or source.until <= now:
            source = self._sources[name] = _Source(now + WINDOW_SECONDS)
        self._sources.move_to_end(name)
        if len(source.guesses) < most:
            source.guesses.add(guess)
        if len(self._sources) > self._size:
            self._sources.popitem(last=False)


def _mark(secret: str) -> bytes:
    """A digest long enough to distinguish secrets, and too short to recover one."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()[:8]


@lru_cache(maxsize=4096)
def _by_address(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "?"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            return str(ipaddress.ip_network((parsed, _IPV6_NETWORK), strict=False))
        parsed = parsed.ipv4_mapped
    return str(parsed)


def _by_client(client: str) -> str:
    # No address looks like a digest.
    return hashlib.sha256(client.encode("utf-8", "surrogateescape")).hexdigest()


throttle = Throttle()
