"""What only object stores have: foreign names, marks of directories, lost answers, the store's clock."""

import contextlib
import itertools
import json
import time
from dataclasses import dataclass
from typing import Any

import pytest

from catalog.regular_files import TooLarge
from catalog.storage import object_clients, object_listing, object_removal
from catalog.storage.configuration import Key
from catalog.storage.object_store import ObjectStore
from catalog.storage.stores import AccessDenied, Move, StorageUnavailable
from tests.catalog.storage import configurations
from tests.catalog.storage.answering_server import Answer
from tests.catalog.storage.test_stores import in_parallel
from tests.stores.faults import Faults
from tests.stores.s3 import Proxied, S3Store

UNADDRESSABLE = ["a//b", "a/", "a/./b", "a/../b", ".", "..", "a\nb", "a\x00b", "a\x7fb", "\ud800"]
MARKS = ["", "data/", "empty/"]


@dataclass(frozen=True)
class Lake:
    """A bucket, and a look at it from outside of the catalog."""

    s3: S3Store
    bucket: str

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"

    @property
    def root(self) -> str:
        return f"s3://{self.bucket}/root"

    def store(self, **changes: Any) -> ObjectStore:
        return ObjectStore(configurations.of_store(self.s3, self.bucket, **changes), self.url)

    def put(self, *keys: str, content: bytes = b"x") -> None:
        for key in keys:
            body = b"" if key.endswith("/") else content
            self.s3.client().put_object(Bucket=self.bucket, Key=key, Body=body)

    def keys(self) -> list[str]:
        return self.s3.keys(self.bucket)

    def content(self, key: str) -> bytes:
        content: bytes = self.s3.client().get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return content


@pytest.fixture
def lake(s3: S3Store) -> Lake:
    return Lake(s3, s3.new_bucket())


@pytest.fixture
def store(lake: Lake) -> ObjectStore:
    return lake.store()


@pytest.fixture
def proxied(lake: Lake, proxied_s3: Proxied) -> ObjectStore:
    """The same bucket behind the proxy."""
    return Lake(proxied_s3, lake.bucket).store()


# --- names


@pytest.mark.parametrize("name", UNADDRESSABLE, ids=ascii)
def test_a_name_that_cannot_be_sent_is_refused(lake, proxied, s3_proxy, name):
    path = f"{lake.root}/{name}"
    with s3_proxy.recording() as requests:
        for operation in (
            lambda: proxied.read(path, 10),
            lambda: proxied.read_end(path, lambda tail, size: 0, 10),
            lambda: proxied.read_range(path, 0, 1),
            lambda: proxied.status(path),
            lambda: proxied.write_new(path, b"x"),
            lambda: proxied.remove(path),
            lambda: list(proxied.remove_many([path])),
            lambda: list(proxied.remove_tree(path)),
            lambda: list(proxied.list_tree(path)),
            lambda: (
                list(proxied.list_files(lake.root, name)) if name != "a/" else proxied.status(path)
            ),
            lambda: proxied.move_manifest(lake.root, name, "f"),
            lambda: proxied.move_manifest(lake.root, "f", name),
        ):
            with pytest.raises(OSError, match="no object can have the name"):
                operation()
    assert requests == []


def test_a_path_of_another_bucket_is_refused(lake, proxied, s3_proxy):
    with s3_proxy.recording() as requests:
        for path in (f"{lake.url}2/f", f"gs://{lake.bucket}/f", "/etc/passwd", f"{lake.url}.x/f"):
            with pytest.raises(ValueError, match="not in"):
                proxied.read(path, 10)
    assert requests == []


def test_the_root_of_a_bucket_is_a_directory(lake, store):
    lake.put("f", "root/t/data/1", "root/g", "root2/h")
    for location, files, directories in (
        (lake.url, ["f"], ["root", "root2"]),
        (f"{lake.url}/root", ["g"], ["t"]),
        (f"{lake.url}/root/t", [], ["data"]),
    ):
        assert [file.name for file in store.list_files(location, "")] == files
        assert store.list_directories(location, "") == directories
    names = [file.name for file in store.list_tree(lake.url)]
    assert sorted(names) == ["f", "root/g", "root/t/data/1", "root2/h"]


