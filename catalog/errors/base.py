"""The base class of all errors, and how messages name namespaces and tables."""

from collections.abc import Callable, Sequence

Identifier = tuple[str, ...]

Name = Callable[[Sequence[str]], str]
"""Formats an identifier for a message."""


def label(identifier: Sequence[str]) -> str:
    """A namespace or table as messages name it: ``prod.users``."""
    return ".".join(identifier) if identifier else "(root)"


class CatalogError(Exception):
    """Base class of all errors. ``operation`` is the index of the failing operation of a batch.

    ``template`` is the plain message, and ``facts`` fill its placeholders. Without facts, the
    template is the message itself. An identifier among the facts is a tuple. A protocol may use
    another template for a class, and format identifiers in its own way.
    """

    operation: int | None = None

    def __init__(self, template: str, *, detail: str | None = None, **facts: object) -> None:
        self.template = template
        self.facts = facts
        self.detail = detail
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """The plain message, with complete identifiers."""
        return self.worded(label)

    def worded(self, name: Name, template: str | None = None) -> str:
        """The message with identifiers formatted by ``name``; by default of the plain template."""
        text = self.template if template is None else template
        if not self.facts:
            return text
        # Values are inserted literally: format_map does not interpret braces in them.
        return text.format_map(
            {
                key: name(value) if isinstance(value, tuple) else value
                for key, value in self.facts.items()
            }
        )

    def __str__(self) -> str:
        return self.message

    def reword(self, message: str) -> None:
        """Replace the message by a text without placeholders, the same in every protocol."""
        self.template, self.facts = message, {}


def on_branch(branch: str) -> str:
    """The end of a message about a branch; empty for main."""
    return f" on branch '{branch}'" if branch else ""
