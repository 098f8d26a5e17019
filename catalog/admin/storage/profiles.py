"""Storage profiles: the list, the page of a profile, its form, and its tests."""

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, OuterRef, Prefetch, QuerySet, Subquery
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path
from django.utils.safestring import SafeString

from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.form_pages import digest_of, sent
from catalog.admin.pages import Page, Panel, ReadOnlyAdmin, button
from catalog.admin.paging import number
from catalog.admin.storage import presets, results
from catalog.admin.storage.profile_forms import (
    ChangeForm,
    CreateForm,
    ProfileForm,
    add_refusal,
)
from catalog.errors import CatalogError
from catalog.models import Namespace, StorageProfile, StorageTest
from catalog.models.storage import CLIENT_ACCESS, IDENTITIES, KINDS
from catalog.privileges import Privilege
from catalog.services.storage import profile_operations, profile_sizes
from catalog.services.storage.profile_checks import tests as profile_tests
from catalog.services.storage.profile_presets import PRESETS
from catalog.services.storage.profile_usage import Impact
from catalog.services.storage.profiles import REMEDY, key_error
from catalog.storage.configuration import ClientAccess

_NAMESPACES = 50
"""How many bound namespaces the page of a profile shows."""
_UNREADABLE = cells.badge("unreadable key", "danger")
_STATIC_WARNING = "Clients that may read one table get the server's own key."


