"""What the catalog was at a moment, and what became of it between two."""

from api.management import history_messages as m
from api.management.operation import ManagementOperation
from catalog import history as past
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.services.audit import history


class _OfMoments(ManagementOperation):
    def the_moment(self, name: str) -> history.Moment:
        """A time or a transaction's id. Raises InvalidInput when it is missing or neither."""
        text = self.query_values.get(name)
        if not text:
            raise InvalidInput(f"Query parameter '{name}' is missing: a time or a transaction's id")
        return past.parse_moment(text)


class GetHistory(_OfMoments):
    """The namespaces, tables and views that there were at a moment, with the versions they had."""

    response_model = m.HistoryPage
    query = ("at", "namespace", "limit", "page_token")

    def handle(self, actor: Principal, body: None) -> m.HistoryPage:
        state = history.catalog_at(
            actor=actor,
            moment=self.the_moment("at"),
            namespace=self.named("namespace") or (),
            **self.page,
        )
        return m.HistoryPage.of(state)


class ListChanges(_OfMoments):
    """What became of namespaces, tables and views between two moments."""

    response_model = m.ChangesPage
    query = ("from", "to", "namespace", "limit", "page_token")

    def handle(self, actor: Principal, body: None) -> m.ChangesPage:
        changes = history.changes_between(
            actor=actor,
            since=self.the_moment("from"),
            until=self.the_moment("to"),
            namespace=self.named("namespace") or (),
            **self.page,
        )
        return m.ChangesPage.of(changes)


class CountChanges(_OfMoments):
    """How many namespaces, tables and views changed between two moments, and how."""

    response_model = m.ChangeCounts
    query = ("from", "to", "namespace")

    def handle(self, actor: Principal, body: None) -> m.ChangeCounts:
        counts = history.count_changes(
            actor=actor,
            since=self.the_moment("from"),
            until=self.the_moment("to"),
            namespace=self.named("namespace") or (),
        )
        return m.ChangeCounts.of(counts)
