"""What commands print: on a terminal, and from streams."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import httpx
import pytest
from click.testing import CliRunner

from monodon.client import Client
from monodon.commands import following, root, trail
from monodon.commands.app import App, fail
from tests import clocks


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
    clocks.replace(monkeypatch, following, sleep=lambda seconds: None)
    row = following.follow(app, 7)
    assert row["status"] == "failed"
    assert next(answers, None) is None


def test_an_error_is_one_line(capsys):
    with pytest.raises(SystemExit) as caught:
        fail("first\nsecond   third", 5)
    assert caught.value.code == 5
    assert capsys.readouterr() == ("", "monodon: first second third\n")


def test_a_key_does_not_control_the_terminal():
    answer = httpx.Response(200, json={"key": "mnd_a\x1b]0;title\x07b"})
    app = App(transport=httpx.MockTransport(lambda request: answer))
    result = CliRunner().invoke(root, ["keys", "rotate", "ci"], obj=app)
    assert (result.exit_code, result.stdout) == (0, "mnd_a ]0;title b\n")


# -- events


def message(number: int, kind: str) -> str:
    event = {"type": f"monodon.{kind}", "subject": f"t{number}", "time": "2026-11-22T00:00:00Z"}
    return f"id: 5-{number}\nevent: monodon.{kind}\ndata: {json.dumps(event)}\n\n"


def events(handler, monkeypatch, *arguments: str):
    clocks.replace(monkeypatch, trail, sleep=lambda seconds: None)
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

    unreachable = events(lost, monkeypatch)
    assert unreachable.exit_code == 6
    assert unreachable.stderr.startswith("monodon: No server answers at ")


def test_events_as_json(monkeypatch):
    result = events(
        lambda request: httpx.Response(200, text=message(1, "table.drop")),
        monkeypatch,
        *("-n", "1", "--json"),
    )
    assert json.loads(result.stdout)["subject"] == "t1"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version: 1\ntables: []\ntables: []", "duplicate key 'tables'"),
        (b"version: 1\ntables: [{labels: {since: [2026-01-01]}}]", "date is not JSON"),
        (b"version: .nan", "not JSON compliant"),
        (b"version: [", "while parsing"),
        (b"[" * 10_000, "is not a valid YAML file"),
        (b"\xff", "utf-8"),
    ],
)
def test_governance_files_that_cannot_be_sent_are_refused(tmp_path, content, message):
    file = tmp_path / "governance.yaml"
    file.write_bytes(content)
    app = App(transport=httpx.MockTransport(lambda r: pytest.fail("a request was sent")))
    result = CliRunner().invoke(root, ["governance", "apply", str(file), "--yes"], obj=app)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_ctrl_c_ends_a_command_without_a_message(monkeypatch):
    def interrupt(request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    result = events(interrupt, monkeypatch)
    assert (result.exit_code, result.output) == (130, "")


def test_messages_of_a_stream():
    lines = iter(["data: {", 'data: "a": 1}', "id: 3-1", "", "id: 3-2", "", ": x", "", "data: {}"])
    assert list(trail._messages(lines)) == [("3-1", {"a": 1}), ("3-2", None)]


def test_the_client_closes_its_connections():
    with Client(transport=httpx.MockTransport(lambda r: httpx.Response(204))) as client:
        client.revoke_key("x")
        assert client._client is not None
    assert client._client is None


# -- texts of the server


HOSTILE = "a\x1b]0;title\x07\x9b2J\u202eb"
SHOWN = "a ]0;title  2J b"


def job_with(message: str, log: list[str], token: str | None = None) -> dict[str, object]:
    events = [{"at": "2026-11-22", "level": "info", "message": text} for text in log]
    names = {"id": 7, "kind": "compact", "table": ["a"], "status": "succeeded", "total": None}
    return {**names, "summary": message, "message": "", "log": events, "next_page_token": token}


@pytest.mark.parametrize(
    ("answer", "arguments"),
    [
        (job_with("", [HOSTILE]), ["jobs", "logs", "7"]),
        (job_with(HOSTILE, []), ["maintain", "watch", "7"]),
        ({"detail": HOSTILE, "title": "t", "status": 400}, ["keys", "revoke", "x", "--yes"]),
        ({"name": HOSTILE}, ["keys", "revoke", "x", "--yes"]),
        (
            {"changes": [{"target": HOSTILE, "field": "owner", "before": None, "after": HOSTILE}]},
            ["governance", "diff", "-"],
        ),
    ],
    ids=["log", "summary", "error", "message", "governance"],
)
def test_texts_of_the_server_do_not_control_the_terminal(answer, arguments):
    status = 400 if "detail" in answer else 200
    app = App(transport=httpx.MockTransport(lambda r: httpx.Response(status, json=answer)))
    result = CliRunner().invoke(root, arguments, obj=app, input="version: 1")
    assert SHOWN in result.output
    assert result.output.replace("\n", "").isprintable()


def test_json_has_no_character_that_controls_the_terminal():
    app = App(transport=httpx.MockTransport(lambda r: httpx.Response(200, json={"name": HOSTILE})))
    result = CliRunner().invoke(root, ["keys", "revoke", "x", "--yes", "--json"], obj=app)
    assert json.loads(result.stdout) == {"name": HOSTILE}
    assert result.stdout.replace("\n", "").isprintable()


def test_a_command_that_a_message_suggests_is_quoted():
    name = "a'; rm -rf ~; '"
    answers = {"GET": {"kind": "table", "format": "lance"}, "POST": {}}
    app = App(transport=httpx.MockTransport(lambda r: httpx.Response(200, json=answers[r.method])))
    result = CliRunner().invoke(root, ["drop", name, "--yes"], obj=app)
    command = result.stdout.partition("restore it: ")[2]
    assert shlex.split(command) == ["monodon", "undrop", name]


def test_a_log_of_several_pages_is_printed_once(monkeypatch):
    """Only its last page is read again while the job runs."""
    running = {"status": "running"}
    answers = iter(
        [
            {**job_with("", ["1", "2"], "t"), **running},
            {**job_with("", ["3"]), **running},
            {**job_with("", ["3", "4"], "u"), **running},
            job_with("", ["5"]),
        ]
    )
    tokens = []

    def handler(request: httpx.Request) -> httpx.Response:
        tokens.append(request.url.params.get("page_token"))
        return httpx.Response(200, json=next(answers))

    clocks.replace(monkeypatch, following, sleep=lambda seconds: None)
    app = App(transport=httpx.MockTransport(handler))
    result = CliRunner().invoke(root, ["jobs", "logs", "-f", "7"], obj=app)
    assert result.exit_code == 0, result.output
    assert [line.split()[-1] for line in result.stdout.splitlines()] == ["1", "2", "3", "4", "5"]
    assert tokens == [None, "t", "t", "u"]


def test_a_plan_that_cannot_be_written_is_one_line(tmp_path):
    plan = {"candidates": [], "is_complete": True}
    app = App(transport=httpx.MockTransport(lambda r: httpx.Response(200, json=plan)))
    output = tmp_path / "missing" / "plan.json"
    result = CliRunner().invoke(root, ["register", "/x", "--output", str(output)], obj=app)
    assert result.exit_code == 1
    assert result.stderr == f"monodon: {output} cannot be written: No such file or directory\n"


def test_times_are_printed_without_fractions_of_seconds(capsys):
    App().table(["at", "text"], [("2026-11-23T23:50:17.728796Z", "a 2026-11-23T23:50:17.728796Z")])
    assert capsys.readouterr().out == "2026-11-23T23:50:17Z\ta 2026-11-23T23:50:17.728796Z\n"


@pytest.mark.parametrize("width", [78, 98])  # click leaves two columns free
def test_the_help_has_no_truncated_texts(width):
    groups = {(): root} | {
        (name,): group for name, group in root.commands.items() if isinstance(group, click.Group)
    }
    assert ("keys",) in groups
    for path, group in groups.items():
        result = CliRunner().invoke(root, [*path, "--help"], terminal_width=width)
        listed = result.stdout.partition("Commands:\n")[2]
        assert listed.count("\n") >= len(group.commands)
        assert "..." not in listed, path


def test_an_output_that_cannot_be_written_is_one_line(tmp_path):
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "monodon", "profiles", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=os.environ | {"MONODON_CONFIG": str(tmp_path / "profiles.json")},
        )
    assert result.returncode == 1
    assert result.stderr == "monodon: The output: No space left on device\n"


def test_logout_without_profiles(monkeypatch, tmp_path):
    monkeypatch.setenv("MONODON_CONFIG", str(tmp_path / "profiles.json"))
    result = CliRunner().invoke(root, ["logout"])
    assert (result.exit_code, result.stderr) == (4, "monodon: There are no profiles.\n")
