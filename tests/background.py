"""Background threads for tests."""

import threading
from typing import Self


class Background:
    """Threads that each call ``work`` with their number. They are stopped at the end of the block."""

    def __init__(self, threads: int = 1) -> None:
        self._stop = threading.Event()
        """Set at the end of the block; ``work`` then returns."""
        self._threads = [threading.Thread(target=self.work, args=(n,)) for n in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def work(self, number: int) -> None:
        raise NotImplementedError
