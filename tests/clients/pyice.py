"""PyIceberg as a client of the live server, and what each writing process of the tests does with it."""

import random
import time
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException

_PATIENCE = 240.0


def connect(url: str, **properties: Any) -> RestCatalog:
    """`properties` say who connects (`token=`, `credential=`) and to which `warehouse`."""
    return RestCatalog("monodon", uri=url, **properties)


def credential(url: str, key: str) -> dict[str, str]:
    """What connects by way of the token endpoint. PyIceberg warns where that has to be guessed.

    The id is the key's name.
    """
    return {"credential": f"tests:{key}", "oauth2-server-uri": f"{url}/v1/oauth/tokens"}


def append(
    url: str, key: str, table: tuple[str, ...], writer: int, count: int, **properties: Any
) -> int:
    """Append `count` rows, each in a commit of its own; returns how often it was told to try again.

    Spawned, so importable by name.
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
