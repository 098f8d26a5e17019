"""The program of the docs, with Iceberg's Rust library."""

from pathlib import Path

import pytest

from tests.engines import cargo, toolkit
from tests.engines import rust as engine
from tests.live import LiveServer

pytestmark = [pytest.mark.engines, pytest.mark.timeout(7200)]


def test_program(server: LiveServer, tmp_path: Path) -> None:
    toolkit.require(engine.prepare)
    program = toolkit.configured(engine.PROGRAM.read_text(encoding="utf-8"), server)
    output = cargo.run(engine.build(program, tmp_path))
    assert output.splitlines() == toolkit.expected_output(program)
