import pyarrow as pa
import pytest

from catalog.models import AuditEvent, Table
from catalog.services.lance import ledger_namespace
from tests.api.client import stream
from tests.cases import shared_cases
from tests.factories import make_lance_table, make_table, open_lance

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.operation("MergeInsertIntoTable"),
    pytest.mark.usefixtures("everywhere"),
]
PATH = "/v1/table/ws$t/merge_insert"
ROWS = pa.table({"id": pa.array([2, 9], pa.int64()), "name": ["new b", "new"]})
BOTH = "when_matched_update_all=true&when_not_matched_insert_all=true"


@pytest.fixture(autouse=True)
def _table(db):
    make_lance_table(("ws", "t"))


def rows() -> dict[int, str]:
    table = open_lance(Table.objects.get(name="t").location).to_table().to_pylist()
    return dict(sorted((row["id"], row["name"]) for row in table))


def counts(answer: dict) -> tuple[int, int, int]:
    return (
        answer["num_inserted_rows"],
        answer["num_updated_rows"],
        answer["num_deleted_rows"],
    )


def test_update_and_insert(lance):
    merged = lance.post(f"{PATH}?on=id&{BOTH}", raw=stream(ROWS))
    assert (merged["version"], *counts(merged)) == (2, 1, 1, 0)
    assert rows() == {1: "a", 2: "new b", 3: "c", 9: "new"}
    event = AuditEvent.objects.get(action="table.merge_insert")
    assert str(event.transaction_id) == merged["transaction_id"]
    assert event.after["on"] == ["id"]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_data_over_the_limit_is_refused(lance, settings, compression):
    """It is measured in memory, since Lance does not merge batch by batch."""
    settings.MONODON_MAX_MERGE_BYTES = 10_000
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    many = pa.table({"id": pa.array([7] * 2000, pa.int64()), "name": ["x"] * 2000})
    with pa.ipc.new_stream(sink, many.schema, options=options) as writer:
        writer.write_table(many, max_chunksize=100)
    response = lance.refused(
        413,
        13,
        "more than 10000 bytes",
        f"{PATH}?on=id&{BOTH}",
        raw=sink.getvalue().to_pybytes(),
    )
    assert "MONODON_MAX_MERGE_BYTES" in response.json()["detail"]
    assert rows() == {1: "a", 2: "b", 3: "c"}
    assert lance.post("/v1/table/ws$t/insert", raw=stream(many))["version"] == 2


@pytest.mark.parametrize(
    ("clauses", "counted", "expected"),
    [
        ("when_matched_update_all=true", (0, 1, 0), {1: "a", 2: "new b", 3: "c"}),
        ("when_not_matched_insert_all=true", (1, 0, 0), {1: "a", 2: "b", 3: "c", 9: "new"}),
        ("when_not_matched_by_source_delete=true", (0, 0, 2), {2: "b"}),
        (
            "when_not_matched_by_source_delete_filt=id%20%3E%202",
            (0, 0, 1),
            {1: "a", 2: "b"},
        ),
        (
            "when_matched_update_all_filt=target.name='x'&when_not_matched_insert_all=true",
            (1, 0, 0),
            {1: "a", 2: "b", 3: "c", 9: "new"},
        ),
        (
            "when_matched_update_all_filt=target.name%20%3D%20%27b%27",
            (0, 1, 0),
            {1: "a", 2: "new b", 3: "c"},
        ),
        (
            f"{BOTH}&when_not_matched_by_source_delete=true&use_index=false&timeout=30s",
            (1, 1, 2),
            {2: "new b", 9: "new"},
        ),
        (
            f"{BOTH}&when_not_matched_by_source_delete=false&use_index=true&timeout=1.5m",
            (1, 1, 0),
            {1: "a", 2: "new b", 3: "c", 9: "new"},
        ),
        (
            f"{BOTH}&timeout=99999999999999999999h",
            (1, 1, 0),
            {1: "a", 2: "new b", 3: "c", 9: "new"},
        ),
    ],
)
def test_the_clauses(lance, clauses, counted, expected):
    merged = lance.post(f"{PATH}?on=id&{clauses}", raw=stream(ROWS))
    assert counts(merged) == counted
    assert rows() == expected


