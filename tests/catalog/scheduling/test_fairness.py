"""The order of namespaces."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from catalog.scheduling.fairness import FairQueue, charge

START = datetime(2027, 1, 31, tzinfo=UTC)


@dataclass(frozen=True)
class Table:
    name: str
    turn: datetime


def tables(name: str, *minutes: int) -> list[Table]:
    return [Table(f"{name}{minute}", START + timedelta(minutes=minute)) for minute in minutes]


def names(queue: FairQueue[Table], charges: float = 0.0) -> list[str]:
    order = []
    for namespace, table in queue:
        order.append(table.name)
        queue.charge(namespace, charges)
    return order


def test_the_namespace_with_the_least_use_comes_first() -> None:
    sources = {"a": tables("a", 1, 2), "b": tables("b", 3, 4)}
    assert names(FairQueue(sources, {"a": 9.0})) == ["b3", "b4", "a1", "a2"]


def test_equal_namespaces_follow_their_turns() -> None:
    sources = {"a": tables("a", 1, 4), "b": tables("b", 2, 3)}
    assert names(FairQueue(sources, {})) == ["a1", "b2", "b3", "a4"]


def test_namespaces_take_turns_when_they_are_charged() -> None:
    sources = {"many": tables("m", 1, 2, 3, 4), "few": tables("f", 8, 9)}
    assert names(FairQueue(sources, {}), 1.0) == ["m1", "f8", "m2", "f9", "m3", "m4"]


def test_a_closed_namespace_is_left_out() -> None:
    queue = FairQueue({"a": tables("a", 1, 2, 3), "b": tables("b", 5)}, {})
    order = []
    for namespace, table in queue:
        order.append(table.name)
        if table.name == "a1":
            queue.close(namespace)
    assert order == ["a1", "b5"]


def test_an_empty_namespace_is_no_obstacle() -> None:
    assert names(FairQueue({"a": [], "b": tables("b", 1)}, {})) == ["b1"]


def test_a_priority_makes_time_cheaper() -> None:
    assert charge(60.0, 1) == 60
    assert charge(60.0, 4) == 15
    assert charge(0.01, 1) == 1
