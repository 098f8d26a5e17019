"""The example of an operation: a request that succeeds, with what has to be there before.

The tests of all operations run it, and those of access with every privilege. An operation's own tests declare it in a
module-level ``EXAMPLES``, by the operation's name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tests.access.rules import Rule
from tests.api.client import Lance
from tests.factories import make_lance_table

STREAM = "application/vnd.apache.arrow.stream"
ROWS = pa.table({"id": pa.array([7, 8], pa.int64())})


@dataclass(frozen=True)
class Example:
    path: str
    body: dict[str, Any] | None = None
    method: str = "POST"
    raw: bytes | None = None
    """An Arrow stream."""
    status: int = 200
    prepare: Callable[[Lance], Any] | None = None
    rule: Rule | None = None
    """The privilege that the operation requires. None: ``tests/access/rules.py`` has the rule."""

    @property
    def options(self) -> dict[str, Any]:
        """Of a call, beside its method, path and body."""
        return {} if self.raw is None else {"raw": self.raw, "headers": {"content-type": STREAM}}


def data(lance: Lance) -> None:
    """Table ``ws.data`` of 8 rows, in storage."""
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(16, dtype="f4")), 2)
    rows = {"id": pa.array(range(8), pa.int64()), "text": ["a b"] * 8, "v": vectors}
    make_lance_table(("ws", "data"), pa.table(rows))


def after(path: str, body: dict[str, Any]) -> Callable[[Lance], None]:
    """Prepare by ``data`` and one more request."""

    def prepare(lance: Lance) -> None:
        data(lance)
        response = lance.call("POST", path, body)
        assert response.status_code in {200, 201, 202}, response.content

    return prepare
