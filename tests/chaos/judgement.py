"""Compare the answers of a storm with the database and storage."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from tests.chaos.storm import Outcome, Request, Storm
from tests.chaos.storm import mark as text
from tests.live import LiveServer

_EVENTS = {
    "declare": "table.declare",
    "create": "version.create",
    "delete": "version.delete",
    "deregister": "table.deregister",
    "rename": "table.rename",
    "drop": "table.drop",
}
_MAY_ANSWER = {200, 400, 404, 409}


@dataclass
class Traces:
    """Rows that one request left in the database."""

    versions: dict[int, dict[str, Any]]
    declared: set[int]
    transactions: list[dict[str, Any]]
    events: Counter[str]


class Ledger:
    """The server's database, read after the storm."""

    def __init__(self, connection: psycopg.Connection) -> None:
        def rows(query: str) -> list[dict[str, Any]]:
            return connection.cursor(row_factory=dict_row).execute(query).fetchall()

        self.tables = rows("SELECT * FROM catalog_table")
        self.versions = rows(
            "SELECT v.*, t.location FROM catalog_tableversion v JOIN catalog_table t ON t.id = table_id"
        )
        self.transactions = rows("SELECT * FROM catalog_transaction")
        self.events = rows("SELECT * FROM catalog_auditevent WHERE outcome = 'done'")
        self._traces: dict[str, Traces] = defaultdict(lambda: Traces({}, set(), [], Counter()))
        for row in self.versions:
            mark = row["metadata"]
            self._traces[mark["batch"]].versions[int(mark["index"])] = row
        for row in self.tables:
            if mark := row["properties"]:
                self._traces[mark["batch"]].declared.add(int(mark["index"]))
        for row in self.transactions:
            self._traces[row["request_id"]].transactions.append(row)
        for row in self.events:
            self._traces[row["request_id"]].events[row["action"]] += 1

    def traces(self, request: Request) -> Traces:
        return self._traces[request.id]

    def requests(self) -> set[str]:
        """Requests that left any rows."""
        return {name for name in self._traces if name.startswith("storm-")}


def is_busy(request: Request) -> bool:
    """True if too many requests waited for the table: such a request is refused and changes
    nothing."""
    return request.status == 503 and "Too many requests wait" in request.answer["error"]


def judge(storm: Storm, ledger: Ledger) -> None:
    """Every request is committed completely or not at all, as its answer says."""
    for request in storm.requests:
        traces = ledger.traces(request)
        message = f"{request} left {traces}"
        match request.outcome:
            case Outcome.COMMITTED:
                assert _is_whole(request, traces), message
                _matches_answer(request, traces)
            case Outcome.REFUSED:
                assert request.status in _MAY_ANSWER or is_busy(request), message
                assert _is_absent(traces), message
            case Outcome.UNKNOWN:
                assert _is_absent(traces) or _is_whole(request, traces), message
    assert ledger.requests() <= {request.id for request in storm.requests}
    _winners_are_single(storm, ledger)
    _drops_are_single(ledger)
    deleted = sum(e["after"]["deleted"] for e in ledger.events if e["action"] == "version.delete")
    assert deleted == sum(row["deleted_at"] is not None for row in ledger.versions)


def _is_absent(traces: Traces) -> bool:
    return not (traces.versions or traces.declared or traces.transactions or traces.events)


def _is_whole(request: Request, traces: Traces) -> bool:
    if traces.versions.keys() != request.indexes("create"):
        return False
    if traces.declared != request.indexes("declare"):
        return False
    if not request.steps:  # a namespace: the extent of the change depends on its state
        return len(traces.transactions) == bool(traces.events)
    if traces.events != Counter(_EVENTS[step.kind] for step in request.steps):
        return False
    return [len(row["operations"]) for row in traces.transactions] == [len(request.steps)]


