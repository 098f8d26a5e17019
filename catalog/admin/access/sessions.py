"""Sessions of the admin end after twelve hours without a request.

Django counts from the time a session was last saved. Saving it at each request would cost a write, so it
is saved only when the last save is more than five minutes ago.
"""

import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.signals import user_logged_in
from django.http import HttpRequest
from django.http.response import HttpResponseBase

_LAST_USED = "monodon_seen"
_SAVE_AFTER = 300.0  # seconds by which a session may end early


class SlidingSessionMiddleware:
    """End a session that was idle for too long, and extend one that is in use.

    A session without a time of last use also ends: an older release created it, and it would be
    valid for days.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if settings.SESSION_COOKIE_NAME in request.COOKIES:
            _check_idle_time(request)
        return self.get_response(request)


def _check_idle_time(request: HttpRequest) -> None:
    session, now = request.session, time.time()
    if SESSION_KEY not in session:  # no user is signed in
        return
    last_used = session.get(_LAST_USED)
    if not isinstance(last_used, float) or now - last_used > settings.SESSION_COOKIE_AGE:
        session.flush()
    elif now - last_used > _SAVE_AFTER:
        session[_LAST_USED] = now


def note_log_in(request: HttpRequest | None, **_: Any) -> None:
    """Receiver of ``user_logged_in``. Record the session as used now."""
    if request is not None:
        request.session[_LAST_USED] = time.time()


user_logged_in.connect(note_log_in, dispatch_uid="monodon.sessions")
