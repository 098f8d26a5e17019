"""Texts for the terminal, which a name or a message from the server must not control."""

import json

import click


def printable(text: str) -> str:
    """The text on one line, with a space for each character that could control or reorder what is displayed."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else " " for character in text)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print lines of text."""
    click.echo("\n".join(map(printable, text.split("\n"))), err=err)


def to_json(value: object, indent: int | None = None) -> str:
    """JSON in which only displayed characters are not escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1]
        for character in text
    )
