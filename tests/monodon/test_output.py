"""What commands print: on a terminal, and from streams."""

import io
import json
import re

import httpx
import pytest
from click.testing import CliRunner

from monodon.client import Client
from monodon.commands import following, root, trail
from monodon.commands.app import App, fail


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch) -> Terminal:
    """Replace standard output. Not a fixture, because pytest replaces it before the test begins."""
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("MONODON_PROFILE", raising=False)
    return stream


def test_a_terminal_gets_a_table(monkeypatch):
    stream = terminal(monkeypatch)
    App().table(["name", "labels"], [("a [bold]b[/bold]", ["x", "y"]), ("c", None)])
    App().table(["name"], [], empty="No jobs.")
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert lines == ["name              labels", "a [bold]b[/bold]  x, y", "c", "No jobs."]


def test_a_job_is_followed_with_a_progress_bar(monkeypatch):
    terminal(monkeypatch)

    def job(status: str, progress: int) -> dict[str, object]:
        return {
            "id": 7,
            "kind": "compact",
            "table": ["a", "b"],
            "status": status,
            "progress": progress,
            "total": 4,
            "unit": "files",
            "summary": "4 files merged",
            "message": "",
        }

    answers = iter([job("queued", 0), job("running", 2), job("failed", 3)])
    app = App(transport=httpx.MockTransport(lambda r: httpx.Response(200, json=next(answers))))
    monkeypatch.setattr(following.time, "sleep", lambda seconds: None)
    row = following.follow(app, 7, with_log=False)
    assert row["status"] == "failed"
    assert next(answers, None) is None


def test_an_error_is_one_line(capsys):
    with pytest.raises(SystemExit) as caught:
        fail("first\nsecond   third", 5)
    assert caught.value.code == 5
    assert capsys.readouterr() == ("", "monodon: first second third\n")


# -- events


def message(number: int, kind: str) -> str:
    event = {"type": f"monodon.{kind}", "subject": f"t{number}", "time": "2026-11-22T00:00:00Z"}
    return f"id: 5-{number}\nevent: monodon.{kind}\ndata: {json.dumps(event)}\n\n"


def events(handler, monkeypatch, *arguments: str):
    monkeypatch.setattr(trail.time, "sleep", lambda seconds: None)
    app = App(transport=httpx.MockTransport(handler))
    return CliRunner().invoke(root, ["events", "tail", *arguments], obj=app)


def test_a_stream_continues_after_a_lost_connection(monkeypatch):
    positions = []

    def handler(request: httpx.Request) -> httpx.Response:
        positions.append(request.url.params.get("after"))
        if len(positions) == 2:
            raise httpx.ReadTimeout("lost", request=request)
        if len(positions) == 3:
            return httpx.Response(503, json={"detail": "all streams are in use"})
        start = len(positions)
        text = f"retry: 1000\n\n: comment\n\n{message(start, 'table.create')}id: 6-0\n\n"
        return httpx.Response(200, text=text)

    result = events(handler, monkeypatch, "-n", "2", "--types", "table.*")
    assert result.exit_code == 0, result.output
    assert [re.split(r" {2,}", line)[1:] for line in result.stdout.splitlines()] == [
        ["table.create", "t1"],
        ["table.create", "t4"],
    ]
    assert positions == [None, "6-0", "6-0", "6-0"]


def test_a_stream_that_is_refused_ends(monkeypatch):
    refused = events(
        lambda request: httpx.Response(403, json={"detail": "Not permitted"}), monkeypatch
    )
    assert (refused.exit_code, refused.stderr) == (3, "monodon: Not permitted.\n")

    def lost(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    gone = events(lost, monkeypatch)
    assert gone.exit_code == 6
    assert gone.stderr.startswith("monodon: No server answers at ")


def test_events_as_json(monkeypatch):
    result = events(
        lambda request: httpx.Response(200, text=message(1, "table.drop")),
        monkeypatch,
        *("-n", "1", "--json"),
    )
    assert json.loads(result.stdout)["subject"] == "t1"


def test_messages_of_a_stream():
    lines = iter(["data: {", 'data: "a": 1}', "id: 3-1", "", "id: 3-2", "", ": x", "", "data: {}"])
    assert list(trail._messages(lines)) == [("3-1", {"a": 1}), ("3-2", None)]


def test_the_client_closes_its_connections():
    with Client(transport=httpx.MockTransport(lambda r: httpx.Response(204))) as client:
        client.revoke_key("x")
        assert client._client is not None
    assert client._client is None
