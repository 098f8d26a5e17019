"""No test reads the clock while it is imported, or replaces a function of ``time`` for the whole process.

All modules are imported before the first test runs, and a run may take half an hour. A time ten minutes after
the import may be over when its test begins.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CLOCKS = {"now", "time", "time_ns", "today", "utcnow"}
TESTS = Path(__file__).parent.parent
# It looks for the current time in the names of tests.
EXEMPT = TESTS / "conftest.py"


def clocks_read_at_import(tree: ast.Module) -> Iterator[int]:
    """The lines that call a clock outside of functions; decorators and defaults are evaluated outside."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes += [
                *node.decorator_list,
                *node.args.defaults,
                *filter(None, node.args.kw_defaults),
            ]
        elif not isinstance(node, ast.Lambda):
            nodes += ast.iter_child_nodes(node)
        match node:
            case ast.Call(func=ast.Attribute(attr=name), args=args) if name in CLOCKS:
                # datetime.time(22, 30) is a value.
                if name != "time" or not args:
                    yield node.lineno


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("NOW = datetime.now(UTC)", [1]),
        ("NOW = int(time.time())", [1]),
        ("@mark.parametrize('at', [timezone.now()])\ndef test(at): pass", [1]),
        ("class A:\n    at = date.today()", [2]),
        ("def f(at=time.time()): pass", [1]),
        ("def f():\n    return time.time()", []),
        ("f = lambda: time.time()", []),
        ("AT = datetime.time(22, 30)", []),
    ],
)
def test_the_check_finds_clocks(source, lines):
    assert list(clocks_read_at_import(ast.parse(source))) == lines


def test_no_test_reads_the_clock_at_import():
    lines = [
        f"{file.relative_to(TESTS)}:{line}"
        for file in sorted(TESTS.rglob("*.py"))
        if file != EXEMPT
        for line in clocks_read_at_import(ast.parse(file.read_text()))
    ]
    assert lines == []


REPLACED = re.compile(
    r"""time["']?, ["'](sleep|time|monotonic)["']|time\.(sleep|time|monotonic)["'],"""
)


def test_no_test_replaces_a_function_of_time_for_all_threads():
    """The threads of other tests would call the replacement (``tests.clocks.replace``)."""
    files = [file for file in sorted(TESTS.rglob("*.py")) if file != Path(__file__)]
    assert [str(file) for file in files if REPLACED.search(file.read_text())] == []
