"""The command ``manage.py catalog_history``."""

import io
import json
from datetime import datetime

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from catalog.access import SYSTEM
from catalog.services.audit import history
from catalog.services.engine.commit import commit
from catalog.services.tables import namespace_operations, table_operations
from tests.factories import make_namespace, make_root, make_table, make_version, unchanged

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _catalog(db):
    make_root()


def now() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0].isoformat()


def run(*args: str) -> list[str]:
    out = io.StringIO()
    with unchanged():
        call_command("catalog_history", *args, stdout=out)
    return out.getvalue().splitlines()


def error(*args: str) -> str:
    with unchanged(), pytest.raises(CommandError) as raised:
        call_command("catalog_history", *args, stdout=io.StringIO())
    return str(raised.value)


def test_the_state_is_printed_as_text_and_json(monkeypatch):
    monkeypatch.setattr(history, "MAX_PAGE", 2)
    for name in ("t", "u", "v"):
        make_table("a", name)
    make_version(("a", "t"), 1)
    make_version(("a", "t"), 4, branch="dev")
    then = now()
    commit([namespace_operations.DropNamespace(namespace=("a",), cascade=True)], actor=SYSTEM)
    lines = run("--at", then)
    assert [line.split() for line in lines[:-1]] == [
        ["namespace", "a"],
        [
            "table",
            "a.t",
            "lance",
            "main@1",
            "elsewhere/1.manifest,",
            "dev@4",
            "elsewhere/4.manifest",
        ],
        ["table", "a.u", "lance"],
        ["table", "a.v", "lance"],
    ]
    assert lines[-1].endswith(": 1 namespaces, 3 tables and views.")
    rows = [json.loads(line) for line in run("--at", then, "--json")]
    assert [(row["type"], row["identifier"]) for row in rows] == [
        ("namespace", ["a"]),
        ("table", ["a", "t"]),
        ("table", ["a", "u"]),
        ("table", ["a", "v"]),
    ]
    assert [branch["version"] for branch in rows[1]["branches"]] == [1, 4]
    assert run("--at", now())[0].endswith(": 0 namespaces, 0 tables and views.")


def test_a_comparison_is_printed_as_text_and_json():
    make_table("a", "t")
    make_version(("a", "t"), 1)
    make_namespace("a.b")
    make_table("a.b", "x")
    first = now()
    make_version(("a", "t"), 3)
    commit([table_operations.RenameTable(table=("a", "t"), new=("a", "u"))], actor=SYSTEM)
    make_table("c", "d", "new")
    last = now()
    lines = run("--at", first, "--diff-to", last)
    assert lines[:-1] == [
        "namespace  c: added (system)",
        "namespace  c.d: added (system)",
        "table      a.t -> a.u: renamed, advanced (system)",
        "  main: 1 -> 3, 1 commit",
        "table      c.d.new: added (system)",
    ]
    assert "tables added 1, tables dropped 0, tables renamed 1, tables advanced 1" in lines[-1]
    rows = [json.loads(line) for line in run("--at", first, "--diff-to", last, "--json")]
    assert [row["type"] for row in rows] == ["namespace", "namespace", "table", "table", "counts"]
    assert rows[2]["changes"] == ["renamed", "advanced"]
    assert (rows[-1]["tables_added"], rows[-1]["commits"]) == (1, 1)
    assert datetime.fromisoformat(rows[-1]["since"]) == datetime.fromisoformat(first)
    within = run("--at", first, "--diff-to", last, "--namespace", "c.d")
    assert [line.partition(":")[0] for line in within[:-1]] == [
        "namespace  c.d",
        "table      c.d.new",
    ]
    # Names that are separated by dollar signs may contain dots.
    assert "1 namespaces, 1 tables" in run("--at", first, "--namespace", "a.b$")[-1]


def test_invalid_arguments_are_refused():
    assert "neither a time" in error("--at", "tomorrow")
    assert "has not come yet" in error("--at", "2999-01-01")
    assert "'no' does not exist" in error("--at", now(), "--namespace", "no")
    assert "is after the second" in error("--at", now(), "--diff-to", "2026-01-01")
    assert "--at" in error()
