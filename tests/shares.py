"""The cases of a test that `make test` runs. `make engines` runs the others too."""

from collections.abc import Collection
from typing import Any

import pytest


def nightly(*values: Any) -> Any:
    """The parameters of a case for `make engines`: another case of the same code."""
    return pytest.param(*values, marks=pytest.mark.engines)


def daily(values: Collection[Any], *chosen: Any) -> list[Any]:
    """Values of one parameter, of which `make test` runs only the chosen ones."""
    if not chosen or any(value not in values for value in chosen):
        raise ValueError("a chosen case is none of the cases")
    return [value if value in chosen else nightly(value) for value in values]
