"""The data of README.md and docs/ is well-formed, and has the form that the product reads or writes."""

import json
import re
import time
import tomllib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import yaml
from lance_namespace_urllib3_client import models as m

from catalog.formats import view_queries
from catalog.storage.s3 import policies
from server.options import PROJECT
from tests.docs.blocks import Block, blocks
from tests.docs.reader import Reader
from tests.docs.scenes import lance_queries

pytestmark = pytest.mark.xdist_group("documentation")


def documents(text: str) -> list[Any]:
    """The values of JSON documents that follow each other."""
    decoder, values = json.JSONDecoder(), []
    while text:
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:].lstrip()
    return values


PARSERS: dict[str, Callable[[str], Any]] = {
    "json": documents,
    "yaml": yaml.safe_load,
    "toml": tomllib.loads,
}


def of_page(page: str, language: str) -> list[Any]:
    return [
        PARSERS[language](block.text)
        for block in blocks()
        if (block.page, block.language) == (page, language)
    ]


@pytest.mark.parametrize(
    "block", [block for block in blocks() if block.language in PARSERS], ids=str
)
def test_data_is_well_formed(block: Block) -> None:
    assert PARSERS[block.language](block.text)


@pytest.mark.parametrize("page", ["governance-files.md", "storage-profiles.md"])
def test_governance_files(reader: Reader, page: str) -> None:
    ((document),) = of_page(page, "yaml")
    reader.environment["MONODON_STORAGE_LAKE"] = "a-secret"
    reader.namespace("prod")
    users = pa.table({"id": [1], "email": ["ada@example.com"]})
    reader.lance_table("prod", "users", users)
    for name, kind in (("user:ada", "user"), ("group:analysts", "group")):
        reader.principal(name, kind)
    (reader.directory / "governance.yaml").write_text(yaml.safe_dump(document))
    manage = ".venv/bin/python manage.py governance"
    reader.shell.run(f"{manage} apply governance.yaml")
    reader.shell.run(f"{manage} diff governance.yaml")
    assert reader.request("GET", "/management/v1/namespaces/prod/annotations")


def test_an_event(reader: Reader) -> None:
    ((shown,),) = of_page("events.md", "json")
    reader.lance_table("prod", "people", pa.table({"id": [1]}))
    deadline = time.monotonic() + 60  # transactions in other databases delay events
    events: list[dict[str, Any]] = []
    while not (of_type := [event for event in events if event["type"] == shown["type"]]):
        assert time.monotonic() < deadline, events
        events = reader.request("GET", "/management/v1/events?after=0-0")["events"]
    event = of_type[0]
    assert event.keys() == shown.keys()
    assert event["data"].keys() == shown["data"].keys()
    same = ("specversion", "type", "subject", "datacontenttype")
    assert [event[name] for name in same] == [shown[name] for name in same]
    assert [event["data"][name] for name in ("action", "target", "before")] == [
        shown["data"][name] for name in ("action", "target", "before")
    ]


def test_an_error(reader: Reader) -> None:
    ((shown,),) = of_page("management-api.md", "json")
    reader.namespace("prod")
    answer = reader.server._http.request(
        "POST",
        f"{reader.server.url}{shown['instance']}",
        headers={"x-api-key": reader.server.key},
    )
    assert answer.headers["content-type"] == "application/problem+json"
    assert json.loads(answer.data).keys() == shown.keys()
    assert json.loads(answer.data) | {"request_id": ""} == shown | {"request_id": ""}


def test_text_queries(reader: Reader) -> None:
    lance_queries(reader)
    (queries,) = of_page("lance-queries.md", "json")
    for query in queries:
        structured = m.StructuredFtsQuery.from_dict({"query": query})
        assert structured is not None
        reader.server.client().query_table(
            m.QueryTableRequest(
                id=["ws", "docs"],
                vector=m.QueryTableRequestVector(),
                k=3,
                full_text_query=m.QueryTableRequestFullTextQuery(structured_query=structured),
            )
        )


def test_the_policy_of_credentials() -> None:
    ((shown,),) = of_page("credentials.md", "json")
    assert json.loads(policies.session_policy(["s3://lake/sales/orders"], write=True)) == shown


def test_the_query_of_a_view() -> None:
    ((shown,),) = of_page("materialized-views.md", "json")
    query = view_queries.parse(json.dumps(shown))
    assert query.source == ("namespace", "table")
    assert (query.filter, query.limit, query.version) == ("filter", 10, 7)


def test_values_of_the_chart() -> None:
    (shown,) = of_page("kubernetes.md", "yaml")
    values = yaml.safe_load((PROJECT / "deploy/helm/monodon/values.yaml").read_text())
    _require_names(shown, values)


def _require_names(shown: Any, known: Any) -> None:
    """Each name of nested maps is known. The names of an empty map are free."""
    if isinstance(shown, dict) and known:
        assert shown.keys() <= known.keys()
        for name, value in shown.items():
            _require_names(value, known[name])


def test_arguments_of_the_module() -> None:
    (block,) = [block for block in blocks() if block.language == "hcl"]
    assert (block.page, block.text.count('source            = "../modules/domain"')) == (
        "terraform.md",
        1,
    )
    variables = (PROJECT / "deploy/terraform/modules/domain/variables.tf").read_text()
    known = set(re.findall(r'^variable "(\w+)"', variables, re.MULTILINE))
    arguments = set(re.findall(r"^  (\w+) +=", block.text, re.MULTILINE))
    assert {"namespace", "roles"} <= arguments <= known | {"source"}
