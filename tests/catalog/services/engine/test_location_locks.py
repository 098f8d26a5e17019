"""The lock of locations, which commits that remove metadata files share, over real connections."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from catalog.access import SYSTEM
from catalog.models import IcebergPath
from catalog.services.engine import commit as engine_commit
from catalog.services.engine import locks
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.storage import locations
from tests.factories import make_iceberg_table, make_root

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("warehouse")]
KEEP = {
    "write.metadata.previous-versions-max": "1",
    "write.metadata.delete-after-commit.enabled": "true",
}


def in_threads(*calls: Callable[[], Any]) -> list[threading.Thread]:
    def run(call: Callable[[], Any]) -> None:
        try:
            call()
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def path(name: str) -> str:
    return f"file://{locations.allowed_roots()[0]}/{name}"


def change(name: str, properties: dict[str, str]) -> TableChange:
    update = {"action": "set-properties", "updates": properties}
    return TableChange(table=("ns", name), requirements=[], updates=[update])


def test_transactions_that_remove_metadata_files_and_take_directories_do_not_wait_for_each_other(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
):
    """In this order, both would share the lock and then wait until the other one has released it."""
    make_root()
    for name in "ab":
        make_iceberg_table("ns", name, properties=KEEP | {"write.data.path": path(name)})
        for number in "12":
            iceberg_commits.commit_table(actor=SYSTEM, change=change(name, {"number": number}))
        make_iceberg_table("ns", f"{name}-2")
    barrier, share, attempts = threading.Barrier(2), locks.share_locations, []
    apply = engine_commit._apply

    def share_together() -> None:
        share()
        barrier.wait(20)

    def count(*arguments: Any) -> None:
        attempts.append(threading.current_thread())
        apply(*arguments)

    def commit(name: str) -> None:
        removal = change(name, {"number": "3"})
        removal_and_claim = [removal, change(f"{name}-2", {"write.data.path": path(f"{name}-2")})]
        iceberg_commits.commit_tables(actor=SYSTEM, changes=removal_and_claim)

    monkeypatch.setattr(locks, "share_locations", share_together)
    monkeypatch.setattr(engine_commit, "_apply", count)
    threads = in_threads(lambda: commit("a"), lambda: commit("b"))
    for thread in threads:
        thread.join(60)
    assert sorted(map(id, attempts)) == sorted(map(id, threads))
    for name in "ab":
        loaded = iceberg_tables.load_table(actor=SYSTEM, table=("ns", name))
        assert loaded.document["properties"]["number"] == "3"
        assert IcebergPath.objects.filter(table__name=f"{name}-2").exists()


def test_a_stream_of_commits_that_share_the_lock_does_not_keep_others_from_it(
    transactional_db: None,
):
    ends, held, shared = threading.Event(), threading.Event(), []

    def share() -> None:
        while not ends.is_set():
            with transaction.atomic():
                locks.share_locations()
                shared.append(time.monotonic())
                held.set()
                time.sleep(0.3)

    threads = in_threads(*[share] * 4)
    try:
        assert held.wait(20)
        for _ in range(3):
            began = time.monotonic()
            with transaction.atomic():
                locks.lock_locations()
                acquired = time.monotonic()
                assert acquired - began < 10
                time.sleep(0.1)
                assert not [moment for moment in shared if moment > acquired]
            time.sleep(0.2)
    finally:
        ends.set()
        for thread in threads:
            thread.join(20)
    assert len(shared) > 8


def test_a_lock_and_then_a_share_of_locations_in_one_transaction(transactional_db: None):
    with transaction.atomic():
        locks.lock_locations()
        locks.share_locations()
