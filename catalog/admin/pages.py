"""Base classes of the admin: read-only lists, pages of details and panels, and forms that call a service."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import zip_longest
from typing import Any, cast

from django import forms
from django.contrib.admin import ShowFacets, display
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q, QuerySet
from django.db.models.constants import LOOKUP_SEP
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path
from django.views.generic import RedirectView
from unfold import decorators
from unfold.admin import ModelAdmin
from unfold.enums import ActionVariant

from catalog import access
from catalog.access import Principal
from catalog.admin import breadcrumbs, cells, contacts, form_pages, list_parts
from catalog.admin.actor import actor, holds_somewhere, is_administrator, visibility
from catalog.admin.paging import InfinitePaginator
from catalog.errors import NotFound
from catalog.models import Namespace, Table
from catalog.privileges import Privilege


def button(
    description: str, *, permission: str, icon: str, danger: bool = False
) -> Callable[[Callable[..., HttpResponseBase]], Callable[..., HttpResponseBase]]:
    """Make a method, which receives the row, an action of its page (``has_<permission>_permission``).

    A row that does not exist or is not visible is answered with 404.
    """
    variant = ActionVariant.DANGER if danger else ActionVariant.DEFAULT

    def decorate(press: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
        @wraps(press)
        def pressed(self: ReadOnlyAdmin, request: HttpRequest, object_id: str) -> HttpResponseBase:
            row = self.find(request, object_id)
            if row is None:
                return self.missing(request, object_id)
            return press(self, request, row)

        action = decorators.action(
            description=description, permissions=[permission], icon=icon, variant=variant
        )
        return cast(Callable[..., HttpResponseBase], action(pressed))

    return decorate


@dataclass(frozen=True)
class Panel:
    """A table on a page."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    empty: str
    title: str = ""
    note: str = ""
    first: str | None = None
    """URL of the first page; None on the first page."""
    following: str | None = None
    """URL of the next page; None on the last."""
    style: str = ""
    """CSS class of the table; empty for the standard style."""
    below: Sequence[object] = ()
    """For each row, the content below it, as wide as the table."""
    lead: object = ""
    """Content above the table, such as a chart or a form."""
    keys: Sequence[str] = ()
    """For each row, what it is about, such as the path of a column; empty if nobody needs it."""
    is_folded: bool = False
    """True if the table is hidden until the user opens it."""

    @property
    def lines(self) -> Sequence[tuple[Sequence[object], object]]:
        return list(zip_longest(self.rows, self.below, fillvalue=None))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Tab:
    key: str
    title: str
    build: Callable[[], Panel | Sequence[Panel]]


@dataclass(frozen=True)
class Tile:
    """A figure in the header of a page."""

    title: str
    value: object
    note: object = ""
    spark: object = ""
    """The course of the figure, as a small chart."""


@dataclass(frozen=True)
class Group:
    """Tabs that are sections of one tab; those that the page does not have are left out."""

    title: str
    keys: Sequence[str]


@dataclass(frozen=True)
class Page:
    """Content of a row's page."""

    facts: Sequence[tuple[str, object]]
    panels: Sequence[Panel] = ()
    tabs: Sequence[Tab] = ()
    aside: dict[str, object] = field(default_factory=dict)
    """Context of the template named by ``aside_template``."""
    aside_template: str = ""
    header: Sequence[object] = ()
    """Content below the name, such as the format and the owner."""
    tiles: Sequence[Tile] = ()
    groups: Sequence[Group] = ()
    """Groups of tabs; empty: the tabs are not grouped."""
    options: dict[str, object] = field(default_factory=dict)

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """The facts that have a value."""
        return [fact for fact in self.facts if fact[1] is not cells.NOTHING]


def _navigation(page: Page, key: str) -> dict[str, Sequence[tuple[str, str, bool]]]:
    """The tabs of a page, and the sections of the open tab: key, title and whether it is open."""
    titles = {tab.key: tab.title for tab in page.tabs}
    if not page.groups:
        return {"tabs": [(name, title, name == key) for name, title in titles.items()]}
    groups = [
        (group.title, [name for name in group.keys if name in titles]) for group in page.groups
    ]
    opened = next((names for _, names in groups if key in names), [])
    return {
        "tabs": [(names[0], title, key in names) for title, names in groups if names],
        "sections": [(name, titles[name], name == key) for name in opened] if opened[1:] else [],
    }


