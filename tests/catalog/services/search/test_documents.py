"""The pass that updates the search documents: the events it follows, and recovery from failures."""

import shutil
import threading
import time

import pyarrow as pa
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.models import Namespace, SearchCursor, SearchDocument, Table, TableVersion
from catalog.services.engine import locks
from catalog.services.engine.commit import commit
from catalog.services.governance import annotations
from catalog.services.governance.annotations import Changes
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg.changes import TableChange
from catalog.services.lance import schemas as lance_schemas
from catalog.services.lance.ledger import registration_operations
from catalog.services.search import documents as search_documents
from catalog.services.search import search
from catalog.services.tables import namespace_operations, table_operations
from tasks.maintenance import update_search_documents
from tests.factories import (
    make_iceberg_table,
    make_lance_table,
    make_namespace,
    make_root,
    make_table,
    wait_for_readers,
)


@pytest.fixture(autouse=True)
def _patient(request):
    """Let each pass wait for transactions of parallel tests, which would delay it."""
    if request.node.name == "test_a_transaction_that_commits_late_is_not_missed":
        yield  # this test has its own transactions
        return

    def patiently(real):
        def wait_first(**options):
            wait_for_readers()
            return real(**options)

        return wait_first

    with pytest.MonkeyPatch.context() as patched:
        for name in ("update", "follow"):
            patched.setattr(search_documents, name, patiently(getattr(search_documents, name)))
        yield


@pytest.fixture(autouse=True)
def _catalog(transactional_db, tmp_path, settings):
    settings.MONODON_WAREHOUSE = str(tmp_path)
    make_root()
    make_namespace("ws")
    make_table("ws", "first")
    # The first pass reads all objects; later ones follow the events.
    assert search_documents.update() >= 2
    while search_documents.update():  # parallel tests may delay some events
        pass


def find(text: str) -> list[str]:
    page = search.search(actor=SYSTEM, text=text)
    assert not page.is_corrected
    return [".".join(result.identifier) for result in page.results]


def document(name: str) -> SearchDocument:
    return SearchDocument.objects.get(table__name=name, table__dropped_at=None)


def test_new_objects_are_searchable_after_a_pass():
    make_table("ws", "deeper", "second")
    assert find("second") == []
    assert search_documents.update() >= 2
    assert find("second") == ["ws.deeper.second"]
    assert find("kind:namespace deeper") == ["ws.deeper"]


def test_a_renamed_table_is_found_by_its_new_name():
    commit([table_operations.RenameTable(table=("ws", "first"), new=("ws", "other"))], actor=SYSTEM)
    search_documents.update()
    assert (find("first"), find("other")) == ([], ["ws.other"])


def test_dropped_objects_are_not_found_before_a_pass():
    commit([table_operations.DropTable(table=("ws", "first"))], actor=SYSTEM)
    assert find("first") == []
    search_documents.update()
    assert SearchDocument.objects.count() == 1
    commit([namespace_operations.DropNamespace(namespace=("ws",))], actor=SYSTEM)
    assert find("kind:namespace") == []
    search_documents.update()
    assert not SearchDocument.objects.exists()


def test_tables_of_a_dropped_namespace_are_not_found():
    commit([namespace_operations.DropNamespace(namespace=("ws",), cascade=True)], actor=SYSTEM)
    search_documents.update()
    assert not SearchDocument.objects.exists()


def test_the_columns_of_a_lance_table_follow_its_schema():
    make_lance_table(("ws", "t"))
    search_documents.update()
    assert document("t").columns == [["id", "int64", ""], ["name", "string", ""]]
    lance_schemas.add_columns(
        actor=SYSTEM,
        table=("ws", "t"),
        columns=[lance_schemas.NewColumn(name="colour", expression="'red'")],
    )
    search_documents.update()
    assert find("column:colour") == ["ws.t"]


def test_the_columns_of_an_iceberg_table_follow_its_schema():
    schema = {
        "type": "struct",
        "schema-id": 0,
        "fields": [
            {"id": 1, "name": "a", "type": "long", "required": True, "doc": "Counts sheep"},
        ],
    }
    make_iceberg_table("ws", "i", schema=schema)
    search_documents.update()
    assert document("i").columns == [["a", "long", "Counts sheep"]]
    assert find("sheep") == ["ws.i"]
    more = {**schema, "schema-id": 1}
    more["fields"] = [*schema["fields"], {"id": 2, "name": "b", "type": "int", "required": False}]
    change = TableChange(
        table=("ws", "i"),
        requirements=[],
        updates=[
            {"action": "add-schema", "schema": more, "last-column-id": 2},
            {"action": "set-current-schema", "schema-id": -1},
        ],
    )
    iceberg_commits.commit_table(actor=SYSTEM, change=change)
    search_documents.update()
    assert [path for path, *_ in document("i").columns] == ["a", "b"]