def test_a_key_of_two_columns(lance):
    data = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "other"]})
    merged = lance.post(f"{PATH}?on=id&on=name&{BOTH}", raw=stream(data))
    assert counts(merged) == (1, 1, 0)


def test_all_rows_are_inserted_into_a_declared_table(lance):
    make_table("ws", "d")
    merged = lance.post(f"/v1/table/ws$d/merge_insert?on=id&{BOTH}", raw=stream(ROWS))
    assert (merged["version"], *counts(merged)) == (1, 2, 0, 0)
    row = Table.objects.get(name="d")
    assert open_lance(row.location).to_table() == ROWS


def test_a_branch(lance):
    lance.post("/v1/table/ws$t/branches/create", {"name": "dev"})
    merged = lance.post(f"{PATH}?on=id&{BOTH}&branch=dev", raw=stream(ROWS))
    assert counts(merged) == (1, 1, 0)
    assert rows() == {1: "a", 2: "b", 3: "c"}


@shared_cases(
    ("query", "status", "code", "text"),
    [
        (BOTH, 400, 13, "needs the columns to match on"),
        ("on=id", 400, 13, "not configured to change"),
        (f"on=no&{BOTH}", 404, 12, "no"),
        (f"on=id&on=no&{BOTH}", 404, 12, "no"),
        ("on=id&when_matched_update_all=perhaps", 400, 13, "'when_matched_update_all'"),
        ("on=id&when_matched_update_all_filt=target.zz%20%3E%201", 404, 12, "zz"),
        ("on=id&when_matched_update_all_filt=((", 400, 13, "("),
        ("on=id&when_not_matched_by_source_delete_filt=zz%20%3E%201", 404, 12, "zz"),
        ("on=id&when_not_matched_by_source_delete_filt=id%20%3E", 400, 13, "sql parser error"),
        (f"on=id&{BOTH}&timeout=soon", 400, 13, "use a duration"),
        (f"on=id&{BOTH}&timeout=-1s", 400, 13, "use a duration"),
        (f"on=id&{BOTH}&use_index=2", 400, 13, "'use_index'"),
        (f"on=id&{BOTH}&branch=nope", 404, 22, "nope"),
    ],
)
def test_bad_parameters(lance, query, status, code, text):
    lance.refused(status, code, text, f"{PATH}?{query}", raw=stream(ROWS))


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [
        (pa.table({"id": ["x"], "name": ["y"]}), 20, "`id` should have type int64"),
        (pa.concat_tables([ROWS, ROWS]), 13, "Ambiguous merge inserts"),
    ],
    ids=["schema", "ambiguous"],
)
def test_bad_data(lance, data, code, text):
    lance.refused(400, code, text, f"{PATH}?on=id&{BOTH}", raw=stream(data))


def test_nothing_is_committed_after_the_timeout(lance):
    lance.refused(
        503, 17, "longer than its timeout", f"{PATH}?on=id&{BOTH}&timeout=0ms", raw=stream(ROWS)
    )


def test_a_concurrent_merge_is_rebased(lance, monkeypatch):
    real = ledger_namespace.commit
    rival = pa.table({"id": pa.array([3, 10], pa.int64()), "name": ["rival c", "rival"]})

    def after_a_rival(operations, *, actor):
        monkeypatch.setattr(ledger_namespace, "commit", real)
        lance.post(f"{PATH}?on=id&{BOTH}", raw=stream(rival))
        return real(operations, actor=actor)

    monkeypatch.setattr(ledger_namespace, "commit", after_a_rival)
    merged = lance.post(f"{PATH}?on=id&{BOTH}", raw=stream(ROWS))
    assert merged["version"] == 3
    assert rows() == {1: "a", 2: "new b", 3: "rival c", 9: "new", 10: "rival"}
