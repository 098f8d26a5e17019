"""A writer that changes rows of a table beside a test."""

import itertools
import threading
from collections.abc import Callable
from typing import Self


class Repeating:
    """Calls ``change`` with one id after the other until the end of the block."""

    def __init__(self, change: Callable[[int], object], *, first: int, pause: float) -> None:
        self.ids: set[int] = set()
        """The ids whose changes have succeeded."""
        self.turn = threading.Lock()
        """Nothing is changed while the test holds it."""
        self._change, self._first, self._pause = change, first, pause
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert not self._errors, self._errors

    def _run(self) -> None:
        try:
            for id_ in itertools.count(self._first):
                with self.turn:
                    self._change(id_)
                self.ids.add(id_)
                if self._stop.wait(self._pause):
                    return
        except BaseException as error:  # noqa: BLE001 -- raised by the test's thread
            self._errors.append(error)
