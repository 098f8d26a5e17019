"""YAML files whose content is sent as JSON. Imported when it is needed, because that takes time."""

import json
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, of which PyYAML keeps the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = set()
        for key, _ in node.value:
            if key.value in keys:
                raise yaml.constructor.ConstructorError(
                    problem=f"duplicate key {key.value!r}", problem_mark=key.start_mark
                )
            keys.add(key.value)
        return super().construct_mapping(node, deep=deep)


def load(text: str) -> Any:
    """The content of a file. Raises ValueError if it is not YAML, or JSON has no such value."""
    try:
        document = yaml.load(text, _Loader)  # noqa: S506 -- a safe loader
        json.dumps(document, allow_nan=False)
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return document


def write(document: Any, file: Any) -> None:
    """Write a document for people."""
    yaml.safe_dump(document, file, sort_keys=False, allow_unicode=True)
