"""Parsing and rendering of bodies, and content negotiation."""

from collections.abc import Iterable, Mapping
from typing import IO, Any

import orjson
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from api.management import errors
from api.operation import parse_object, read_content, refuse_repeated_keys

_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


class ObjectParser(BaseParser):
    """Parses a JSON object within the bounds that all protocols share."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the object.

        Raises InvalidInput, ContradictoryInput for repeated keys, BodyTooLarge and UnsupportedEncoding.
        """
        request = (parser_context or {})["request"]
        content = read_content(request._request)  # noqa: SLF001 -- Django's request
        body = parse_object(content)
        refuse_repeated_keys(content)
        return body


class JSONRenderer(BaseRenderer):
    """Renders JSON; times end in ``Z``. Problems have a media type of their own."""

    media_type = "application/json"
    format = "json"
    charset = None

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        return b"" if data is None else orjson.dumps(data, option=_OPTIONS)


class ProblemRenderer(JSONRenderer):
    """Renders problem details (RFC 9457)."""

    media_type = errors.MEDIA
    format = "problem"


class IgnoreClientNegotiation(BaseContentNegotiation):
    """Selects the only parser and renderer. Clients may send JSON under any media type."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser:
        return next(iter(parsers))

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        renderer = next(iter(renderers))
        return renderer, renderer.media_type or ""
