"""Functions in the admin: the list, the page of a function, and the form to define one."""

import json
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM
from catalog.models import AuditEvent, Function
from catalog.services.iceberg import functions
from catalog.services.iceberg.functions import Content
from tests.cases import shared_cases
from tests.factories import make_namespace, unchanged

LIST = "/admin/catalog/function/"
ADD = f"{LIST}add/"


def definition(*texts: str, type: str = "int") -> dict[str, Any]:
    return {
        "parameters": [{"name": "x", "type": type}],
        "return-type": type,
        "versions": [
            {
                "representations": [{"type": "sql", "dialect": "spark", "sql": text}],
                "timestamp-ms": 1_700_000_000_000,
            }
            for text in texts
        ],
    }


def make(*identifier: str, **content: Any) -> Function:
    make_namespace(*identifier[:-1])
    values = {"definitions": [definition("x + 1")], **content}
    return functions.create_function(actor=SYSTEM, function=identifier, content=Content(**values))


def url(row: Function, action: str = "change") -> str:
    return f"{LIST}{row.pk}/{action}/"


def form(**changes: Any) -> dict[str, Any]:
    return {
        "namespace": "prod",
        "name": "f",
        "doc": "adds one",
        "definitions": json.dumps([definition("x + 1")]),
        "properties": "a=b\n\nc = d=e",
        **changes,
    }


def messages_of(answer) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


def page(browser: Client, path: str) -> str:
    answer = browser.get(path)
    assert answer.status_code == 200
    return answer.content.decode()


def statements(browser: Client, path: str) -> int:
    browser.get(path)
    with CaptureQueriesContext(connection) as captured:
        page(browser, path)
    return len(captured.captured_queries)


# --- pages -------------------------------------------------------------------------------------


def test_the_list_shows_functions(browser):
    make("prod", "add_one")
    make("prod", "ml", "clean", definitions=[definition("trim(x)", type="string")])
    everything = page(browser, LIST)
    assert "add_one" in everything
    assert "(x string) → string" in everything
    assert "prod.ml" in everything
    assert "add_one" not in page(browser, f"{LIST}?q=lea")
    assert "clean" in page(browser, f"{LIST}?q=lea")
    filtered = page(browser, f"{LIST}?namespace=prod.ml")
    assert "clean" in filtered
    assert "add_one" not in filtered
    assert "add_one" not in page(browser, f"{LIST}?owner=nobody")
    assert "add_one" in page(browser, f"{LIST}?owner=system")
    assert "add_one" in page(browser, f"{LIST}?namespace=%00&owner=%00")
    assert LIST in page(browser, "/admin/")  # the sidebar links to the list


def test_the_list_takes_a_fixed_number_of_queries(browser):
    make("prod", "f0")
    baseline = statements(browser, LIST)
    for number in range(1, 6):
        make("prod", f"f{number}")
    assert statements(browser, LIST) == baseline


def test_the_page_of_a_function_shows_all_fields(browser):
    long = "SELECT " + "x + " * 200 + "1 /* <end> */"
    row = make(
        "prod",
        "f",
        definitions=[definition("x + 1", long), definition("trim(x)", type="string")],
        doc="adds <one>",
        secure=True,
        properties={"team": "data"},
    )
    content_ = page(browser, url(row))
    for text in ("prod.f", "adds &lt;one&gt;", "team", "(x int) → int", "x + 1", "&lt;end&gt;"):
        assert text in content_, text
    assert content_.count("current</span>") == 2
    assert "2023-11-14 22:13:20" in content_
    history = page(browser, url(row) + "?tab=history")
    assert "int" in history
    assert "function.create" in page(browser, url(row) + "?tab=audit")
    assert statements(browser, url(row)) == statements(browser, url(row) + "?tab=history")


def test_times_out_of_range_are_shown_as_numbers(browser):
    row = make("prod", "f")
    row.metadata["definition-log"][0]["timestamp-ms"] = 2**62
    row.save()
    assert str(2**62) in page(browser, url(row) + "?tab=history")


# --- forms -------------------------------------------------------------------------------------


def test_a_function_is_created(browser):
    namespace = make_namespace("prod", "ml")
    form_page = page(browser, f"{ADD}?parent={namespace.pk}")
    assert 'value="prod.ml"' in form_page
    assert "&quot;representations&quot;" in form_page  # the form contains an example
    answer = browser.post(ADD, form(namespace="prod.ml", secure="on"))
    row = Function.objects.get()
    assert answer["location"] == url(row)
    assert messages_of(answer) == ["Function 'prod.ml.f' was created"]
    assert row.metadata["definitions"][0]["definition-id"] == "int"
    assert row.metadata["doc"] == "adds one"
    assert row.metadata["secure"] is True
    assert row.metadata["properties"] == {"a": "b", "c": "d=e"}
    event = AuditEvent.objects.order_by("-pk")[0]
    assert (event.action, event.actor, event.target) == ("function.create", "user:ada", "prod.ml.f")