def test_marks_of_directories_are_no_files(lake, store):
    lake.put(*(f"root/t/{mark}" for mark in MARKS), "root/t/data/1", "root/t/f")
    assert sorted(file.name for file in store.list_tree(f"{lake.root}/t")) == ["data/1", "f"]
    assert [file.name for file in store.list_files(f"{lake.root}/t", "")] == ["f"]
    assert [file.name for file in store.list_files(f"{lake.root}/t", "data")] == ["1"]
    assert list(store.list_files(f"{lake.root}/t", "empty")) == []


def test_an_empty_file_is_a_file(lake, store):
    lake.put("root/t/f", content=b"")
    assert [(file.name, file.size) for file in store.list_tree(f"{lake.root}/t")] == [("f", 0)]
    assert [(file.name, file.size) for file in store.list_files(f"{lake.root}/t", "")] == [("f", 0)]


# --- foreign names, which versitygw cannot have: it keeps objects as files


@pytest.fixture
def foreign(moto_s3: S3Store) -> Lake:
    """A table with names that obstore cannot represent."""
    lake = Lake(moto_s3, moto_s3.new_bucket())
    lake.put(*(f"root/t/{name}" for name in ("a", "data/1", "data/2", "z", "y/3")))
    lake.put(*(f"root/t/{name}" for name in ("data//x", "b/./c", "b/../c", "/", "e/")))
    lake.put("root/t2/keep", "root/t2//keep", "root/t", "t/keep")
    return lake


def test_foreign_names_are_skipped(foreign):
    store, table = foreign.store(), f"{foreign.root}/t"
    assert [file.name for file in store.list_tree(table)] == ["a", "data/1", "data/2", "y/3", "z"]
    assert [file.name for file in store.list_files(table, "data")] == ["1", "2"]
    assert [file.name for file in store.list_files(table, "")] == ["a", "z"]
    assert store.list_directories(table, "") == ["b", "data", "e", "y"]
    assert store.set_aside(table, "x") == table


def test_foreign_names_are_removed_with_their_table(foreign):
    counts = list(foreign.store().remove_tree(f"{foreign.root}/t"))
    assert counts[-1] == 10
    assert foreign.keys() == ["root/t", "root/t2//keep", "root/t2/keep", "t/keep"]


# --- large lists


def test_lists_have_pages(lake, store, monkeypatch):
    monkeypatch.setattr(object_listing, "PAGE", 7)
    names = [f"{number:03}" for number in range(40)]
    lake.put(*(f"root/t/{name}" for name in names), *(f"root/t/020-/{n}" for n in range(3)))
    assert [file.name for file in store.list_files(f"{lake.root}/t", "")] == names
    assert len(list(store.list_tree(f"{lake.root}/t"))) == 43
    first = list(itertools.islice(store.list_files(f"{lake.root}/t", ""), 3))
    assert [file.name for file in first] == names[:3]


# --- removing


def test_what_is_written_after_the_call_stays(lake, store, monkeypatch):
    lake.put(*(f"root/t/{number}" for number in range(6)))
    store_time = object_removal._store_time

    def store_time_and_a_write(client, prefix):
        moment = store_time(client, prefix)
        time.sleep(1.1)  # clocks of stores count seconds
        lake.put("root/t/3-new", "root/t/9-new")
        return moment

    with monkeypatch.context() as patch:
        patch.setattr(object_removal, "_store_time", store_time_and_a_write)
        assert list(store.remove_tree(f"{lake.root}/t"))[-1] == 6
    assert lake.keys() == ["root/t/3-new", "root/t/9-new"]
    assert list(store.remove_tree(f"{lake.root}/t"))[-1] == 2
    assert lake.keys() == []


def test_a_page_is_removed_by_one_request(lake, proxied, s3_proxy):
    keys = [f"root/t/{number}" for number in range(30)]
    lake.put(*keys)
    with s3_proxy.recording() as requests:
        assert len(list(proxied.remove_many(f"{lake.url}/{key}" for key in keys))) == 30
    assert [request.method for request in requests] == ["POST"]
    assert lake.keys() == []


