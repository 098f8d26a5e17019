"""One table that clients rename, drop, restore, change and read at the same time, over HTTP.

No request fails with a server error, no answer mixes two states, and no change that was answered is lost.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from django.db import connections
from django.http import HttpResponse

from catalog.access import SYSTEM
from catalog.models import AuditEvent, Table, TableState, TrashItem
from catalog.services.access import api_keys
from tests.api.client import Lance, stream
from tests.api.iceberg.client import Iceberg
from tests.api.management.client import Management
from tests.factories import make_iceberg_table, make_lance_table, make_root

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("warehouse")]

NAMES = ("t", "u")
SECONDS = 60.0
"""The most time of a test, which ends when each kind of request was successful ``OFTEN`` times."""
OFTEN = 3
REFUSED = {404, 409}


@pytest.fixture
def key(settings, monkeypatch) -> str:
    settings.MONODON_TRASH_SECONDS = 3600
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    make_root()
    return api_keys.create_api_key(actor=SYSTEM, name="rival")[1]


class Rivals:
    """Threads that repeat a call for some seconds, and the statuses of their answers."""

    def __init__(self, *kinds: str) -> None:
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.errors: list[Exception | str] = []
        self._kinds = kinds
        self._end = time.monotonic() + SECONDS

    def run(self, *calls: Callable[[random.Random], None]) -> None:
        threads = [
            threading.Thread(target=self._repeat, args=(call, seed))
            for seed, call in enumerate(calls)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
        assert self.errors == []
        assert all(self.done(kind) >= OFTEN for kind in self._kinds), self.statuses

    def done(self, kind: str) -> int:
        """The number of successful requests of a kind."""
        return self.statuses[kind, 200] + self.statuses[kind, 204]

    def _repeat(self, call: Callable[[random.Random], None], seed: int) -> None:
        choices = random.Random(seed)
        try:
            while time.monotonic() < self._end and not self.errors:
                call(choices)
                if all(self.done(kind) >= OFTEN for kind in self._kinds):
                    return
        except Exception as error:  # noqa: BLE001 -- of the thread, for the test
            self.errors.append(error)
        finally:
            connections.close_all()

    def note(self, what: str, answer: HttpResponse) -> bool:
        """Count an answer. True if the request was successful."""
        self.statuses[what, answer.status_code] += 1
        if answer.status_code < 300:
            return True
        if answer.status_code not in REFUSED:
            self.errors.append(f"{what}: {answer.status_code} {answer.content[:500]!r}")
        return False


def restore(management: Management, rivals: Rivals, new: str) -> None:
    listed = management.call("GET", "trash")
    assert listed.status_code == 200, listed.content
    for item in listed.json()["items"]:
        answer = management.call("POST", f"trash/{item['id']}/undrop", {"new": ["ws", new]})
        rivals.note("undrop", answer)


def settle(management: Management) -> Table:
    """Restore the table if it is dropped, and return it: there is one, whatever happened."""
    for item in management.get("trash")["items"]:
        management.post(f"trash/{item['id']}/undrop", {"new": ["ws", "t"]})
    (row,) = Table.objects.exclude(state=TableState.DROPPED)
    assert not TrashItem.objects.exists()
    return row


def test_an_iceberg_table_survives_its_rivals(key):
    table = make_iceberg_table("ws", "t")
    uuid = Iceberg(key).get("namespaces/ws/tables/t")["metadata"]["table-uuid"]
    rivals, management = Rivals("rename", "drop", "undrop", "commit", "load"), Management(key)
    written: set[str] = set()

    def path(choices: random.Random) -> str:
        return f"namespaces/ws/tables/{choices.choice(NAMES)}"

    def rename(choices: random.Random) -> None:
        time.sleep(choices.random() / 2)  # so that slower requests succeed too
        old, new = choices.sample(NAMES, 2)
        body = {
            "source": {"namespace": ["ws"], "name": old},
            "destination": {"namespace": ["ws"], "name": new},
        }
        rivals.note("rename", Iceberg(key).call("POST", "tables/rename", body))

    def drop(choices: random.Random) -> None:
        time.sleep(choices.random())
        rivals.note("drop", Iceberg(key).call("DELETE", path(choices)))
        restore(management, rivals, choices.choice(NAMES))

    def write(choices: random.Random) -> None:
        name = f"key-{choices.random()}"
        body = {
            "requirements": [{"type": "assert-table-uuid", "uuid": uuid}],
            "updates": [{"action": "set-properties", "updates": {name: "x"}}],
        }
        answer = Iceberg(key).call("POST", path(choices), body)
        if rivals.note("commit", answer):
            document = answer.json()["metadata"]
            assert document["table-uuid"] == uuid
            assert document["properties"][name] == "x"
            written.add(name)

    def read(choices: random.Random) -> None:
        before = set(written)
        answer = Iceberg(key).call("GET", path(choices))
        if rivals.note("load", answer):
            document = answer.json()["metadata"]
            assert document["table-uuid"] == uuid
            assert before <= document["properties"].keys()

    def look(choices: random.Random) -> None:
        answer = Iceberg(key).call("GET", "namespaces/ws/tables")
        assert rivals.note("list", answer)
        assert len(answer.json()["identifiers"]) <= 1

    rivals.run(rename, drop, write, read, look)
    row = settle(management)
    assert row.pk == table.pk
    properties = Iceberg(key).get(f"namespaces/ws/tables/{row.name}")["metadata"]["properties"]
    assert {name for name in properties if name.startswith("key-")} >= written
    _agree(rivals)


def _agree(rivals: Rivals) -> None:
    """Check that the audit trail has exactly the changes that were answered."""
    events = Counter(AuditEvent.objects.values_list("action", flat=True))
    for action, kind in {"table.rename": "rename", "table.drop": "drop"}.items():
        assert events[action] == rivals.done(kind), (action, events, rivals.statuses)


def test_a_lance_table_survives_its_rivals(key):
    table = make_lance_table(("ws", "t"), pa.table({"id": [0]}))
    rivals = Rivals("rename", "drop", "undrop", "insert", "count", "describe")
    management = Management(key)
    inserted: set[int] = set()

    def path(choices: random.Random) -> str:
        return f"/v1/table/ws${choices.choice(NAMES)}"

    def rename(choices: random.Random) -> None:
        time.sleep(choices.random() / 2)  # so that slower requests succeed too
        old, new = choices.sample(NAMES, 2)
        body = {"new_table_name": new}
        rivals.note("rename", Lance(key).call("POST", f"/v1/table/ws${old}/rename", body))

    def drop(choices: random.Random) -> None:
        time.sleep(choices.random())
        rivals.note("drop", Lance(key).call("POST", f"{path(choices)}/drop", {}))
        restore(management, rivals, choices.choice(NAMES))

    def write(choices: random.Random) -> None:
        value = choices.randrange(1 << 40)
        rows = stream(pa.table({"id": [value]}))
        answer = Lance(key).call("POST", f"{path(choices)}/insert", raw=rows)
        if rivals.note("insert", answer):
            inserted.add(value)

    def read(choices: random.Random) -> None:
        before = len(inserted)
        answer = Lance(key).call("POST", f"{path(choices)}/count_rows", {})
        if rivals.note("count", answer):
            assert answer.json() >= before + 1

    def look(choices: random.Random) -> None:
        answer: Any = Lance(key).call("POST", f"{path(choices)}/describe", {})
        if rivals.note("describe", answer):
            assert answer.json()["location"].endswith(table.location.rpartition("/")[2])

    rivals.run(rename, drop, write, read, look)
    row = settle(management)
    assert row.pk == table.pk
    count = Lance(key).post(f"/v1/table/ws${row.name}/count_rows", {})
    assert count == len(inserted) + 1
    _agree(rivals)