def _matches_answer(request: Request, traces: Traces) -> None:
    ids = [str(row["id"]) for row in traces.transactions]
    transaction_id = request.answer.get("transaction_id")
    if isinstance(transaction_id, list):  # DropNamespace answers with a list
        transaction_id = transaction_id[0]
    assert transaction_id in ([None] if not ids else [*ids, *([] if request.steps else [None])])
    for index, row in traces.versions.items():
        step = request.steps[index]
        assert (row["branch"], row["version"]) == (step.branch, step.version)
        assert str(row["transaction_id"]) == transaction_id
    if request.route.endswith("batch-commit"):
        for step, result in zip(request.steps, request.answer["results"], strict=True):
            _check_result(step.kind, step.version, result)
    if request.route.endswith("batch-create"):
        versions = [entry["version"] for entry in request.answer["versions"]]
        assert versions == [step.version for step in request.steps]


def _check_result(kind: str, version: int, result: dict[str, Any]) -> None:
    field = {
        "declare": "declare_table",
        "create": "create_table_version",
        "delete": "delete_table_versions",
        "deregister": "deregister_table",
    }[kind]
    assert list(result) == [field]
    if kind == "create":
        assert result[field]["version"]["version"] == version


def _winners_are_single(storm: Storm, ledger: Ledger) -> None:
    """No two acknowledged requests have the same version of the same table."""
    winners: Counter[tuple[int, str, int]] = Counter()
    for request in storm.requests:
        if request.outcome is Outcome.COMMITTED:
            for index in request.indexes("create"):
                row = ledger.traces(request).versions[index]
                winners[row["table_id"], row["branch"], row["version"]] += 1
    assert winners, "nothing was acknowledged"
    assert set(winners.values()) == {1}


def _drops_are_single(ledger: Ledger) -> None:
    """Each dropped table was dropped by one commit, and no other table was dropped."""
    drops = Counter(
        event["table_uuid"]
        for event in ledger.events
        if event["action"]
        in {"table.drop", "table.deregister", "namespace.drop", "namespace.create"}
        and event["table_uuid"] is not None
    )
    assert set(drops.values()) <= {1}
    assert drops.keys() == {row["uuid"] for row in ledger.tables if row["state"] == "dropped"}


def names_readable_manifests(server: LiveServer, ledger: Ledger) -> int:
    """Every version that clients can list names its own existing file."""
    present = [row for row in ledger.tables if row["state"] != "dropped"]
    with server.database() as connection:
        paths = dict(connection.execute("SELECT id, path FROM catalog_namespace").fetchall())
    count = 0
    for table in present:
        identifier = "$".join([*paths[table["namespace_id"]], table["name"]])
        for branch in ("main", "dev"):
            route = f"/v1/table/{identifier}/version/list?branch={branch}"
            status, answer = server.post_until_answered(route)
            assert status in {200, 404}, answer
            assert status == 200 or answer["code"] == 22, answer  # no such branch
            for entry in answer.get("versions", []):
                mark = entry["metadata"]
                content = Path("/" + entry["manifest_path"]).read_bytes()
                assert text(mark["batch"], int(mark["index"])) in content, entry
                assert len(content) == entry["manifest_size"]
                count += 1
    return count


def is_settled(storm: Storm, ledger: Ledger) -> None:
    """Every manifest in the ledger, including dropped tables, has its final path and no other."""
    sent = {request.id: request for request in storm.requests}
    for row in ledger.versions:
        assert row["staged_path"] is None, row
        mark = row["metadata"]
        step = sent[mark["batch"]].steps[int(mark["index"])]
        path = Path("/" + row["manifest_path"])
        assert text(mark["batch"], int(mark["index"])) in path.read_bytes(), row
        staged = Path("/" + step.path)
        if path.is_relative_to(row["location"]):
            assert path.name == f"{2**64 - 1 - row['version']:020d}.manifest", row
            assert not staged.exists(), row
        else:  # staged for a table that was replaced concurrently: recorded unchanged, and never touched
            assert path == staged, row