def test_annotations_are_searchable_without_a_pass():
    annotations.annotate_table(
        actor=SYSTEM, table=("ws", "first"), changes=Changes(description="Sheep")
    )
    assert find("sheep") == ["ws.first"]
    assert search_documents.update() <= 1  # for events that other tests delayed


def test_a_transaction_that_commits_late_is_not_missed():
    """Its events have lower ids than those that the pass has already seen."""
    written, may_commit = threading.Event(), threading.Event()

    def slow() -> None:
        try:
            with transaction.atomic():
                commit([registration_operations.DeclareTable(table=("ws", "late"))], actor=SYSTEM)
                written.set()
                may_commit.wait(timeout=60)
        finally:
            connections.close_all()

    make_namespace("other")
    thread = threading.Thread(target=slow)
    thread.start()
    assert written.wait(timeout=60)
    make_table("other", "early")
    search_documents.update()
    assert find("late") == []
    may_commit.set()
    thread.join(timeout=60)
    wait_for_readers()
    search_documents.update()
    assert find("late") == ["ws.late"]
    assert find("early") == ["other.early"]


def test_a_failed_pass_is_repeated(monkeypatch):
    make_table("ws", "second")
    before = SearchCursor.objects.values().get()

    def broken() -> None:
        raise ZeroDivisionError

    make_namespace("n")
    monkeypatch.setattr(search_documents, "_mark_namespaces", broken)
    with pytest.raises(ZeroDivisionError):
        search_documents.update()
    assert SearchCursor.objects.values().get() == before
    assert not SearchDocument.objects.filter(table__name="second").exists()
    monkeypatch.undo()
    assert search_documents.update() >= 2
    assert find("second") == ["ws.second"]


def test_an_unreadable_table_is_retried_later(caplog):
    row = make_lance_table(("ws", "broken"))
    make_lance_table(("ws", "sound"))
    shutil.move(row.location, f"{row.location}.away")
    search_documents.update()
    assert "The columns of 'ws.broken' cannot be read" in caplog.text
    indexed = document("broken")
    assert indexed.error
    assert indexed.attempts == 1
    assert 20 < (indexed.due_at - timezone.now()).total_seconds() <= 30
    # The table is still found by its name, and the others by their columns.
    assert find("broken") == ["ws.broken"]
    assert find("column:name") == ["ws.sound"]
    assert search_documents.update() <= 1  # for events that other tests delayed
    shutil.move(f"{row.location}.away", row.location)
    SearchDocument.objects.filter(pk=indexed.pk).update(due_at=timezone.now())
    assert search_documents.update() >= 1
    assert set(find("column:name")) == {"ws.broken", "ws.sound"}
    indexed = document("broken")
    assert (indexed.error, indexed.attempts, indexed.due_at) == ("", 0, None)


def test_pauses_grow_and_are_bounded(monkeypatch):
    row = make_lance_table(("ws", "broken"))
    shutil.rmtree(row.location)
    pauses = []
    for _ in range(14):
        SearchDocument.objects.filter(due_at__isnull=False).update(due_at=timezone.now())
        search_documents.update()
        indexed = document("broken")
        pauses.append(round((indexed.due_at - timezone.now()).total_seconds()))
    assert [round(pause / 30) for pause in pauses[:5]] == [1, 2, 4, 8, 16]
    assert 21_500 < pauses[-1] <= 21_600


def test_a_table_that_kills_a_pass_is_retried_later(monkeypatch):
    make_lance_table(("ws", "deadly"))

    def die(row: Table) -> None:
        raise MemoryError

    monkeypatch.setattr(search_documents.table_columns, "read", die)
    with pytest.raises(MemoryError):
        search_documents.update()
    make_table("ws", "third")
    assert search_documents.update() >= 1
    assert find("third") == ["ws.third"]
    assert document("deadly").attempts == 1


def test_a_timed_out_pass_is_continued_by_the_next(monkeypatch):
    for number in range(3):
        make_lance_table(("ws", f"t{number}"))

    def slow(row: Table):
        time.sleep(0.2)
        return real(row)

    real = search_documents.table_columns.read
    monkeypatch.setattr(search_documents.table_columns, "read", slow)
    search_documents.update(seconds=0.3)
    remaining = SearchDocument.objects.filter(due_at__isnull=False, attempts=0).count()
    assert 1 <= remaining <= 2
    search_documents.update()
    assert not SearchDocument.objects.filter(due_at__isnull=False).exists()
    assert len(find("column:name")) == 3


