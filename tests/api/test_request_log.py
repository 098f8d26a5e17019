"""The log line of a request: operation, object, status, duration, statements and principal."""

import json
import logging
from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.test import Client

from catalog.access import SYSTEM
from catalog.models import Table
from catalog.services.access import api_keys
from config.logging import JsonFormatter
from tests.factories import make_iceberg_table, make_lance_table, make_root

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


@pytest.fixture
def key() -> str:
    make_root()
    make_lance_table(("prod", "users"))
    make_iceberg_table("prod", "orders")
    return api_keys.create_api_key(actor=SYSTEM, name="tester")[1]


@pytest.fixture
def browser(key, settings, tmp_path) -> Client:
    settings.STATIC_ROOT = tmp_path
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }
    client = Client()
    client.force_login(User.objects.create_superuser("ada", password="x"))
    return client


@pytest.fixture
def last(settings):
    """Function that returns the last line of a request, as JSON."""
    settings.LOG_REQUESTS = "all"
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    requests = logging.getLogger("monodon.request")
    requests.addHandler(handler)
    yield lambda: json.loads(stream.getvalue().splitlines()[-1])
    requests.removeHandler(handler)


@pytest.mark.parametrize(
    ("method", "path", "operation", "target", "status"),
    [
        ("POST", "/v1/table/prod$users/describe", "DescribeTable", "prod.users", 200),
        ("POST", "/v1/table/prod$none/describe", "DescribeTable", "prod.none", 404),
        ("GET", "/v1/namespaces/prod/tables/orders", "LoadTable", "prod.orders", 200),
        ("GET", "/v1/namespaces/a%1Fb/tables/c", "LoadTable", "a.b.c", 404),
        (
            "GET",
            "/management/v1/tables/prod$users/annotations",
            "GetTableAnnotations",
            "prod.users",
            200,
        ),
        ("GET", "/management/v1/jobs", "ListJobs", "-", 200),
    ],
)
def test_requests_of_the_protocols(key, last, *, method, path, operation, target, status):
    answer = Client().generic(
        method,
        path,
        "{}" if method == "POST" else "",
        content_type="application/json",
        headers={"x-api-key": key, "x-request-id": "line-1"},
    )
    assert answer.status_code == status, answer.content
    line = last()
    facts = {name: line[name] for name in ("operation", "target", "status", "actor", "level")}
    assert facts == {
        "operation": operation,
        "target": target,
        "status": status,
        "actor": "tester",
        "level": "info",
    }
    assert (line["request_id"], line["message"].split()[0]) == ("line-1", method)
    assert line["ms"] > 0


def test_the_statements_of_a_request_are_counted(key, last, django_assert_num_queries):
    def load() -> None:
        answer = Client().get(
            "/v1/namespaces/prod/tables/orders/credentials", headers={"x-api-key": key}
        )
        assert answer.status_code == 200

    load()  # what is read once per process
    load()
    with django_assert_num_queries(last()["queries"]):
        load()
    assert last()["queries"] >= 1


@pytest.mark.parametrize(
    ("path", "operation", "status"),
    [
        ("/admin/", "admin:index", 200),
        ("/admin/catalog/table/{table}/change/", "admin:catalog_table_change", 200),
        ("/admin/catalog/job/", "admin:catalog_job_changelist", 200),
        ("/admin/glossary/", "glossary", 200),
        ("/admin/catalog/nothing/", "admin:django.contrib.admin.sites.catch_all_view", 404),
    ],
)
def test_requests_of_the_admin_name_the_page_and_the_user(browser, last, path, operation, status):
    table = Table.objects.get(name="users").pk
    answer = browser.get(path.format(table=table))
    assert answer.status_code == status
    line = last()
    assert (line["operation"], line["actor"], line["status"]) == (operation, "user:ada", status)
    assert line["queries"] > 0


def test_a_log_in_names_the_user(key, last, browser):
    page = Client()
    form = {"username": "ada", "password": "x", "next": "/admin/"}
    assert page.post("/admin/login/", form).status_code == 302
    line = last()
    assert (line["operation"], line["actor"]) == ("admin:login", "user:ada")


def test_strangers_have_no_name(key, last):
    assert Client().get("/nothing").status_code == 404
    line = last()
    assert (line["operation"], line["target"], line["actor"]) == ("other", "-", "-")
    assert Client().get("/v1/config").status_code == 401
    line = last()
    assert (line["operation"], line["actor"]) == ("GetConfig", "-")


def test_successful_requests_are_not_logged_by_default(key, caplog):
    caplog.set_level(logging.INFO, "monodon.request")
    headers = {"x-api-key": key}
    assert Client().get("/v1/config", headers=headers).status_code == 200
    assert not [record for record in caplog.records if record.name == "monodon.request"]
    assert Client().get("/v1/namespaces/no", headers=headers).status_code == 404
    (record,) = [record for record in caplog.records if record.name == "monodon.request"]
    assert record.getMessage() == "GET /v1/namespaces/no"
