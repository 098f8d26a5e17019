"""Import the models of lance_namespace_urllib3_client without the classes of its HTTP client.

The package imports these classes at its start, and pydantic then prepares each of their methods, which takes
a second of a processor. Neither this server nor pylance uses them.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

_PACKAGE = "lance_namespace_urllib3_client"


class _Deferred(ModuleType):
    """A package whose __init__ runs when a name that it defines is first read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if importlib.util.find_spec(f"{_PACKAGE}.{name}") is not None:
            # A module of the package, also while another one imports it.
            return importlib.import_module(f"{_PACKAGE}.{name}")
        self.__class__ = ModuleType  # type: ignore[assignment]
        importlib.reload(self)
        return getattr(self, name)


def install() -> None:
    """Defer the package's __init__, unless the package is imported already."""
    spec = importlib.util.find_spec(_PACKAGE)
    if _PACKAGE in sys.modules or spec is None:
        return
    package = importlib.util.module_from_spec(spec)
    package.__class__ = _Deferred
    sys.modules[_PACKAGE] = package
