"""Remote signing: the catalog signs a client's requests to the files of a table."""

from django.http import HttpResponse

from api.iceberg.messages import RemoteSignRequest, RemoteSignResult
from api.iceberg.operation import IcebergOperation
from catalog.access import Principal
from catalog.services.iceberg import request_signing
from catalog.services.iceberg.request_signing import ClientRequest

_CACHEABLE = frozenset({"GET", "HEAD"})


class SignRequest(IcebergOperation):
    """Sign a request to the storage of a table.

    The request must stay at the files of the table. Reading and listing require READ, everything
    else WRITE. Requests that are not understood are refused.
    """

    verb = "POST"
    request_model = RemoteSignRequest
    response_model = RemoteSignResult

    def handle(
        self, actor: Principal, body: RemoteSignRequest, *, namespace: str, table: str
    ) -> HttpResponse:
        headers = request_signing.sign(
            actor=actor,
            table=self.identify(namespace, table),
            request=ClientRequest(
                method=body.method,
                uri=body.uri,
                region=body.region,
                headers=body.headers,
                body=body.body,
                provider=body.provider,
            ),
        )
        result = RemoteSignResult(
            uri=body.uri, headers={name: [value] for name, value in headers.items()}
        )
        response = self.render(result)
        # Iceberg's Java client keeps a signature for 30 seconds if it may.
        response["Cache-Control"] = "private" if body.method in _CACHEABLE else "no-cache"
        return response
