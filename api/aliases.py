"""Paths of other catalogs that lead to the operations of this one.

Lakekeeper and Polaris serve the Iceberg protocol at ``/catalog/v1``, so their users configure that path.
"""

_ALIAS = "/catalog"


def path_of(path: str) -> str:
    """The path of the operation: ``/v1/config`` for ``/catalog/v1/config``; other paths are unchanged."""
    return path[len(_ALIAS) :] if path.startswith("/catalog/v1/") else path
