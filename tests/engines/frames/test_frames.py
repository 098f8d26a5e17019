"""The guides for Polars and Daft, with packages that the tests install."""

import subprocess
import sys

import pytest

from tests.docs.blocks import blocks
from tests.engines import toolkit
from tests.live import LiveServer

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]
GUIDES = {
    "polars": (
        ("polars==2.1.0",),
        ["[1, 2]", "3", "['a.jpg', 'b.jpg', 'c.jpg']"],
    ),
    "daft": (
        ("daft[iceberg]==0.7.26", "pyiceberg==0.11.1", "pylance==14.0.2"),
        ["{'buoy': [2, 3]}", "3", "{'note': ['drifting', 'lost']}"],
    ),
}
"""What each guide needs besides the packages of the tests, and what its code prints."""


@pytest.mark.parametrize("guide", GUIDES)
def test_the_guide(server: LiveServer, guide: str) -> None:
    requirements, printed = GUIDES[guide]
    toolkit.require(lambda: toolkit.python_packages(*requirements))
    code = "\n".join(
        block.text
        for block in blocks()
        if (block.page, block.language) == (f"{guide}.md", "python")
    )
    ended = subprocess.run(
        [sys.executable, "-c", toolkit.configured(code, server)],
        env={"PYTHONPATH": str(toolkit.python_packages(*requirements)), "PATH": "", "HOME": "/"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == printed
