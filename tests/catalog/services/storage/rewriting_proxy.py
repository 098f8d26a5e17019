"""A proxy before a store that changes headers, so that the store seems to ignore conditions or to be late."""

from typing import Self

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.stores import faults
from tests.stores.s3 import S3Store


class RewritingProxy(faults.FaultProxy):
    def __init__(
        self, store: S3Store, *, ignores_conditions: bool = False, date: str | None = None
    ) -> None:
        """``date``: the time that the store states, as an HTTP date; None: its own."""
        super().__init__(store.endpoint)
        self.date = date
        self.ignores_conditions = ignores_conditions
        self._region = store.region
        self._credentials = Credentials(store.access_key, store.secret_key)

    def __enter__(self) -> Self:
        super().__enter__()
        self._server.RequestHandlerClass = _RewritingHandler
        return self

    def sign(self, method: str, url: str, body: bytes) -> dict[str, str]:
        """The headers of a signature with the store's key."""
        request = AWSRequest(method=method, url=url, data=body)
        S3SigV4Auth(self._credentials, "s3", self._region).add_auth(request)
        return dict(request.headers.items())


class _RewritingHandler(faults._Handler):
    def _forward(self, body: bytes) -> tuple[int, str, list[tuple[str, str]], bytes]:
        proxy = self.server.proxy
        assert isinstance(proxy, RewritingProxy)
        if proxy.ignores_conditions and "if-none-match" in self.headers:
            del self.headers["if-none-match"]
            url = f"http://{self.headers['host']}{self.path}"
            for name, value in proxy.sign(self.command, url, body).items():
                del self.headers[name]
                self.headers[name] = value
        status, reason, headers, content = super()._forward(body)
        if proxy.date is not None:
            headers = [pair for pair in headers if pair[0].lower() != "date"]
            headers.append(("Date", proxy.date))
        return status, reason, headers, content
