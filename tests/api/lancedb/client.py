"""A client of the dialect of LanceDB over Django's test client."""

import re
from typing import Any

from django.http import HttpResponse

from tests.api.client import Lance

_OF_OBJECT = re.compile(r"(/v1/(?:namespace|table|transaction)/)([^/$]+)(?:\$([^/]+))?(/.*)")
_OF_DATABASE = re.compile(r"/v1/database/([^/]+)(/.*)")


class Database(Lance):
    """Sends the requests of the Lance protocol to a database.

    The first name in a path becomes the database: ``/v1/table/ws$t/drop`` is sent as ``/v1/table/t/drop``
    to database ``ws``. A path without names has its database before it: ``/v1/database/ws/table``.
    """

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> HttpResponse:
        if match := _OF_DATABASE.fullmatch(path):
            database, path = match[1], f"/v1{match[2]}"
        elif match := _OF_OBJECT.fullmatch(path):
            database, path = match[2], f"{match[1]}{match[3] or '$'}{match[4]}"
        else:
            return super().call(method, path, body, **options)
        headers = {**(options.pop("headers", None) or {}), "x-lancedb-database": database}
        return super().call(method, path, body, headers=headers, **options)