def test_one_object_that_cannot_be_removed_does_not_keep_the_others(moto_s3):
    lake = Lake(moto_s3, moto_s3.new_bucket())
    lake.put("root/1", "root/2", "root/3")
    allowed = [f"arn:aws:s3:::{lake.bucket}/root/{number}" for number in (1, 3, 4)]
    statement = {"Effect": "Allow", "Action": ["s3:*"], "Resource": allowed}
    credentials = moto_s3.client("sts").assume_role(
        RoleArn=moto_s3.role,
        RoleSessionName="limited",
        Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
    )["Credentials"]
    key = Key(
        credentials["AccessKeyId"], credentials["SecretAccessKey"], credentials["SessionToken"]
    )
    paths = [f"{lake.root}/{number}" for number in (1, 2, 3, 4)]
    removed: list[str] = []
    removal = lake.store(key=key).remove_many(paths)
    with pytest.raises(AccessDenied, match="'lake'"):
        removed.extend(removal)
    assert removed == [paths[0], paths[2], paths[3]]
    assert lake.keys() == ["root/2"]


# --- requests


def test_reads_cost_one_request_and_two_for_large_ends(lake, proxied, s3_proxy):
    lake.put("root/f", content=b"x" * 50_000)
    for operation, methods in (
        (lambda: proxied.read(f"{lake.root}/f", 10**6), ["GET"]),
        (lambda: proxied.read_range(f"{lake.root}/f", 0, 10), ["GET"]),
        (lambda: proxied.status(f"{lake.root}/f"), ["HEAD"]),
        (lambda: proxied.read_end(f"{lake.root}/f", lambda tail, size: size - 5, 10**6), ["GET"]),
        (lambda: proxied.read_end(f"{lake.root}/f", lambda tail, size: 0, 10**6), ["GET", "GET"]),
        (lambda: proxied.write_new(f"{lake.root}/new", b"x"), ["PUT"]),
        (lambda: proxied.move_manifest(lake.root, "new", "moved"), ["GET", "PUT", "DELETE"]),
        (lambda: proxied.remove(f"{lake.root}/moved"), ["HEAD", "DELETE"]),
    ):
        with s3_proxy.recording() as requests:
            operation()
        assert [request.method for request in requests] == methods


def test_an_object_that_is_replaced_while_it_is_read(lake, proxied, s3_proxy):
    lake.put("root/f", content=b"a" * 50_000)
    replacements = iter([b"b" * 50_000])

    def start_of(tail: bytes, size: int) -> int:
        for content in replacements:
            lake.put("root/f", content=content)
        return 0

    content, status = proxied.read_end(f"{lake.root}/f", start_of, 10**6)
    assert content == b"b" * 50_000
    assert status == proxied.status(f"{lake.root}/f")


def test_an_object_that_never_stays_the_same(lake, store):
    lake.put("root/f", content=b"a" * 50_000)
    numbers = itertools.count()

    def start_of(tail: bytes, size: int) -> int:
        lake.put("root/f", content=b"%d" % next(numbers) * 50_000)
        return 0

    with pytest.raises(StorageUnavailable, match="changes while it is read"):
        store.read_end(f"{lake.root}/f", start_of, 10**6)


def test_too_much_is_not_downloaded(answering):
    """The body never comes: whoever read it would wait."""
    answering.answer = lambda request: Answer(
        200,
        b"",
        {
            "Content-Length": str(10**12),
            "ETag": '"e"',
            "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT",
        },
    )
    store = ObjectStore(configurations.of_endpoint(answering.url), "s3://lake")
    with pytest.raises(TooLarge):
        store.read("s3://lake/root/f", 10**9)
    assert len(answering.requests) == 1


# --- faults


@pytest.mark.parametrize("fault", ["lost_answer", "reset", "slow_down"])
def test_a_write_survives_a_fault(lake, proxied, s3_proxy, fault):
    s3_proxy.inject(fault, lambda request: request.method == "PUT")
    proxied.write_new(f"{lake.root}/f", b"content")
    assert s3_proxy.counts[fault] == 1
    assert lake.content("root/f") == b"content"