class ReadOnlyAdmin(ModelAdmin):  # type: ignore[misc]
    """A list, and a page for each row. Rows are not edited in place: the buttons call services."""

    paginator = InfinitePaginator
    list_per_page = 50
    list_max_show_all = 0
    # Actions apply to one page of rows: the paginator has no total count, and all rows would be too many.
    list_disable_select_all = True
    list_filter_submit = True
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    sortable_by: Sequence[str] = ()
    list_sections = ()  # otherwise Django searches all attributes twice for each row of a list
    list_title = ""
    """Title of the list; empty for the plural name of the model."""
    empty_text = ""
    """Text of an empty list: what it holds, and how entries are created."""
    page_related: Sequence[str] = ()
    """Arguments of ``select_related`` for a row's page."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    @display(description=ModelAdmin.action_checkbox.short_description)
    def action_checkbox(self, obj: Model) -> str:
        return list_parts.checkbox(obj.pk)

    # -- permissions

    def visibility(self, principal: Principal) -> Q | None:
        """Condition of the rows that the principal may browse; None if only administrators may."""
        return None

    def target(self, row: Any) -> Namespace | Table | None:
        """Namespace or table whose privileges apply to a row."""
        return None

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        user = request.user
        if not (user.is_active and user.is_staff):
            return False
        return visibility(request, self) is not None or is_administrator(request)

    def may(
        self, request: HttpRequest, needed: Privilege | str, object_id: str | None = None
    ) -> bool:
        """True if the user holds the privilege on the row of a page; for a list, on any row.

        Only administrators may do what a verb of Django's (``add``, ``change``) names.
        """
        privilege = Privilege.ALL if isinstance(needed, str) else needed
        principal = actor(request)
        if principal.holds_everywhere(privilege):
            return True
        if visibility(request, self) is None:
            return False
        if object_id is None:
            return holds_somewhere(request, privilege)
        row = self.find(request, object_id)
        target = None if row is None else self.target(row)
        return target is not None and access.holds(principal, privilege, target)

    def permission(self, verb: str) -> str:
        """Django's name of the permission. The catalog does not evaluate it."""
        return f"{self.opts.app_label}.{verb}_{self.opts.model_name}"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return self.only_visible(request, rows)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """True for the filters of the list, and for every column if the user is an administrator.

        Django also allows all columns and annotations of the rows, and some are hidden from users who
        see the row.
        """
        filters = self.get_list_filter(request)
        if lookup in {getattr(item, "parameter_name", None) for item in filters}:
            return True
        # Of columns, no NUL: PostgreSQL does not accept it.
        if "\x00" in value or not super().lookup_allowed(lookup, value, request):
            return False
        if is_administrator(request):
            return True
        of_columns = [item for item in filters if isinstance(item, str | tuple)]
        filtered = {item if isinstance(item, str) else item[0] for item in of_columns}
        columns = {"pk", *self.get_queryset(request).query.annotations}
        for column in self.opts.get_fields():
            columns |= {column.name, getattr(column, "attname", column.name)}
        name = lookup.partition(LOOKUP_SEP)[0]
        return name not in columns or name in filtered

    def only_visible(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        condition = visibility(request, self)
        return rows if condition is None else rows.filter(condition)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        # Django's title, "Select table to view", does not name the page.
        name = self.list_title or str(self.opts.verbose_name_plural)
        context = {"title": name[0].upper() + name[1:]} | (extra_context or {})
        return cast(HttpResponseBase, super().changelist_view(request, context))

    # -- a new row

    def add_view(
        self,
        request: HttpRequest,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponseBase:
        if not self.has_add_permission(request):
            raise PermissionDenied
        return self.add_page(request)

    def add_page(self, request: HttpRequest) -> HttpResponseBase:
        """The form that creates a row; called with the permission to add one."""
        raise NotImplementedError

    # -- a row's page

    def get_urls(self) -> list[URLPattern]:
        """The URLs of Django; the short one of a row's page, the last, keeps its parameters."""
        *urls, _ = super().get_urls()
        name = f"{self.opts.app_label}_{self.opts.model_name}_change"
        view = RedirectView.as_view(pattern_name=f"admin:{name}", query_string=True)
        return [*urls, path("<path:object_id>/", self.admin_site.admin_view(view))]

    def page(self, request: HttpRequest, row: Any) -> Page:
        raise NotImplementedError

    def offers_actions(self, row: Any) -> bool:
        """True if the row's state allows any of its buttons."""
        return True

    def offered_actions(self, row: Any) -> Sequence[str | dict[str, Any]]:
        """Names of the buttons that apply to the row; a dict is a menu of buttons."""
        return cast(Sequence[str | dict[str, Any]], self.actions_detail)

    def find(self, request: HttpRequest, object_id: str) -> Any:
        """The row of a page, or None."""
        rows = self.model._default_manager.select_related(*self.page_related)
        try:
            key = self.opts.pk.to_python(unquote(object_id))
            return self.only_visible(request, rows).get(pk=key)
        except (self.model.DoesNotExist, forms.ValidationError, ValueError, OverflowError):
            return None

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponseBase:
        if not self.has_view_permission(request):
            raise PermissionDenied
        row = self.find(request, object_id)
        if row is None:
            return self.missing(request, object_id)
        try:
            return self._opened(request, row, object_id)
        except NotFound:  # dropped in the meantime
            return self.missing(request, object_id)

    def _opened(self, request: HttpRequest, row: Any, object_id: str) -> HttpResponseBase:
        page = self.page(request, row)
        panels = list(page.panels)
        named = (tab for tab in page.tabs if tab.key == request.GET.get("tab"))
        chosen = next(iter((*named, *page.tabs)), None)
        if chosen is not None:
            built = chosen.build()
            panels += [built] if isinstance(built, Panel) else built
        allowed = self.get_actions_detail(request, object_id) if self.offers_actions(row) else []
        context = {
            "title": str(row),
            "original": row,
            "page": page,
            "panels": panels,
            "chosen": chosen.key if chosen else None,
            "navigation": _navigation(page, request.GET.get("tab", "")),
            "places": breadcrumbs.of_tab(
                {tab.key: tab.title for tab in page.tabs},
                [(group.title, group.keys) for group in page.groups],
                request.GET.get("tab", ""),
            ),
            "actions_detail": self._get_actions_navigation(
                self.offered_actions(row), allowed, str(row.pk)
            ),
        }
        return self.render(request, "admin/catalog/page.html", context)

    def missing(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        """404 response for a row that does not exist or is not visible to the user."""
        title = f"{self.opts.verbose_name} {unquote(object_id)[:100]} does not exist"
        context = {
            "title": title[0].upper() + title[1:],
            "text": "It was removed, or you may not see it.",
            "contacts": contacts.administrators(),
            "list_url": cells.list_url(self.model),
            "list_name": self.opts.verbose_name_plural,
        }
        return self.render(request, "admin/catalog/error.html", context, status=404)

    def render(
        self, request: HttpRequest, template: str, context: dict[str, Any], status: int = 200
    ) -> HttpResponse:
        return form_pages.render(request, template, {"opts": self.opts} | context, status)

    # -- a form that calls a service

    def ask(
        self,
        request: HttpRequest,
        *,
        title: str,
        submit: str,
        call: Callable[[Any], HttpResponseBase],
        back: str = "",
        form: forms.Form | None = None,
        text: str = "",
        danger: bool = False,
        original: Model | None = None,
    ) -> HttpResponseBase:
        """Show the form until it is valid and ``call`` succeeds. A CatalogError becomes a message.

        The form leads back to ``back``, or else to the page of ``original``.
        """
        return form_pages.ask(
            request,
            title=title,
            submit=submit,
            call=call,
            back=back or cells.page_url(cast(Model, original)),
            form=form,
            text=text,
            danger=danger,
            original=original,
            opts=self.opts,
        )
