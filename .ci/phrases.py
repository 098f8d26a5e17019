"""Check the English of pages, templates and messages: `python .ci/phrases.py`. Exits with 1 and a line for each finding.

The phrases are vague, archaic or advertising. Each has a remedy. A line may hold one if it is a quotation,
which ends with the comment ``phrase: quoted``.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "docs": "*.md",
    "templates": "*.html",
    **dict.fromkeys(("api", "catalog", "config", "monodon", "server", "tasks"), "*.py"),
}
FILES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
QUOTED = "phrase: quoted"
PHRASES = {
    r"it is (?:told|said) that": "say who does what",
    r"what is said of": "name the thing: description, label, comment",
    r"(?:on|of|in|at) this very": "leave out 'very'",
    r"(?:of|in|for) whichever": "name the choices",
    r"anew": "again",
    r"thereof|therein|wherein|hereby|hitherto": "say it with a name",
    r"in order to": "to",
    r"utili[sz]es?|utili[sz]ed|utili[sz]ing": "use",
    r"leverag(?:e|es|ed|ing)": "use",
    r"seamless(?:ly)?|effortless(?:ly)?|blazing(?:ly)?|cutting-edge|state-of-the-art": "give a figure",
    r"simply|obviously|of course|needless to say": "leave it out",
    r"please note(?: that)?|be aware that|it should be noted": "begin with the fact",
    r"has to be noticed": "begin with the fact",
    r"bring (?:\w+ )?up to date": "update",
    r"as soon as possible": "give a time",
    r"and/or": "or",
    r"something went wrong|an error (?:has )?occurred|oops": "name the cause and the remedy",
    r"click here": "name what the link leads to",
}
_BANNED = [
    (re.compile(rf"(?<![\w-])(?:{phrase})(?![\w-])", re.IGNORECASE), remedy)
    for phrase, remedy in PHRASES.items()
]


def findings(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, phrase and remedy of each banned phrase."""
    for number, line in enumerate(text.splitlines(), 1):
        if QUOTED in line:
            continue
        for pattern, remedy in _BANNED:
            for match in pattern.finditer(line):
                yield number, match[0], remedy


def files() -> Iterable[Path]:
    for folder, pattern in FOLDERS.items():
        yield from sorted(
            path for path in (ROOT / folder).rglob(pattern) if "migrations" not in path.parts
        )
    yield from (ROOT / name for name in FILES)


def main() -> int:
    count = 0
    for path in files():
        for number, phrase, remedy in findings(path.read_text(encoding="utf-8")):
            print(f"{path.relative_to(ROOT)}:{number}: '{phrase}': {remedy}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
