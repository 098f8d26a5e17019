"""A limit on how often something happens."""

import threading
import time
from collections.abc import Callable


class TokenBucket:
    """Allows ``most`` uses at once, and ``a_second`` per second in the long run. Safe for threads."""

    def __init__(
        self, most: int, a_second: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` returns seconds and never goes back."""
        self._most, self._a_second, self._clock = most, a_second, clock
        self._lock = threading.Lock()
        self.refill()

    def refill(self) -> None:
        """Allow ``most`` uses again."""
        with self._lock:
            self._tokens, self._since = float(self._most), self._clock()

    def take(self) -> bool:
        """Count a use; False if it is one too many."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._most, self._tokens + (now - self._since) * self._a_second)
            self._since = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True
