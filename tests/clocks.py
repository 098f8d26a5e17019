"""Replacements of the functions of ``time``."""

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def replace(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, **functions: Callable[..., Any]
) -> None:
    """Replace functions of ``time`` for one module that imports it.

    A replacement in ``time`` itself would be called by the threads of other tests, too.
    """
    monkeypatch.setattr(module, "time", SimpleNamespace(**(vars(time) | functions)))
