"""The command lines, settings and targets of make in README.md and docs/ exist."""

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator

import click
import pytest
from django.core.management import CommandError, CommandParser, get_commands, load_command_class

from monodon.commands import root
from server.options import PROJECT
from tests.config.test_documented import COMPOSE, documented, read_settings
from tests.docs.blocks import blocks, inline_codes, pages

_SEPARATORS = "();<>|&\n"
_OF_TESTS = {
    "MONODON_JARS",
    "MONODON_REQUIRE_ENGINES",
    "MONODON_REQUIRE_KIT",
    "MONODON_UPGRADE_FROM",
}
"""Variables of `make engines`."""
_SECRET = "MONODON_STORAGE_"
"""The beginning of the names of secrets, which administrators choose."""
Call = tuple[str, list[str]]
"""The place of a command, and its arguments."""


def commands(code: str) -> Iterator[list[str]]:
    """The words of each command of shell code."""
    code = re.sub(r"(?m)(^|\s)#.*$", r"\1", code.replace("\\\n", " "))
    lexer = shlex.shlex(code, posix=True, punctuation_chars=_SEPARATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    command: list[str] = []
    for word in [*lexer, "\n"]:
        if not set(word) <= set(_SEPARATORS):
            command.append(word)
        elif command:
            yield command
            command = []


def lines() -> Iterator[Call]:
    """Each command in a block."""
    for block in blocks():
        code = block.text
        if block.language == "console":
            code = "".join(re.findall(r"(?<=^\$ ).*\n", code, re.MULTILINE))
        if block.language in ("sh", "console"):
            for command in commands(code):
                yield str(block), command


def sentences() -> Iterator[Call]:
    """Each command within a sentence. Its arguments may be incomplete, or in brackets."""
    for page, code in inline_codes():
        if re.search(r"\b(manage\.py|monodon) \w", code):
            yield page, [word.strip("[]") for word in shlex.split(code)]


def calls(lines: Iterable[Call], program: str) -> list[Call]:
    """The calls of a program, which may be an argument of an interpreter."""
    found = []
    for place, words in lines:
        at = words.index(program) if program in words else None
        if at == 0 or (at and words[at - 1].endswith(("python", "-m", "monodon[server]"))):
            found.append((place, words[at + 1 :]))
    return found


def manage_parser(arguments: list[str]) -> tuple[CommandParser, list[str]]:
    """The parser of the command, or of its subcommand, and the arguments that follow its name."""
    name, *rest = arguments
    command = load_command_class(get_commands()[name], name)
    parser = command.create_parser("manage.py", name)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and rest:
            return action.choices[rest[0]], rest[1:]
    return parser, rest


def monodon_command(arguments: list[str]) -> tuple[click.Command, list[str]]:
    """The command, and the arguments that follow its name."""
    command: click.Command = root
    while isinstance(command, click.Group) and arguments:
        with command.make_context("monodon", list(arguments), resilient_parsing=True) as context:
            name, *arguments = [*context._protected_args, *context.args]
            found = command.get_command(context, name)
        assert found is not None, f"{command.name} has no command {name}"
        command = found
    return command, arguments


def test_commands_are_split():
    code = "A=1 python manage.py grant \\\n  list  # comment\nx 'a b' | monodon ls < file\n"
    assert list(commands(code)) == [
        ["A=1", "python", "manage.py", "grant", "list"],
        ["x", "a b"],
        ["monodon", "ls"],
        ["file"],
    ]


def test_commands_of_manage():
    checked = calls(lines(), "manage.py")
    assert len(checked) > 50
    for line, arguments in checked:
        parser, words = manage_parser(arguments)
        try:
            parser.parse_args(words)
        except CommandError as error:
            pytest.fail(f"{line}: {error}")


def test_commands_of_monodon(monkeypatch):
    # The files that the pages name are not here.
    monkeypatch.setattr(click.Path, "convert", lambda self, value, parameter, context: value)
    checked = [call for call in calls(lines(), "monodon") if call[1]]
    assert len(checked) > 20
    for line, arguments in checked:
        command, words = monodon_command(arguments)
        try:
            command.make_context(command.name, words)
        except click.ClickException as error:
            pytest.fail(f"{line}: {error.format_message()}")


def test_commands_in_sentences():
    managed = calls(sentences(), "manage.py")
    for line, arguments in managed:
        parser, words = manage_parser(arguments)
        options = {word for word in words if word.startswith("--")}
        assert options <= parser._option_string_actions.keys(), line
    called = [call for call in calls(sentences(), "monodon") if call[1]]
    for line, arguments in called:
        command, words = monodon_command(arguments)
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= options, line
    assert len(managed) > 10
    assert len(called) > 10


def test_settings(monkeypatch, tmp_path):
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages())
    named = set(re.findall(r"\bMONODON_[A-Z0-9_]*[A-Z0-9]\b(?!_)", text))
    documented_names = read_settings(monkeypatch, tmp_path) | documented(
        "command-line.md", in_table=True
    )
    unknown = named - documented_names - COMPOSE - _OF_TESTS
    assert {name for name in unknown if not name.startswith(_SECRET)} == set()
    assert len(named) > 50


def test_targets_of_make():
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    variables = set(re.findall(r"\$\((?:if \$\()?([A-Z]+)\b", makefile))
    texts = [shlex.split(code) for _, code in inline_codes() if code.startswith("make ")]
    checked = [words for words in [*texts, *(words for _, words in lines())] if words[0] == "make"]
    assert len(checked) > 20
    for words in checked:
        names = {word for word in words[1:] if "=" not in word}
        assert names <= targets, words
        assert {word.partition("=")[0] for word in words[1:] if "=" in word} <= variables, words