@shared_cases(
    ("changes", "message"),
    [
        ({"definitions": "[{"}, "Not valid JSON: "),
        ({"definitions": "[" * 100_000}, "Not valid JSON: "),
        ({"definitions": "[" * 300 + "]" * 300}, "nested deeper than 200 levels"),
        ({"definitions": "[NaN]"}, "Not valid JSON: "),
        ({"definitions": '["\\ud800"]'}, "Not valid JSON: "),
        ({"definitions": "5"}, "definitions must be an array"),
        ({"definitions": "[]"}, "definitions must not be empty"),
        ({"definitions": "[{}]"}, "definitions[0].parameters is missing"),
        (
            {"definitions": json.dumps([definition("x", type="number")])},
            "definitions[0].parameters[0].type: unknown type",
        ),
        ({"definitions": json.dumps([definition("\x00")])}, "A string contains a NUL character"),
        ({"definitions": ""}, "This field is required"),
        ({"properties": "nonsense"}, "does not have the form key=value"),
        ({"name": ""}, "This field is required"),
        ({"name": "a/tables"}, "cannot be addressed"),
        ({"namespace": "nothing"}, "Namespace &#x27;nothing&#x27; does not exist"),
        ({"name": "taken"}, "Function &#x27;prod.taken&#x27; exists already"),
    ],
    prepare=lambda: make("prod", "taken"),
)
def test_errors_are_shown_in_the_form(browser, changes, message):
    with unchanged():
        answer = browser.post(ADD, form(**changes))
    assert answer.status_code == 200
    output = answer.content.decode() + " ".join(messages_of(answer)).replace("'", "&#x27;")
    assert message in output


def test_a_function_is_changed(browser):
    row = make("prod", "f", doc="adds one")
    form_page = page(browser, url(row, "edit"))
    assert "adds one" in form_page
    changed_definition = dict(row.metadata["definitions"][0])
    second = {**changed_definition["versions"][0], "version-id": 2, "deterministic": True}
    sent = form(
        definitions=json.dumps(
            [{**changed_definition, "versions": [*changed_definition["versions"], second]}]
        ),
        doc="adds one for sure",
        seen_at=row.updated_at.isoformat(),
    )
    sent["definitions"] = sent["definitions"].replace(
        '"current-version-id": 1', '"current-version-id": 2'
    )
    answer = browser.post(url(row, "edit"), sent)
    assert answer.status_code == 302, answer.content.decode()
    row.refresh_from_db()
    assert row.metadata["definitions"][0]["current-version-id"] == 2
    assert row.metadata["doc"] == "adds one for sure"
    assert len(row.metadata["definition-log"]) == 2
    with unchanged():  # a form that was loaded before the change
        answer = browser.post(url(row, "edit"), sent)
    assert messages_of(answer)[-1] == "Function 'prod.f' was changed meanwhile"


def test_a_version_is_not_rewritten(browser):
    row = make("prod", "f")
    sent = form(definitions=json.dumps([definition("x - 1")]), seen_at=row.updated_at.isoformat())
    with unchanged():
        answer = browser.post(url(row, "edit"), sent)
        browser.post(url(row, "edit"), {**sent, "seen_at": "yesterday"})
    assert "is there already; add a new version" in messages_of(answer)[0]


def test_a_function_is_dropped(browser):
    row = make("prod", "f")
    with unchanged():
        assert "Drop function &#x27;prod.f&#x27;?" in page(browser, url(row, "drop"))
    answer = browser.post(url(row, "drop"))
    assert answer["location"] == LIST
    assert not Function.objects.exists()
    assert AuditEvent.objects.order_by("-pk")[0].actor == "user:ada"
    assert browser.get(url(row)).status_code == 404


# --- access ------------------------------------------------------------------------------------


def test_staff_with_read_may_not_change_functions(sign_in):
    row = make("prod", "f")
    browser = sign_in("read")
    assert "prod.f" in page(browser, url(row))
    sent = form(name="g", seen_at=row.updated_at.isoformat())
    with unchanged():
        for path in (ADD, url(row, "edit"), url(row, "drop")):
            assert browser.post(path, sent).status_code == 403
            assert browser.get(path).status_code == 403


def test_staff_without_privileges_see_no_function(sign_in):
    row = make("prod", "f")
    browser = sign_in()
    assert "prod.f" not in page(browser, LIST)
    absent = url(row).replace(str(row.pk), "999999")
    for path in (url(row), absent):
        assert browser.get(path).status_code == 404


def test_definitions_require_read(sign_in):
    row = make("prod", "f")
    browser = sign_in("browse")
    assert "prod.f" in page(browser, url(row))
    assert "Versions" not in page(browser, url(row))


@pytest.mark.parametrize(("path", "remaining"), [(ADD, 2), ("edit", 1), ("drop", 0)])
def test_staff_with_the_privilege_may_change_functions(sign_in, path, remaining):
    row = make("prod", "f")
    browser = sign_in("create")
    definitions = json.dumps(row.metadata["definitions"])
    sent = form(name="g", definitions=definitions, seen_at=row.updated_at.isoformat())
    answer = browser.post(path if path == ADD else url(row, path), sent)
    assert answer.status_code == 302, messages_of(answer)
    assert Function.objects.count() == remaining
