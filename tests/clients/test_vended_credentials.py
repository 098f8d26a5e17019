"""Stock pylance and PyIceberg with credentials that a live server has issued, and none of their own."""

import time
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.namespace import RestNamespace
from lance_namespace import CreateNamespaceRequest, DescribeTableRequest
from pyiceberg.catalog.rest import RestCatalog

from tests.clients import pyice
from tests.live import LiveServer
from tests.stores.fixtures import MakeLiveProfile, bind
from tests.stores.s3 import Moto

_FRESH_SECONDS = 1.1  # the server reads its profiles once a second
_SET_LIFETIME = """
from django.db.models import F
from catalog.models import StorageProfile
StorageProfile.objects.filter(name={name!r}).update(lifetime_seconds={seconds}, version=F("version") + 1)
"""
_READER = """
from catalog.access import SYSTEM
from catalog.models import PrincipalLevel
from catalog.services.access import api_keys
api_keys.create_api_key(actor=SYSTEM, name={name!r}, level=PrincipalLevel.READ, key={key!r})
"""


@pytest.fixture(autouse=True)
def _no_own_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without these, the clients have nothing but what the server gives them."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def lake(
    live: LiveServer,
    moto_s3: Moto,
    make_live_profile: MakeLiveProfile,
    request: pytest.FixtureRequest,
) -> tuple[str, str]:
    """A namespace whose new tables are in a bucket, and the name of its profile."""
    name, _ = make_live_profile(live, moto_s3, client_access="sts", role=moto_s3.role)
    namespace = f"vended_{request.node.name}"
    live.client().create_namespace(CreateNamespaceRequest(id=[namespace]))
    bind(live, [namespace], name)
    time.sleep(_FRESH_SECONDS)
    return namespace, name


