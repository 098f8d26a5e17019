"""Reading, writing and listing files: local, and in versitygw on loopback: ``python -m benchmarks.storage``.

Prints milliseconds for each operation (median), and how much longer an object takes than a file.
"""

import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from catalog.storage.stores import Store

_SIZE = 50_000
_ROUNDS = 300
_LISTED = 1000
_THREADS = 16


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()
    from catalog.storage.configuration import Key, ServerIdentity, StoreConfiguration, StoreKind
    from catalog.storage.local_store import LocalStore
    from catalog.storage.object_store import ObjectStore
    from tests.stores.s3 import Versitygw

    with tempfile.TemporaryDirectory() as directory, Versitygw() as gateway:
        bucket = gateway.new_bucket()
        configuration = StoreConfiguration(
            profile="benchmark",
            version=1,
            kind=StoreKind.S3,
            roots=(f"s3://{bucket}",),
            region=gateway.region,
            endpoint=gateway.endpoint,
            path_style=True,
            identity=ServerIdentity.KEY,
            key=Key(gateway.access_key, gateway.secret_key),
        )
        local = _measure(LocalStore(), os.path.realpath(directory))
        objects = _measure(ObjectStore(configuration, f"s3://{bucket}"), f"s3://{bucket}/root")
    print(f"{'':24}{'local':>10}{'objects':>10}{'ratio':>8}")
    for label, seconds in local.items():
        ratio = objects[label] / seconds
        print(f"{label:24}{seconds * 1e3:>8.2f}ms{objects[label] * 1e3:>8.2f}ms{ratio:>8.1f}")


def _measure(store: "Store", root: str) -> dict[str, float]:
    """Seconds for each operation."""
    content = os.urandom(_SIZE)
    table = f"{root}/t"
    path = f"{table}/data/f"
    store.write_new(path, content)
    for number in range(_LISTED):
        store.write_new(f"{table}/_versions/{number:05}", b"manifest")
    seconds = {
        "read 50 kB": _median(lambda: store.read(path, _SIZE)),
        "read the end": _median(lambda: store.read_end(path, lambda tail, size: size - 9, _SIZE)),
        "status": _median(lambda: store.status(path)),
        "write 50 kB": _median(lambda: store.write_new(f"{table}/new/{uuid.uuid4().hex}", content)),
        "list 1,000 files": _median(lambda: list(store.list_files(table, "_versions")), rounds=10),
    }
    begin = time.perf_counter()
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(lambda _: store.read(path, _SIZE), range(_ROUNDS * 4)))
    seconds[f"read, {_THREADS} threads"] = (time.perf_counter() - begin) / (_ROUNDS * 4)
    return seconds


def _median(operation: Callable[[], object], rounds: int = _ROUNDS) -> float:
    durations = []
    for _ in range(rounds):
        begin = time.perf_counter()
        operation()
        durations.append(time.perf_counter() - begin)
    return statistics.median(durations)


if __name__ == "__main__":
    main()
