"""What all pages of the admin share: read-only lists, pages made of facts and panels, and forms that
call a service."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import zip_longest
from typing import Any, cast

from django import forms
from django.contrib import messages
from django.contrib.admin import ShowFacets
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from unfold import decorators, paginator
from unfold.admin import ModelAdmin
from unfold.contrib.filters.admin import DropdownFilter
from unfold.enums import ActionVariant

from catalog import access
from catalog.access import Principal
from catalog.admin import cells
from catalog.admin.actor import actor, is_administrator
from catalog.errors import CatalogError
from catalog.models import Namespace, Table
from catalog.privileges import Privilege


def button(
    description: str, *, permission: str, icon: str, danger: bool = False
) -> Callable[[Callable[..., HttpResponseBase]], Callable[..., HttpResponseBase]]:
    """Make a method an action of a row's page, for those whom ``has_<permission>_permission`` lets.

    The method is given the row; what is not there, or may not be seen, is told to be missing.
    """
    variant = ActionVariant.DANGER if danger else ActionVariant.DEFAULT

    def made(press: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
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

    return made


class InfinitePaginator(paginator.InfinitePaginator):  # type: ignore[misc]
    """Pages without a count, and not without end: the offset of a far page costs what it skips.

    It keeps the name of its base, by which the templates know not to show a count.
    """

    count = 10_000


@dataclass(frozen=True)
class Panel:
    """A table of a page."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    empty: str
    title: str = ""
    note: str = ""
    first: str | None = None
    """Where the first page is, on every other page."""
    following: str | None = None
    """Where the next page is."""
    style: str = ""
    """A class of its table, if it looks different from others."""
    below: Sequence[object] = ()
    """For each row what stands below it, as wide as the table."""
    lead: object = ""
    """What stands above the table: a picture, a form."""

    @property
    def lines(self) -> Sequence[tuple[Sequence[object], object]]:
        return list(zip_longest(self.rows, self.below, fillvalue=None))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Tab:
    key: str
    title: str
    build: Callable[[], Panel | Sequence[Panel]]


@dataclass(frozen=True)
class Page:
    """What a row's page shows."""

    facts: Sequence[tuple[str, object]]
    panels: Sequence[Panel] = ()
    tabs: Sequence[Tab] = ()
    aside: dict[str, object] = field(default_factory=dict)
    """Context of the template ``aside`` names."""
    aside_template: str = ""
    subtitle: str = ""
    options: dict[str, object] = field(default_factory=dict)


def sent(request: HttpRequest) -> QueryDict | None:
    """What a form was sent with; None while it is only shown."""
    return request.POST if request.method == "POST" else None


def refuse(request: HttpRequest, error: CatalogError) -> None:
    """Show the user what the catalog refused, and why."""
    text = error.message
    messages.error(request, f"{text}. {error.detail}" if error.detail else text)


class OneFilter(DropdownFilter):  # type: ignore[misc]
    """A filter that is on or off: its one choice is ``value``, and ``condition`` what it lets through."""

    value_text: tuple[str, str]

    def condition(self) -> Q:
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return [self.value_text]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(self.condition()) if self.value() == self.value_text[0] else queryset


