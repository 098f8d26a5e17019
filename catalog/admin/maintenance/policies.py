"""Maintenance policies: the form of a namespace or table, and the effective values with their sources."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from catalog import layouts, maintenance_actions
from catalog.admin import cells, units
from catalog.admin.actor import actor
from catalog.admin.form_pages import refuse, sent
from catalog.admin.pages import Panel, ReadOnlyAdmin
from catalog.errors import CatalogError, InvalidInput, NamespaceNotFound, TableNotFound
from catalog.identifiers import Identifier, label
from catalog.models import MaintenancePolicy, Namespace, Table, TableState
from catalog.policies import ENGINES, EffectivePolicy, Rule, Unit, Value, effective, rules_by_name
from catalog.policies import rules as all_rules
from catalog.services.maintenance import policies
from catalog.services.maintenance.engine_profiles import profiles

_GENERAL = "Time windows and limits"
_LONGEST = {Unit.SORT_ORDER: layouts.MAX_LENGTH, Unit.ENGINE_PROFILE: 100}
_LONGEST_OTHER = 40
_CHOICES: Mapping[Unit, Callable[[], Sequence[str]]] = {
    Unit.ENGINE: lambda: ENGINES,
    Unit.ENGINE_PROFILE: profiles.usable_names,
    Unit.STRATEGY: lambda: [str(strategy) for strategy in layouts.Strategy],
}
"""Units whose values are selected from a list."""


@dataclass(frozen=True)
class Subject:
    """A namespace or table whose policy is edited."""

    title: str
    rules: Sequence[Rule]
    own: Mapping[str, Any]
    """Values set on the namespace or table itself."""
    inherited: EffectivePolicy
    """Effective policy without its own values."""
    sources: Mapping[str, str]
    """URLs of the policy forms of the namespaces above, by name."""
    name: str
    back: str
    save: Callable[[Mapping[str, Any]], object]

    def effective_value(self, rule: Rule) -> Value:
        if rule.name in self.own:
            return Value(self.own[rule.name], self.name)
        return self.inherited.values[rule.name]


@dataclass(frozen=True)
class Line:
    """A field of the form with the effective value of its rule."""

    field: forms.BoundField
    rule: Rule
    effective: str
    source: SafeString | str
    inherits: str
    note: str = ""


class RuleField(forms.CharField):
    """A policy value in text form. An empty value is inherited."""

    def __init__(self, rule: Rule, **options: Any) -> None:
        super().__init__(
            required=False,
            max_length=_LONGEST.get(rule.unit, _LONGEST_OTHER),
            label=units.label(rule),
            help_text=rule.help,
            **options,
        )
        self.rule = rule

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            return units.parse(self.rule, text)
        except InvalidInput as error:
            raise forms.ValidationError(error.message) from error


class PolicyForm(forms.Form):
    """A field for each rule."""

    def __init__(self, subject: Subject, data: Any = None) -> None:
        super().__init__(data)
        for rule in subject.rules:
            above = units.show(rule, subject.inherited[rule.name])
            own = subject.own.get(rule.name)
            field = RuleField(rule, widget=_widget(rule, above, own))
            if rule.name in subject.own:
                value = subject.own[rule.name]
                field.initial = str(value) if rule.unit is Unit.MODE else units.show(rule, value)
            self.fields[rule.name] = field

    def own_values(self) -> dict[str, Any]:
        """Values that are set, without inherited ones."""
        return {name: value for name, value in self.cleaned_data.items() if value is not None}


def _widget(rule: Rule, above: str, own: Any) -> Any:
    # The help text and the effective value are in the same row of the page.
    attrs = {"aria-describedby": f"help_{rule.name} effective_{rule.name}"}
    if rule.unit is Unit.MODE:
        modes = [(str(mode), text) for mode, text in units.MODE_TEXTS.items()]
        choices = [("", f"Inherit ({above.lower()})"), *modes]
        return UnfoldAdminSelectWidget(attrs=attrs, choices=choices)
    if rule.unit in _CHOICES:
        names = list(_CHOICES[rule.unit]())
        # A profile that no worker can use stays selected, so that saving does not change it.
        names += [str(own)] if own is not None and own not in names else []
        choices = [("", f"Inherit ({above})"), *((name, name) for name in names)]
        return UnfoldAdminSelectWidget(attrs=attrs, choices=choices)
    return UnfoldAdminTextInputWidget(
        attrs={**attrs, "placeholder": f"inherited: {above}", "autocomplete": "off"}
    )


# --- pages -------------------------------------------------------------------------------------


def table_policy(page: ReadOnlyAdmin, request: HttpRequest, row: Table) -> HttpResponseBase:
    def find() -> Subject:
        if row.state == TableState.DROPPED:
            # Services look up by name, and another table may have the name now.
            raise TableNotFound(row.identifier)
        principal = actor(request)
        inherited, _ = policies.policy_of_namespace(
            actor=principal, namespace=row.namespace.identifier
        )
        own_policy = MaintenancePolicy.objects.filter(table=row).values_list("values", flat=True)
        return Subject(
            title=f"Maintenance policy of table '{row}'",
            rules=_rules(row.format),
            own=own_policy.first() or {},
            inherited=inherited,
            sources=sources(row.namespace.identifier),
            name=str(row),
            back=cells.page_url(row) + "?tab=maintenance",
            save=lambda values: policies.set_table_policy(
                actor=principal, table=row.identifier, values=values
            ),
        )

    return _answer(page, request, row, find)


def namespace_policy(page: ReadOnlyAdmin, request: HttpRequest, row: Namespace) -> HttpResponseBase:
    def find() -> Subject:
        path = row.identifier
        if row.dropped_at is not None:
            raise NamespaceNotFound(path)
        principal = actor(request)
        _, own = policies.policy_of_namespace(actor=principal, namespace=path)
        inherited = (
            policies.policy_of_namespace(actor=principal, namespace=path[:-1])[0]
            if path
            else effective([])
        )
        return Subject(
            title=f"Maintenance policy of namespace '{row}'",
            rules=all_rules(),
            own=own,
            inherited=inherited,
            sources=sources(path[:-1]) if path else {},
            name=str(row),
            back=cells.page_url(row) + "?tab=maintenance",
            save=lambda values: policies.set_namespace_policy(
                actor=principal, namespace=path, values=values
            ),
        )

    return _answer(page, request, row, find)


def _answer(
    page: ReadOnlyAdmin, request: HttpRequest, row: Table | Namespace, find: Callable[[], Subject]
) -> HttpResponseBase:
    """Show the form until it is valid. Rejected input changes nothing."""
    try:
        subject = find()
        form = PolicyForm(subject, sent(request))
        if form.is_valid():
            names = {rule.name for rule in subject.rules}
            # Values of rules for the other format are kept.
            hidden_values = {
                n: v for n, v in subject.own.items() if n in rules_by_name() and n not in names
            }
            subject.save(hidden_values | form.own_values())
            messages.success(request, f"{subject.title} was saved")
            return HttpResponseRedirect(subject.back)
    except CatalogError as error:
        refuse(request, error)
        return HttpResponseRedirect(cells.page_url(row))
    context = {
        "title": subject.title,
        "original": row,
        "form": form,
        "groups": _groups(form, subject),
        "back": subject.back,
        "is_namespace": isinstance(row, Namespace),
    }
    return page.render(request, "admin/catalog/maintenance_policy.html", context)


def _rules(table_format: str) -> list[Rule]:
    return [rule for rule in all_rules() if table_format in rule.formats]


def grouped(rules: Iterable[Rule]) -> list[tuple[str, list[Rule]]]:
    """Rules by group in display order: the groups of the actions, then the general rules."""
    group_of_rule = {
        rule.name: action.group
        for action in maintenance_actions.registered()
        for rule in action.rules
    }
    groups: dict[str, list[Rule]] = {}
    for rule in rules:
        groups.setdefault(group_of_rule.get(rule.name, _GENERAL), []).append(rule)
    return list(groups.items())


def _groups(form: PolicyForm, subject: Subject) -> list[tuple[str, list[Line]]]:
    return [
        (title, [_line(form[rule.name], rule, subject) for rule in group])
        for title, group in grouped(subject.rules)
    ]


def _line(field: forms.BoundField, rule: Rule, subject: Subject) -> Line:
    value = subject.effective_value(rule)
    above = subject.inherited.values[rule.name]
    only = "" if len(rule.formats) > 1 else f"{next(iter(rule.formats)).capitalize()} tables only."
    return Line(
        field=field,
        rule=rule,
        effective=units.show(rule, value.value),
        source="set here" if rule.name in subject.own else _source(value, subject.sources),
        inherits=units.show(rule, above.value) if rule.name in subject.own else "",
        note=only if len({name for other in subject.rules for name in other.formats}) > 1 else "",
    )


# --- effective policy --------------------------------------------------------------------------


def sources(path: Identifier, table: Table | None = None) -> dict[str, str]:
    """URLs of the policies of a namespace, the namespaces above it, and a table, by name."""
    paths = [path[:depth] for depth in range(len(path) + 1)]
    urls = {label(row.path): _policy_url(row) for row in Namespace.objects.named(*paths)}
    return urls if table is None else {**urls, str(table): _policy_url(table)}


def panel(
    policy: EffectivePolicy, links: Mapping[str, str], table_format: str | None = None
) -> Panel:
    """Effective values and their sources."""
    rules = all_rules() if table_format is None else _rules(table_format)
    return Panel(
        title="Effective policy",
        columns=("Rule", "Value", "Source", "Description"),
        rows=[
            (
                units.label(rule),
                units.show(rule, policy[rule.name]),
                _source(policy.values[rule.name], links),
                cells.muted(rule.help),
            )
            for _, group in grouped(rules)
            for rule in group
        ],
        empty="",
        is_folded=table_format is not None,
    )


def namespace_tab(request: HttpRequest, row: Namespace) -> Panel:
    """Effective policy of a namespace. Errors, also of a dropped namespace, are shown in the panel."""
    principal = actor(request)
    try:
        if row.dropped_at is not None:
            raise NamespaceNotFound(row.identifier)
        policy, _ = policies.policy_of_namespace(actor=principal, namespace=row.identifier)
    except CatalogError as error:
        return Panel((), (), error.message)
    return panel(policy, sources(row.identifier))


def _source(value: Value, links: Mapping[str, str]) -> SafeString | str:
    if not value.source:
        return cells.muted("default")
    url = links.get(value.source)
    return cells.anchor(url, value.source) if url else value.source


def _policy_url(row: Table | Namespace) -> str:
    return cells.page_url(row) + "?tab=maintenance"
