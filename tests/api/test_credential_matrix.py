"""What vended credentials can do in a store that enforces them: every access, format and target."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from django.http import HttpResponse

from catalog.models import Table
from catalog.privileges import Privilege
from tests import vending
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.stores.fixtures import MakeProfile
from tests.stores.s3 import Moto
from tests.vending import ALL_PERMITTED, NOTHING_PERMITTED, READ_PERMITTED

IDENTIFIER = ("ns", "orders")
SIBLINGS = {"sibling": "other", "prefix twin": "orders2", "shorter twin": "order"}


@dataclass(frozen=True)
class Lake:
    """Tables of one format in a bucket, and a bucket beside it; each has an object ``data/1``."""

    store: Moto
    format: str
    bucket: str
    other_bucket: str
    table: Table

    def targets(self) -> dict[str, tuple[str, str]]:
        """Buckets and directories by the name of the target."""
        return {
            "own table": (self.bucket, "root/orders"),
            **{name: (self.bucket, f"root/{stem}") for name, stem in SIBLINGS.items()},
            "parent": (self.bucket, "root"),
            "bucket": (self.bucket, ""),
            "other bucket": (self.other_bucket, "root/orders"),
        }

    def describe(self, key: str) -> HttpResponse:
        if self.format == "lance":
            return Lance(key).call("POST", vending.lance_path(IDENTIFIER))
        path = vending.iceberg_path(IDENTIFIER)
        return Iceberg(key).call("GET", path, headers=vending.DELEGATED)

    def credentials(self, key: str) -> Mapping[str, str]:
        answer = self.describe(key)
        assert answer.status_code == 200, answer.content
        body = answer.json()
        return body["storage_options"] if self.format == "lance" else body["config"]


@pytest.fixture(params=["lance", "iceberg"])
def lake(request: pytest.FixtureRequest, moto_s3: Moto, make_profile: MakeProfile) -> Lake:
    bucket, other_bucket = moto_s3.new_bucket(), moto_s3.new_bucket()
    fields = moto_s3.profile_fields() | {"client_access": "sts", "role": moto_s3.role}
    make_profile(name="lake", roots=[f"s3://{bucket}/root"], **fields)
    make_profile(name="pond", roots=[f"s3://{other_bucket}/root"], **fields)
    make = vending.make_lance if request.param == "lance" else vending.make_iceberg
    table = make(f"s3://{bucket}/root/orders", *IDENTIFIER)
    for stem in SIBLINGS.values():
        make(f"s3://{bucket}/root/{stem}", "ns", stem)
    make(f"s3://{other_bucket}/root/orders", "elsewhere", "orders")
    lake = Lake(moto_s3, request.param, bucket, other_bucket, table)
    for target, directory in lake.targets().values():
        key = f"{directory}/data/1" if directory else "data/1"
        moto_s3.client().put_object(Bucket=target, Key=key, Body=b"rows")
    return lake


def outcomes(lake: Lake, client: Any) -> dict[str, dict[str, bool]]:
    return {
        name: vending.outcomes(client, bucket, directory)
        for name, (bucket, directory) in lake.targets().items()
    }


@pytest.mark.parametrize(
    ("privileges", "own"),
    [(vending.READ, READ_PERMITTED), (vending.WRITE, ALL_PERMITTED)],
    ids=["read", "write"],
)
def test_credentials_open_their_own_table_alone(lake: Lake, privileges: Privilege, own):
    key = vending.make_client_key("client", lake.table, privileges)
    client = vending.client_of(lake.store, lake.credentials(key))
    before = {bucket: lake.store.keys(bucket) for bucket in (lake.bucket, lake.other_bucket)}
    expected = dict.fromkeys(lake.targets(), NOTHING_PERMITTED) | {"own table": own}
    assert outcomes(lake, client) == expected
    after = {bucket: lake.store.keys(bucket) for bucket in before}
    assert after == before  # the object that was put is deleted again, and nothing else


def test_without_privileges_there_are_no_credentials(lake: Lake):
    key = vending.make_client_key("client", None, vending.READ)
    answer = lake.describe(key)
    assert answer.status_code == 404
    assert b"secret" not in answer.content.lower()


def test_browsing_is_not_reading(lake: Lake):
    key = vending.make_client_key("client", lake.table, Privilege.BROWSE)
    answer = lake.describe(key)
    assert answer.status_code == 403
    assert b"secret" not in answer.content.lower()


def test_a_listing_without_a_prefix_is_refused(lake: Lake):
    key = vending.make_client_key("client", lake.table, vending.WRITE)
    client = vending.client_of(lake.store, lake.credentials(key))
    for prefix in ("root", "root/o", "root/orders", "root/orders2"):
        assert not vending.is_permitted(
            lambda prefix=prefix: client.list_objects_v2(Bucket=lake.bucket, Prefix=prefix)
        )
    assert not vending.is_permitted(lambda: client.list_objects_v2(Bucket=lake.bucket))


def test_a_copy_from_another_table_is_refused(lake: Lake):
    key = vending.make_client_key("client", lake.table, vending.WRITE)
    client = vending.client_of(lake.store, lake.credentials(key))
    for source in ("root/other/data/1", "root/orders2/data/1"):
        assert not vending.is_permitted(
            lambda source=source: client.copy_object(
                Bucket=lake.bucket,
                Key="root/orders/data/copy",
                CopySource={"Bucket": lake.bucket, "Key": source},
            )
        )
    assert "root/orders/data/copy" not in lake.store.keys(lake.bucket)