def test_a_lost_answer_does_not_hide_another_file(lake, proxied, s3_proxy):
    lake.put("root/f", content=b"another")
    s3_proxy.inject("lost_answer", lambda request: request.method == "PUT")
    with pytest.raises(FileExistsError):
        proxied.write_new(f"{lake.root}/f", b"content")
    assert lake.content("root/f") == b"another"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize("fault", ["lost_answer", "reset", "slow_down"])
def test_a_move_survives_a_fault(lake, proxied, s3_proxy, method, fault):
    lake.put("root/t/staged", content=b"manifest")
    s3_proxy.inject(fault, lambda request: request.method == method)
    assert proxied.move_manifest(f"{lake.root}/t", "staged", "1.manifest") is Move.DONE
    assert s3_proxy.counts[fault] == 1
    assert lake.keys() == ["root/t/1.manifest"]


def test_writers_race_through_faults(lake, proxied, s3_proxy):
    s3_proxy.faults = Faults(slow_down=0.05, reset=0.05, lost_answer=0.1, seed=3)
    for turn in range(5):
        outcomes = in_parallel(
            lambda number, turn=turn: proxied.write_new(f"{lake.root}/{turn}", b"%d" % number)
        )
        winners = [number for number, outcome in enumerate(outcomes) if outcome is None]
        writer = int(lake.content(f"root/{turn}"))
        # A writer whose answers were all lost does not know the outcome.
        assert winners == [writer] or (
            not winners and isinstance(outcomes[writer], StorageUnavailable)
        )
        others = [error for error in outcomes if error is not None]
        assert all(isinstance(error, (FileExistsError, StorageUnavailable)) for error in others)


def test_a_store_that_is_overloaded_is_unavailable(lake, s3_proxy, proxied, monkeypatch):
    monkeypatch.setattr(object_clients, "RETRIES", 1)
    slow = ObjectStore(proxied._client.configuration, proxied._client.bucket)
    s3_proxy.faults = Faults(slow_down=1)
    with pytest.raises(StorageUnavailable, match="'lake' is unavailable: HTTP 503 SlowDown"):
        slow.read(f"{lake.root}/f", 10)
    assert s3_proxy.counts["slow_down"] == 2


# --- stores without conditional writes


@pytest.fixture
def unconditional(lake: Lake, proxied_s3: Proxied) -> ObjectStore:
    return Lake(proxied_s3, lake.bucket).store(conditional_writes=False)


def test_without_conditional_writes_a_file_is_not_replaced(lake, unconditional, s3_proxy):
    with s3_proxy.recording() as requests:
        unconditional.write_new(f"{lake.root}/f", b"content")
    assert [request.method for request in requests] == ["HEAD", "PUT"]
    assert not any("if-none-match" in request.headers for request in requests)
    unconditional.write_new(f"{lake.root}/f", b"content")
    with pytest.raises(FileExistsError):
        unconditional.write_new(f"{lake.root}/f", b"other")
    assert lake.content("root/f") == b"content"


def test_without_conditional_writes_a_manifest_moves(lake, unconditional):
    lake.put("root/t/s", "root/t/r", content=b"manifest")
    lake.put("root/t/q", content=b"another")
    assert unconditional.move_manifest(f"{lake.root}/t", "s", "1") is Move.DONE
    assert unconditional.move_manifest(f"{lake.root}/t", "r", "1") is Move.DONE
    assert unconditional.move_manifest(f"{lake.root}/t", "q", "1") is Move.OCCUPIED
    assert lake.keys() == ["root/t/1", "root/t/q"]


# --- encryption, identity


def test_new_objects_are_encrypted_with_the_key(lake, proxied_s3, s3_proxy):
    store = Lake(proxied_s3, lake.bucket).store(kms_key="arn:aws:kms:x:1:key/k")
    # A store without key management refuses the request.
    with s3_proxy.recording() as requests, contextlib.suppress(OSError):
        store.write_new(f"{lake.root}/f", b"x")
    headers = requests[0].headers
    assert headers["x-amz-server-side-encryption"] == "aws:kms"
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "arn:aws:kms:x:1:key/k"


def test_a_profile_of_another_kind_is_refused(s3):
    with pytest.raises(StorageUnavailable, match="not for locations"):
        ObjectStore(configurations.of_store(s3, "lake"), "gs://lake")
