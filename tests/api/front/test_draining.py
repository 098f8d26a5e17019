"""While a server drains, every answer closes its connection."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.front import draining
from api.front.answer import Answer
from api.front.draining import Draining
from tests.catalog.storage.outages.test_availability import eventually

CLOSE = ("Connection", "close")


@pytest.fixture
def file(settings, tmp_path: Path) -> Path:
    settings.MONODON_DRAIN_FILE = str(tmp_path / "draining")
    return tmp_path / "draining"


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop

    async def stop() -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        loop.stop()

    asyncio.run_coroutine_threadsafe(stop(), loop)
    thread.join(10)
    loop.run_until_complete(asyncio.sleep(0))  # the cancelled tasks end
    loop.close()


def test_answers_close_their_connections_while_the_file_exists(file: Path, loop, monkeypatch):
    monkeypatch.setattr(draining, "_LOOK_SECONDS", 0.001)
    answer = Answer(200, [("X", "y")])
    state = Draining()
    loop.call_soon_threadsafe(state.start, loop)
    assert state.closing(answer) is answer
    file.touch()
    eventually(lambda: state.closing(answer).headers == [("X", "y"), CLOSE])
    assert state.closing(state.closing(answer)).headers == [("X", "y"), CLOSE]
    file.unlink()
    eventually(lambda: state.closing(answer) is answer)
    assert answer.headers == [("X", "y")]  # it may be repeated later


def test_a_server_without_a_file_does_not_drain(settings):
    settings.MONODON_DRAIN_FILE = ""
    assert not draining.is_requested()
    answer = Answer(200, [])
    assert Draining().closing(answer) is answer
