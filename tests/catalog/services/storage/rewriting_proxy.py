"""A proxy before a store that changes headers, as misconfigured proxies and simple stores do."""

from typing import Self

from tests.stores import faults


class RewritingProxy(faults.FaultProxy):
    """Removes headers from requests, and replaces headers of answers."""

    def __init__(
        self, endpoint: str, *, without: tuple[str, ...] = (), date: str | None = None
    ) -> None:
        super().__init__(endpoint)
        self.without = without
        """Headers that the store does not get."""
        self.date = date
        """The time that the store states, as an HTTP date; None: its own."""

    def __enter__(self) -> Self:
        super().__enter__()
        self._server.RequestHandlerClass = _RewritingHandler
        return self


class _RewritingHandler(faults._Handler):
    def _forward(self, body: bytes) -> tuple[int, str, list[tuple[str, str]], bytes]:
        proxy = self.server.proxy
        assert isinstance(proxy, RewritingProxy)
        for name in proxy.without:
            del self.headers[name]
        status, reason, headers, content = super()._forward(body)
        if proxy.date is not None:
            headers = [pair for pair in headers if pair[0].lower() != "date"]
            headers.append(("Date", proxy.date))
        return status, reason, headers, content
