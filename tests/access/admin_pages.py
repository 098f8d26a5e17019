"""The pages of the web admin from its URL table, their access rules, and an example catalog."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.db.models import Model
from django.urls import URLPattern, URLResolver, get_resolver
from django_celery_beat.models import (
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
    SolarSchedule,
)

from catalog import models
from catalog.access import SYSTEM
from catalog.services.iceberg import functions
from catalog.services.iceberg.functions import Content
from catalog.services.lance.materialized_views import materialized_views
from tests.access.iceberg_examples import DEFINITION
from tests.api.client import encoded_schema
from tests.api.management import examples
from tests.factories import unchanged
from tests.recall import recall


class Shown(Enum):
    """Users who may see a model's pages."""

    ADMINISTRATORS = (
        "users who hold every privilege; neither a grant nor Django's permission is enough"
    )
    BROWSERS = "users who may browse the object of the row"
    OWN = "users see their own rows; users who browse everything see all rows"


RULES: dict[type[Model], Shown] = {
    User: Shown.ADMINISTRATORS,
    PeriodicTask: Shown.ADMINISTRATORS,
    models.ApiKey: Shown.ADMINISTRATORS,
    models.Principal: Shown.ADMINISTRATORS,
    models.AuditEvent: Shown.ADMINISTRATORS,
    models.StorageProfile: Shown.ADMINISTRATORS,
    models.EngineProfile: Shown.ADMINISTRATORS,
    models.Webhook: Shown.ADMINISTRATORS,
    models.Transaction: Shown.OWN,
    models.LabelDefinition: Shown.ADMINISTRATORS,
    models.ApprovalRequest: Shown.BROWSERS,
    models.Function: Shown.BROWSERS,
    models.Job: Shown.BROWSERS,
    models.MaterializedView: Shown.BROWSERS,
    models.Namespace: Shown.BROWSERS,
    models.Table: Shown.BROWSERS,
    models.TableHealth: Shown.BROWSERS,
    models.TrashItem: Shown.BROWSERS,
}
"""The access rule of a model's page. Fails for a model without a rule."""
_SEARCH = "admin/catalog/labeldefinition/search/"
"""The search of the whole catalog, which every user has, although its route is one of the labels."""


@dataclass(frozen=True)
class Page:
    route: str
    model: type[Model] | None
    """The model of a page, if it belongs to a model."""

    @property
    def is_of_a_row(self) -> bool:
        return self.model is not None and "<" in self.route

    def url(self) -> str:
        """URL of a page, with the first row of the model where it needs one."""
        row = None if self.model is None else self.model._default_manager.order_by("pk").first()
        text = self.route.replace("^", "").replace("$", "")
        text = re.sub(r"\(\?P<app_label>[^)]*\)", "catalog", text)
        text = re.sub(r"\(\?P<url>[^)]*\)", "nothing-of-this-name/", text)
        return "/" + re.sub(r"<[^>]*>", "1" if row is None else str(row.pk), text)


def _walk(patterns: Sequence[URLPattern | URLResolver], before: str = "") -> Iterator[str]:
    for pattern in patterns:
        route = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern.url_patterns, route)
        else:
            yield route


def _pages() -> list[Page]:
    admin.autodiscover()
    of_models = {
        f"admin/{model._meta.app_label}/{model._meta.model_name}/": model
        for model in admin.site._registry
    }
    routes = [route for route in _walk(get_resolver().url_patterns) if route.startswith("admin")]
    return [
        Page(
            route,
            next(
                (of_models[at] for at in of_models if route.startswith(at) and route != _SEARCH),
                None,
            ),
        )
        for route in routes
    ]


PAGES = _pages()
GROUPS = {"others": None} | {model._meta.label: model for model in RULES}
"""Pages are tried model by model, in one catalog each."""


def pages_of(group: str) -> list[Page]:
    return [page for page in PAGES if page.model is GROUPS[group]]


def make_catalog() -> dict[str, int]:
    """Something of every kind that the admin shows, in namespaces ``ws`` and ``guarded``."""
    return recall("admin", _make_catalog)


def _make_catalog() -> dict[str, int]:
    examples_catalog = examples.make_catalog()
    functions.create_function(
        actor=SYSTEM,
        function=("ws", "known_function"),
        content=Content(definitions=[DEFINITION], doc="adds"),
    )
    materialized_views.create_view(
        actor=SYSTEM,
        table=("ws", "known_view"),
        kind="query",
        source_query="SELECT id FROM ws.t",
        output_schema=encoded_schema(pa.schema([("id", pa.int64())])),
    )
    interval = IntervalSchedule.objects.create(every=1, period="days")
    CrontabSchedule.objects.create()
    SolarSchedule.objects.create(event="sunset", latitude=1, longitude=1)
    ClockedSchedule.objects.create(clocked_time="2030-01-01T00:00:00Z")
    PeriodicTask.objects.create(name="known", task="t", interval=interval)
    return examples_catalog


OF_DJANGO = (
    *(User, Group, Permission, LogEntry, PeriodicTask, IntervalSchedule, CrontabSchedule),
    *(SolarSchedule, ClockedSchedule, User.groups.through, User.user_permissions.through),
    models.Principal.groups.through,
)


@contextmanager
def no_row_changed() -> Iterator[None]:
    """Check that no row of the catalog, of Django or of its packages changes."""
    with unchanged(OF_DJANGO):
        yield
