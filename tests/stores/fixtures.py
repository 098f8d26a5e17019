"""Fixtures of stores; tests/conftest.py offers them to every test.

A store of the session belongs to one process of pytest-xdist.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests import optional
from tests.live import LiveServer
from tests.stores import components
from tests.stores.emulators import Azurite, FakeGcs
from tests.stores.faults import FaultProxy
from tests.stores.s3 import GivenStore, Moto, Proxied, S3Store, Versitygw
from tests.stores.seaweedfs import SeaweedFs

REQUIRE = "MONODON_REQUIRE_STORES"
_numbers = itertools.count(1)
Store = TypeVar("Store", bound=contextlib.AbstractContextManager[Any])


@pytest.fixture(scope="session")
def moto_s3() -> Iterator[Moto]:
    """S3 with IAM and STS; roles, session policies and expiry are enforced."""
    with Moto() as store:
        yield store


@pytest.fixture(scope="session")
def versitygw() -> Iterator[Versitygw]:
    """S3 on a directory, without a token service."""
    with _started(Versitygw(), required_by=REQUIRE) as store:
        yield store


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[SeaweedFs]:
    """S3 with a token service; session policies are enforced, and sessions last 900 seconds at least."""
    with _started(SeaweedFs(), required_by=REQUIRE) as store:
        yield store


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """Azure's blob service."""
    with _started(Azurite()) as store:
        yield store


@pytest.fixture(scope="session")
def fake_gcs() -> Iterator[FakeGcs]:
    """Google Cloud Storage, without authorization."""
    with _started(FakeGcs()) as store:
        yield store


