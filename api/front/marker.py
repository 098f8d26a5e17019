"""What the front tells an operation about its request, under a key of the WSGI environment."""

from enum import Enum

from django.http import HttpResponse

KEY = "monodon.front"
"""Absent when the body is whole; else BodyState.AWAITED, or the CatalogError to refuse with."""


class BodyState(Enum):
    AWAITED = "awaited"
    """The body has not been read yet: check the credentials and go no further."""


class Proceed(HttpResponse):
    """The credentials are good: read the body. Never sent to a client."""

    status_code = 100
