"""Check names and sizes: `python .ci/names.py`. Exits with 1 and a line for each finding.

- Fewer than 1 % of the names of variables, attributes, parameters and functions are vague: names such as
  ``found`` do not say what they hold. The tests, benchmarks and examples have the same limit, counted separately.
- No file of the packages has more than 400 lines, and no folder more than 20 modules.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("catalog", "api", "tasks", "server", "config", "monodon")
TESTS = ("tests", "benchmarks", "examples")
VAGUE = {
    "found",
    "one",
    "each",
    "told",
    "known",
    "kept",
    "wanted",
    "done",
    "asked",
    "place",
    "part",
    "said",
    "given",
    "left",
    "gone",
    "there",
    "them",
    "it",
    "what",
    "rest",
    "seen",
    "meant",
    "shown",
    "tried",
}
MAX_SHARE = 0.01
MAX_LINES, MAX_MODULES = 400, 20
# .ci/client.py generates the client.
LONG = {
    "monodon/client/models.py",
    "monodon/client/operations.py",
}


def chosen_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The names that a file chooses, with their lines: of variables, attributes, parameters and functions."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno


def python_files(folders: tuple[str, ...]) -> list[Path]:
    return [
        file
        for folder in folders
        for file in sorted(Path(folder).rglob("*.py"))
        if "migrations" not in file.parts
    ]


def vague_names(files: list[Path]) -> tuple[list[str], int]:
    """A line for each vague name, and the number of all names."""
    vague: list[str] = []
    total = 0
    for file in files:
        for name, line in chosen_names(ast.parse(file.read_text())):
            total += 1
            if name.strip("_") in VAGUE:
                vague.append(f"{file}:{line}: '{name}' does not say what it holds")
    return vague, total


def main() -> int:
    findings: list[str] = []
    counts: list[str] = []
    files = python_files(PACKAGES)
    for file in files:
        lines = len(file.read_text().splitlines())
        if lines > MAX_LINES and str(file) not in LONG:
            findings.append(f"{file}: {lines} lines; the limit is {MAX_LINES}")
    for folder, count in Counter(file.parent for file in files).items():
        if count > MAX_MODULES:
            findings.append(f"{folder}: {count} modules; the limit is {MAX_MODULES}")
    for label, counted in (("packages", files), ("tests", python_files(TESTS))):
        vague, total = vague_names(counted)
        counts.append(f"names: {len(vague)} of {total} in the {label} are vague")
        if len(vague) >= MAX_SHARE * total:
            findings += vague
    print("\n".join(findings or counts))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
