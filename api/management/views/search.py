"""Search over names, columns, descriptions, labels and owners."""

from api.management import fact_messages as m
from api.management.operation import ManagementOperation
from catalog.access import Principal
from catalog.services.search import search


class Search(ManagementOperation):
    """Namespaces, tables and views that the query finds and the caller may browse, best first.

    Words are looked for everywhere, the last one as a beginning; "words between quotes" beside each
    other. Filters: label:pii=yes, owner:ada, column:email, format:lance, kind:view, in:prod.sales,
    sensitivity:restricted. When nothing is found, words that are spelled nearly so are looked for."""

    response_model = m.SearchPage
    query = ("q", "limit", "page_token")
    described = {
        "limit": {
            "description": f"Larger ones count as {search.MAX_PAGE}.",
            "schema": {"type": "integer", "minimum": 1, "default": search.PAGE_SIZE},
        }
    }

    def handle(self, actor: Principal, body: None) -> m.SearchPage:
        text = self.query_values.get("q", "")
        return m.SearchPage.of(search.search(actor=actor, text=text, **self.page))
