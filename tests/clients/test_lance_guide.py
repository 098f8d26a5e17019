"""The examples of docs/lance-clients.md, unchanged."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace_urllib3_client import models as m

from tests.clients import duck, guide
from tests.live import LiveServer

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # LanceDB's event loop


@pytest.fixture
def run(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> Callable[[str], list[str]]:
    """Function that runs the Python code of a section after the previous ones, and returns the
    printed lines."""
    variables: dict[str, Any] = {}
    blocks = partial(guide.blocks, live=live, guide="lance-clients")

    def run_section(section: str) -> list[str]:
        for block in blocks(section, "python"):
            # The wheels' extensions instead of a download.
            code = block.replace('db.execute("INSTALL iceberg; LOAD iceberg")\n', "")
            exec(code.replace("duckdb.connect()", "duck.connect()"), variables)
        return capsys.readouterr().out.splitlines()

    variables["duck"] = duck
    run_section("")
    return run_section


def test_the_guide(live: LiveServer, run: Any, tmp_path: Path) -> None:
    assert run("Data over HTTP") == ["['NARWHAL']", "1"]
    with_curl(live, tmp_path)
    assert run("Lance and Iceberg in one query") == [
        "[('BELUGA', 'Svalbard'), ('BELUGA', 'Svalbard')]"
    ]
    assert run("LanceDB") == ["the narwhal has one tusk", "[1, 3]", "2"]


def with_curl(live: LiveServer, directory: Path) -> None:
    """The commands create the table. Without curl, the test creates it."""
    (script,) = guide.blocks("Data over HTTP", "sh", live, guide="lance-clients")
    python = Path(sys.executable).parent
    if shutil.which("curl") is None:
        rows = pa.table({"id": [4, 4], "name": ["BELUGA", "BELUGA"]})
        make(live, rows)
        return
    ran = subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=directory,
        env=os.environ | {"PATH": f"{python}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.endswith("}2"), ran
    assert '"error"' not in ran.stdout, ran
    hits = pa.ipc.open_file(directory / "found.arrow").read_all()
    assert hits.to_pylist() == [{"id": 4, "name": "BELUGA"}] * 2


def make(live: LiveServer, rows: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    request = m.CreateTableRequest(id=["sea", "whales"])
    live.client().create_table(request, sink.getvalue().to_pybytes())
