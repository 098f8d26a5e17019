"""YAML of governance documents: plain values only, without tags, anchors, aliases or duplicate keys."""

from typing import Any

import yaml

from catalog.errors import InvalidInput

MAX_CHARACTERS = 20_000_000
_MAX_DEPTH = 30


class _Loader(yaml.SafeLoader):
    """Safe loader that also rejects references.

    PyYAML's safe loader builds no objects, but a few lines of references can expand to billions of
    values.
    """

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(
                problem="anchors and aliases are not allowed", problem_mark=event.start_mark
            )
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(
                problem="tags are not allowed", problem_mark=event.start_mark
            )
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise yaml.MarkedYAMLError(
                problem="it is nested too deeply", problem_mark=event.start_mark
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key is no text", problem_mark=key.start_mark)
            if key.value in keys:
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate key {key.value!r}", problem_mark=key.start_mark
                )
            keys.add(key.value)
        return super().construct_mapping(node, deep=deep)


def parse(text: str) -> Any:
    """Parse a file into plain values. Raises InvalidInput with line and column."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidInput(f"The file has more than {MAX_CHARACTERS} characters")
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise InvalidInput(f"The file is not valid YAML: {where}{error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidInput(f"The file is not valid YAML: {str(error)[:200]}") from None


def write(document: dict[str, Any]) -> str:
    """Format a document for people: keys in the order of the document, one value per line."""
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100))
