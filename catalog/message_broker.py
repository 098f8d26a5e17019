"""Messages to the workers, which never delay a request for long.

What a message starts is a row in the database, and beat sends it again. So a message that cannot be sent
is not lost.
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from celery import current_app
from kombu.exceptions import OperationalError

_PAUSE_SECONDS = 5.0
"""After a failure, no message is sent for so long: a broker that hangs costs seconds at each attempt."""

log = logging.getLogger(__name__)
_lock = threading.Lock()
_paused_until = 0.0
_is_failing = False
"""True after a failure, until a message is sent."""


def send(task: str, messages: Sequence[Sequence[Any]], *, expires: float, effect: str) -> bool:
    """Send a task once with each of these arguments; False if the broker is unavailable.

    ``expires``: seconds after which workers ignore the message. ``effect`` ends the line of the log
    that reports the failure, such as "3 jobs wait for beat's next round".
    """
    global _paused_until, _is_failing  # noqa: PLW0603 -- one state for the process
    for arguments in messages:
        with _lock:
            if time.monotonic() < _paused_until:
                return False
            if _is_failing:  # only this thread tries; the others need not wait for the attempt
                _paused_until = time.monotonic() + _PAUSE_SECONDS
        try:
            current_app.send_task(task, args=list(arguments), retry=False, expires=expires)
        except OperationalError:
            with _lock:
                _paused_until = time.monotonic() + _PAUSE_SECONDS
                _is_failing = True
            log.warning("The broker is unavailable; %s", effect)
            return False
        resume()
    return True


def resume() -> None:
    """Try again at the next message."""
    global _paused_until, _is_failing
    with _lock:
        _paused_until, _is_failing = 0.0, False
