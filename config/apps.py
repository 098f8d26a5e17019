"""Django's admin, whose pages are loaded with the URLs instead of at every start of Django.

The pages import Lance, PyIceberg and pandas, which take seconds and 130 MB. Commands and beat do not
need them.
"""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig as DjangoAppConfig
from django.contrib.admin import autodiscover
from django.contrib.admin.apps import SimpleAdminConfig
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core import checks


class AdminConfig(SimpleAdminConfig):
    def ready(self) -> None:
        checks.register(check_dependencies, checks.Tags.admin)
        checks.register(_check_pages, checks.Tags.admin)


def _check_pages(
    app_configs: Sequence[DjangoAppConfig] | None, **options: Any
) -> list[checks.CheckMessage]:
    """Django's check of the admin, after its pages are loaded."""
    autodiscover()
    return check_admin_app(app_configs, **options)
