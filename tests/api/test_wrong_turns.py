"""Frequent mistakes of new users are answered with the remedy, or work."""

import base64
from urllib.parse import urlencode

import pytest
from django.core.management import call_command
from django.test import Client

from catalog.access import SYSTEM
from catalog.models import ApiKey, PrincipalLevel
from catalog.services.access import api_keys
from tests.factories import (
    make_iceberg_table,
    make_lance_table,
    make_namespace,
    make_root,
    unchanged,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]

FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def key() -> str:
    make_root()
    make_lance_table(("prod", "users"))
    make_iceberg_table("prod", "orders")
    return api_keys.create_api_key(actor=SYSTEM, name="tester")[1]


def send(method: str, path: str, key: str, **options):
    return Client().generic(method, path, headers={"x-api-key": key}, **options)


@pytest.mark.parametrize(
    "path",
    ["/v1/config", "/v1/namespaces", "/v1/namespaces/prod/tables/orders", "/v1/prod/namespaces"],
)
@pytest.mark.parametrize("alias", ["/catalog", "/api/catalog"])
def test_the_path_of_other_catalogs_is_an_alias(key, alias, path):
    expected = send("GET", path, key)
    assert expected.status_code == 200
    answer = send("GET", alias + path, key)
    assert (answer.status_code, answer.json()) == (200, expected.json())


@pytest.mark.parametrize("path", ["/iceberg/v1/config", "/api/v1/namespaces", "/catalog/v2/config"])
def test_programs_get_json_from_paths_that_do_not_exist(key, path):
    answer = send("GET", path, key)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("NotFoundException", 404)
    assert error["message"].startswith(
        f"There is no '{path}' on this server. The Lance and Iceberg"
    )


def test_the_documentation_is_also_at_a_path_with_a_slash():
    answer = Client().get("/docs/")
    assert (answer.status_code, answer["Location"]) == (302, "/docs")


def test_tokens_and_errors_at_the_alias_have_the_form_of_the_protocol(key):
    form = {"grant_type": "client_credentials", "client_id": "tester", "client_secret": key}
    token = Client().post("/catalog/v1/oauth/tokens", urlencode(form), content_type=FORM)
    assert token.status_code == 200
    missing = send("GET", "/catalog/v1/namespaces/no", token.json()["access_token"])
    assert missing.json()["error"]["type"] == "NoSuchNamespaceException"
    assert Client().get("/catalog/v1/config").status_code == 401
    assert send("GET", "/catalog/v2/config", key).status_code == 404


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/table/prod.users/describe", "prod$users"),
        ("/v1/table/prod.orders/describe", "prod$orders"),
        ("/v1/namespace/prod.ml/describe", "prod$ml"),
    ],
)
def test_an_id_with_dots_names_the_right_id(key, path, name):
    make_namespace("prod", "ml")
    with unchanged():
        answer = send("POST", path, key, data="{}", content_type="application/json")
    assert answer.status_code == 404
    assert (
        f"The levels of an id are joined by $, not by dots: '{name}' exists"
        in (answer.json()["error"])
    )
    management = send(
        "GET", f"/management/v1/{path.split('/')[2]}s/{path.split('/')[3]}/grants", key
    )
    assert f"'{name}' exists" in management.json()["detail"]


def test_objects_that_are_missing_or_hidden_are_not_named(key):
    _, other = api_keys.create_api_key(actor=SYSTEM, name="other", level=PrincipalLevel.GRANTED)
    for path, credential in (
        ("/v1/table/prod.users/describe", other),
        ("/v1/table/prod.no/describe", key),
        ("/v1/table/prod..users/describe", key),
    ):
        answer = send("POST", path, credential, data="{}", content_type="application/json")
        assert answer.status_code == 404
        assert "exists" not in answer.content.decode()


def test_a_name_with_a_dot_of_its_own_is_found(key):
    make_namespace("prod.users")
    answer = send("POST", "/v1/namespace/prod.users/describe", key, data="{}")
    assert answer.status_code == 200


def test_a_table_of_the_other_format_is_explained_in_the_message(key):
    lance = send("POST", "/v1/table/prod$orders/describe", key, data="{}")
    assert lance.status_code == 404
    assert "its format is iceberg: use the Iceberg protocol" in lance.json()["error"]
    iceberg = send("GET", "/v1/namespaces/prod/tables/users", key)
    assert iceberg.status_code == 404
    assert "its format is lance: use the Lance protocol" in iceberg.json()["error"]["message"]


@pytest.mark.parametrize("is_first", [True, False])
def test_the_configured_key_is_that_of_the_client_admin(settings, monkeypatch, is_first):
    make_root()
    settings.MONODON_ADMIN_API_KEY = "a-configured-key-of-the-admin"
    if not is_first:
        api_keys.create_api_key(actor=SYSTEM, name="admin")
    monkeypatch.setattr(
        "catalog.management.commands.bootstrap.Command._collect_static", lambda self: None
    )
    call_command("bootstrap", verbosity=0)
    call_command("bootstrap", verbosity=0)
    names = [name.partition("-")[0] for name in ApiKey.objects.values_list("name", flat=True)]
    assert names == (["admin"] if is_first else ["admin", "admin"])
    assert ApiKey.objects.filter(name="admin").exists()
    for client, status in (("admin", 200), ("", 200), ("other", 401), ("admi", 401)):
        basic = base64.b64encode(f"{client}:a-configured-key-of-the-admin".encode()).decode()
        answer = Client().post(
            "/v1/oauth/tokens",
            urlencode({"grant_type": "client_credentials"}),
            content_type=FORM,
            headers={"authorization": f"Basic {basic}"},
        )
        assert answer.status_code == status, client
