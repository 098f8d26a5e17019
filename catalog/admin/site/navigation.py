"""The sidebar, and the icon of the site."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any
from urllib.parse import quote

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django_celery_beat.models import PeriodicTask

from catalog import models
from catalog.admin.audit import history
from catalog.admin.cells import list_url
from catalog.admin.search import search
from catalog.admin.site import glossary
from catalog.models import (
    ApiKey,
    ApprovalRequest,
    AuditEvent,
    EngineProfile,
    Function,
    Job,
    LabelDefinition,
    MaterializedView,
    Namespace,
    StorageProfile,
    Table,
    TableHealth,
    Transaction,
    TrashItem,
    Webhook,
)

_GROUPS: tuple[tuple[str, tuple[tuple[str, str, type[Model]], ...]], ...] = (
    (
        "Catalog",
        (
            ("Namespaces", "account_tree", Namespace),
            ("Tables", "table", Table),
            ("Materialized views", "table_view", MaterializedView),
            ("Functions", "function", Function),
            ("Labels", "label", LabelDefinition),
            ("Storage profiles", "storage", StorageProfile),
            ("Engine profiles", "memory", EngineProfile),
            ("Trash", "delete", TrashItem),
        ),
    ),
    (
        "Activity",
        (
            ("Approvals", "approval", ApprovalRequest),
            ("Transactions", "commit", Transaction),
            ("Audit events", "history", AuditEvent),
            ("Table health", "monitor_heart", TableHealth),
            ("Jobs", "pending_actions", Job),
            ("Webhooks", "webhook", Webhook),
        ),
    ),
    (
        "Access",
        (
            ("Principals", "badge", models.Principal),
            ("API keys", "key", ApiKey),
            ("Users", "person", User),
        ),
    ),
    ("System", (("Periodic tasks", "schedule", PeriodicTask),)),
)

# A crystal with a tusk through it.
_ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 38 38">
<rect width="38" height="38" rx="8" fill="#0e7490"/>
<path d="M19 6l11 6.5v13L19 32 8 25.500v-13z" fill="none" stroke="#a5f3fc" stroke-width="1.800" stroke-linejoin="round" opacity=".75"/>
<path d="M10.500 28.500L31 7l-17 24z" fill="#fff"/>
<path d="M16 26.300l-2.600-2.500M19.400 22.300l-2.300-2.200M22.800 18.300l-1.900-1.800" stroke="#0e7490" stroke-width="1.100"/>
</svg>"""


def sign(_request: HttpRequest) -> str:
    return "data:image/svg+xml," + quote(_ICON)


def pages(request: HttpRequest) -> Iterator[tuple[str, str, str, str]]:
    """The pages of the sidebar that the user may see: title, icon, URL and group."""
    yield "Overview", "ac_unit", reverse("admin:index"), ""
    yield "Search", "search", search.url(), ""
    yield "My access and keys", "vpn_key", reverse("my-access"), ""
    for group, entries in _GROUPS:
        for name, icon, model in entries:
            if may_see(request, model):
                yield name, icon, list_url(model), group
        if group == "Activity" and history.may_see(request):
            yield "History", "manage_history", history.url(), group
        if group == "System":
            yield "Glossary", "help", glossary.url(), group


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    """Groups of the sidebar, with the pages that the user may see."""
    groups: list[dict[str, Any]] = []
    for name, rows in groupby(pages(request), key=itemgetter(3)):
        items = [{"title": title, "icon": icon, "link": link} for title, icon, link, _ in rows]
        groups.append(
            {"title": name, "separator": True, "items": items} if name else {"items": items}
        )
    return groups


def admins() -> Iterator[tuple[type[Model], Any]]:
    """The models of the sidebar with their admins."""
    for _, entries in _GROUPS:
        for _, _, model in entries:
            yield model, admin.site.get_model_admin(model)


def may_see(request: HttpRequest, model: type[Model]) -> bool:
    """True if the user may see the pages of a model."""
    return bool(admin.site.get_model_admin(model).has_view_permission(request))
