"""A writer that appends rows to a table beside a test."""

import itertools
import threading
from collections.abc import Callable
from typing import Self

from tests.chaos.upkeep_writers import OWN, Rows


class Appending:
    """Appends one row after the other until the end of the block, and adds them to ``rows``."""

    def __init__(self, append: Callable[[Rows], object], rows: Rows, pause: float) -> None:
        self.turn = threading.Lock()
        """Nothing is appended while the test holds it."""
        self._append, self._rows, self._pause = append, rows, pause
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
            for id_ in itertools.count(OWN):
                row = {id_: 1}
                with self.turn:
                    self._append(row)
                self._rows |= row
                if self._stop.wait(self._pause):
                    return
        except BaseException as error:  # noqa: BLE001 -- raised by the test's thread
            self._errors.append(error)
