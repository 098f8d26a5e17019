"""Concurrent requests over real connections: exactly one winner, no deadlock, no partial change."""

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connection
from django.http import HttpResponse

from catalog.access import SYSTEM
from catalog.models import Job, Namespace, Table, TableState, TableVersion, Transaction
from catalog.services.access import api_keys
from tests.api.client import Lance
from tests.factories import (
    final_path,
    make_namespace,
    make_root,
    make_table,
    manifest,
    relative,
    stage,
)

pytestmark = pytest.mark.django_db(transaction=True)
ROUNDS = 4


@pytest.fixture
def key(transactional_db) -> str:
    make_root()
    _, key = api_keys.create_api_key(actor=SYSTEM, name="rivals")
    return key


def race(key: str, *calls: Callable[[Lance], HttpResponse]) -> list[tuple[int, int]]:
    """Make the calls concurrently, each over its own connection. Return their statuses and codes."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[Lance], HttpResponse]) -> tuple[int, int]:
        try:
            client = Lance(key)
            client.call("GET", "/v1/table")  # connect first
            barrier.wait(timeout=30)
            response = call(client)
            content = response.json() if response.content else {}
            return response.status_code, content.get("code", -1)
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def post(path: str, body: dict | None = None) -> Callable[[Lance], HttpResponse]:
    return lambda client: client.call("POST", path, body)


WON = (200, -1)


def test_creators_of_one_version(key):
    table = make_table("ws", "t")
    for version in range(1, ROUNDS + 1):
        rivals = [stage(table, version, content=f"rival {n}".encode()) for n in range(6)]
        outcome = race(
            key,
            *(
                post(
                    "/v1/table/ws$t/version/create",
                    {"version": version, "manifest_path": relative(path)},
                )
                for path in rivals
            ),
        )
        assert Counter(outcome) == {WON: 1, (409, 14): 5}
        winner = rivals[outcome.index(WON)]
        final = final_path(table, version)
        text = f"rival {rivals.index(winner)}".encode()
        assert final.read_bytes() == manifest(version, text=text)
        row = TableVersion.objects.get(version=version)
        assert row.manifest_path == relative(final)
        assert [path.exists() for path in rivals] == [path != winner for path in rivals]


def test_a_refusal_sees_the_winner(key):
    """Clients give up when the winner's row cannot be read after a 409."""
    make_table("ws", "t")

    def create_and_look(client: Lance) -> HttpResponse:
        body = {"version": 1, "manifest_path": "x/1"}
        response = client.call("POST", "/v1/table/ws$t/version/create", body)
        if response.status_code == 409:
            description = client.call("POST", "/v1/table/ws$t/version/describe", {"version": 1})
            assert description.status_code == 200
        return response

    assert Counter(race(key, *[create_and_look] * 6)) == {WON: 1, (409, 14): 5}


def test_declarers_of_one_name(key):
    make_namespace("ws")
    for number in range(ROUNDS):
        outcome = race(key, *[post(f"/v1/table/ws$t{number}/declare", {})] * 5)
        assert Counter(outcome) == {WON: 1, (409, 5): 4}
    assert Table.objects.count() == ROUNDS


def test_creators_of_one_namespace(key):
    for number in range(ROUNDS):
        outcome = race(key, *[post(f"/v1/namespace/n{number}/create", {})] * 5)
        assert Counter(outcome) == {WON: 1, (409, 2): 4}
        outcome = race(key, *[post(f"/v1/namespace/m{number}/create", {"mode": "ExistOk"})] * 5)
        assert Counter(outcome) == {WON: 5}
    assert Namespace.objects.count() == 2 * ROUNDS + 1


def test_overwriters_of_one_namespace(key):
    make_table("ws", "t")
    outcome = race(key, *[post("/v1/namespace/ws/create", {"mode": "Overwrite"})] * 4)
    assert Counter(outcome) == {WON: 4}
    assert Namespace.objects.live().filter(name="ws").count() == 1
    assert Job.objects.count() == 1


@pytest.mark.parametrize("behavior", ["Restrict", "Cascade"])
def test_declare_and_drop_namespace(key, behavior):
    for number in range(ROUNDS):
        make_namespace(f"ws{number}")
        declared, dropped = race(
            key,
            post(f"/v1/table/ws{number}$t/declare", {}),
            post(f"/v1/namespace/ws{number}/drop", {"behavior": behavior}),
        )
        live = Namespace.objects.live().filter(name=f"ws{number}").exists()
        present = Table.objects.present().filter(namespace__name=f"ws{number}").exists()
        if behavior == "Cascade":
            assert dropped == WON
            assert declared in {WON, (404, 1)}
            assert (live, present) == (False, False)
        else:
            assert (declared, dropped) in {(WON, (409, 3)), ((404, 1), WON)}
            assert live == present == (declared == WON)


