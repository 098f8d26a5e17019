"""A typed client of a Monodon server.

    from monodon.client import Client, pages

    with Client("http://127.0.0.1:2333", api_key=KEY) as client:
        for job in pages(client.list_jobs, status="failed"):
            print(job["id"], job["message"])

Methods of the management API have the names and the parameters of its OpenAPI document. The types of bodies and
answers are in ``monodon.client.models``.
"""

from collections.abc import Callable, Iterator
from typing import Any

from monodon.client.errors import ClientError, InvalidName, RequestFailed, Unreachable
from monodon.client.names import Name
from monodon.client.operations import ManagementOperations
from monodon.client.protocols import ProtocolOperations
from monodon.client.transport import UNSET, next_token


class Client(ManagementOperations, ProtocolOperations):
    """All operations of the management API, and those of the protocols for tables and namespaces.

    Names of objects are sequences of parts, or text that is joined by ``$``.
    """


def pages(operation: Callable[..., Any], *arguments: Any, **parameters: Any) -> Iterator[Any]:
    """The entries of all pages of an operation that returns a list."""
    token = None
    while True:
        page = operation(*arguments, **parameters, page_token=token)
        yield from next(value for value in page.values() if isinstance(value, list))
        token = next_token(page, "next_page_token", token)
        if token is None:
            return


__all__ = [
    "UNSET",
    "Client",
    "ClientError",
    "InvalidName",
    "Name",
    "RequestFailed",
    "Unreachable",
    "pages",
]
