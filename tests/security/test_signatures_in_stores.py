"""What clients reach with signatures of the server in stores that check them: the files of their table alone."""

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from catalog.access import SYSTEM
from catalog.models import AuditEvent, Namespace, Table, TrashItem
from catalog.privileges import Privilege
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.recovery import undrop
from catalog.services.storage.profile_checks import signatures
from tests.api.iceberg.client import Iceberg
from tests.factories import ICEBERG_SCHEMA, make_namespace, unchanged
from tests.security.test_staged_locations import CREATOR, make_tenant
from tests.stores.fixtures import MakeProfile
from tests.stores.s3 import S3Store

pytestmark = [pytest.mark.operation("signRequest"), pytest.mark.django_db]
STORES = ("versitygw", "seaweedfs", "moto_s3")


@dataclass
class Lake:
    store: S3Store
    bucket: str
    base: str
    """The key of the namespace's directory."""
    ann: str
    """The key of a tenant that owns ``orders``."""
    bob: str
    """The key of the owner of ``orders2``, beside it."""

    def sign(
        self,
        method: str,
        at: str,
        *,
        table: str = "orders",
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        key: str = "",
    ) -> Any:
        """``at``: a key below the namespace's directory, or what follows the bucket if it begins with ``?``."""
        place = f"/{at}" if at.startswith("?") else f"/{self.base}/{at}"
        fields = {
            "method": method,
            "uri": f"{self.store.endpoint}/{self.bucket}{place}",
            "region": self.store.region,
            "headers": {name: [value] for name, value in (headers or {}).items()},
        } | ({} if body is None else {"body": body})
        return Iceberg(key or self.ann).call("POST", f"namespaces/ns/tables/{table}/sign", fields)

    def send(
        self, method: str, answer: Any, *, content: bytes = b"", **unsigned: str
    ) -> httpx.Response:
        """Send a request with its signature, and with further headers."""
        assert answer.status_code == 200, answer.content
        signed = answer.json()
        headers = {name: values[0] for name, values in signed["headers"].items()}
        headers |= {name.replace("_", "-"): value for name, value in unsigned.items()}
        return httpx.request(method, signed["uri"], headers=headers, content=content, timeout=20)

    def keys(self) -> list[str]:
        keys = self.store.keys(self.bucket, f"{self.base}/")
        return [key.removeprefix(f"{self.base}/") for key in keys if "/data/" in key]

    def put(self, at: str, content: bytes = b"x") -> None:
        key = f"{self.base}/{at}"
        self.store.client().put_object(Bucket=self.bucket, Key=key, Body=content)

    def get(self, at: str) -> bytes:
        content = self.store.client().get_object(Bucket=self.bucket, Key=f"{self.base}/{at}")
        read: bytes = content["Body"].read()
        return read

    def deletion(self, *names: str) -> str:
        objects = "".join(f"<Object><Key>{self.base}/{name}</Key></Object>" for name in names)
        return f"<Delete>{objects}</Delete>"


OWN, TWIN = "orders/data/1", "orders2/data/1"


@pytest.fixture
def lake(request: pytest.FixtureRequest, make_profile: MakeProfile) -> Iterator[Lake]:
    store: S3Store = request.getfixturevalue(request.param)
    bucket = store.new_bucket()
    fields = store.profile_fields() | {"client_access": "signing", "conditional_writes": True}
    profile = make_profile(name="lake", roots=[f"s3://{bucket}/root"], **fields)
    namespace = make_namespace("ns")
    Namespace.objects.filter(pk=namespace.pk).update(storage_profile=profile)
    ann, bob = make_tenant("ann", CREATOR), make_tenant("bob", CREATOR)
    made = Iceberg(bob).post("namespaces/ns/tables", {"name": "i", "schema": ICEBERG_SCHEMA})
    base = made["metadata"]["location"].rpartition("/")[0]
    for name, key in (("orders", ann), ("orders2", bob)):
        body = {"name": name, "schema": ICEBERG_SCHEMA, "location": f"{base}/{name}"}
        Iceberg(key).post("namespaces/ns/tables", body)
    made = Lake(store, bucket, base.removeprefix(f"s3://{bucket}/"), ann, bob)
    made.put(OWN)
    made.put(TWIN, b"of bob")
    signatures.discard_outcomes()
    yield made
    signatures.discard_outcomes()


