from django.apps import AppConfig


class CatalogConfig(AppConfig):
    name = "catalog"
    verbose_name = "Catalog"

    def ready(self) -> None:
        from catalog.services.access import users
        from catalog.services.maintenance import actions
        from catalog.services.storage import profiles

        users.connect()
        profiles.connect()
        actions.register()
