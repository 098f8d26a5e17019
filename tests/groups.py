"""A pytest plugin: the marks `xdist_group`, which pytest-xdist 3.8 ignores with pytest 9.2.

pytest-xdist appends the group to `_nodeid`, which pytest no longer has. Then each process runs a part of every
group, and starts the group's servers and virtual machines too.
"""

from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> Iterator[None]:
    """Let a process of pytest-xdist report its tests with their groups, by which they are distributed.

    Afterwards the tests have their names again, because results and the repetition of tests need them.
    """
    ids = {item: item._id for item in session.items if item.get_closest_marker("xdist_group")}
    if session.config.getoption("loadgroup", False):
        for item, node_id in ids.items():
            mark = item.get_closest_marker("xdist_group")
            item._id = type(node_id).parse(f"{node_id}@{mark.args[0]}")
    try:
        return (yield)
    finally:
        for item, node_id in ids.items():
            item._id = node_id
