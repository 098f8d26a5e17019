"""What a web process has counted, but not written, when it stops: refusals, and reads of tables."""

import pytest

from tests.live import LiveServer, live_template

__all__ = ["live_template"]


@pytest.mark.usefixtures("live_template")
def test_a_web_process_that_stops_writes_what_it_has_counted() -> None:
    with LiveServer(workers=1) as server:
        statuses = [server.post("/v1/namespace/ns/create")[0] for _ in range(4)]
        assert statuses == [200, 409, 409, 409]
        assert server.post("/v1/table/ns$t/declare")[0] == 200
        assert server.post("/v1/table/ns$t/describe")[0] == 200
        server.stop()
        with server.database() as connection:
            rows = connection.execute(
                "SELECT coalesce((after->>'times')::integer, 1) FROM catalog_auditevent"
                " WHERE outcome = 'refused' ORDER BY id"
            ).fetchall()
            uses = connection.execute("SELECT loads FROM catalog_tableuse").fetchall()
    assert uses == [(1,)]
    assert sum(times for (times,) in rows) == 3
