from typing import Any, ClassVar

from django.conf import settings

from api.iceberg import messages as m
from api.iceberg import prefixes
from api.iceberg.operation import IcebergOperation
from catalog.access import Principal
from catalog.errors import WarehouseNotFound
from catalog.services.engine import idempotency
from catalog.services.tables import namespaces


class GetConfig(IcebergOperation):
    """Tell a client what is served, and where the warehouse that it asks for lies.

    ``warehouse`` names a namespace, its levels joined by dots. Without one, and by the name of the
    root, the catalog itself is the warehouse. That name comes before a namespace's: else whoever
    makes a namespace of that name would lead clients of the whole catalog into it.
    """

    response_model = m.CatalogConfig
    query = ("warehouse",)

    endpoints: ClassVar[list[str]] = []
    """The endpoints that the routes serve. The routes fill it."""

    def handle(self, actor: Principal, body: None) -> dict[str, Any]:
        overrides = {"namespace-separator": prefixes.ESCAPED_SEPARATOR}
        warehouse = self.query_values.get("warehouse")
        if warehouse and warehouse != settings.MONODON_WAREHOUSE_NAME:
            warehouse_path = namespaces.first_namespace(
                actor=actor, paths=prefixes.candidates(warehouse)
            )
            if warehouse_path is None:
                raise WarehouseNotFound(warehouse)
            overrides["prefix"] = prefixes.spell(warehouse_path.identifier)
        return {
            "defaults": {},
            "overrides": overrides,
            "endpoints": self.endpoints,
            "idempotency-key-lifetime": idempotency.LIFETIME_ISO,
        }
