from tests.catalog.conftest import warehouse

__all__ = ["warehouse"]
