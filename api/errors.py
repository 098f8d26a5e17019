"""What a request can get wrong before it reaches the catalog, in either protocol."""

from catalog.errors import CatalogError


class RouteNotFound(CatalogError):
    def __init__(self, path: str) -> None:
        super().__init__(f"There is no operation at {path}")


class MethodNotAllowed(CatalogError):
    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not allowed here; use {allowed}")
        self.allowed = allowed


class BodyTooLarge(CatalogError):
    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The request body is larger than {limit} bytes",
            detail="MONODON_MAX_BODY_BYTES sets the limit.",
        )
