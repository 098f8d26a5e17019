from django.apps import AppConfig


class CatalogConfig(AppConfig):
    name = "catalog"
    verbose_name = "Catalog"

    def ready(self) -> None:
        from catalog.services.access import users
        from catalog.services.maintenance import actions

        users.connect()
        actions.register()
