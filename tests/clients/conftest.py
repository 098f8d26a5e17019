"""Clients of a live server."""

import json
from collections.abc import Callable, Sequence

import pytest

from tests.live import LiveServer, killable, live, live_template
from tests.shares import nightly
from tests.stores.fixtures import _CREATE as _CREATE_PROFILE
from tests.stores.fixtures import bind
from tests.stores.s3 import S3Store

__all__ = ["killable", "live", "live_template"]
Place = Callable[[LiveServer, Sequence[str]], None]
_profiles: dict[str, str] = {}
"""The storage profile of each server, by the server's database."""


LOCAL_THEN_S3 = ["local", nightly("s3")]
"""Parameters of `place` for a module whose tests run with an object store by `make engines` only."""


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest) -> Place:
    """Lets new tables of a namespace be in local files; then the test runs with an object store."""
    return place_of(request)


def place_of(request: pytest.FixtureRequest) -> Place:
    """What `place` returns for its parameter, "local" or "s3"."""
    if request.param == "local":
        return lambda server, namespace: None
    store: S3Store = request.getfixturevalue("s3")
    return lambda server, namespace: bind_to(server, store, namespace)


def bind_to(server: LiveServer, store: S3Store, namespace: Sequence[str]) -> None:
    """Let the new tables of a namespace be in an object store, whose key clients get."""
    if server.database_url not in _profiles:
        bucket = store.new_bucket()
        fields = store.profile_fields() | {"name": bucket, "roots": [f"s3://{bucket}/root"]}
        server.manage(_CREATE_PROFILE.format(fields=json.dumps(fields)))
        _profiles[server.database_url] = bucket
    bind(server, namespace, _profiles[server.database_url])
