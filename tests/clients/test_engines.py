"""Tests of the engine toolkit without engines: scripts, documentation and skips."""

import re
import zipfile
from pathlib import Path

import pytest

from server.options import PROJECT
from tests.clients import jars
from tests.clients.jars import Jar
from tests.engines import (
    clickhouse,
    dlt,
    flink,
    go,
    guide,
    java,
    rust,
    sail,
    statements,
    toolkit,
    trino,
)

SCRIPT = """\
-- A heading
CREATE TABLE t (
    id int
);
INSERT INTO t VALUES (1);
-- 1

SELECT id, item FROM t;
-- 1 | NULL
-- 2 | true
SELECT max(id) FROM t;
-- :newest
DELETE FROM t WHERE id = :newest;
SELECT 1 / 0;
-- fails: by zero :newest
TABLE t;
-- no rows
"""
ANSWERS = {
    "CREATE TABLE t (\n    id int\n)": [],
    "INSERT INTO t VALUES (1)": [[1]],
    "SELECT id, item FROM t": [[1, None], [2, True]],
    "SELECT max(id) FROM t": [[7]],
    "DELETE FROM t WHERE id = 7": [],
    "SELECT 1 / 0": ZeroDivisionError("by zero 7"),
    "TABLE t": [],
}


def check(changes: dict[str, object]) -> int:
    def execute(statement: str) -> statements.Rows:
        answer = (ANSWERS | changes)[statement]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, list)
        return answer

    return statements.check(statements.parse(SCRIPT), execute, errors=ArithmeticError)


def test_a_valid_script_passes() -> None:
    assert check({}) == len(ANSWERS) == 7


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"INSERT INTO t VALUES (1)": [[2]]}, r"line 5: .*\n  \('2',\)"),
        ({"SELECT id, item FROM t": [[1, None]]}, r"line 8: .*\n  \('1 \| NULL',\)"),
        ({"SELECT id, item FROM t": []}, r"line 8: .*\n  \('no rows',\)"),
        ({"TABLE t": [[1]]}, r"line 16: .*\n  \('1',\)"),
        ({"SELECT 1 / 0": [[1]]}, r"line 14: .*\n  it did not fail"),
        ({"SELECT 1 / 0": ZeroDivisionError("by zero 8")}, r"line 14: .*\n  by zero 8"),
        ({"DELETE FROM t WHERE id = 7": OverflowError("too much")}, r"line 13: .*\n  too much"),
    ],
)
def test_each_difference_is_reported(changes: dict[str, object], difference: str) -> None:
    with pytest.raises(AssertionError, match=difference):
        check(changes)


def test_the_causes_of_an_error_are_reported() -> None:
    error = OverflowError("too much")
    error.add_note("the disk is full")
    with pytest.raises(AssertionError, match="too much\n  the disk is full"):
        check({"DELETE FROM t WHERE id = 7": error})


def test_a_query_must_state_its_expected_answer() -> None:
    with pytest.raises(ValueError, match="line 1: the statement has no answer"):
        statements.parse("SELECT 1;\n\n-- 1\n")


def test_expected_output_of_a_program() -> None:
    program = 'fmt.Println("a") // a\nprintln!("{}", b); // b c\nlog.Println_x()\n'
    assert toolkit.expected_output(program) == ["a", "b c"]
    program = "print(a)  # ['a', 'b']\nprint(f'http://{b}')  # http://c # d\nsprint(1)\n"
    assert toolkit.expected_output(program) == ["['a', 'b']", "http://c # d"]
    with pytest.raises(AssertionError, match="no comment"):
        toolkit.expected_output("System.out.println(1);\n")
    with pytest.raises(AssertionError, match="no comment"):
        toolkit.expected_output("print(1)\n")


def test_the_guide_shows_the_tested_files() -> None:
    text = guide.GUIDE.read_text(encoding="utf-8")
    assert sorted(guide.files_shown(text)) == sorted(guide.FILES)
    assert guide.render(text) == text, "python -m tests.engines.guide copies the files"


def test_a_changed_file_is_detected() -> None:
    text = guide.GUIDE.read_text(encoding="utf-8")
    stale = text.replace("CREATE SCHEMA lake.trino;", "CREATE SCHEMA lake.other;", 1)
    assert stale != text
    assert guide.render(stale) == text


def test_the_guide_names_the_tested_versions() -> None:
    text = guide.GUIDE.read_text(encoding="utf-8")
    modules = (go.DIRECTORY / "go.mod").read_text(encoding="utf-8")
    crates = (rust.DIRECTORY / "Cargo.toml").read_text(encoding="utf-8")
    (go_version,) = re.findall(r"iceberg-go v(\S+)$", modules, re.MULTILINE)
    (rust_version,) = re.findall(r'^iceberg = "=(\S+)"$', crates, re.MULTILINE)
    versions = {
        "Trino": trino.VERSION,
        "Flink": f"{flink.VERSION}, Iceberg {flink.ICEBERG.version}",
        "Sail": sail.VERSION,
        "ClickHouse": f"{clickhouse.CLICKHOUSE} (chDB {clickhouse.VERSION})",
        "dlt": dlt.VERSION,
        "Iceberg Java": java.VERSION,
        "iceberg-go": go_version,
        "iceberg-rust": rust_version,
    }
    for name, version in versions.items():
        assert f"| {name} | {version} |" in text


def test_missing_engines_are_skipped_unless_required(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare() -> None:
        raise toolkit.Missing("no Java here")

    monkeypatch.delenv("MONODON_REQUIRE_ENGINES", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Java here"):
        toolkit.require(prepare)
    monkeypatch.setenv("MONODON_REQUIRE_ENGINES", "1")
    with pytest.raises(pytest.fail.Exception, match="no Java here"):
        toolkit.require(prepare)


def test_a_failed_build_shows_its_output(tmp_path: Path) -> None:
    with pytest.raises(toolkit.Missing, match=r"it cannot be had: .*not-there"):
        toolkit.run("it", ["not-there"], seconds=5)
    with pytest.raises(toolkit.Missing, match="it cannot be had: broken"):
        toolkit.run("it", ["sh", "-c", "echo broken >&2; exit 3"], seconds=5)


def test_an_archive_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONODON_JARS", str(tmp_path))
    file = tmp_path / "a-1.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a-1/lib/x.jar", "x")
    artifact = Jar("g", "a", "1", jars.sha256_of(file), extension="zip")
    content = toolkit.unpack(artifact)
    assert content == tmp_path / "engines" / "unpacked" / "a-1.zip" / "a-1"
    assert (content / "lib" / "x.jar").read_text() == "x"
    file.unlink()
    assert toolkit.unpack(artifact) == content
    assert [path.name for path in content.parent.parent.iterdir()] == ["a-1.zip"]


def test_the_repository_contains_no_engine() -> None:
    large = [
        path
        for path in (PROJECT / "tests" / "engines").rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path.stat().st_size > 200_000
    ]
    assert large == []
