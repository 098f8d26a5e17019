"""Long work runs in a live worker, which forks the processes that call Lance."""

import json
import time
from collections.abc import Iterator
from typing import Any

import lance
import pyarrow as pa
import pytest
import urllib3

from tests.api.client import encoded_schema, stream
from tests.live import LiveServer

ROWS = 3000


@pytest.fixture(scope="module")
def table(live: LiveServer) -> Iterator[str]:
    """A table with three fragments, in its own namespace."""
    live.post("/v1/namespace/jobs/create")
    for start in range(0, ROWS, 1000):
        data = pa.table({"id": pa.array(range(start, start + 1000), pa.int64())})
        path = "create" if start == 0 else "insert"
        answer = urllib3.request(
            "POST",
            f"{live.url}/v1/table/jobs$t/{path}",
            body=stream(data),
            headers={
                "x-api-key": live.key,
                "content-type": "application/vnd.apache.arrow.stream",
            },
        )
        assert answer.status == 200, answer.data
    yield "jobs$t"
    live.post("/v1/namespace/jobs/drop", {"behavior": "Cascade"})


def send(live: LiveServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    status, answer = live.post(path, body)
    assert status in {200, 201, 202}, answer
    return answer


def followed(live: LiveServer, job: str) -> dict[str, str]:
    """DescribeTransaction's answer for a finished job."""
    deadline = time.monotonic() + 120
    while True:
        _, facts = live.post(f"/v1/transaction/{job}/describe")
        if facts["status"] not in {"Queued", "Running"}:
            break
        assert time.monotonic() < deadline, f"{facts}\n{live.log}"
        time.sleep(0.1)
    assert facts["status"] == "Succeeded", f"{facts}\n{live.log}"
    return facts["properties"]


def read(live: LiveServer, name: str) -> pa.Table:
    return lance.dataset(namespace_client=live.client(), table_id=["jobs", name]).to_table()


def test_a_column_is_backfilled_and_a_view_refreshed(live: LiveServer, table: str) -> None:
    column = {"new_columns": [{"name": "twice", "computed": "id * 2"}]}
    send(live, f"/v1/table/{table}/add_columns", column)
    job = send(live, f"/v1/table/{table}/backfill_column", {"column": "twice"})["job_id"]
    status = followed(live, job)
    assert (status["monodon.job_progress"], status["monodon.job_total"]) == (str(ROWS), str(ROWS))
    rows = read(live, "t")
    assert sorted(rows["twice"].to_pylist()) == [2 * number for number in range(ROWS)]

    view = {
        "kind": "query",
        "source_query": json.dumps({"source": ["jobs", "t"], "filter": "twice >= 5000"}),
        "output_schema": encoded_schema(rows.schema),
        "with_no_data": False,
    }
    job = send(live, "/v1/materialized_view/jobs$v/create", view)["job_id"]
    assert json.loads(followed(live, job)["monodon.job_result"])["mode"] == "rebuild"
    assert read(live, "v").num_rows == 500
    send(live, f"/v1/table/{table}/delete", {"predicate": "id = 2999"})
    job = send(live, "/v1/materialized_view/jobs$v/refresh", {})["job_id"]
    followed(live, job)
    assert read(live, "v").num_rows == 499
    assert "fork-safe" not in live.log


def test_a_purge_does_not_wait_for_other_tables(live: LiveServer, table: str) -> None:
    send(live, "/v1/table/jobs$gone/declare", {})
    followed(live, send(live, "/v1/table/jobs$gone/drop", {})["transaction_id"])
