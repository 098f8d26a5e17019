"""Requests to the WSGI application in this process."""

import importlib
import io
from typing import Any
from urllib.parse import unquote

import orjson

from benchmarks.budget_operations import Request
from benchmarks.errors import BadAnswers
from benchmarks.stack import API_KEY


class Client:
    """Sends requests to the WSGI application in this process."""

    def __init__(self) -> None:
        self._application = importlib.import_module("config.wsgi").application

    def send(self, request: Request) -> dict[str, str]:
        """Raises BadAnswers for another status than the request's."""
        return self.call(self.environ(request), request)

    def call(self, environ: dict[str, Any], request: Request) -> dict[str, str]:
        answer = self._application.answer(environ)
        if answer.status != request.status:
            raise BadAnswers(f"{request.method} {request.path}: {answer.status} {answer.content!r}")
        return dict(answer.headers)

    @staticmethod
    def environ(request: Request) -> dict[str, Any]:
        path, _, query = request.path.partition("?")
        content = b"" if request.body is None else orjson.dumps(request.body)
        return {
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote(path),
            "QUERY_STRING": query,
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "8000",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "127.0.0.1",
            "HTTP_HOST": "127.0.0.1",
            "HTTP_X_API_KEY": API_KEY,
            "HTTP_ACCEPT_ENCODING": "gzip",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(content)),
            "wsgi.input": io.BytesIO(content),
            "wsgi.url_scheme": "http",
            **{
                f"HTTP_{name.upper().replace('-', '_')}": value
                for name, value in request.headers.items()
            },
        }