class ReadOnlyAdmin(ModelAdmin):  # type: ignore[misc]
    """A list and a page per row. Nothing is edited in place: the buttons call services."""

    paginator = InfinitePaginator
    list_per_page = 50
    list_max_show_all = 0
    # An action takes what a page shows: the paginator knows no count of all, and they would be too many.
    list_disable_select_all = True
    list_filter_submit = True
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    sortable_by: Sequence[str] = ()
    list_title = ""
    """What the list is called, if not as its model."""
    empty_text = ""
    """What an empty list says: what would be here, and how it comes."""
    page_related: Sequence[str] = ()
    """What ``select_related`` takes along for a row's page."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    # -- who may see and press what

    def visibility(self, principal: Principal) -> Q | None:
        """The condition of the rows that somebody may browse; None: this is for administrators."""
        return None

    def target(self, row: Any) -> Namespace | Table | None:
        """The namespace or table whose privileges decide about a row."""
        return None

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        user = request.user
        if not (user.is_active and user.is_staff):
            return False
        return self.visibility(actor(request)) is not None or is_administrator(request)

    def may(
        self, request: HttpRequest, needed: Privilege | str, object_id: str | None = None
    ) -> bool:
        """Whether somebody holds this on the row of a page; for a list, on anything at all.

        A verb of Django's (``add``, ``change``), where no privilege says it: administrators may.
        """
        privilege = Privilege.ALL if isinstance(needed, str) else needed
        principal = actor(request)
        if principal.holds_everywhere(privilege):
            return True
        if self.visibility(principal) is None:
            return False
        if object_id is None:
            return access.holds_somewhere(principal, privilege)
        row = self.find(request, object_id)
        target = None if row is None else self.target(row)
        return target is not None and access.holds(principal, privilege, target)

    def permission(self, verb: str) -> str:
        """How Django calls it; nothing of the catalog goes by that."""
        return f"{self.opts.app_label}.{verb}_{self.opts.model_name}"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return self.only_visible(request, rows)

    def only_visible(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        condition = self.visibility(actor(request))
        return rows if condition is None else rows.filter(condition)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        # "Select table to view" is no name of a page.
        name = self.list_title or str(self.opts.verbose_name_plural)
        context = {"title": name[0].upper() + name[1:]} | (extra_context or {})
        return cast(HttpResponseBase, super().changelist_view(request, context))

    # -- a row's page

    def page(self, request: HttpRequest, row: Any) -> Page:
        raise NotImplementedError

    def offers_actions(self, row: Any) -> bool:
        """Whether the row is in a state in which its buttons make sense."""
        return True

    def offered_actions(self, row: Any) -> Sequence[str | dict[str, Any]]:
        """The buttons that make sense for such a row; a dict is a menu of some."""
        return cast(Sequence[str | dict[str, Any]], self.actions_detail)

    def find(self, request: HttpRequest, object_id: str) -> Any:
        """The row of a page, or None."""
        rows = self.model._default_manager.select_related(*self.page_related)
        rows = self.only_visible(request, rows)
        field = self.opts.pk
        try:
            return rows.get(pk=field.to_python(unquote(object_id)))
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
        page = self.page(request, row)
        panels = list(page.panels)
        chosen = next((t for t in page.tabs if t.key == request.GET.get("tab")), None)
        if chosen is None and page.tabs:
            chosen = page.tabs[0]
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
            "actions_detail": self._get_actions_navigation(
                self.offered_actions(row), allowed, str(row.pk)
            ),
        }
        return self.render(request, "admin/catalog/page.html", context)

    def missing(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        """The answer about a row that is not there, or that the user may not browse."""
        title = f"{self.opts.verbose_name} {unquote(object_id)[:100]} does not exist"
        return self.render(
            request, "admin/404.html", {"title": title[0].upper() + title[1:]}, status=404
        )

    def render(
        self, request: HttpRequest, template: str, context: dict[str, Any], status: int = 200
    ) -> HttpResponse:
        request.current_app = self.admin_site.name
        shared = {**self.admin_site.each_context(request), "opts": self.opts}
        return TemplateResponse(request, template, shared | context, status=status)

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
        """Show the form until it is sent and ``call`` accepts it. What is refused is a message.

        The way back is the page of what it is about, unless ``back`` says another.
        """
        form = form or forms.Form(sent(request))
        if form.is_valid():
            try:
                return call(form.cleaned_data)
            except CatalogError as error:
                refuse(request, error)
        context = {
            "title": title,
            "form": form,
            "text": text,
            "submit_text": submit,
            "danger": danger,
            "back": back or cells.page_url(cast(Model, original)),
            "original": original,
        }
        return self.render(request, "admin/catalog/form.html", context)
