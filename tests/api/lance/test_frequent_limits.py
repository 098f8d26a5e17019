"""No frequent read of the Lance protocol keeps the event loop or its connection busy for long.

Whoever may write chooses the sizes of properties, versions and names. All principals share the event loop.
"""

import builtins
import errno
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import orjson
import pytest
from django.db import connection
from django.utils import timezone

from api.lance.frequent import LanceReads
from catalog.models import Namespace, Table, TableFormat, TableVersion
from catalog.postgresql.pipeline import SETTINGS
from catalog.services.lance.ledger import few_versions, manifests
from catalog.storage import stores
from tests.api.event_loop import Asker, add_tables
from tests.api.lance.reads import READS, agree, ask_for, make_live_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


@pytest.fixture
def asker(make_asker: Any) -> Asker:
    return make_asker(LanceReads())


@pytest.fixture
def table() -> Table:
    return make_live_table("ns", "t")


def takes_the_ordinary_way(asker: Asker, request: dict[str, Any], body: bytes = b"") -> None:
    """Require that Django answers, and the event loop does not, and that it reads only a small row before."""
    assert asker.ordinary(request, body).status == 200
    assert asker.in_loop(request, body) is None
    read = asker.reads.find(request, body)
    assert read is not None
    row = asker.pipeline.execute(read.statement, read.parameters).result()
    assert len(str(row)) < 2_000


def add_versions(table: Table, numbers: range, **columns: Any) -> None:
    TableVersion.objects.bulk_create(
        TableVersion(table=table, version=number, manifest_path=f"x/{number}", **columns)
        for number in numbers
    )


# One is stored as it is, the other one compressed to a few hundred bytes.
LARGE = {
    "many": {f"{number:x}": f"{number**9:x}" for number in range(1, 500)},
    "repetitive": {"a": "b" * 50_000},
}


@pytest.mark.parametrize("properties", LARGE)
def test_large_properties_take_the_ordinary_way(asker, admin, table, properties):
    agree(asker, ask_for(admin, "describe"))
    agree(asker, ask_for(admin, "namespace"))
    Table.objects.filter(pk=table.pk).update(properties=LARGE[properties])
    Namespace.objects.filter(name="ns").update(properties=LARGE[properties])
    for read in ("describe", "namespace"):
        takes_the_ordinary_way(asker, ask_for(admin, read))
    agree(asker, ask_for(admin, "exists"))
    agree(asker, ask_for(admin, "versions"))