@admin.register(StorageProfile)
class StorageProfileAdmin(ReadOnlyAdmin):
    """Only for administrators, as are the services."""

    list_display = [
        "name",
        "kind_cell",
        "roots_cell",
        "namespaces_cell",
        "tables_cell",
        "size_cell",
        "test_cell",
        "clients_cell",
    ]
    list_display_links = ["name"]
    search_fields = ["name", "roots"]
    search_help_text = "Name, or part of a root"
    empty_text = (
        "No storage profiles: all tables are in the local warehouse. A profile lets tables be in S3, Google Cloud"
        " Storage or Azure. docs/storage-profiles.md describes the fields, docs/object-stores.md the set-up of"
        " each store."
    )
    ordering = ["name"]
    actions_detail = ["test", "edit", "remove"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may(request, Privilege.ALL)

    def has_manage_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.ALL)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.results_view)
        own = path("<int:profile>/results/<int:test>/", view, name="catalog_storageprofile_results")
        return [own, *super().get_urls()]

    # -- the list

    def get_queryset(self, request: HttpRequest) -> "QuerySet[StorageProfile]":
        bound = Namespace.objects.live().filter(storage_profile=OuterRef("pk")).order_by()
        count = bound.values("storage_profile").annotate(number=Count("pk")).values("number")
        newest = StorageTest.objects.filter(profile=OuterRef("profile")).order_by("-pk")
        last_tests = StorageTest.objects.filter(pk=Subquery(newest.values("pk")[:1]))
        rows: QuerySet[StorageProfile] = super().get_queryset(request)
        return rows.annotate(namespace_count=Subquery(count)).prefetch_related(
            Prefetch("tests", queryset=last_tests.defer("checks"), to_attr="last_tests")
        )

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The list, with the sizes of the profiles on the page: two statements for all of them."""
        changes = super().get_changelist_instance(request)
        changes.result_list = list(changes.result_list)
        sizes = profile_sizes.sizes(changes.result_list)
        for row in changes.result_list:
            row.size = sizes[row.pk]
        return changes

    @admin.display(description="Kind")
    def kind_cell(self, row: StorageProfile) -> str:
        return KINDS.get(row.kind, row.kind)

    @admin.display(description="Roots")
    def roots_cell(self, row: StorageProfile) -> SafeString:
        return cells.lines(cells.code(root) for root in row.roots)

    @admin.display(description="Namespaces")
    def namespaces_cell(self, row: Any) -> str:
        return f"{row.namespace_count or 0:,}"

    @admin.display(description="Tables and views")
    def tables_cell(self, row: Any) -> str:
        return f"{row.size.tables:,}"

    @admin.display(description="Size")
    def size_cell(self, row: Any) -> SafeString:
        return cells.size(row.size.bytes)

    @admin.display(description="Last test")
    def test_cell(self, row: Any) -> SafeString:
        outcome = results.outcome(row.last_tests[0] if row.last_tests else None, row.version)
        return cells.spaced([_UNREADABLE, outcome]) if key_error(row) else outcome

    @admin.display(description="Clients get")
    def clients_cell(self, row: StorageProfile) -> SafeString | str:
        return _client_access(row)

    # -- a profile's page

    def page(self, request: HttpRequest, row: StorageProfile) -> Page:
        size = profile_sizes.sizes([row])[row.pk]
        tests = row.tests.order_by("-pk")
        chosen = number(request, "test")
        shown = tests.first() if chosen is None else tests.filter(pk=chosen).first()
        return Page(
            facts=(
                ("Name", row.name),
                ("Kind", self.kind_cell(row)),
                ("Roots", cells.lines(cells.exact(root) for root in row.roots)),
                ("Region", row.region or cells.NOTHING),
                ("Endpoint", cells.exact(row.endpoint) if row.endpoint else "the provider's own"),
                ("Path style", "yes" if row.path_style else "no"),
                ("Conditional writes", "honored" if row.conditional_writes else "not honored"),
                ("KMS key", cells.exact(row.kms_key)),
                ("The server uses", IDENTITIES.get(row.identity, row.identity)),
                ("Key id", cells.exact(row.key_id)),
                ("Secret", _secret(row)),
                ("Role", cells.exact(row.role)),
                ("External ID", cells.exact(row.external_id)),
                ("Token service", cells.exact(row.sts_endpoint)),
                ("Clients get", _client_access(row)),
                ("Lifetime of credentials", f"{row.lifetime_seconds:,} seconds"),
                ("Tables and views", f"{size.tables:,}"),
                ("Size", cells.size(size.bytes)),
                ("Version", row.version),
                ("Created", cells.when(row.created_at)),
                ("Created by", cells.who(row.created_by)),
                ("Updated", cells.when(row.updated_at)),
            ),
            panels=(
                *([results.live_panel(shown)] if shown is not None else []),
                _namespaces(row),
                results.history(request, row),
            ),
        )

    def results_view(self, request: HttpRequest, profile: int, test: int) -> HttpResponse:
        """The results of a test as an HTML fragment of the profile's page."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        row = StorageTest.objects.filter(pk=test, profile=profile).first()
        if row is None:
            raise Http404
        return HttpResponse(results.live(row))

    # -- actions

    def add_page(self, request: HttpRequest) -> HttpResponseBase:
        preset = PRESETS.get(request.GET.get("preset", ""))
        form = CreateForm(sent(request), initial=presets.values(preset))
        if form.is_valid():
            try:
                row = profile_operations.create_profile(
                    actor=actor(request),
                    name=form.cleaned_data["name"],
                    key=form.new_key,
                    **form.values(),
                )
            except CatalogError as error:
                add_refusal(form, error.message)
            else:
                messages.success(
                    request, f"Storage profile '{row}' was created. Test it before tables use it."
                )
                return HttpResponseRedirect(cells.page_url(row))
        return self._show_form(
            request,
            form,
            title="Create a storage profile",
            submit_text="Create",
            back=cells.list_url(StorageProfile),
            presets=PRESETS.values(),
            hints=presets.hints(preset) if preset else (),
            preset_data=presets.data(),
        )

    @button("Test", permission="manage", icon="network_check")
    def test(self, request: HttpRequest, row: StorageProfile) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            started = profile_tests.start_test(actor=actor(request), name=row.name)
            return HttpResponseRedirect(f"{cells.page_url(row)}?test={started.pk}")

        return self.ask(
            request,
            title=f"Test storage profile '{row}'?",
            text=f"The test writes objects of up to 12 MiB below {row.roots[0]}, and removes them at the end.",
            submit="Test",
            call=call,
            original=row,
        )

    @button("Edit", permission="manage", icon="edit")
    def edit(self, request: HttpRequest, row: StorageProfile) -> HttpResponseBase:
        form = ChangeForm(sent(request), profile=row)
        impact: Impact | None = None
        if form.is_valid():
            try:
                impact = self._change(request, row, form)
            except CatalogError as error:
                add_refusal(form, " ".join(filter(None, (error.message, error.detail))))
            else:
                if impact is None:
                    messages.success(request, f"Storage profile '{row}' was updated")
                    return HttpResponseRedirect(cells.page_url(row))
        needs_confirmation = impact is not None and impact.is_possible and impact.warnings
        return self._show_form(
            request,
            form,
            title=f"Edit storage profile '{row}'",
            submit_text="Save",
            back=cells.page_url(row),
            original=row,
            has_preview=True,
            impact=impact,
            confirmation=digest_of(impact.warnings) if impact and needs_confirmation else "",
            is_secret_lost=impact is not None and form.new_key is not None,
        )

    def _change(self, request: HttpRequest, row: StorageProfile, form: ChangeForm) -> Impact | None:
        """Save the changes; returns their impact instead if the user has to see it first."""
        changes = form.changes()
        impact = profile_operations.preview_update(
            actor=actor(request), name=row.name, changes=changes
        )
        # Only what the user has seen is confirmed.
        is_confirmed = form.cleaned_data["confirm"] == digest_of(impact.warnings)
        if (
            "preview" in request.POST
            or not impact.is_possible
            or (impact.needs_confirmation and not is_confirmed)
        ):
            return impact
        profile_operations.update_profile(
            actor=actor(request), name=row.name, changes=changes, confirm=is_confirmed
        )
        return None

    @button("Delete", permission="manage", icon="delete", danger=True)
    def remove(self, request: HttpRequest, row: StorageProfile) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            profile_operations.delete_profile(actor=actor(request), name=row.name)
            messages.success(request, f"Storage profile '{row}' was deleted")
            return HttpResponseRedirect(cells.list_url(StorageProfile))

        impact = profile_operations.preview_deletion(actor=actor(request), name=row.name)
        obstacles = "; ".join(impact.obstacles)
        return self.ask(
            request,
            title=f"Delete storage profile '{row}'?",
            text=f"It is in use: {obstacles}. Move, purge or unbind these first."
            if obstacles
            else "No table and no namespace uses it. Nothing in the store is removed.",
            submit="Delete",
            danger=True,
            call=call,
            original=row,
        )

    def _show_form(
        self, request: HttpRequest, form: ProfileForm, **context: Any
    ) -> HttpResponseBase:
        return self.render(
            request, "admin/catalog/storage_profile_form.html", {"form": form, **context}
        )


def _secret(row: StorageProfile) -> SafeString | str:
    if row.secret is None:
        return cells.NOTHING
    error = key_error(row)
    return cells.spaced([_UNREADABLE, f"{error}. {REMEDY}"]) if error else "stored, encrypted"


def _client_access(row: StorageProfile) -> SafeString | str:
    text = CLIENT_ACCESS.get(row.client_access, row.client_access)
    if row.client_access != ClientAccess.STATIC:
        return text
    return cells.spaced([cells.badge("static key", "warning"), cells.muted(_STATIC_WARNING)])


def _namespaces(row: StorageProfile) -> Panel:
    """The namespaces that are bound to a profile. One statement."""
    bound = list(
        Namespace.objects.live().filter(storage_profile=row).order_by("path")[: _NAMESPACES + 1]
    )
    return Panel(
        title="Bound namespaces",
        columns=("Namespace", "Owner", "Created"),
        rows=[
            (cells.link(each), cells.who(each.owner), cells.when(each.created_at))
            for each in bound[:_NAMESPACES]
        ],
        empty="No namespaces. Bind a namespace on its page, under Storage.",
        note=f"The first {_NAMESPACES} namespaces." if len(bound) > _NAMESPACES else "",
    )
