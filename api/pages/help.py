"""The documentation at ``/help``: the site that ``make docs`` builds, as static files.

It needs no session and no database, so it answers while the database is away.
"""

import hashlib
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from whitenoise import WhiteNoise

PATH = "/help"
_PREFIX = f"{PATH}/"
_METHODS = ("GET", "HEAD")
_HASHED = r"\.[0-9a-f]{8}\.min\.(?:js|css)$"
"""Names with a hash of the content, which browsers may keep."""


class _Build(NamedTuple):
    """A built site: its files by path, and what identifies the build."""

    identity: tuple[int, int]
    files: dict[str, Any]


class HelpMiddleware:
    """Answers every request for ``/help`` itself, before sessions are read."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response
        self._build: _Build | None = None
        self._lock = threading.Lock()

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        path = request.path_info
        if path == PATH:
            return HttpResponseRedirect(_PREFIX)
        if not path.startswith(_PREFIX):
            return self._get_response(request)
        if request.method not in _METHODS:
            allow = {"Allow": ", ".join(_METHODS)}
            return HttpResponse(status=HTTPStatus.METHOD_NOT_ALLOWED, headers=allow)
        root = Path(settings.HELP_ROOT)
        identity = _identity(root)
        if identity is None:
            status = HTTPStatus.OK if path == _PREFIX else HTTPStatus.NOT_FOUND
            return _page("help/not_built.html", "The documentation is not built", status)
        file = self._current(root, identity).files.get(path)
        answer = None if file is None else _answer(file, request)
        return answer or _page(
            "help/not_found.html", "This page does not exist", HTTPStatus.NOT_FOUND
        )

    def _current(self, root: Path, identity: tuple[int, int]) -> _Build:
        """The files of the present build, which are listed once."""
        build = self._build
        if build is None or build.identity != identity:
            with self._lock:
                build = self._build
                if build is None or build.identity != identity:
                    build = self._build = _Build(identity, _files(root))
        return build


def _identity(root: Path) -> tuple[int, int] | None:
    """What changes when the site is built again; None if it was not built."""
    try:
        start = (root / "index.html").stat()
    except OSError:
        return None
    return start.st_mtime_ns, start.st_ino


def _files(root: Path) -> dict[str, Any]:
    server = WhiteNoise(
        None,
        root=root,
        prefix=_PREFIX,
        index_file=True,
        allow_all_origins=False,
        immutable_file_test=_HASHED,
        add_headers_function=_add_etag,
    )
    return dict(server.files)


def _add_etag(headers: Any, path: str, _url: str) -> None:
    """Derive the ETag from the content: images may give every file the same time."""
    headers["ETag"] = f'"{hashlib.sha256(Path(path).read_bytes()).hexdigest()[:32]}"'


def _answer(file: Any, request: HttpRequest) -> HttpResponse | None:
    """The file, or 304 if the client has it; None if another build has just replaced it."""
    try:
        answer = file.get_response(request.method, request.META)
        content = b""
        if answer.file is not None:
            with answer.file as opened:
                content = opened.read()
    except FileNotFoundError:
        return None
    response = HttpResponse(content, status=answer.status)
    del response["Content-Type"]
    for name, value in answer.headers:
        response[name] = value
    return response


def _page(template: str, title: str, status: HTTPStatus) -> HttpResponse:
    text = render_to_string(template, {"title": title})
    return HttpResponse(text, status=status, headers={"Cache-Control": "no-store"})