def test_an_unchanged_schema_is_not_read_again(monkeypatch):
    make_lance_table(("ws", "t"))
    search_documents.update()
    annotations.annotate_table(actor=SYSTEM, table=("ws", "t"), changes=Changes(description="x"))
    SearchDocument.objects.update(due_at=timezone.now())

    def read(row: Table) -> None:
        raise AssertionError("it was read already")

    monkeypatch.setattr(search_documents.table_columns, "read", read)
    assert search_documents.update() >= 3


def test_only_one_pass_runs_at_a_time():
    make_table("ws", "second")
    taken, finished = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with locks.advisory_lock("search documents") as is_alone:
                assert is_alone
                taken.set()
                finished.wait(timeout=60)
        finally:
            connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(timeout=60)
    assert search_documents.update() == 0
    assert not SearchDocument.objects.filter(table__name="second").exists()
    finished.set()
    thread.join(timeout=60)
    assert search_documents.update() >= 1


def test_annotations_during_a_pass_are_not_lost(monkeypatch):
    """The pass locks the document while it reads annotations; concurrent changes wait for it."""
    row = document("first")
    SearchDocument.objects.filter(pk=row.pk).update(due_at=timezone.now())
    at_it, threads = threading.Event(), []
    real = search_documents._annotations_of

    def annotate() -> None:
        try:
            at_it.wait(timeout=60)
            annotations.annotate_table(
                actor=SYSTEM, table=("ws", "first"), changes=Changes(description="Sheep")
            )
        finally:
            connections.close_all()

    def read_while_others_write(rows):
        result = real(rows)
        if not at_it.is_set():
            at_it.set()
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and not _is_waiter_present():
                time.sleep(0.01)
        return result

    monkeypatch.setattr(search_documents, "_annotations_of", read_while_others_write)
    threads.append(threading.Thread(target=annotate))
    threads[0].start()
    search_documents.update()
    threads[0].join(timeout=60)
    assert find("sheep") == ["ws.first"]


def _is_waiter_present() -> bool:
    with connection.cursor() as cursor:
        # Within a transaction, the view returns the same rows again.
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND datname = current_database())"
        )
        return cursor.fetchone()[0]


def test_reindex_rebuilds_all_documents():
    make_lance_table(("ws", "t"))
    SearchDocument.objects.all().delete()
    SearchCursor.objects.all().delete()
    heard = []
    assert search_documents.reindex(progress=heard.append) == 3
    assert heard == [3]
    assert find("column:name") == ["ws.t"]
    SearchDocument.objects.update(vector="")
    assert search_documents.reindex() == 3
    assert find("column:name") == ["ws.t"]
    assert search_documents.update() <= 1  # for events that other tests delayed


def test_many_documents_take_few_statements(django_assert_max_num_queries):
    namespace = Namespace.objects.named(("ws",)).get()
    for number in range(30):
        make_table("ws", f"many_{number}")
    assert TableVersion.objects.filter(table__namespace=namespace).count() == 0
    search_documents.follow()
    with django_assert_max_num_queries(30 + 20):
        assert search_documents.make_due(until=time.monotonic() + 60) >= 30


def test_unusual_names_are_found():
    for name in ("Bücher", "naïve_café", "日本語", "it's", "a.b", "100%", "x" * 200):
        make_table("ws", name)
    search_documents.update()
    assert find("bucher") == ["ws.Bücher"]
    assert find("CAFE") == ["ws.naïve_café"]
    assert find("日本") == ["ws.日本語"]
    assert find("it's") == ["ws.it's"]
    assert find("100%") == ["ws.100%"]
    assert find("x" * 90) == ["ws." + "x" * 200]


def test_documents_of_wide_tables_are_truncated():
    schema = pa.schema(
        [(f"column_{number}_with_a_long_name", pa.int32()) for number in range(3000)]
    )
    make_lance_table(("ws", "wide"), schema.empty_table())
    search_documents.update()
    assert len(document("wide").columns) == 2000
    assert find("column:column_1999_with") == ["ws.wide"]


def test_the_command_and_the_task_do_the_same(capsys):
    make_table("ws", "second")
    update_search_documents()
    assert find("second") == ["ws.second"]
    SearchDocument.objects.update(vector="")
    call_command("search_reindex")
    assert "Created 3 documents" in capsys.readouterr().out
    assert find("second") == ["ws.second"]
    entry = settings.CELERY_BEAT_SCHEDULE["update-search-documents"]
    assert entry["task"] == update_search_documents.name