def rows(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def read_lance(client: RestNamespace, table: list[str]) -> list[int]:
    dataset = lance.dataset(namespace_client=client, table_id=table)
    return sorted(dataset.to_table()["n"].to_pylist())


def test_pylance_writes_and_reads(live: LiveServer, lake: tuple[str, str]) -> None:
    client = live.client()
    table = [lake[0], "t"]
    for mode, values in (("create", (1, 2)), ("append", (3,))):
        lance.write_dataset(rows(*values), namespace_client=client, table_id=table, mode=mode)
    assert read_lance(client, table) == [1, 2, 3]
    location = client.describe_table(DescribeTableRequest(id=table)).location
    assert location.startswith("s3://")


def test_pylance_as_a_reader_cannot_write(live: LiveServer, lake: tuple[str, str]) -> None:
    table = [lake[0], "t"]
    writer = live.client()
    lance.write_dataset(rows(1), namespace_client=writer, table_id=table, mode="create")
    key = f"reader-of-{lake[0]}-{'x' * 32}"
    live.manage(_READER.format(name=f"reader-{lake[1]}", key=key))
    reader = live.client(**{"header.x-api-key": key})
    assert read_lance(reader, table) == [1]
    with pytest.raises((OSError, RuntimeError, ValueError)):
        lance.write_dataset(rows(2), namespace_client=reader, table_id=table, mode="append")
    assert read_lance(writer, table) == [1]
    options = reader.describe_table(DescribeTableRequest(id=table)).storage_options
    location = reader.describe_table(DescribeTableRequest(id=table)).location
    with pytest.raises((OSError, RuntimeError, ValueError)):
        lance.write_dataset(rows(2), location, mode="append", storage_options=options)


def test_pylance_renews_credentials(live: LiveServer, lake: tuple[str, str]) -> None:
    namespace, profile = lake
    live.manage(_SET_LIFETIME.format(name=profile, seconds=3))
    time.sleep(_FRESH_SECONDS)
    client, table = live.client(), [namespace, "t"]
    lance.write_dataset(rows(1, 2), namespace_client=client, table_id=table, mode="create")
    dataset = lance.dataset(namespace_client=client, table_id=table)
    deadline = time.monotonic() + 8
    reads = 0
    while time.monotonic() < deadline:
        assert dataset.to_table()["n"].to_pylist() == [1, 2]
        reads += 1
        time.sleep(0.05)
    assert reads > 20


@pytest.mark.engines
@pytest.mark.timeout(900)
def test_a_thousand_reads_of_pylance_across_expiries(
    live: LiveServer, lake: tuple[str, str]
) -> None:
    """Credentials expire after 10 s. Every read opens files, and every second one opens the table too."""
    namespace, profile = lake
    live.manage(_SET_LIFETIME.format(name=profile, seconds=10))
    time.sleep(_FRESH_SECONDS)
    client, table = live.client(), [namespace, "t"]
    lance.write_dataset(rows(1, 2), namespace_client=client, table_id=table, mode="create")
    dataset = lance.dataset(namespace_client=client, table_id=table)
    began = time.monotonic()
    for number in range(1000):
        if number % 2:
            assert read_lance(client, table) == [1, 2]
        else:
            assert dataset.to_table()["n"].to_pylist() == [1, 2]
        time.sleep(max(0.0, began + number * 0.06 - time.monotonic()))
    assert time.monotonic() - began > 50, "there were fewer than five expiries"
    assert _issued(live, table) >= 5


def _issued(live: LiveServer, table: list[str]) -> int:
    """How often the server has issued credentials for a table."""
    with live.database() as database:
        row = database.execute(
            "SELECT count(*) FROM catalog_auditevent"
            " WHERE action = 'credentials.issue' AND target = %s",
            [".".join(table)],
        ).fetchone()
    assert row is not None
    return int(row[0])


def connect(live: LiveServer, token: str, **properties: Any) -> RestCatalog:
    return pyice.connect(live.url, token=token, **properties)


def test_pyiceberg_writes_and_reads(live: LiveServer, lake: tuple[str, str]) -> None:
    catalog = connect(live, live.key)
    table = catalog.create_table((lake[0], "t"), schema=rows(1).schema)
    assert table.location().startswith("s3://")
    table.append(rows(1, 2))
    table.append(rows(3))
    loaded = connect(live, live.key).load_table((lake[0], "t"))
    assert sorted(loaded.scan().to_arrow()["n"].to_pylist()) == [1, 2, 3]


def test_pyiceberg_as_a_reader_cannot_write(live: LiveServer, lake: tuple[str, str]) -> None:
    connect(live, live.key).create_table((lake[0], "t"), schema=rows(1).schema).append(rows(1))
    key = f"reader-of-{lake[0]}-{'x' * 32}"
    live.manage(_READER.format(name=f"reader-{lake[1]}", key=key))
    table = connect(live, key).load_table((lake[0], "t"))
    assert table.scan().to_arrow()["n"].to_pylist() == [1]
    with pytest.raises(OSError, match=r"ACCESS_DENIED|AccessDenied|Access Denied"):
        table.append(rows(2))
    assert table.refresh().scan().to_arrow()["n"].to_pylist() == [1]


def test_pyiceberg_does_not_renew_credentials(live: LiveServer, lake: tuple[str, str]) -> None:
    namespace, profile = lake
    live.manage(_SET_LIFETIME.format(name=profile, seconds=4))
    time.sleep(_FRESH_SECONDS)
    catalog = connect(live, live.key)
    catalog.create_table((namespace, "t"), schema=rows(1).schema).append(rows(1))
    table = catalog.load_table((namespace, "t"))
    assert table.scan().to_arrow()["n"].to_pylist() == [1]
    time.sleep(5)
    with pytest.raises(OSError, match=r"ExpiredToken|EXPIRED|expired|ACCESS_DENIED|400|403"):
        table.scan().to_arrow()
    assert catalog.load_table((namespace, "t")).scan().to_arrow()["n"].to_pylist() == [1]
