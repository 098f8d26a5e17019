"""`make demo` against a live server, as users run it."""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest
from django.core.management import call_command
from lance.namespace import RestNamespace
from lance_namespace_urllib3_client import models as m

import examples.demo
from catalog.management.commands import bootstrap
from catalog.services.access import authentication
from examples import iceberg_flights, lance_search
from examples.demo import api_key
from server.options import PROJECT
from tests.clients import pyice
from tests.live import LiveServer

pytestmark = pytest.mark.xdist_group("live")  # the tables are loaded once
ROWS = {
    "airlines": 16,
    "airports": 1_458,
    "planes": 3_322,
    "weather": 26_115,
    "flights": 336_776,
}
# The index of the airports' names is a version.
VERSIONS = {"flights": 12, "airports": 2}


def demo(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MONODON_")
    }
    return subprocess.run(
        [sys.executable, "-m", "examples.demo", *arguments],
        cwd=PROJECT,
        env=environment | settings,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


Refuse = Callable[..., str]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Function that runs the demo in this process, and returns its error."""

    def refused(**settings: str) -> str:
        for name in [name for name in os.environ if name.startswith("MONODON_")]:
            monkeypatch.delenv(name)
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.argv", ["demo"])
        assert examples.demo.main() == 1
        return capsys.readouterr().err

    return refused


def test_the_demo_loads_tables_and_prints_examples(live: LiveServer) -> None:
    settings = {"MONODON_URL": live.url, "MONODON_API_KEY": live.key}
    first = demo(**settings)

    assert first.returncode == 0, first.stderr
    ns = live.client()
    for table, rows in ROWS.items():
        dataset = lance.dataset(namespace_client=ns, table_id=["nycflights13", table])
        assert dataset.count_rows() == rows
        assert len(dataset.versions()) == VERSIONS.get(table, 1)
    _check_server_features(ns)
    catalog = pyice.connect(live.url, token=live.key)
    for table, rows in ROWS.items():
        loaded = catalog.load_table((iceberg_flights.NAMESPACE, table))
        assert loaded.scan().count() == rows
        assert len(loaded.snapshots()) == (12 if table == "flights" else 1)
    assert catalog.list_views(iceberg_flights.NAMESPACE) == [
        (iceberg_flights.NAMESPACE, iceberg_flights.VIEW)
    ]
    seconds = float(re.search(r"Done in ([\d.]+) s", first.stdout)[1])
    assert seconds < 60
    assert f"{live.url}/admin/catalog/table/?q=flights" in first.stdout
    _run_printed_examples(first.stdout, settings)

    second = demo(**settings)
    assert second.returncode == 0, second.stderr
    assert "flights   is there: 336,776 rows, 12 versions" in second.stdout
    assert "flights   is there: 336,776 rows, 12 snapshots" in second.stdout
    assert "12 of 12 tables were there already" in second.stdout
    assert "--replace" in second.stdout
    flights = lance.dataset(namespace_client=ns, table_id=["nycflights13", "flights"])

    third = demo("--replace", **settings)
    assert third.returncode == 0, third.stderr
    again = lance.dataset(namespace_client=ns, table_id=["nycflights13", "flights"])
    assert again.uri != flights.uri
    assert again.count_rows() == ROWS["flights"]
    assert len(again.versions()) == 12
    reloaded = catalog.load_table((iceberg_flights.NAMESPACE, "flights"))
    assert reloaded.metadata.table_uuid != loaded.metadata.table_uuid
    assert reloaded.scan().count() == ROWS["flights"]


def _run_printed_examples(output: str, settings: dict[str, str]) -> None:
    """Run the printed snippets unchanged."""
    ours, shell = output.split("Into a shell")
    python = [
        line[2:] for line in ours.splitlines() if re.match(r"  (import|from|\w+ =|\w+[.(])", line)
    ]
    # The wheels' extensions instead of a download.
    install = 'db.execute("INSTALL iceberg; LOAD iceberg")'
    assert python.count(install) == 1
    code = "\n".join(python).replace(install, "db = duck.connect()")
    ran = subprocess.run(
        [sys.executable, "-c", f"from tests.clients import duck\n{code}"],
        env=os.environ | settings,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.stdout.splitlines() == [
        "336776 flights, 26581 left an hour late",
        "80789",
        "[0, 0, 0, 0, 0]",
        "26581 left an hour late",
        "80789 until March",
    ], ran.stderr
    if shutil.which("curl") is None:
        return
    lines = [line[2:] for line in shell.splitlines() if line.startswith("  ")]
    curl = "\n".join(line for line in lines if line.lstrip().startswith(("curl", "'http")))
    assert curl.startswith("curl -s -X POST")
    answer = subprocess.run(
        ["sh", "-c", curl],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.stdout.count('"version":') == 12, answer
    assert answer.stdout.endswith("26581"), answer


def _check_server_features(ns: RestNamespace) -> None:
    airports = ns.list_table_indices(m.ListTableIndicesRequest(id=["nycflights13", "airports"]))
    assert [(index.index_name, index.index_type) for index in airports.indexes] == [
        ("name_idx", "INVERTED")
    ]
    images = ns.list_table_indices(m.ListTableIndicesRequest(id=lance_search.IMAGES)).indexes
    assert [(index.index_type, index.num_indexed_rows) for index in images] == [("IVF_PQ", 1_797)]
    tags = ns.list_table_tags(m.ListTableTagsRequest(id=["nycflights13", "flights"])).tags
    assert {name: tag.version for name, tag in tags.items()} == {lance_search.TAG: 3}
    view = ["nycflights13", lance_search.VIEW]
    assert lance_search.count(ns, view) == lance_search.count(ns, view, lance_search.LATE) == 26_581


@pytest.mark.engines
def test_the_demo_resumes_an_interrupted_run(live: LiveServer) -> None:
    settings = {"MONODON_URL": live.url, "MONODON_API_KEY": live.key}
    demo(**settings)
    ns = live.client()
    lance.dataset(namespace_client=ns, table_id=["nycflights13", "planes"]).delete("year < 2000")
    catalog = pyice.connect(live.url, token=live.key)
    catalog.load_table((iceberg_flights.NAMESPACE, "planes")).delete("year < 2000")
    catalog.drop_table((iceberg_flights.NAMESPACE, "weather"))

    again = demo(**settings)

    assert again.returncode == 0, again.stderr
    assert again.stdout.count("of 3,322 rows") == 2
    planes = lance.dataset(namespace_client=ns, table_id=["nycflights13", "planes"])
    assert planes.count_rows() == ROWS["planes"]
    for table in ("planes", "weather"):
        loaded = catalog.load_table((iceberg_flights.NAMESPACE, table))
        assert loaded.scan().count() == ROWS[table]
    assert "9 of 12 tables were there already" in again.stdout


def test_a_wrong_key_is_reported(live: LiveServer, refuse: Refuse) -> None:
    output = demo(MONODON_URL=live.url, MONODON_API_KEY="no-such-key")

    assert output.returncode == 1
    error = f"{live.url} does not accept the API key that begins with no-such-"
    assert output.stderr.startswith(error)
    assert "Traceback" not in output.stderr
    assert refuse(MONODON_URL=live.url, MONODON_ADMIN_API_KEY="no-such-key").startswith(error)


def test_an_unreachable_server_is_reported(refuse: Refuse) -> None:
    error = refuse(MONODON_PORT="9", MONODON_API_KEY="any")

    assert error.startswith("No Monodon answers at http://127.0.0.1:9 (")
    assert "make up" in error


def test_a_missing_key_is_reported(refuse: Refuse, tmp_path: Path) -> None:
    error = refuse(MONODON_PORT="9", MONODON_HOME=str(tmp_path))

    assert error.startswith("No API key: set MONODON_API_KEY")


@pytest.mark.django_db
def test_the_demo_uses_the_key_of_the_first_start(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    settings.MONODON_HOME = tmp_path
    settings.MONODON_WAREHOUSE = str(tmp_path / "warehouse")
    settings.MONODON_ADMIN_API_KEY = ""
    monkeypatch.setattr(bootstrap.Command, "_collect_static", lambda command: None)

    call_command("bootstrap")

    file = tmp_path / "admin_api_key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    key = api_key({"MONODON_HOME": str(tmp_path)})
    assert authentication.authenticate(key).name == "admin"
    assert f"API key:     {key}   (not shown again)" in capsys.readouterr().out
    file.unlink()
    call_command("bootstrap")
    assert not file.exists()


def test_the_key_is_read_from_the_home_directory(
    live: LiveServer, refuse: Refuse, tmp_path: Path
) -> None:
    (tmp_path / "admin_api_key").write_text("no-such-key\n")

    error = refuse(MONODON_URL=live.url, MONODON_HOME=str(tmp_path))

    assert "does not accept the API key that begins with no-such-" in error
