"""Functions: listing and loading them."""

from typing import Any

from api.iceberg.operation import IcebergOperation
from catalog.access import Principal
from catalog.services.iceberg import functions


class ListFunctions(IcebergOperation):
    """List the functions of a namespace.

    Sorted by name. Functions are created and changed in the admin.
    """

    verb = "GET"
    query = ("pageToken", "pageSize")
    response_model = "ListFunctionsResponse"

    def handle(self, actor: Principal, body: None, *, namespace: str) -> dict[str, Any]:
        identifier = self.identify(namespace)
        names, last = functions.list_functions(actor=actor, namespace=identifier, **self.page)
        levels = self.relative(identifier)
        return {
            "identifiers": [[*levels, name] for name in names],
            "next-page-token": self.token(last),
        }


class LoadFunction(IcebergOperation):
    """Load a function.

    The answer has all definitions of the function, each with its versions.
    """

    verb = "GET"
    response_model = "LoadFunctionResult"

    def handle(
        self, actor: Principal, body: None, *, namespace: str, function: str
    ) -> dict[str, Any]:
        identifier = self.identify(namespace, function)
        return {"metadata": functions.load_function(actor=actor, function=identifier).metadata}
