"""The catalog's own rows at the end of a run, compared with answers and events."""

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import psycopg

from tests.chaos.harness.history import OK, Operation
from tests.chaos.harness.transport import Connection, NotSent


@dataclass(frozen=True, slots=True)
class VersionRow:
    table: str
    version: int
    transaction: str
    value: str
    """Value that the client gave a Lance version; empty for Iceberg."""
    format: str = "lance"


@dataclass(frozen=True, slots=True)
class AuditRow:
    id: str
    """Also the id of its event: the database transaction's number and the row's number."""
    action: str
    transaction: str
    request: str
    table: str

    @property
    def position(self) -> tuple[int, int]:
        transaction, _, row = self.id.partition("-")
        return int(transaction), int(row)


@dataclass
class Ledger:
    transactions: list[tuple[str, str]] = field(default_factory=list)
    """Id and request id of each."""
    versions: list[VersionRow] = field(default_factory=list)
    """All versions, including deleted ones, whose rows remain."""
    audit: list[AuditRow] = field(default_factory=list)

    @property
    def committed(self) -> set[str]:
        return {request for _, request in self.transactions}

    @property
    def times(self) -> Counter[str]:
        """Number of executions of each request."""
        return Counter(request for _, request in self.transactions)

    @property
    def values(self) -> set[str]:
        return {row.value for row in self.versions}


# A failed transaction without operations only prevents a late commit of a lost transaction.
_CARRIED_OUT = "NOT (lower(status) = 'failed' AND operations = '[]')"


def load(connection: psycopg.Connection) -> Ledger:
    def rows(query: str) -> Iterator[tuple]:
        with connection.cursor() as cursor:
            yield from cursor.stream(query)  # type: ignore[arg-type]

    return Ledger(
        transactions=[
            (identity, request)
            for identity, request in rows(
                f"SELECT id::text, request_id FROM catalog_transaction WHERE {_CARRIED_OUT}"
            )
        ],
        versions=[
            VersionRow(*row)
            for row in rows(
                "SELECT t.uuid::text, v.version, v.transaction_id::text,"
                " coalesce(v.metadata ->> 'harness.value', ''), t.format"
                " FROM catalog_tableversion v JOIN catalog_table t ON t.id = v.table_id"
            )
        ],
        audit=[
            AuditRow(*row)
            for row in rows(
                "SELECT xid::text || '-' || id, action, coalesce(transaction_id::text, ''),"
                " request_id, coalesce(table_uuid::text, '') FROM catalog_auditevent"
                " WHERE outcome = 'done' ORDER BY xid, id"
            )
        ],
    )


def carried_out(connection: psycopg.Connection, requests: Collection[str]) -> set[str]:
    """Requests that a transaction names."""
    query = (
        "SELECT DISTINCT request_id FROM catalog_transaction"
        f" WHERE request_id = ANY(%s) AND {_CARRIED_OUT}"
    )
    return {request for (request,) in connection.execute(query, [list(requests)])}  # type: ignore[arg-type]


class Follower:
    """Polls for events from the beginning, through all faults, and stores them."""

    def __init__(self, connection: Connection) -> None:
        self.events: list[AuditRow] = []
        self._connection = connection
        self._position = "0-0"
        self._numbers = 0
        self.is_last = False

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            if not self.ask() or self.is_last:
                time.sleep(0.3)

    def ask(self) -> bool:
        self._numbers += 1
        operation = Operation(f"follower-{self._numbers}", -1, "", "events")
        path = f"/management/v1/events?after={self._position}&limit=1000"
        try:
            page = self._connection.send(operation, "GET", path)
        except NotSent:
            return False
        if operation.outcome != OK:
            return False
        for event in page["events"]:
            data = event["data"]
            self.events.append(
                AuditRow(
                    event["id"],
                    data["action"],
                    data["transaction_id"] or "",
                    data["request_id"],
                    data["table_uuid"] or "",
                )
            )
        self._position, self.is_last = page["position"], page["is_last"]
        return True

    def finish(self, within: float = 120.0) -> None:
        """Wait until the feed contains every event of commits before this call."""
        deadline = time.monotonic() + within
        reached = 0
        while reached < 3 and time.monotonic() < deadline:
            reached = reached + 1 if self.ask() and self.is_last else 0
            time.sleep(0.2 if self.is_last else 0)

    def close(self) -> None:
        self._connection.close()
