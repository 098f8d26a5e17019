"""Unit tests of the fault harness."""

import http.server
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import lance
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import read_manifest_list

from tests.chaos.harness.clock import Clock
from tests.chaos.harness.history import FAIL, OK, UNKNOWN, History, Operation
from tests.chaos.harness.judges import Anomaly
from tests.chaos.harness.manifests import stage_iceberg, stage_lance
from tests.chaos.harness.proxy import Proxy
from tests.chaos.harness.report import Result
from tests.chaos.harness.transport import Connection, NotSent


class _Server(http.server.ThreadingHTTPServer):
    """Answers with the content of the path, and counts requests."""

    served = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self.server.served += 1
        status, _, body = unquote(self.path[1:]).partition("/")
        self.send_response(int(status))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _ask(url: str, path: str) -> Operation:
    operation = Operation("c1-1", 1, "s1", "write", steps=[{"do": "drop"}])
    connection = Connection(url, "key")
    connection.send(operation, "GET", path)
    connection.close()
    return operation


@pytest.mark.parametrize(
    ("path", "outcome", "error"),
    [
        ("/200/{}", OK, ""),
        ('/404/{"code":4,"error":"no"}', FAIL, "missing"),
        ('/409/{"code":14,"error":"no"}', FAIL, "conflict"),
        ('/503/{"code":17,"error":"no"}', FAIL, "unavailable"),
        ('/400/{"code":13,"error":"no"}', FAIL, "unexpected 400"),
        ('/409/{"error":{"type":"CommitFailedException","message":"full;%20nothing%20was%20changed"}}',
         FAIL, "unavailable"),
        ('/400/{"error":{"message":"Invalid%20snapshot%20timestamp%207"}}', FAIL, "clock"),
        ('/409/{"error":{"type":"CommitFailedException"}}', FAIL, "conflict"),
        ('/409/{"error":{"type":"AlreadyExistsException"}}', FAIL, "exists"),
        ('/500/{"error":{"type":"CommitStateUnknownException"}}', UNKNOWN, ""),
        ("/502/", UNKNOWN, ""),
    ],
)  # fmt: skip
def test_answers_are_recorded_with_their_meaning(
    server: _Server, path: str, outcome: str, error: str
) -> None:
    operation = _ask(f"http://127.0.0.1:{server.server_port}", path)
    assert (operation.outcome, operation.output.get("error", "")) == (outcome, error)


def test_a_refused_connection_is_not_an_operation() -> None:
    with pytest.raises(NotSent):
        _ask("http://127.0.0.1:9", "/200/")


def test_the_proxy_switches_to_another_server(server: _Server) -> None:
    with _Server(("127.0.0.1", 0), _Handler) as other, Proxy(server.server_port) as proxy:
        threading.Thread(target=other.serve_forever).start()
        connection = Connection(proxy.url, "key")
        for expected in ([1, 0], [1, 1]):
            operation = Operation("c1-1", 1, "s1", "latest")
            connection.send(operation, "GET", "/200/{}")
            assert operation.outcome == OK
            assert [server.served, other.served] == expected
            proxy.switch(other.server_port)
        connection.close()
        other.shutdown()


def test_the_clock_of_a_process_is_shifted_and_restored(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    assert clock.missing == ""
    ask = "import time\nwhile input(): print(time.time(), time.monotonic(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", ask],
        env=clock.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        for seconds in (0, 600, -600, 0):
            clock.set_off(seconds)
            print("x", file=process.stdin, flush=True)
            wall, monotonic = map(float, process.stdout.readline().split())
            assert wall - time.time() == pytest.approx(seconds, abs=5)
            assert monotonic == pytest.approx(time.monotonic(), abs=5)
        print(file=process.stdin, flush=True)


def test_the_proxy_drops_the_answer_but_not_the_request(server: _Server) -> None:
    with Proxy(server.server_port) as proxy:
        assert _ask(proxy.url, "/200/{}").outcome == OK
        proxy.is_losing = True
        assert _ask(proxy.url, "/200/{}").outcome == UNKNOWN
        proxy.is_losing = False
        assert _ask(proxy.url, "/200/{}").outcome == OK
        assert (server.served, proxy.lost) == (3, 1)


@pytest.mark.parametrize("version", [1, 127, 128, 70_000])
def test_a_staged_lance_manifest_has_its_version(tmp_path: Path, version: int) -> None:
    staged, size = stage_lance(str(tmp_path), version, "c1-1-0")
    file = Path("/", staged)
    assert file.stat().st_size == size
    assert b"\nc1-1-0\n" in file.read_bytes()
    file.rename(file.with_name(file.name.partition("-")[0]))
    dataset = lance.dataset(str(tmp_path))
    assert (dataset.version, dataset.count_rows()) == (version, 0)


def test_a_staged_manifest_list_is_valid(tmp_path: Path) -> None:
    location = stage_iceberg(str(tmp_path), 17, 16, 5)
    assert list(read_manifest_list(PyArrowFileIO().new_input(location))) == []


def test_a_history_round_trips(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    answered = history.begin(Operation("c1-1", 1, "s1", "latest", outcome=OK))
    history.end(answered)
    assert history.read("s1") == [answered]
    lost = history.begin(Operation("c1-2", 1, "s1", "write", steps=[{"do": "drop"}]))
    history.end(lost)
    elsewhere = history.begin(
        Operation("c1-3", 1, "s2", "write", steps=[{"do": "drop"}], outcome=OK)
    )
    history.end(elsewhere)
    assert history.read("s1") == [answered, lost]
    assert history.read("s2") == [elsewhere]
    assert history.read("s3") == []
    assert answered.returned >= answered.call > 0
    assert lost.returned == 0
    assert (history.operations, history.acknowledged) == (3, 1)
    assert history.outcomes == {OK: 2, UNKNOWN: 1}
    history.close()


def test_false_answers_are_counted_separately() -> None:
    anomalies = [Anomaly("false failure", "c1-1"), Anomaly("missing event", "1-1")]
    result = Result(
        seed=7,
        seconds=60.0,
        sent=3,
        operations=2,
        outcomes={OK: 2},
        commits=1,
        events=0,
        spaces=1,
        undecided=0,
        faults={"kill web": 1, "lose answers": 1},
        kills=1,
        outages={"kill web": 0.5},
        left_out=[],
        anomalies=anomalies,
    )
    assert '"false_answers": 1' in result.as_json()
    assert "anomalies: 2, of which false answers: 1" in result.summary()
    assert "1 kills of 2 faults: 1 kill web, 1 lose answers" in result.summary()
