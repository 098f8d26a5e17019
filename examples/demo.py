"""`make demo`: loads the flights of New York in 2013 into a running Monodon, through stock clients.

They become Lance tables by pylance, and Iceberg tables of another namespace by PyIceberg. What the
server itself does with Lance tables it is then asked for over HTTP.

python -m examples.demo              load what is not there yet
python -m examples.demo --replace    drop the tables first and load them again
"""

import argparse
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import lance
from lance.namespace import RestNamespace
from lance_namespace import CreateNamespaceRequest, DropTableRequest
from lance_namespace.errors import LanceNamespaceError, UnauthenticatedError
from pyiceberg.catalog.rest import RestCatalog

from examples import iceberg_flights, lance_search
from examples.flights import COMMENT, TABLES, DemoError, count, parts

NAMESPACE = "nycflights13"
KEY_FILE = "admin_api_key"
_PROJECT = Path(__file__).resolve().parent.parent


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
                properties={"comment": COMMENT},
            )
        )
    except UnauthenticatedError:
        raise DemoError(
            f"{url} does not accept the API key that begins with {key[:8]}….\n"
            f"Set MONODON_API_KEY to the one that the first `make up` printed, or make one in the admin."
        ) from None
    return ns


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


def is_complete(ns: RestNamespace, table: str) -> bool:
    """True if an earlier run loaded the whole table; prints its row count."""
    try:
        dataset = lance.dataset(namespace_client=ns, table_id=[NAMESPACE, table])
    except (OSError, ValueError, LanceNamespaceError):  # declared, without data
        print(f"  {table:<9} is declared but empty")
        return False
    rows, expected = dataset.count_rows(), count(table)
    if rows < expected:
        print(f"  {table:<9} has {rows:,} of {expected:,} rows")
        return False
    print(f"  {table:<9} is there: {rows:,} rows, {len(dataset.versions())} versions")
    return True


def run(environment: Mapping[str, str], *, replace: bool) -> None:
    url, key = server_url(environment), api_key(environment)
    ns = connect(url, key)
    started = time.monotonic()
    present = load_lance(ns, url, replace=replace)
    print(f"Asking {url} to search and to keep a view")
    present += lance_search.load(ns, NAMESPACE, replace=replace)
    present += load_iceberg(iceberg_flights.connect(url, key), url, replace=replace)
    if present:
        print(f"{present} of {2 * len(TABLES) + 2} tables were there already; to load them again:")
        print(f"  {sys.executable} -m examples.demo --replace")
    print(f"Done in {time.monotonic() - started:.1f} s.")
    print(next_steps(url, environment))


def load_lance(ns: RestNamespace, url: str, *, replace: bool) -> int:
    """Returns how many tables were there already."""
    print(f"Loading {NAMESPACE} into {url}, as Lance tables")
    skipped = 0
    for table in TABLES:
        if lance_search.exists(ns, [NAMESPACE, table]):
            if not replace and is_complete(ns, table):
                skipped += 1
                continue
            ns.drop_table(DropTableRequest(id=[NAMESPACE, table]))
            print(f"  {table:<9} dropped")
        load(ns, table)
    return skipped


def load_iceberg(catalog: RestCatalog, url: str, *, replace: bool) -> int:
    """Returns how many tables were there already."""
    print(f"Loading {iceberg_flights.NAMESPACE} into {url}, as Iceberg tables")
    skipped = 0
    for table in TABLES:
        if iceberg_flights.exists(catalog, table):
            if not replace and iceberg_flights.is_complete(catalog, table):
                skipped += 1
                continue
            iceberg_flights.drop(catalog, table)
            print(f"  {table:<9} dropped")
        iceberg_flights.load(catalog, table)
    iceberg_flights.create_view(catalog)
    return skipped


def next_steps(url: str, environment: Mapping[str, str]) -> str:
    key_from = next(
        (name for name in ("MONODON_API_KEY", "MONODON_ADMIN_API_KEY") if environment.get(name)), ""
    )
    home = environment.get("MONODON_HOME") or ".monodon"
    in_python = (
        f'os.environ["{key_from}"]' if key_from else f'open("{home}/{KEY_FILE}").read().strip()'
    )
    in_shell = f"${key_from}" if key_from else f"$(cat '{home}/{KEY_FILE}')"
    iceberg = iceberg_flights.NAMESPACE
    return f"""
Paste into `.venv/bin/python`, to open the Lance table of the flights:

  import os
  key = {in_python}
  import lance, lance.namespace
  ns = lance.namespace.RestNamespace(uri="{url}", **{{"header.x-api-key": key}})
  flights = lance.dataset(namespace_client=ns, table_id=["{NAMESPACE}", "flights"])
  print(flights.count_rows(), "flights,", flights.count_rows("dep_delay > 60"), "left an hour late")

… and as they were in March, in version 3:

  march = lance.dataset(namespace_client=ns, table_id=["{NAMESPACE}", "flights"], version=3)
  print(march.count_rows())

The digits that look most like the first one, found by the server:

  import pyarrow
  from lance_namespace_urllib3_client.models import QueryTableRequest, QueryTableRequestVector
  images = {lance_search.IMAGES}
  first = lance.dataset(namespace_client=ns, table_id=images).take([0])["pixels"][0].as_py()
  vector = QueryTableRequestVector(single_vector=first)
  answer = ns.query_table(QueryTableRequest(id=images, k=5, vector=vector))
  print(pyarrow.ipc.open_file(answer.data).read_all()["digit"].to_pylist())

The Iceberg table, with PyIceberg:

  from pyiceberg.catalog.rest import RestCatalog
  catalog = RestCatalog("monodon", uri="{url}", token=key)
  flights = catalog.load_table("{iceberg}.flights")
  print(flights.scan(row_filter="dep_delay > 60").count(), "left an hour late")
  print(flights.scan(snapshot_id=flights.history()[2].snapshot_id).count(), "until March")

… and with DuckDB, which fetches its extensions once:

  import duckdb
  db = duckdb.connect()
  db.execute("INSTALL iceberg; LOAD iceberg")
  db.execute(f"CREATE SECRET monodon (TYPE iceberg, TOKEN '{{key}}')")
  db.execute("ATTACH '' AS monodon (TYPE iceberg, ENDPOINT '{url}', SECRET monodon)")
  db.execute("USE monodon.{iceberg}")
  db.sql("SELECT name, count(*) AS flights FROM flights JOIN airlines USING (carrier) GROUP BY ALL ORDER BY 2 DESC")

Into a shell, for the versions of the Lance table, and for the rows of its materialized view:

  curl -s -X POST -H "x-api-key: {in_shell}" \\
    '{url}/v1/table/{NAMESPACE}$flights/version/list'
  curl -s -X POST -H "x-api-key: {in_shell}" \\
    '{url}/v1/table/{NAMESPACE}${lance_search.VIEW}/count_rows'

In a browser, the tables in the admin:

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
