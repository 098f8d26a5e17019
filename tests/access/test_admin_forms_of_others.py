"""Forms and actions of the web admin, sent by a user who may only browse the objects of another team."""

import re
from itertools import product

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import CharField, TextField
from django.http import HttpRequest
from django.test import Client, RequestFactory

from catalog import models
from catalog.privileges import Privilege
from tests.access.admin_pages import GROUPS, RULES, Shown, make_catalog, no_row_changed, pages_of
from tests.access.test_admin_pages import grant, signed_in
from tests.factories import make_lance_table, make_namespace

pytestmark = pytest.mark.usefixtures("warehouse", "_plain_static_files")
of_browsers = pytest.mark.parametrize(
    "group", [name for name, model in GROUPS.items() if RULES.get(model) is Shown.BROWSERS]
)
FORM = {
    "name": "mine.taken",
    "namespace": "mine",
    "principal": "user:bob",
    "privileges": ["read", "write", "manage", "grant"],
    "role": "owner",
    "days": "1",
    "reason": "because",
    "description": "taken",
    "owner": "user:bob",
    "label": "known",
    "key": "known",
    "values": "a",
    "value": "a",
    "column": "id",
    "purge": "on",
    "with_parents": "on",
    "without_purged": "on",
    "is_protected": "on",
    "protected": "on",
    "cleanup": "on",
    "version": "1",
    "snapshot": "1",
    "profile": "known",
    "seconds": "3600",
    "actions": ["drop"],
    "kind": "compact",
    "confirmed": "yes",
    "next": "/admin/",
    "definitions": "[]",
}


def _bob() -> Client:
    make_catalog()
    make_namespace("mine")
    make_lance_table(("mine", "own"))
    client = signed_in(is_superuser=False)
    grant(Privilege.ALL, "mine")
    return client


def _may_browse() -> None:
    for name in ("ws", "guarded"):
        grant(Privilege.BROWSE, name)


@of_browsers
@pytest.mark.parametrize("browses", [False, True])
def test_forms_of_rows_of_others_change_nothing(group, browses):
    client = _bob()
    if browses:
        _may_browse()
    locations = {table.location for table in models.Table.objects.exclude(namespace__name="mine")}
    for page in pages_of(group):
        if not page.is_of_a_row or page.route.count("<") != 1:
            continue
        before, _, after = page.route.partition("<path:object_id>")
        for row in page.model._default_manager.all():
            if re.search(r"\bmine\b", str(row)):
                continue
            url = f"/{before}{row.pk}{after}?version=1&snapshot=1&column=id&_to_field=location&_popup=1"
            with no_row_changed():
                answers = [client.get(url), client.post(url, FORM)]
                answers.append(client.post(url, FORM, headers={"HX-Request": "true"}))
            for answer in answers:
                assert answer.status_code < 500, url
                text = b"" if answer.streaming else answer.content
                assert not [at for at in locations if at.encode() in text], url


@of_browsers
@pytest.mark.parametrize("browses", [False, True])
def test_actions_on_rows_of_others_change_nothing(group, browses):
    client, model = _bob(), GROUPS[group]
    if browses:
        _may_browse()
    page = admin.site._registry[model]
    keys = [
        str(row.pk) for row in model._default_manager.all() if not re.search(r"\bmine\b", str(row))
    ]
    names = [name for name, _ in page.get_action_choices(_request())]
    names += ["label_many", "protect_many", "drop_many", "compact", "clean_up", "delete_selected"]
    url = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
    for name in filter(None, dict.fromkeys(names)):
        body = FORM | {"action": name, "_selected_action": keys, "index": "0", "select_across": "0"}
        with no_row_changed():
            answer = client.post(url, body)
        assert answer.status_code < 500, name
        if not browses:
            assert b"known" not in re.sub(rb'value="[^"]*"', b"", answer.content), name


def _request() -> HttpRequest:
    request = RequestFactory().get("/admin/")
    request.user = User.objects.get(username="bob")
    return request


FROM = ("", "table__", "namespace__", "trash__table__", "job__table__")
HIDDEN_LOOKUPS = (
    "{r}location__startswith=/",
    "{r}uuid__isnull=0",
    "{r}properties__isnull=0",
    "{r}namespace__name__startswith=w",
    "{r}namespace__location__startswith=/",
    "{r}versions__manifest_path__startswith=/",
    "{r}transaction__actor__startswith=s",
    "{r}trash__dropped_by__startswith=s",
    "{r}grants__principal__name__startswith=k",
    "{r}namespace__grants__principal__keys__digest__startswith=a",
    "{r}jobs__error__startswith=a",
    "{r}jobs__parameters__isnull=0",
)


@of_browsers
def test_lists_are_not_filtered_through_relations(group):
    client, model = _bob(), GROUPS[group]
    _may_browse()
    url = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
    plain = client.get(url)
    assert plain.status_code == 200
    names = set(re.findall(r"\b(?:ws|guarded|mine)\b", plain.content.decode()))
    for relation, template in product(FROM, HIDDEN_LOOKUPS):
        lookup = template.format(r=relation)
        answer = client.get(f"{url}?{lookup}")
        if answer.status_code == 200:  # a page without filters
            assert set(re.findall(r"\b(?:ws|guarded|mine)\b", answer.content.decode())) == names
            continue
        assert answer.status_code in {302, 400}, lookup
        if answer.status_code == 302:
            assert answer["location"].endswith("?e=1"), lookup


