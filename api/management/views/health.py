"""Health: which tables need work, and what would be done."""

from api.management import messages as m
from api.management.operation import ManagementOperation
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.identifiers import Identifier
from catalog.models import TableFormat
from catalog.services.maintenance import health, measurements


class ListHealth(ManagementOperation):
    """The tables that were measured, the worst first."""

    response_model = m.HealthPage
    query = ("namespace", "format", "max_score", "limit", "page_token")

    def handle(self, actor: Principal, body: None) -> m.HealthPage:
        rows, token = health.list_health(
            actor=actor,
            namespace=self.named("namespace") or (),
            format=self._format(),
            max_score=self._max_score(),
            **self.page,
        )
        return m.HealthPage(tables=[m.Health.of(row) for row in rows], next_page_token=token)

    def _format(self) -> TableFormat | None:
        chosen = self.chosen("format", TableFormat)
        return chosen[0] if len(chosen) == 1 else None

    def _max_score(self) -> int | None:
        text = self.query_values.get("max_score")
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and int(text[:4]) <= 100):
            raise InvalidInput(f"Query parameter 'max_score' is {text!r}; use 0 to 100")
        return int(text)


class GetTableHealth(ManagementOperation):
    """How a table is, and how it was on the last days."""

    response_model = m.TableCourse
    query = ("days", "points")

    def handle(self, actor: Principal, body: None, id: Identifier) -> m.TableCourse:
        report = health.table_health(
            actor=actor,
            table=id,
            days=self.number("days", health.DAYS, most=health.MAX_DAYS),
            points=self.number("points", health.POINTS, most=health.MAX_POINTS),
        )
        return m.TableCourse.of(report)


class MeasureTable(ManagementOperation):
    """Measure a table now, and keep the figures."""

    verb = "POST"
    changes = True
    response_model = m.HealthWithFigures

    def handle(self, actor: Principal, body: None, id: Identifier) -> m.HealthWithFigures:
        return m.HealthWithFigures.of(measurements.measure(actor=actor, table=id))


class PlanMaintenance(ManagementOperation):
    """Measure a table now, and tell what would be done; nothing is kept, and nothing done."""

    verb = "POST"
    response_model = m.Plan

    def handle(self, actor: Principal, body: None, id: Identifier) -> m.Plan:
        return m.Plan.of(measurements.plan(actor=actor, table=id))
