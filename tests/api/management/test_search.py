"""Searches over HTTP."""

import pytest

from catalog.services.search import documents as search_documents
from tests.api.management.client import Management
from tests.factories import make_iceberg_table, make_lance_table, make_root, make_table, unchanged


@pytest.fixture(autouse=True)
def _catalog(db):
    make_root()
    make_lance_table(("ws", "orders"))
    make_iceberg_table("ws", "old_orders")
    search_documents.update()


@pytest.mark.operation("Search")
def test_a_search_returns_objects_with_their_matches(reader: Management):
    with unchanged():
        page = reader.get("search?q=orders")
    assert (page["is_corrected"], page["next_page_token"]) == (False, None)
    assert [result["identifier"] for result in page["results"]] == [
        ["ws", "orders"],
        ["ws", "old_orders"],
    ]
    assert page["results"][1] == {
        "kind": "table",
        "format": "iceberg",
        "identifier": ["ws", "old_orders"],
        "owner": "system",
        "description": "",
        "matches": [
            {
                "field": "name",
                "parts": [
                    {"text": "old_", "is_hit": False},
                    {"text": "orders", "is_hit": True},
                ],
            }
        ],
    }
    assert reader.get("search?q=kind:namespace")["results"][0]["format"] is None


@pytest.mark.operation("Search")
def test_results_have_pages(reader: Management):
    first = reader.get("search?q=orders&limit=1")
    second = reader.get(f"search?q=orders&limit=1&page_token={first['next_page_token']}")
    assert [result["identifier"][-1] for result in first["results"]] == ["orders"]
    assert [result["identifier"][-1] for result in second["results"]] == ["old_orders"]
    assert second["next_page_token"] is None


def test_a_misspelled_word_is_corrected(reader: Management):
    page = reader.get("search?q=odrers")
    assert page["is_corrected"]
    assert page["results"][0]["matches"][0]["parts"] == [{"text": "orders", "is_hit": True}]


def test_invalid_searches_are_refused(reader: Management):
    reader.refused(400, "invalid-input", "The query is empty", "GET search")
    reader.refused(400, "invalid-input", "label:pii=yes", "GET search?q=label:")
    reader.refused(400, "invalid-input", "page token", "GET search?q=a&page_token=x")
    reader.refused(400, "invalid-input", "limit", "GET search?q=a&limit=0")
    Management().refused(401, "unauthenticated", "No API key", "GET search?q=a")


def test_objects_that_are_not_indexed_yet_are_missing_from_results(reader: Management):
    make_table("ws", "brand_new")
    assert reader.get("search?q=brand")["results"] == []
