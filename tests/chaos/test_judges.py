"""The judges of the fault harness detect each planted bug and report no false anomaly."""

import pytest

from tests.chaos.harness import engines, judges
from tests.chaos.harness.fake import BUGS, FakeCatalog
from tests.chaos.harness.history import FAIL, OK, UNKNOWN, Operation

_FOUND_AS = {
    "lost acknowledgement": "lost acknowledgement",
    "double winner": "not linearizable",
    "stale read": "not linearizable",
    "half batch": "half batch",
    "torn batch": "not linearizable",
    "resurrected drop": "not linearizable",
    "false failure": "false failure",
    "event of an uncommitted change": "event without a commit",
    "missing event": "missing event",
    "events out of order": "events out of order",
    "reordered commit": "reordered commit",
    "non-monotonic read": "non-monotonic read",
    "tombstone reuse": "not linearizable",
    "lost update": "not linearizable",
    "done twice": "done twice",
    "version without a trail": "trail",
    "phantom of an unknown outcome": "not linearizable",
    "internal error": "unexpected answer",
}


def _judge(catalog: FakeCatalog) -> set[str]:
    anomalies, _ = judges.judge(catalog.history, catalog.ledger, catalog.events)
    return {anomaly.kind for anomaly in anomalies}


@pytest.mark.parametrize("seed", range(12))
def test_a_correct_history_is_without_anomaly(seed: int) -> None:
    catalog = FakeCatalog(seed)
    anomalies, verdicts = judges.judge(catalog.history, catalog.ledger, catalog.events)
    assert anomalies == []
    assert [verdict.result for verdict in verdicts] == ["linearizable"]
    assert verdicts[0].operations > 350


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    for seed in range(3):
        catalog = FakeCatalog(seed, bug)
        assert _FOUND_AS[bug] in _judge(catalog), f"seed {seed}"


def test_histories_cover_all_kinds_of_operations() -> None:
    """Kinds that never occur are not judged."""
    outcomes_seen = {
        (step["do"], operation.outcome)
        for seed in range(12)
        for operation in FakeCatalog(seed).history
        for step in operation.steps
    }
    kinds = ("create", "add", "delete", "commit", "drop", "undrop", "rename")
    assert outcomes_seen == {(kind, outcome) for kind in kinds for outcome in (OK, FAIL)}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([1, 3], set()),
        ([1, 3, 4], set()),
        ([3], {"lost acknowledgement"}),
        ([1, 2, 3], {"false failure"}),
        ([1, 3, 9], {"false failure"}),
        ([1, 3, 3], {"done twice"}),
    ],
)
def test_rows_of_real_clients_are_judged(rows: list[int], expected: set[str]) -> None:
    """Rows 1 and 3 are acknowledged, 2 is refused, the outcome of 4 is unknown, 9 has no writer."""
    outcomes = {1: OK, 2: FAIL, 3: OK, 4: UNKNOWN}
    appends = [
        Operation(
            f"e{row}",
            1,
            engines.SPACE,
            "append",
            name="lance",
            version=row,
            call=row * 10,
            returned=0 if outcome == UNKNOWN else row * 10 + 5,
            outcome=outcome,
        )
        for row, outcome in outcomes.items()
    ]
    reading = Operation("r", 2, engines.SPACE, "rows", name="lance", call=100, returned=110)
    reading.outcome, reading.output = OK, {"rows": rows}
    assert {anomaly.kind for anomaly in engines.judge([*appends, reading])} == expected
