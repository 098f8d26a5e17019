"""Sessions of the admin end after twelve hours without a request.

Django counts from the last time that a session was saved. Saving it at every request would cost a write
each, so it is saved when the last time is a while ago.
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
_SAVE_AFTER = 300.0  # so much earlier a session may end


class SlidingSessionMiddleware:
    """Ends a session that was idle for too long, and prolongs one that is in use.

    Also ends a session that does not say when it was used last: one of an older release, which
    would be valid for days.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if settings.SESSION_COOKIE_NAME in request.COOKIES:
            _check_idle_time(request)
        return self.get_response(request)


def _check_idle_time(request: HttpRequest) -> None:
    session, now = request.session, time.time()
    if SESSION_KEY not in session:  # nobody is signed in by it
        return
    last_used = session.get(_LAST_USED)
    if not isinstance(last_used, float) or now - last_used > settings.SESSION_COOKIE_AGE:
        session.flush()
    elif now - last_used > _SAVE_AFTER:
        session[_LAST_USED] = now


def note_log_in(request: HttpRequest | None, **_: Any) -> None:
    """The receiver of ``user_logged_in``: the session was used now."""
    if request is not None:
        request.session[_LAST_USED] = time.time()


user_logged_in.connect(note_log_in, dispatch_uid="monodon.sessions")
