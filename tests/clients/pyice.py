"""PyIceberg as a client of the live server, and the function of the tests' writing processes."""

import random
import time
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException

_PATIENCE = 240.0


def connect(url: str, **properties: Any) -> RestCatalog:
    """`properties` are the credentials (`token=`, `credential=`) and the `warehouse`."""
    return RestCatalog("monodon", uri=url, **properties)


def credential(url: str, key: str) -> dict[str, str]:
    """Properties to connect through the token endpoint, about whose URL PyIceberg would warn if it were missing.

    The id is the key's name.
    """
    return {"credential": f"tests:{key}", "oauth2-server-uri": f"{url}/v1/oauth/tokens"}


def append(
    url: str, key: str, table: tuple[str, ...], writer: int, count: int, **properties: Any
) -> int:
    """Append `count` rows, each in its own commit. Returns the number of retries after conflicts.

    Importable by name, because the processes are spawned.
    """
    loaded = connect(url, token=key, **properties).load_table(table)
    deadline = time.monotonic() + _PATIENCE
    conflicts = 0
    for number in range(count):
        rows = pa.table({"writer": pa.array([writer], pa.int64()), "number": [number]})
        while True:
            try:
                loaded.append(rows)
                break
            except CommitFailedException:
                # Nothing was committed, so the change can be repeated.
                conflicts += 1
                if time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.01, 0.2))
                loaded.refresh()
    return conflicts