RELATIONS = [
    (model, field.name)
    for model in sorted({*RULES, models.Grant, models.TableVersion}, key=lambda m: m._meta.label)
    for field in model._meta.get_fields()
    if field.is_relation and hasattr(field, "get_limit_choices_to")
]
REVERSE_RELATIONS = [
    (model, field.name)
    for model in sorted(RULES, key=lambda m: m._meta.label)
    for field in model._meta.get_fields()
    if field.is_relation and not hasattr(field, "get_limit_choices_to")
]


@pytest.mark.filterwarnings("ignore:Pagination may yield")
def test_autocompletion_names_no_rows_of_others():
    client = _bob()
    for model, field in RELATIONS:
        names = {"app_label": model._meta.app_label, "model_name": model._meta.model_name}
        answer = client.get("/admin/autocomplete/", names | {"field_name": field, "term": ""})
        assert answer.status_code in {200, 403, 404}, (model, field)
        assert not re.search(rb"\b(ws|guarded|known)\b", answer.content), (model, field)


def test_autocompletion_refuses_what_is_no_field_of_the_model():
    client = _bob()
    assert (models.Namespace, "tables") in REVERSE_RELATIONS
    for model, field in [*REVERSE_RELATIONS, (models.Table, "nothing"), (models.Table, "name")]:
        names = {"app_label": model._meta.app_label, "model_name": model._meta.model_name}
        answer = client.get("/admin/autocomplete/", names | {"field_name": field, "term": ""})
        assert answer.status_code in {403, 404}, (model, field)


def test_searches_name_no_rows_of_others():
    client = _bob()
    names = {"ws", "guarded", "known_function", "known_view"}
    for path, name in product(SEARCHES, sorted(names)):
        url = f"/admin/{path}{name}"
        answer = client.get(url)
        assert answer.status_code == 200, url
        content = answer.content.decode()
        for other in names - {name}:
            assert not re.search(rf"\b{other}\b", content), (url, other)


SEARCHES = ("suggest/objects/?q=", "suggest/namespaces/?q=")


PARAMETERS = [
    *("o=1", "o=-1.2.-3", "o=99", "o=999999999999999999999", "o=x", "o=1.x", "o=--1", "o=location"),
    *("q=%00", "q='%22%3C", "q=" + "x" * 3000, "q=800000000", "q=%C3%28", "q=" + "a+" * 200),
    *("p=-1", "p=0", "p=9999999", "p=9999999999999999999999", "p=x", "p=%00", "all=", "e=1"),
    *("_to_field=location", "_to_field=uuid", "_to_field=namespace", "_popup=1", "_facets=True"),
    *("_popup=1&_to_field=id", "_changelist_filters=location%3Dx", "pk__in=1,2", "id__exact=x"),
    *(
        "since=x",
        "table=%00",
        "table=" + "a." * 500,
        "status__exact=%00",
        "kind__exact=x",
        "days=x",
    ),
    *("granted=%00", "holder=%00", "after=%00", "before=9" + "9" * 30, "before=-1", "at=%00"),
]
POSTS = [
    {"form-TOTAL_FORMS": "9999999", "form-INITIAL_FORMS": "9999999", "_save": "1"},
    {"form-TOTAL_FORMS": "x", "form-INITIAL_FORMS": "-1", "form-0-id": "1", "_save": "1"},
    {"action": "delete_selected", "select_across": "1", "_selected_action": "1", "index": "0"},
    {"action": "nothing", "_selected_action": ["\x00", "x", "9" * 40], "index": "x"},
    {"action": "", "_selected_action": "1", "index": "-1", "select_across": "x"},
]


@of_browsers
def test_lists_withstand_any_parameter(group):
    client, model = _bob(), GROUPS[group]
    url = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
    with no_row_changed():
        for parameter in PARAMETERS:
            answer = client.get(f"{url}?{parameter}")
            assert answer.status_code < 500, parameter
            assert not re.search(rb"\b(ws|guarded)\b", answer.content), parameter
        for body in POSTS:
            answer = client.post(f"{url}?o=1", body)
            assert answer.status_code < 500, body
            assert not re.search(rb"\b(ws|guarded)\b", answer.content), body


def test_no_list_is_filtered_by_a_nul_character():
    """Administrators may filter by every column."""
    make_catalog()
    client = signed_in(is_superuser=True)
    for model in admin.site._registry:
        url = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        for column in model._meta.concrete_fields:
            if isinstance(column, CharField | TextField):
                answer = client.get(f"{url}?{column.name}__exact=%00")
                assert answer.status_code < 500, (url, column.name)


def test_suggestions_withstand_any_text():
    client = _bob()
    for text in (
        "%00",
        "x" * 3000,
        "%25",
        "_",
        "%5C",
        "a.b.c.d",
        '"',
        "%C3%28",
        "$",
        "ws",
        "guarded",
    ):
        for kind in ("principals", "groups", "namespaces", "objects", "nothing"):
            answer = client.get(f"/admin/suggest/{kind}/?q={text}")
            assert answer.status_code in {200, 400, 403, 404}, (kind, text)
            if kind in {"namespaces", "objects"}:
                assert not re.search(rb"\b(ws|guarded)\b", answer.content), (kind, text)
