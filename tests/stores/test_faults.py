"""The proxy fails as configured, and only then."""

import contextlib
import threading
import time
from collections.abc import Callable

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from tests.stores.faults import Faults
from tests.stores.s3 import Proxied, S3Store


@pytest.fixture
def bucket(s3: S3Store) -> str:
    bucket = s3.new_bucket()
    s3.client().put_object(Bucket=bucket, Key="a/1", Body=b"one")
    return bucket


@pytest.fixture
def client(proxied_s3: Proxied):
    """A client behind the proxy that does not retry."""
    with contextlib.closing(
        proxied_s3.client_with(proxied_s3.access_key, proxied_s3.secret_key)
    ) as client:
        yield client


def test_requests_pass_and_are_recorded(s3, s3_proxy, bucket, client):
    with s3_proxy.recording() as requests:
        client.put_object(Bucket=bucket, Key="a/ü +?.bin", Body=b"x" * 3_000_000)
        answer = client.get_object(Bucket=bucket, Key="a/ü +?.bin", Range="bytes=0-9")
        assert answer["Body"].read() == b"x" * 10
        assert client.head_object(Bucket=bucket, Key="a/1")["ContentLength"] == 3
        client.list_objects_v2(Bucket=bucket, Prefix="a/")
        client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "a/1"}]})
    client.delete_object(Bucket=bucket, Key="a/1")
    assert [(r.method, r.key, r.is_read) for r in requests] == [
        ("PUT", "a/ü +?.bin", False),
        ("GET", "a/ü +?.bin", True),
        ("HEAD", "a/1", True),
        ("GET", "", True),
        ("POST", "", False),
    ]
    assert {request.bucket for request in requests} == {bucket}
    assert requests[3].query["prefix"] == "a/"
    assert requests[1].headers["range"] == "bytes=0-9"
    assert s3_proxy.counts == {"forwarded": 6}
    assert s3.keys(bucket) == ["a/ü +?.bin"]


def _put(client, bucket: str) -> Callable[[], object]:
    return lambda: client.put_object(Bucket=bucket, Key="a/2", Body=b"two")


def test_slow_down_is_an_answer_of_s3(s3, s3_proxy, bucket, client):
    s3_proxy.inject("slow_down")
    with pytest.raises(ClientError) as refused:
        _put(client, bucket)()
    assert refused.value.response["Error"]["Code"] == "SlowDown"
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
    assert s3.keys(bucket) == ["a/1"]
    _put(client, bucket)()
    assert s3.keys(bucket) == ["a/1", "a/2"]
    assert s3_proxy.counts == {"slow_down": 1, "forwarded": 1}


def test_reset_request_does_not_reach_the_store(s3, s3_proxy, bucket, client):
    s3_proxy.inject("reset")
    with pytest.raises(ConnectionClosedError):
        _put(client, bucket)()
    assert s3.keys(bucket) == ["a/1"]
    assert s3_proxy.counts == {"reset": 1}


def test_lost_answer_is_of_a_request_that_was_carried_out(s3, s3_proxy, bucket, client):
    s3_proxy.inject("lost_answer")
    with pytest.raises(ConnectionClosedError):
        _put(client, bucket)()
    assert s3.keys(bucket) == ["a/1", "a/2"]
    assert s3_proxy.counts == {"lost_answer": 1}


def test_delay_is_before_the_store(s3, s3_proxy, bucket, client):
    s3_proxy.faults = Faults(delay_seconds=0.2)
    s3_proxy.inject("delay")
    with s3_proxy.recording() as requests:
        _put(client, bucket)()
    assert [request.fault for request in requests] == ["delay"]
    assert s3.keys(bucket) == ["a/1", "a/2"]


def test_the_end_of_delayed_requests(s3, s3_proxy, bucket, client):
    s3_proxy.inject("delay")
    s3_proxy.faults = Faults(delay_seconds=1)
    sender = threading.Thread(target=lambda: client.put_object(Bucket=bucket, Key="k", Body=b"x"))
    sender.start()
    while not s3_proxy.counts["delay"]:
        time.sleep(0.01)
    assert s3.keys(bucket) == ["a/1"]
    with pytest.raises(AssertionError, match="1 requests after"):
        s3_proxy.wait_until_idle(within=0.1)
    s3_proxy.wait_until_idle()
    assert s3.keys(bucket) == ["a/1", "k"]
    sender.join()


def test_injection_chooses_requests_and_ends(s3_proxy, bucket, client):
    s3_proxy.inject("slow_down", lambda r: r.method == "GET" and r.key == "a/1", times=2)
    client.head_object(Bucket=bucket, Key="a/1")
    for _ in range(2):
        with pytest.raises(ClientError, match="SlowDown"):
            client.get_object(Bucket=bucket, Key="a/1")
    assert client.get_object(Bucket=bucket, Key="a/1")["Body"].read() == b"one"


def test_random_faults_repeat_with_their_seed(s3_proxy, bucket, client):
    def outcomes() -> list[str]:
        s3_proxy.faults = Faults(slow_down=0.3, seed=7, applies=lambda r: r.key == "a/1")
        with s3_proxy.recording() as requests:
            for _ in range(30):
                with contextlib.suppress(ClientError):
                    client.head_object(Bucket=bucket, Key="a/1")
        return [request.fault for request in requests]

    first = outcomes()
    assert first == outcomes()
    assert 3 <= first.count("slow_down") <= 17


def test_unknown_faults_and_encrypted_stores_are_refused(s3_proxy):
    with pytest.raises(ValueError, match="Unknown fault 'explode'"):
        s3_proxy.inject("explode")
    with pytest.raises(ValueError, match="cannot forward"):
        type(s3_proxy)("https://s3.eu-central-1.amazonaws.com")
