"""The tutorial, from its first block of Python to its last command, against a live server."""

import gc
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from monodon.commands import root
from server.options import PROJECT
from tests.live import LiveServer

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = [
    *("100", "10", "[{'name': 'product 11', 'pieces_sum': 21}]", "['product 42']"),
    *("21 fragments", "{'value': 'on', 'source': 'shop'} 5", "1 fragment"),
]


def blocks() -> Iterator[tuple[str, str]]:
    """Language and text of each block that the test runs: those of Python, and commands of monodon."""
    text = (PROJECT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    for language, block in _BLOCK.findall(text):
        if language == "python" or block.startswith("monodon "):
            yield language, block


def run_commands(block: str, outputs: dict[str, str]) -> None:
    for line in block.splitlines():
        arguments = shlex.split(line)[1:]
        result = CliRunner().invoke(root, arguments, catch_exceptions=False)
        assert result.exit_code == 0, (line, result.output)
        outputs[line] = result.output


def test_the_tutorial(
    live: LiveServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MONODON_URL", live.url)
    monkeypatch.setenv("MONODON_API_KEY", live.key)
    monkeypatch.setenv("MONODON_CONFIG", str(tmp_path / "profiles.json"))
    monkeypatch.chdir(tmp_path)
    variables: dict[str, Any] = {}
    outputs: dict[str, str] = {}
    afterwards: dict[str, str] = {}
    try:
        for language, block in blocks():
            if language == "python":
                exec(block, variables)
            else:
                run_commands(block, outputs)
        run_commands("monodon ls shop", afterwards)
    finally:
        variables.clear()
        gc.collect()  # the clients do not close their connections
    assert capsys.readouterr().out.splitlines() == PRINTED
    assert outputs["monodon ls shop"].splitlines() == [
        "table\ticeberg\tshop.orders",
        "table\tlance\tshop.products",
    ]
    assert outputs["monodon history shop.products"].startswith("21\t")
    assert "compact\ton\t" in outputs["monodon maintain plan shop.products"]
    assert "shop" in (tmp_path / "audit.csv").read_text()
    # The trash may be empty already, because the live server keeps dropped objects for no time.
    assert afterwards == {"monodon ls shop": ""}