def test_create_namespace_and_drop_its_parent(key):
    for number in range(ROUNDS):
        make_namespace(f"p{number}")
        created, dropped = race(
            key,
            post(f"/v1/namespace/p{number}$c/create", {}),
            post(f"/v1/namespace/p{number}/drop", {"behavior": "Cascade"}),
        )
        assert dropped == WON
        assert created in {WON, (404, 1)}
    assert Namespace.objects.live().count() == 1


def test_concurrent_registrations_of_overlapping_locations(key):
    for number in range(ROUNDS):
        locations = [f"r{number}/a", f"r{number}/a/b", f"r{number}", f"r{number}/a"]
        outcome = race(
            key,
            *(
                post(f"/v1/table/t{number}_{n}/register", {"location": location})
                for n, location in enumerate(locations)
            ),
        )
        assert Counter(outcome) == {WON: 1, (409, 14): 3}


@pytest.mark.parametrize("way", ["drop", "deregister"])
def test_rename_and_drop(key, way):
    for number in range(ROUNDS):
        make_table("ws", f"t{number}")
        renamed, dropped = race(
            key,
            post(f"/v1/table/ws$t{number}/rename", {"new_table_name": f"u{number}"}),
            post(f"/v1/table/ws$t{number}/{way}"),
        )
        assert Counter([renamed, dropped]) == {WON: 1, (404, 4): 1}
        row = Table.objects.get(name__in=[f"t{number}", f"u{number}"])
        assert (row.name, row.state) == (
            (f"u{number}", TableState.DECLARED)
            if renamed == WON
            else (f"t{number}", TableState.DROPPED)
        )


def test_renames_to_one_name(key):
    for name in ("a", "b", "c"):
        make_table("ws", name)
    outcome = race(
        key,
        *(post(f"/v1/table/ws${name}/rename", {"new_table_name": "x"}) for name in ("a", "b", "c")),
    )
    assert Counter(outcome) == {WON: 1, (409, 5): 2}


def test_tables_that_swap_places(key):
    for number in range(ROUNDS):
        make_table("p", f"t{number}")
        make_table("q", f"u{number}")
        outcome = race(
            key,
            post(
                f"/v1/table/p$t{number}/rename",
                {"new_table_name": f"x{number}", "new_namespace_id": ["q"]},
            ),
            post(
                f"/v1/table/q$u{number}/rename",
                {"new_table_name": f"y{number}", "new_namespace_id": ["p"]},
            ),
        )
        assert outcome == [WON, WON]


def test_create_version_and_drop(key):
    for number in range(ROUNDS):
        table = make_table("ws", f"t{number}")
        created, dropped = race(
            key,
            post(
                f"/v1/table/ws$t{number}/version/create",
                {"version": 1, "manifest_path": relative(stage(table, 1))},
            ),
            post(f"/v1/table/ws$t{number}/drop"),
        )
        assert dropped == WON
        assert created in {WON, (404, 4)}
        assert table.versions.count() == (created == WON)


def test_first_versions_on_a_new_branch(key):
    make_table("ws", "t")
    outcome = race(
        key,
        *(
            post(
                "/v1/table/ws$t/version/create",
                {"version": n, "manifest_path": f"x/{n}", "branch": "dev"},
            )
            for n in range(5)
        ),
    )
    assert Counter(outcome) == {WON: 5}


def test_mixed_batches_in_any_order(key):
    """A small storm: no deadlock surfaces, one winner for each version, no partial batch."""
    for number in range(4):
        make_table("ws", f"t{number}")
    dice = random.Random(7)

    def writer(client: Lance) -> HttpResponse:
        response = None
        for turn in range(6):
            tables = dice.sample(range(4), 3)
            entries = [
                {"id": ["ws", f"t{n}"], "version": turn, "manifest_path": f"x/{turn}"}
                for n in tables
            ]
            response = client.call("POST", "/v1/table/version/batch-create", {"entries": entries})
            assert response.status_code in {200, 409}, response.content
        return response

    race(key, *[writer] * 6)
    for batch in Transaction.objects.filter(operations__0__operation="CreateTableVersion"):
        assert batch.versions.count() == len(batch.operations) == 3
    assert TableVersion.objects.count() % 3 == 0
    assert TableVersion.objects.count() >= 18
