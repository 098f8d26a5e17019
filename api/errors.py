"""Errors of requests that do not reach the catalog, for all protocols."""

from catalog.errors import CatalogError


class RouteNotFound(CatalogError):
    def __init__(self, path: str) -> None:
        super().__init__(f"There is no operation at {path}")


class MethodNotAllowed(CatalogError):
    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not allowed here; use {allowed}")
        self.allowed = allowed


class BodyTooLarge(CatalogError):
    def __init__(self, limit: int, *, is_setting: bool = True) -> None:
        """``is_setting``: the limit is MONODON_MAX_BODY_BYTES, not a smaller one of some paths."""
        super().__init__(
            f"The request body is larger than {limit} bytes",
            detail="MONODON_MAX_BODY_BYTES sets the limit." if is_setting else None,
        )


class UnsupportedEncoding(CatalogError):
    def __init__(self, encoding: str) -> None:
        super().__init__(
            f"Content-Encoding is {encoding[:100]!r}; send the body as it is or with gzip"
        )


class BodyTooSlow(CatalogError):
    def __init__(self, seconds: int, rate: int) -> None:
        super().__init__(
            f"The request body did not arrive in time: send it within {seconds} seconds, or at"
            f" {rate} bytes a second"
        )


class TooManyRequests(CatalogError):
    """``seconds``: the time to wait, rounded up. ``noun``: what there is too much of."""

    def __init__(self, who: str, most: int, seconds: int, noun: str = "requests") -> None:
        super().__init__(f"More than {most} {noun} at once from {who}; try again later")
        self.seconds = seconds