@contextlib.contextmanager
def _started(store: Store, *, required_by: str = "") -> Iterator[Store]:
    """Start a store; without its program, skip the test, or fail where the variable is set."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(store)
        except components.Missing as error:
            optional.require(str(error), required_by)
        yield store


@pytest.fixture(scope="session")
def s3(request: pytest.FixtureRequest) -> Iterator[S3Store]:
    """The store of MONODON_TEST_S3_ENDPOINT, or else versitygw, or else moto."""
    if os.environ.get("MONODON_TEST_S3_ENDPOINT"):
        with GivenStore() as store:
            yield store
        return
    try:
        components.versitygw()
    except components.Missing:
        built = bool(os.environ.get(REQUIRE))  # fails there
    else:
        built = True
    yield request.getfixturevalue("versitygw" if built else "moto_s3")


@pytest.fixture
def s3_proxy(s3: S3Store) -> Iterator[FaultProxy]:
    """A proxy before `s3` that fails on purpose; `proxied_s3` is the store behind it."""
    try:
        proxy = FaultProxy(s3.endpoint)
    except ValueError as error:
        pytest.skip(str(error))
    with proxy:
        yield proxy


@pytest.fixture
def proxied_s3(s3: S3Store, s3_proxy: FaultProxy) -> Proxied:
    """`s3` through `s3_proxy`; its `profile_fields()` name the proxy as endpoint."""
    return Proxied(s3, s3_proxy.url)


MakeProfile = Callable[..., Any]


@pytest.fixture
def make_profile(db: None) -> Iterator[MakeProfile]:
    """Create a storage profile: `make_profile(name="lake", roots=["s3://b/root"], **store.profile_fields())`.

    `secret` and `token` are in clear text. Returns the row.
    """
    from catalog.models import StorageProfile
    from catalog.services.storage import profiles

    def make(*, secret: str = "", token: str = "", **fields: Any) -> StorageProfile:
        values = {"name": f"profile-{next(_numbers)}", "kind": "s3", "roots": []} | fields
        if secret:
            values["secret"] = profiles.sealed(secret, token)
        row = StorageProfile.objects.create(**values)
        profiles.discard_cache()
        return row

    profiles.discard_cache()
    yield make
    profiles.discard_cache()


@pytest.fixture
def s3_profile(s3: S3Store, make_profile: MakeProfile) -> Any:
    """The profile "lake": a new bucket, with the root `s3://BUCKET/root` and a static key."""
    return make_profile(name="lake", roots=[f"s3://{s3.new_bucket()}/root"], **s3.profile_fields())


# --- one suite for local files and objects


@dataclass(frozen=True)
class Storage:
    """Storage of tables, and a look at its files from outside of the catalog."""

    kind: str
    """"local" or "s3"."""
    root: str
    """The canonical location below which the tables are."""
    profile: Any = None
    """The storage profile; None for local files."""
    store: S3Store | None = None

    def location(self, name: str) -> str:
        return f"{self.root}/{name}"

    def bind(self, namespace: Any) -> None:
        """Let the new tables of a namespace be here."""
        if self.profile is not None:
            namespace.storage_profile = self.profile
            namespace.save(update_fields=["storage_profile"])

    def write(self, path: str, content: bytes) -> None:
        if self.store is None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(content)
        else:
            bucket, key = _split(path)
            self.store.client().put_object(Bucket=bucket, Key=key, Body=content)

    def read(self, path: str) -> bytes:
        if self.store is None:
            return Path(path).read_bytes()
        bucket, key = _split(path)
        content: bytes = self.store.client().get_object(Bucket=bucket, Key=key)["Body"].read()
        return content

    def remove(self, path: str) -> None:
        if self.store is None:
            Path(path).unlink()
        else:
            bucket, key = _split(path)
            self.store.client().delete_object(Bucket=bucket, Key=key)

    def files(self, directory: str = "") -> list[str]:
        """The files below a directory (default: the root), relative to it and sorted."""
        directory = directory or self.root
        if self.store is None:
            files = (path for path in Path(directory).rglob("*") if path.is_file())
            return sorted(str(path.relative_to(directory)) for path in files)
        bucket, prefix = _split(f"{directory}/")
        return [key.removeprefix(prefix) for key in self.store.keys(bucket, prefix)]


def _split(path: str) -> tuple[str, str]:
    bucket, _, key = path.removeprefix("s3://").partition("/")
    return bucket, key


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, db: None, settings: Any, tmp_path: Path) -> Storage:
    """An empty warehouse, and an empty bucket with a profile: the test runs with each."""
    if request.param == "s3":
        profile = request.getfixturevalue("s3_profile")
        store = request.getfixturevalue("s3")
        return Storage("s3", profile.roots[0], profile, store)
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir(exist_ok=True)
    settings.MONODON_WAREHOUSE = str(warehouse)
    return Storage("local", str(warehouse))


# --- live servers

_CREATE = """
import json, sys
from catalog.models import StorageProfile
from catalog.services.storage import profiles
fields = json.loads({fields!r})
fields["secret"] = profiles.sealed(fields["secret"])
StorageProfile.objects.create(**fields)
"""
_DELETE = """
from catalog.models import Namespace, StorageProfile
Namespace.objects.filter(storage_profile__name={name!r}).update(storage_profile=None)
StorageProfile.objects.filter(name={name!r}).delete()
"""
MakeLiveProfile = Callable[..., tuple[str, str]]


def bind(server: LiveServer, namespace: Sequence[str], profile: str) -> None:
    """Let the new tables of a namespace of a live server be in the profile with this name."""
    with server.database() as database:
        bound = database.execute(
            "UPDATE catalog_namespace SET storage_profile_id ="
            " (SELECT id FROM catalog_storageprofile WHERE name = %s)"
            " WHERE path = %s AND dropped_at IS NULL",
            [profile, list(namespace)],
        )
        assert bound.rowcount == 1


@pytest.fixture
def make_live_profile() -> Iterator[MakeLiveProfile]:
    """Create a storage profile in the database of a live server, with a new bucket.

    `make_live_profile(live, moto_s3, client_access="sts", role=moto_s3.role)` returns the profile's
    name and root. It takes effect within a second, and is removed after the test.
    """
    with contextlib.ExitStack() as stack:

        def make(server: LiveServer, store: S3Store, **fields: Any) -> tuple[str, str]:
            name = f"live-{os.getpid()}-{next(_numbers)}"
            root = f"s3://{store.new_bucket()}/root"
            values = store.profile_fields() | {"name": name, "roots": [root]} | fields
            server.manage(_CREATE.format(fields=json.dumps(values)))
            stack.callback(server.manage, _DELETE.format(name=values["name"]))
            return values["name"], values["roots"][0]

        yield make
