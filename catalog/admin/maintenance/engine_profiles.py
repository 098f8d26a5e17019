"""Engine profiles: the list, the page of a profile, and its form."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from catalog import engine_profiles
from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.form_pages import sent
from catalog.admin.maintenance import jobs
from catalog.admin.pages import Page, ReadOnlyAdmin, button
from catalog.engine_profiles import EngineKind
from catalog.models import EngineProfile, Job
from catalog.models.engine_profiles import ENGINE_KINDS
from catalog.privileges import Privilege
from catalog.services.maintenance.engine_profiles import engines, profiles
from catalog.services.maintenance.engine_profiles.profiles import Changes

_JOBS = 20
"""How many jobs the page of a profile shows."""
_LOCAL = "local"


def _masters() -> list[tuple[str, str]]:
    """The Sparks that the form offers: this machine, and the clusters that the settings name."""
    clusters = [
        (master, f"{master}: {ENGINE_KINDS[kind.value]}")
        for master in sorted(engines.limits().masters)
        if (kind := engine_profiles.kind_of(master)) is not None
    ]
    return [(_LOCAL, "This machine: a Spark for each job, beside the worker"), *clusters]


class ChangeForm(forms.Form):
    """The fields of a profile. The services check the values."""

    master = forms.ChoiceField(
        label="Spark",
        help_text="Where jobs run: on the machine of the worker, or on a cluster. The operator names clusters"
        " in MONODON_SPARK_MASTERS.",
    )
    cores = forms.IntegerField(
        min_value=1,
        max_value=engine_profiles.MAX_CORES,
        initial=2,
        widget=UnfoldAdminIntegerFieldWidget(),
        help_text="Cores that a job uses. On a cluster, executors with one core each are started and given"
        " back as needed.",
    )
    memory = forms.CharField(
        required=False,
        max_length=10,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off", "placeholder": "1g"}),
        help_text="Memory of the driver and of each executor, such as 4g. Sorting a large table needs more than"
        " merging small files. Empty: Spark's default of 1g.",
    )
    concurrency = forms.IntegerField(
        min_value=1,
        max_value=engine_profiles.MAX_CONCURRENCY,
        initial=1,
        widget=UnfoldAdminIntegerFieldWidget(),
        label="Jobs at the same time",
        help_text="Each job has a driver of its own. Cores times jobs should not exceed the cores of the"
        " machine or cluster. Further jobs wait.",
    )
    conf = forms.CharField(
        required=False,
        label="Settings of Spark",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 4, "spellcheck": "false"}),
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        choices = _masters()
        current = self.initial.get("master")
        if current and current not in dict(choices):  # no longer in the settings
            choices.append((current, f"{current}: not in the settings of the server"))
        self.fields["master"] = forms.ChoiceField(
            label=self.fields["master"].label,
            help_text=self.fields["master"].help_text,
            choices=choices,
            widget=UnfoldAdminSelectWidget(choices=choices),
        )
        names = ", ".join(engine_profiles.allowed_names(engines.limits()))
        self.fields[
            "conf"
        ].help_text = f"One per line, such as spark.sql.shuffle.partitions=64. Allowed: {names}."

    def clean_conf(self) -> dict[str, str]:
        lines = (line.strip() for line in self.cleaned_data["conf"].splitlines())
        pairs = [line.partition("=") for line in lines if line]
        wrong_lines = [name for name, equals, _ in pairs if not equals]
        if wrong_lines:
            raise forms.ValidationError(f"'{wrong_lines[0]}' does not have the form name=value.")
        return {name.strip(): value.strip() for name, _, value in pairs}

    def values(self) -> dict[str, Any]:
        """The fields as arguments of the services."""
        data = self.cleaned_data
        kind = engine_profiles.kind_of(data["master"])
        return {
            "kind": kind or EngineKind.LOCAL,
            "master": "" if data["master"] == _LOCAL else data["master"],
            **{name: data[name] for name in ("cores", "memory", "concurrency", "conf")},
        }


class CreateForm(ChangeForm):
    name = forms.CharField(
        max_length=100,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}),
        help_text="Such as nightly. Policies choose the profile by this name; it cannot be changed later.",
    )
    field_order = ["name"]


@admin.register(EngineProfile)
class EngineProfileAdmin(ReadOnlyAdmin):
    """Only for administrators, as are the services."""

    list_display = [
        "name",
        "kind_cell",
        "master_cell",
        "cores",
        "memory_cell",
        "concurrency",
        "state_cell",
    ]
    list_display_links = ["name"]
    search_fields = ["name"]
    search_help_text = "Name"
    empty_text = (
        "No engine profiles: all jobs on Spark use the profile 'default', which the settings of the server"
        " describe. A profile names another Spark, or another size, for the tables whose policy chooses it."
    )
    ordering = ["name"]
    actions_detail = ["edit", "remove"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may(request, Privilege.ALL)

    def has_manage_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.ALL)

    # -- the list

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The list, with what prevents the use of the profiles: one statement for all of them."""
        changes = super().get_changelist_instance(request)
        changes.result_list = list(changes.result_list)
        profiles.add_problems(changes.result_list)
        return changes

    @admin.display(description="Kind")
    def kind_cell(self, row: EngineProfile) -> str:
        return ENGINE_KINDS.get(row.kind, row.kind)

    @admin.display(description="Master")
    def master_cell(self, row: EngineProfile) -> SafeString:
        return cells.code(_master(row))

    @admin.display(description="Memory")
    def memory_cell(self, row: EngineProfile) -> str:
        return row.memory or "1g"

    @admin.display(description="State")
    def state_cell(self, row: EngineProfile) -> SafeString:
        return _state(row)

    # -- a profile's page

    def page(self, request: HttpRequest, row: EngineProfile) -> Page:
        profiles.add_problems([row])
        usage = profiles.usage_of(actor=actor(request), name=row.name)
        recent: QuerySet[Job] = Job.objects.filter(engine_profile=row.name).order_by("-pk")
        return Page(
            facts=(
                ("Name", row.name),
                ("Kind", self.kind_cell(row)),
                ("Master", cells.exact(_master(row))),
                ("Cores of a job", f"{row.cores:,}"),
                ("Memory", row.memory or "1g (Spark's default)"),
                ("Jobs at the same time", f"{row.concurrency:,}"),
                ("Settings of Spark", cells.mapping(row.conf) if row.conf else cells.NOTHING),
                ("State", _state(row)),
                ("Used by", usage.describe() or cells.NOTHING),
                ("Version", row.version),
                ("Created", cells.when(row.created_at)),
                ("Created by", cells.who(row.created_by)),
                ("Updated", cells.when(row.updated_at)),
            ),
            panels=(
                jobs.panel(
                    request,
                    recent.select_related("table__namespace")[:_JOBS],
                    "No jobs have used the profile.",
                    title="Recent jobs",
                ),
            ),
        )

    # -- actions

    def add_page(self, request: HttpRequest) -> HttpResponseBase:
        form = CreateForm(sent(request))

        def create(data: dict[str, Any]) -> HttpResponseBase:
            row = profiles.create_profile(actor=actor(request), name=data["name"], **form.values())
            messages.success(
                request, f"Engine profile '{row}' was created. Policies may choose it now."
            )
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title="Create an engine profile",
            text="A profile names a Spark and the size of its jobs. The libraries and other settings of the"
            f" server apply to it too. The profile 'default' is {settings.SPARK_MASTER}.",
            submit="Create",
            form=form,
            call=create,
            back=cells.list_url(EngineProfile),
        )

    @button("Edit", permission="manage", icon="edit")
    def edit(self, request: HttpRequest, row: EngineProfile) -> HttpResponseBase:
        conf = "\n".join(f"{name}={value}" for name, value in sorted(row.conf.items()))
        initial = {
            "master": row.master or _LOCAL,
            "cores": row.cores,
            "memory": row.memory,
            "concurrency": row.concurrency,
            "conf": conf,
        }
        form = ChangeForm(sent(request), initial=initial)

        def call(_data: dict[str, Any]) -> HttpResponseBase:
            changes = Changes(**form.values())
            profiles.update_profile(actor=actor(request), name=row.name, changes=changes)
            messages.success(request, f"Engine profile '{row}' was updated")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=f"Edit engine profile '{row}'",
            text="Waiting jobs use the changed profile. Running jobs end on the Spark on which they began.",
            submit="Save",
            form=form,
            call=call,
            original=row,
        )

    @button("Delete", permission="manage", icon="delete", danger=True)
    def remove(self, request: HttpRequest, row: EngineProfile) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            profiles.delete_profile(actor=actor(request), name=row.name)
            messages.success(request, f"Engine profile '{row}' was deleted")
            return HttpResponseRedirect(cells.list_url(EngineProfile))

        usage = profiles.usage_of(actor=actor(request), name=row.name)
        return self.ask(
            request,
            title=f"Delete engine profile '{row}'?",
            text=f"It is in use: {usage.describe()}. Choose another profile there first."
            if usage.is_used
            else "No policy and no active job uses it.",
            submit="Delete",
            danger=True,
            call=call,
            original=row,
        )


def _master(row: EngineProfile) -> str:
    return row.master or engine_profiles.local_master(row.cores)


def _state(row: EngineProfile) -> SafeString:
    if not row.problem:
        return cells.badge("available", "success")
    return cells.lines([cells.badge("not available", "warning"), cells.muted(row.problem)])
