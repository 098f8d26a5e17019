"""The guides that `make engines` runs state the versions of its packages."""

import re

import pytest

from server.options import PROJECT
from tests.engines.frames.test_frames import GUIDES

PINS = (PROJECT / "constraints.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("guide", GUIDES)
def test_the_tested_versions_are_stated(guide):
    text = (PROJECT / "docs" / f"{guide}.md").read_text(encoding="utf-8")
    needed = dict(
        re.fullmatch(r"([\w-]+)(?:\[\w+\])?==(\S+)", pin).groups() for pin in GUIDES[guide][0]
    )
    pinned = dict(
        line.split("==") for line in PINS if line.startswith(("pyiceberg==", "pylance=="))
    )
    versions = pinned | needed
    shown = re.search(r"with\s+(\w+)\s+(\S+), PyIceberg (\S+) and pylance (\S+)\.\n", text)
    assert shown is not None
    assert shown.groups() == (
        guide.capitalize(),
        versions[guide],
        versions["pyiceberg"],
        versions["pylance"],
    )
