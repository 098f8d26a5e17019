"""Scripts of SQL statements with their expected answers.

A statement ends with a semicolon at the end of a line. The comment lines after it are its answer:

    SELECT id, item FROM orders;
    -- 1 | ice
    -- 2 | NULL

`-- no rows` means an empty answer, and `-- fails: …` an error that contains this text. A statement that
reads must have an answer; others may. `-- :name` stores the only value of an answer, and `:name` is replaced
by it in later statements.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

_READS = ("SELECT", "TABLE", "SHOW", "DESCRIBE", "WITH", "VALUES")
_FAILS = "fails: "
_NO_ROWS = "no rows"

Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Statement:
    text: str
    line: int
    answer: tuple[str, ...]

    @property
    def error(self) -> str | None:
        if len(self.answer) == 1 and self.answer[0].startswith(_FAILS):
            return self.answer[0].removeprefix(_FAILS)
        return None


def parse(script: str) -> list[Statement]:
    """The statements of a script. Raises ValueError for one that reads and has no answer."""
    statements: list[Statement] = []
    text: list[str] = []
    answer: list[str] = []
    start, is_answer = 0, False

    def finish() -> None:
        nonlocal text, answer
        if text:
            statement = Statement("\n".join(text).removesuffix(";"), start, tuple(answer))
            if statement.text.split()[0].upper() in _READS and not answer:
                raise ValueError(f"line {start}: the statement has no answer")
            statements.append(statement)
        text, answer = [], []

    for number, line in enumerate(script.splitlines(), 1):
        if is_answer and line.startswith("--"):
            answer.append(line.removeprefix("--").strip())
            continue
        if is_answer or not line.strip():
            finish()
            is_answer = False
        if not line.strip() or line.startswith("--"):
            continue
        if not text:
            start = number
        text.append(line)
        is_answer = line.endswith(";")
    finish()
    return statements


def render(rows: Rows) -> tuple[str, ...]:
    lines = (" | ".join(map(_render, row)) for row in rows)
    return tuple(line.replace("|  |", "| |").strip() for line in lines) or (_NO_ROWS,)


def _render(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat(" ")
    return str(value)


def check(
    statements: Iterable[Statement],
    execute: Callable[[str], Rows],
    *,
    errors: type[Exception] | tuple[type[Exception], ...],
) -> int:
    """Execute all statements, and return their number. Fails with all statements that have another
    answer."""
    values: dict[str, str] = {}

    def filled(text: str) -> str:
        return re.sub(r"(?<!:):([a-z]\w*)", lambda name: values.get(name[1], name[0]), text)

    differences = []
    count = 0
    for statement in statements:
        count += 1
        text = filled(statement.text)
        expected_error = None if statement.error is None else filled(statement.error)
        try:
            answer = render(execute(text))
        except errors as error:
            if expected_error is None or expected_error not in str(error):
                causes = "\n  ".join([str(error), *getattr(error, "__notes__", [])])
                differences.append(f"line {statement.line}: {text}\n  {causes}")
            continue
        if expected_error is not None:
            differences.append(f"line {statement.line}: {text}\n  it did not fail: {answer}")
        elif len(statement.answer) == 1 and statement.answer[0].startswith(":"):
            values[statement.answer[0][1:]] = answer[0]
        elif statement.answer and statement.answer != answer:
            differences.append(f"line {statement.line}: {text}\n  {answer}")
    assert not differences, "\n".join(differences)
    return count
