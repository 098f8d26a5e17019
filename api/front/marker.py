"""Information from the front to an operation about its request, under keys of the WSGI environment."""

from enum import Enum

from django.http import HttpResponse

KEY = "monodon.front"
"""Absent if the body is complete; otherwise BodyState.AWAITED, or the CatalogError of the refusal."""


class BodyState(Enum):
    AWAITED = "awaited"
    """The body is not read yet: only check the credentials."""


class Proceed(HttpResponse):
    """The credentials are valid, so the body may be read. Never sent to a client."""

    status_code = 100
