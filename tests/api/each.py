"""Tests that check all operations in one run, with fixtures that are created once."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def on_each(operations: Iterable[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for each operation in turn, as the parameter ``operation``."""
    names = list(operations)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def on_all(**fixtures: Any) -> None:
            for name in names:
                try:
                    test(operation=name, **fixtures)
                except BaseException as error:
                    error.add_note(f"operation {name}")
                    raise

        signature = inspect.signature(test)
        parameters = [
            parameter for name, parameter in signature.parameters.items() if name != "operation"
        ]
        on_all.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        del on_all.__wrapped__  # type: ignore[attr-defined]
        return on_all

    return decorate