@pytest.mark.parametrize("column", ["metadata", "manifest_path", "e_tag"])
@pytest.mark.parametrize("size", [2_000, 100_000])
def test_large_versions_take_the_ordinary_way(asker, admin, table, column, size):
    text = "".join(f"{number**9:x}" for number in range(size // 10))[:size]
    change = {column: {"a": text} if column == "metadata" else text}
    TableVersion.objects.filter(table=table, version=2).update(**change)
    takes_the_ordinary_way(asker, ask_for(admin, "versions"))
    agree(asker, ask_for(admin, "versions"), b'{"limit": 1, "descending": true, "page_token": "2"}')


@pytest.mark.parametrize(
    ("columns", "size"),
    [
        ({"metadata": {f"{number:02}": "" for number in range(80)}}, 5),
        ({"e_tag": "e" * 900}, 50),
    ],
    ids=["metadata", "text"],
)
def test_many_small_columns_take_the_ordinary_way(asker, admin, table, columns, size):
    """PostgreSQL renders a page only if all of its columns together have few bytes."""
    add_versions(table, range(4, 84), **columns)
    takes_the_ordinary_way(asker, ask_for(admin, "versions"))
    for descending in (b"true", b"false"):
        agree(
            asker,
            ask_for(admin, "versions"),
            b'{"limit": %d, "descending": %b}' % (size, descending),
        )
    takes_the_ordinary_way(asker, ask_for(admin, "versions"), b'{"limit": 80, "descending": true}')


TEXTS = ["", "a", '"\\/', "\x01\x1f\x7f\b\f\n\r\t", "\u20ac\u2028\U0001f600", "<&>%s{}'"]


def test_versions_are_rendered_as_by_django(asker, admin, table):
    """Byte for byte, whatever their texts, numbers and times are."""
    moments = random.Random(7)
    for number, text in enumerate(TEXTS, 10):
        TableVersion.objects.bulk_create(
            TableVersion(
                table=table,
                version=10 * number + member,
                manifest_path=f"x/{text}",
                manifest_size=(None, 0, 2**63 - 1)[member % 3],
                e_tag=(None, text)[member % 2],
                metadata=(None, {}, {text: text}, {"b": text, "a": "1"})[member % 4],
                created_at=timezone.now() - timedelta(microseconds=moments.randrange(2**55)),
            )
            for member in range(10)
        )
    agree(asker, ask_for(admin, "versions"))
    for body in (b'{"limit": 7}', b'{"limit": 63, "descending": true}', b'{"page_token": "155"}'):
        agree(asker, ask_for(admin, "versions"), body)


def test_many_versions_take_the_ordinary_way(asker, admin, table):
    most = few_versions.MOST
    add_versions(table, range(4, most + 1))
    request = ask_for(admin, "versions")
    assert len(orjson.loads(agree(asker, request).content)["versions"]) == most
    add_versions(table, range(most + 1, most + 2))
    assert asker.ordinary(request).status == 200
    assert asker.in_loop(request) is None
    for size in (1, most - 1, most):
        for descending in (b"true", b"false"):
            agree(asker, request, b'{"limit": %d, "descending": %b}' % (size, descending))


def test_deleted_versions_are_few_too(asker, admin, table):
    """A statement that skips a hundred thousand of them takes as long as a hundred others."""
    add_versions(table, range(4, 6), deleted_at=timezone.now())
    add_versions(table, range(6, 8))
    request = ask_for(admin, "versions")
    agree(asker, request)
    for body in (b'{"limit": 2}', b'{"limit": 1, "descending": true}', b'{"page_token": "3"}'):
        agree(asker, request, body)
    for body in (b'{"limit": 2, "page_token": "3"}', b'{"limit": 1, "page_token": "4"}'):
        takes_the_ordinary_way(asker, request, body)
    add_versions(table, range(8, 8 + few_versions.MOST), deleted_at=timezone.now())
    add_versions(table, range(8 + few_versions.MOST, 10 + few_versions.MOST))
    for body in (b"", b'{"page_token": "7"}', b'{"descending": true}'):
        assert asker.ordinary(request, body).status == 200
        assert asker.in_loop(request, body) is None
    agree(asker, request, b'{"limit": 2}')
    agree(asker, request, b'{"limit": 1, "descending": true}')


@pytest.mark.parametrize(("number", "size"), [(1_001, 5), (201, 250)])
def test_long_lists_of_tables_take_the_ordinary_way(asker, admin, table, number, size):
    """The tables of the other format are read, too."""
    request = ask_for(admin, "list")
    for format_ in TableFormat:
        add_tables(table.namespace, range(number - 2), size, format_)
        agree(asker, request)
        agree(asker, ask_for(admin, "list", QUERY_STRING="limit=1"))
        add_tables(table.namespace, range(number - 2, number), size, format_)
        takes_the_ordinary_way(asker, request)
        takes_the_ordinary_way(asker, ask_for(admin, "list", QUERY_STRING="limit=1"))
        Table.objects.exclude(pk=table.pk).delete()


@pytest.mark.parametrize("descending", [False, True])
def test_the_statement_of_versions_reads_a_bounded_number_of_rows(asker, admin, table, descending):
    """Also if PostgreSQL expects fewer versions, because the table has got many since the last ANALYZE."""
    number = 10 * few_versions.MOST
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO catalog_tableversion (table_id, branch, version, manifest_path)"
            " SELECT -t, '', v, 'x/' || v FROM generate_series(1, 90) v, generate_series(1, 100) t"
        )
        cursor.execute("ANALYZE catalog_tableversion")
    add_versions(table, range(4, number), deleted_at=timezone.now())
    request = ask_for(admin, "versions", QUERY_STRING=f"descending={descending}")
    asker.ordinary(request)
    read = asker.reads.find(request, b"")
    assert read is not None
    text = asker.pipeline._statements[read.statement].decode()
    with connection.cursor() as cursor:
        # PostgreSQL's default, and the plan of the first executions.
        settings = {**SETTINGS, "random_page_cost": "4", "plan_cache_mode": "force_custom_plan"}
        for name, value in settings.items():
            cursor.execute(f"SET LOCAL {name} = {value}")
        cursor.execute(f"PREPARE few{descending} AS {text}")
        values = ", ".join(f"'{value.decode()}'" for value in read.parameters)
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE few{descending} ({values})")
        (plan,) = cursor.fetchone()
    plan = orjson.loads(plan) if isinstance(plan, str) else plan
    rows = [
        node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        for node in nodes_of(plan[0]["Plan"])
        if node.get("Relation Name") == "catalog_tableversion"
    ]
    assert rows
    assert max(rows) <= few_versions.MOST + 1


def nodes_of(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in nodes_of(child))]


# -- storage, which may not answer for seconds


@contextmanager
def looks_at_storage() -> Iterator[list[str]]:
    """The looks at files meanwhile, which fail."""
    looks: list[str] = []

    def look(name: str) -> Any:
        def fail(*_: Any, **__: Any) -> Any:
            looks.append(name)
            raise OSError(errno.EIO, name)

        return fail

    with pytest.MonkeyPatch.context() as patch:
        for name in ("stat", "lstat", "open", "scandir", "listdir", "readlink", "rename", "link"):
            patch.setattr(os, name, look(name))
        patch.setattr(builtins, "open", look("open"))
        patch.setattr(stores, "store_of", look("store_of"))
        yield looks


def test_no_read_looks_at_storage(asker, admin, table):
    TableVersion.objects.filter(table=table).update(staged_path="x/staged")
    for moved in (False, True):
        if moved:
            TableVersion.objects.filter(table=table).update(staged_path=None)
        for read in READS:
            asker.ordinary(ask_for(admin, read))
            with looks_at_storage() as looks:
                asker.in_loop(ask_for(admin, read))
            assert not looks, read


def test_a_move_that_was_seen_too_long_ago(asker, admin, table, monkeypatch):
    """The minute for which a process trusts the note may end during a read."""
    TableVersion.objects.filter(table=table).update(staged_path="x/staged")
    request = ask_for(admin, "versions")
    expected = asker.ordinary(request)
    answers = iter([True] * 3)
    monkeypatch.setattr(manifests, "was_seen", lambda _: next(answers, False))
    with looks_at_storage() as looks:
        answer = asker.in_loop(request)
    assert not looks
    assert answer is None or answer.content == expected.content