def of(*stores: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("lake", stores, indirect=True)


# --- stores that do not check everything that is signed


@of("versitygw")
def test_a_store_that_compares_bodies_gets_signed_deletions(lake: Lake):
    body = lake.deletion(OWN)
    answer = lake.sign("POST", "?delete", body=body)
    for sent, remaining in ((lake.deletion(TWIN), [OWN, TWIN]), (body, [TWIN])):
        digest = hashlib.md5(sent.encode(), usedforsecurity=False).digest()
        content_md5 = b64encode(digest).decode()
        lake.send("POST", answer, content=sent.encode(), content_md5=content_md5)
        assert lake.keys() == remaining


@of("seaweedfs")
def test_a_store_that_does_not_compare_bodies_gets_none(lake: Lake):
    """A client could replace the body, which names the objects."""
    with unchanged():
        answer = lake.sign("POST", "?delete", body=lake.deletion(OWN))
    assert answer.status_code == 406, answer.content
    message = answer.json()["error"]["message"]
    assert "does not compare the body of a request with its signed hash" in message
    assert b"authorization" not in answer.content
    assert lake.keys() == [OWN, TWIN]
    assert lake.send("PUT", lake.sign("PUT", "orders/data/2"), content=b"y").is_success
    assert lake.send("DELETE", lake.sign("DELETE", OWN)).is_success
    assert lake.keys() == ["orders/data/2", TWIN]


@of("moto_s3")
def test_a_store_that_obeys_unsigned_headers_gets_no_signed_writes(lake: Lake):
    """A client could add a header that makes the object a copy of another table's."""
    for at in (OWN, f"{OWN}?partNumber=1&uploadId=u"):
        with unchanged():
            answer = lake.sign("PUT", at)
        assert answer.status_code == 406, answer.content
        assert "a header of S3 that the signature does not cover" in str(answer.content)
    assert lake.sign("GET", OWN).status_code == 200
    assert lake.keys() == [OWN, TWIN]


@of(*STORES)
def test_a_store_is_checked_once_and_nothing_remains(lake: Lake, monkeypatch):
    checks = []
    check = signatures._check
    monkeypatch.setattr(
        signatures, "_check", lambda profile: checks.append(profile) or check(profile)
    )
    before = lake.store.keys(lake.bucket)
    for _ in range(2):
        lake.sign("PUT", OWN)
        lake.sign("POST", "?delete", body=lake.deletion(OWN))
    lake.sign("GET", OWN)
    assert len(checks) == 1
    assert lake.store.keys(lake.bucket) == before


@of("versitygw")
def test_a_store_that_cannot_be_checked_gets_no_signed_writes(lake: Lake, monkeypatch):
    refused = signatures.Answer(503, {}, b"")
    with monkeypatch.context() as patch:
        patch.setattr(signatures.S3Client, "send", lambda *_, **__: refused)
        for method, at, body in (("PUT", OWN, None), ("POST", "?delete", lake.deletion(OWN))):
            with unchanged():
                answer = lake.sign(method, at, body=body)
            assert answer.status_code == 503, answer.content
            assert b"authorization" not in answer.content
        assert lake.sign("GET", OWN).status_code == 200
    signatures.discard_outcomes()
    assert lake.sign("PUT", OWN).status_code == 200


# --- what a signature opens


@of("versitygw", "seaweedfs")
@pytest.mark.parametrize("at", [OWN, f"{OWN}?partNumber=1&uploadId=%s"])
def test_headers_that_are_added_to_a_signed_request_copy_nothing(lake: Lake, at: str):
    if "%s" in at:
        upload = lake.send("POST", lake.sign("POST", f"{OWN}?uploads"))
        match = re.search("<UploadId>(.*)</UploadId>", upload.text)
        assert match is not None
        at %= match[1]
    source = quote(f"/{lake.bucket}/{lake.base}/{TWIN}")
    for headers in (
        {"x-amz-copy-source": source},
        {"X-Amz-Copy-Source": source.removeprefix("/")},
        {"x-amz-copy-source": source, "x-amz-copy-source-range": "bytes=0-1"},
        {"x-amz-copy-source": source, "x-amz-metadata-directive": "REPLACE"},
    ):
        answer = lake.send("PUT", lake.sign("PUT", at), **headers)
        assert b"CopyObjectResult" not in answer.content, headers
        assert b"CopyPartResult" not in answer.content, headers
        assert b"of bob" not in lake.get(OWN)


@of("versitygw", "seaweedfs")
@pytest.mark.parametrize(
    "query", ["acl", "tagging", "policy", "versionId=null", "uploads", "retention", "torrent"]
)
def test_parameters_that_are_added_to_a_signed_request_are_refused(lake: Lake, query: str):
    with unchanged():
        assert lake.sign("GET", f"{OWN}?{query}").status_code == 400
    answer = lake.sign("GET", OWN)
    signed = answer.json()
    headers = {name: values[0] for name, values in signed["headers"].items()}
    assert httpx.get(f"{signed['uri']}?{query}", headers=headers).status_code in {400, 403}
    other = signed["uri"].replace("orders/", "orders2/")
    assert httpx.get(other, headers=headers).status_code in {400, 403}


@of("versitygw", "seaweedfs")
def test_a_list_has_no_names_beside_the_table(lake: Lake):
    for name in ("orders/data", "orders/data2", "orders/datax/1"):
        lake.put(f"{name}/1")
    prefix = f"{lake.base}/orders"
    markers = ["", *(quote(f"{lake.base}/{at}", safe="") for at in ("", "a", "orders", TWIN, "z"))]
    for directory in ("/", "/data", "/data/"):
        for name in ("start-after", "continuation-token"):
            for marker in markers:
                for delimiter in ("", "&delimiter=%2F"):
                    query = f"?list-type=2&prefix={quote(prefix + directory, safe='')}{delimiter}"
                    query += f"&{name}={marker}" if marker else ""
                    answer = lake.send("GET", lake.sign("GET", query))
                    for key in re.findall("<(?:Key|Prefix)>(.*?)</", answer.text):
                        assert key.startswith(prefix + directory), (query, key)
    for refused in (prefix, f"{prefix}2/", f"{lake.base}/", f"{prefix}/../orders2/", ""):
        with unchanged():
            answer = lake.sign("GET", f"?list-type=2&prefix={quote(refused, safe='')}")
        assert answer.status_code == 400, refused


# --- the life of a table


@pytest.fixture
def _retention(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    settings.MONODON_TRASH_SECONDS = 86_400


def reach(lake: Lake, at: str, table: str, key: str = "") -> set[str]:
    """What a client gets signed for an object of a table, and sends."""
    requests = {"GET": {}, "HEAD": {}, "PUT": {"content": b"y"}, "DELETE": {}}
    reached = set()
    for method, options in requests.items():
        answer = lake.sign(method, at, table=table, key=key)
        if answer.status_code == 200 and lake.send(method, answer, **options).is_success:
            reached.add(method)
            lake.put(at)
    return reached


ALL = {"GET", "HEAD", "PUT", "DELETE"}


@of("versitygw")
@pytest.mark.usefixtures("_retention")
def test_signatures_follow_the_table_and_not_its_name(lake: Lake):
    assert reach(lake, OWN, "orders") == ALL
    for old, new in (("orders", "x"), ("orders2", "orders"), ("x", "orders2")):
        iceberg_tables.rename_table(actor=SYSTEM, table=("ns", old), new=("ns", new))
    assert reach(lake, OWN, "orders") == reach(lake, TWIN, "orders") == set()  # is bob's now
    assert reach(lake, OWN, "orders2") == ALL
    assert reach(lake, TWIN, "orders2") == set()
    assert reach(lake, TWIN, "orders", lake.bob) == ALL


@of("versitygw")
@pytest.mark.usefixtures("_retention")
def test_a_dropped_table_gets_no_signatures_until_it_is_restored(lake: Lake):
    iceberg_tables.drop_table(actor=SYSTEM, table=("ns", "orders"), purge=True)
    assert reach(lake, OWN, "orders") == set()
    assert reach(lake, OWN, "orders2", lake.bob) == set()
    body = {"name": "orders", "schema": ICEBERG_SCHEMA}
    Iceberg(lake.ann).post("namespaces/ns/tables", body)  # of the same name, elsewhere
    assert reach(lake, OWN, "orders") == {"GET", "HEAD"}  # its owner may read the dropped table
    assert reach(lake, OWN, "orders2", lake.bob) == set()
    undrop.undrop(actor=SYSTEM, item=TrashItem.objects.latest("pk").pk, new=("ns", "back"))
    assert reach(lake, OWN, "orders") == {"GET", "HEAD"}
    assert reach(lake, OWN, "back") == ALL


@of("versitygw")
@pytest.mark.usefixtures("_retention")
def test_a_moved_table_keeps_its_former_location(lake: Lake):
    updates = [{"action": "set-location", "location": f"s3://{lake.bucket}/{lake.base}/new"}]
    body = {"requirements": [], "updates": updates}
    answer = Iceberg(lake.ann).call("POST", "namespaces/ns/tables/orders", body)
    assert answer.status_code == 200, answer.content
    lake.put("new/data/1")
    assert reach(lake, "new/data/1", "orders") == reach(lake, OWN, "orders") == ALL
    for at in ("new/data/1", OWN):
        assert reach(lake, at, "orders2", lake.bob) == set()
    assert reach(lake, "new2/data/1", "orders") == set()


@of("versitygw")
@pytest.mark.usefixtures("_retention")
def test_withdrawn_rights_end_signatures_at_once(lake: Lake):
    Table.objects.filter(name="orders").update(owner="system")
    namespace = Namespace.objects.get(name="ns")
    grants = namespace.grants.filter(principal__name="ann")
    grants.update(mask=(Privilege.BROWSE | Privilege.READ).value)
    events = AuditEvent.objects.count()
    assert reach(lake, OWN, "orders") == {"GET", "HEAD"}
    grants.delete()
    assert reach(lake, OWN, "orders") == set()
    assert AuditEvent.objects.count() >= events
