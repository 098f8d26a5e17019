from django.apps import AppConfig

from catalog import deferred_client

deferred_client.install()  # before any module imports Lance


class CatalogConfig(AppConfig):
    name = "catalog"
    verbose_name = "Catalog"

    def ready(self) -> None:
        from catalog import tracing
        from catalog.services.access import users
        from catalog.services.maintenance import actions
        from catalog.services.storage import profiles

        tracing.connect()
        users.connect()
        profiles.connect()
        actions.register()
