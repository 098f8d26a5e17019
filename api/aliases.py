"""Paths of other catalogs that lead to the operations of this one.

Lakekeeper serves the Iceberg protocol at ``/catalog/v1`` and Polaris at ``/api/catalog/v1``, so their users
configure these paths.
"""

_ALIASES = ("/catalog", "/api/catalog")


def path_of(path: str) -> str:
    """The path of the operation: ``/v1/config`` for ``/catalog/v1/config``; other paths are unchanged."""
    for alias in _ALIASES:
        if path.startswith(f"{alias}/v1/"):
            return path[len(alias) :]
    return path
