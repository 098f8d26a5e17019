"""The guides for Polars, Daft and Ray, with packages that the tests install."""

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
    "ray": (
        ("ray[data]==2.60.0", "lance-ray==0.5.0", "pyiceberg[pyarrow]==0.12.0", "pylance==14.0.2"),
        ["[2, 3]", "[{'note': 'lost'}]", "4"],
    ),
}
"""What each guide needs besides the packages of the tests, and what its code prints."""
RAY = {
    "RAY_OVERRIDE_NODE_IP_ADDRESS": "127.0.0.1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "100000000",
}
"""Ray listens on loopback only, sends no usage figures, and uses little memory."""


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
        env={
            "PYTHONPATH": str(toolkit.python_packages(*requirements)),
            "PATH": "",
            "HOME": "/",
            **RAY,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == printed
