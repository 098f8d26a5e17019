"""Configuration: what a client reads first."""

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
    """Return the configuration that a client needs first.

    ``warehouse`` names a namespace, its levels joined by dots; the answer's ``prefix`` stands for
    it in all other paths. Without ``warehouse``, or with the configured name of the whole catalog,
    there is no prefix. That name takes precedence over a namespace of the same name, so that nobody
    can redirect other clients by creating one.
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
