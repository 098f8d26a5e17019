"""Evaluates policies as AWS does: an explicit Deny wins, and what no statement allows is denied.

Knows the elements that session policies of storage need. Every other element, and other operators of
statements about the request, raise, so that no test passes because of a rule that was ignored.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

_ELEMENTS = {"Sid", "Effect", "Action", "Resource", "Condition"}


class UnsupportedPolicy(ValueError):
    """The policy has an element that this module does not evaluate."""


def is_allowed(
    documents: list[str], action: str, resource: str, context: Mapping[str, str]
) -> bool:
    """True if a statement of the JSON documents allows the action, and none denies it.

    ``context`` has the condition keys of the request. A key that it lacks matches no condition.
    Raises UnsupportedPolicy.
    """
    effects = {
        statement["Effect"]
        for document in documents
        for statement in _statements(document)
        if _applies(statement, action, resource, context)
    }
    return effects == {"Allow"}


def _statements(document: str) -> list[dict[str, Any]]:
    statements = json.loads(document)["Statement"]
    return statements if isinstance(statements, list) else [statements]


def _applies(
    statement: dict[str, Any], action: str, resource: str, context: Mapping[str, str]
) -> bool:
    if unsupported := statement.keys() - _ELEMENTS:
        raise UnsupportedPolicy(f"elements {sorted(unsupported)} are not evaluated")
    if statement["Effect"] not in {"Allow", "Deny"}:
        raise UnsupportedPolicy(f"effect {statement['Effect']!r} does not exist")
    return (
        any(_matches(pattern.lower(), action.lower()) for pattern in _texts(statement["Action"]))
        and any(_matches(pattern, resource) for pattern in _texts(statement["Resource"]))
        and _conditions_hold(statement.get("Condition", {}), context)
    )


def _conditions_hold(conditions: Mapping[str, Any], context: Mapping[str, str]) -> bool:
    """All operators and keys must hold; of a key's values one is enough."""
    holds = True
    for operator, keys in conditions.items():
        if operator not in {"StringEquals", "StringLike"}:
            raise UnsupportedPolicy(f"operator {operator!r} is not evaluated")
        for key, expected in keys.items():
            value = context.get(key)
            holds = holds and any(
                value is not None
                and (value == text if operator == "StringEquals" else _matches(text, value))
                for text in _texts(expected)
            )
    return holds


def _texts(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _matches(pattern: str, text: str) -> bool:
    """``*`` matches any characters, slashes among them, and ``?`` exactly one character."""
    if "${" in pattern:
        raise UnsupportedPolicy(f"variables are not evaluated: {pattern!r}")
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, text, re.DOTALL) is not None
