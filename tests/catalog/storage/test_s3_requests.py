"""Requests that clients want to have signed: what is understood, and what is refused."""

import hashlib
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from catalog.errors import InvalidInput
from catalog.storage.configuration import StoreConfiguration, StoreKind
from catalog.storage.role_sessions import SessionCredentials
from catalog.storage.s3 import requests as s3_requests
from catalog.storage.s3 import signing as s3_signing
from catalog.storage.s3.requests import Action

AWS = StoreConfiguration(
    "lake", 1, StoreKind.S3, ("s3://lake/tables", "s3://other-lake"), region="eu-central-1"
)
LOCAL = StoreConfiguration(
    "lake", 1, StoreKind.S3, ("s3://lake/tables",), region="x", endpoint="http://127.0.0.1:9000"
)
NAMED = replace(LOCAL, endpoint="http://store:9000")
HOST = "https://lake.s3.eu-central-1.amazonaws.com"
FILE = f"{HOST}/tables/t/data/1.parquet"


def read(method="GET", uri=FILE, *, headers=None, body=None, region=None, configuration=AWS):
    return s3_requests.read(
        method=method,
        uri=uri,
        headers=headers or {},
        body=body,
        region=configuration.region if region is None else region,
        configuration=configuration,
    )


def delete_objects(*keys: str) -> str:
    objects = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{objects}<Quiet>true</Quiet></Delete>'
    )


@pytest.mark.parametrize(
    ("method", "uri", "action"),
    [
        ("GET", FILE, Action.READ),
        ("GET", f"{FILE}?x-id=GetObject", Action.READ),
        ("HEAD", FILE, Action.READ),
        ("PUT", FILE, Action.WRITE),
        ("PUT", f"{FILE}?partNumber=1&uploadId=u", Action.WRITE),
        ("POST", f"{FILE}?uploads", Action.WRITE),
        ("POST", f"{FILE}?uploadId=u", Action.WRITE),
        ("GET", f"{FILE}?uploadId=u", Action.WRITE),
        ("DELETE", FILE, Action.DELETE),
        ("DELETE", f"{FILE}?uploadId=u", Action.WRITE),
    ],
)
def test_requests_of_iceberg_clients_are_understood(method, uri, action):
    request = read(method, uri)
    assert (request.action, request.paths) == (action, ("s3://lake/tables/t/data/1.parquet",))
    assert request.is_write == (action is not Action.READ)


@pytest.mark.parametrize(
    ("uri", "configuration"),
    [
        ("https://s3.eu-central-1.amazonaws.com/lake/tables/t/1", AWS),
        ("https://lake.s3.eu-central-1.amazonaws.com/tables/t/1", AWS),
        ("http://127.0.0.1:9000/lake/tables/t/1", LOCAL),
        ("http://store:9000/lake/tables/t/1", NAMED),
        ("http://lake.store:9000/tables/t/1", NAMED),
    ],
)
def test_the_bucket_is_in_the_path_or_in_the_host(uri, configuration):
    assert read(uri=uri, configuration=configuration).paths == ("s3://lake/tables/t/1",)


@pytest.mark.parametrize(
    ("uri", "configuration"),
    [
        ("http://lake.store:9000/tables/t/1", replace(NAMED, path_style=True)),
        ("http://lake.127.0.0.1:9000/tables/t/1", LOCAL),
        ("http://lake.a.store:9000/tables/t/1", replace(NAMED, roots=("s3://lake.a/tables",))),
    ],
)
def test_a_bucket_in_the_host_is_refused_if_the_store_has_it_in_the_path(uri, configuration):
    """Such a store would read the request as one to the bucket `tables`."""
    with pytest.raises(InvalidInput, match="does not lead to the store"):
        read(uri=uri, configuration=configuration)


@pytest.mark.parametrize("region", ["", "a/s3/aws4_request", "a\nb", "é", "a b", "a" * 101])
def test_a_malformed_region_is_refused(region):
    with pytest.raises(InvalidInput, match="is no region"):
        read(
            uri="http://127.0.0.1:9000/lake/tables/t/1",
            region=region,
            configuration=replace(LOCAL, region=""),
        )


@pytest.mark.parametrize(
    "declaration", ['encoding="UTF-7"', 'encoding="ISO-8859-1"', 'standalone="no"']
)
def test_a_body_that_the_store_would_decode_differently_is_refused(declaration):
    body = delete_objects("tables/t/1").replace('encoding="UTF-8"', declaration)
    with pytest.raises(InvalidInput, match="declaration"):
        read("POST", f"{HOST}/?delete", body=body)


def test_a_body_with_half_a_surrogate_pair_is_refused():
    with pytest.raises(InvalidInput, match="not XML in UTF-8"):
        read("POST", f"{HOST}/?delete", body=delete_objects("tables/t/\ud800"))


def test_keys_are_decoded_once():
    request = read(uri=f"{HOST}/tables/t/x%3Da%252Fb/1%20%C3%A9.parquet")
    assert request.paths == ("s3://lake/tables/t/x=a%2Fb/1 é.parquet",)


def test_a_list_has_a_prefix():
    uri = f"{HOST}/?list-type=2&prefix=tables%2Ft%2F&delimiter=%2F&max-keys=5&encoding-type=url"
    request = read(uri=uri)
    assert (request.action, request.prefix) == (Action.LIST, "s3://lake/tables/t/")


def test_deleted_objects_are_read_from_the_body_whose_hash_is_signed():
    body = delete_objects("tables/t/1", "tables/t/a &amp; b")
    request = read(
        "POST",
        f"{HOST}/?delete",
        headers={"x-amz-content-sha256": ["UNSIGNED-PAYLOAD"]},
        body=body,
    )
    assert request.action is Action.DELETE
    assert request.paths == ("s3://lake/tables/t/1", "s3://lake/tables/t/a & b")
    assert request.payload == hashlib.sha256(body.encode()).hexdigest()


def test_the_source_of_a_copy_is_read():
    request = read("PUT", headers={"x-amz-copy-source": ["/lake/tables/other/1%20"[:-3]]})
    assert request.sources == ("s3://lake/tables/other/1",)


REFUSED_URIS = [
    *("", "x", "/tables/t/1", "s3://lake/tables/t/1", "ftp://lake.s3.eu-central-1.amazonaws.com/t"),
    "http://lake.s3.eu-central-1.amazonaws.com/tables/t/1",
    "https://lake.s3.eu-central-1.amazonaws.com.evil.example/tables/t/1",
    "https://evil.example/lake/tables/t/1",
    "https://lake.s3.eu-central-1.amazonaws.com@evil.example/tables/t/1",
    "https://user:secret@lake.s3.eu-central-1.amazonaws.com/tables/t/1",
    "https://lake.s3.eu-central-1.amazonaws.com:443/tables/t/1",
    "https://lake.s3.eu-central-1.amazonaws.com:8443/tables/t/1",
    "https://LAKE.s3.eu-central-1.amazonaws.com/tables/t/1",
    "https://lake2.s3.eu-central-1.amazonaws.com/tables/t/1",
    "https://x.lake.s3.eu-central-1.amazonaws.com/tables/t/1",
    "https://lake.s3.eu-west-1.amazonaws.com/tables/t/1",
    "https://lake.s3-accesspoint.eu-central-1.amazonaws.com/tables/t/1",
    "https://s3.eu-central-1.amazonaws.com/lake2/tables/t/1",
    "https://s3.eu-central-1.amazonaws.com//lake/tables/t/1",
    "https://s3.eu-central-1.amazonaws.com/%6cake/tables/t/1",
    "https://[::1]/lake/tables/t/1",
    "https://169.254.169.254/latest/meta-data",
    "https://lake.s3.eu-central-1.amazonaws.com:x/tables/t/1",
    *(
        f"{HOST}/{key}"
        for key in (
            "tables/t/../u/1",
            "tables/t/%2e%2e/u/1",
            "tables/t/%252e%252e/u/1",
            "tables/t/..%2fu/1",
            "tables/t/./1",
            "tables//t/1",
            "/tables/t/1",
            "tables/t/",
            "tables/t/a%00",
            "tables/t/a%0a",
            "tables/t/%ff",
            "tables/t/%5c..%5cu",
            "tables/t/\\1",
            "tables/t/a+b",
            "tables/t/a;b",
            "tables/t/a b",
            "tables/t/é",
            "tables/t/a#b",
            f"tables/t/{'a' * 1025}",
        )
    ),
    *(
        f"{FILE}?{query}"
        for query in (
            *(
                "acl",
                "tagging",
                "retention",
                "legal-hold",
                "torrent",
                "restore",
                "select",
                "attributes",
            ),
            *("versionId=1", "response-content-type=a", "partNumber=1", "uploadId=", "uploads"),
            *("x=1", "uploadId=1&versionId=2", "X-Amz-Signature=1", "&", "=", "a=%ff"),
        )
        if query != "uploadId="
    ),
    *(
        f"{HOST}/?{query}"
        for query in (
            *(
                "acl",
                "policy",
                "versioning",
                "versions",
                "uploads",
                "location",
                "lifecycle",
                "cors",
            ),
            *("list-type=2", "prefix=tables/t/", "list-type=1&prefix=tables/t/", "delete"),
            *("list-type=2&prefix=", "list-type=2&prefix=/", "list-type=2&prefix=tables/t/../u/"),
            *("list-type=2&prefix=tables/t/&prefix=u/", "list-type=2&prefix=tables/t/&versions"),
            "list-type=2&prefix=tables/%252e%252e/",
            "list-type=2&prefix=tables/t/;prefix=tables/u/",
            "list-type=2&prefix=tables/t/&x-id=a;prefix=tables/u/",
        )
    ),
    HOST,
    f"{HOST}/",
    "https://s3.eu-central-1.amazonaws.com/",
    "https://s3.eu-central-1.amazonaws.com/lake",
]


@pytest.mark.parametrize("uri", REFUSED_URIS)
@pytest.mark.parametrize("method", ["GET"])
def test_other_uris_are_refused(method, uri):
    with pytest.raises(InvalidInput, match="cannot be signed"):
        read(method, uri)


@pytest.mark.parametrize(
    ("method", "uri"),
    [
        *(("PUT", f"{FILE}?{query}") for query in ("acl", "tagging", "retention", "uploadId=1")),
        *(
            ("POST", f"{FILE}?{query}")
            for query in ("", "restore", "select&select-type=2", "delete")
        ),
        *(("DELETE", f"{FILE}?{query}") for query in ("tagging", "versionId=1")),
        *((method, FILE) for method in ("POST", "PATCH", "OPTIONS", "get", "TRACE", "")),
        *((method, f"{HOST}/") for method in ("PUT", "DELETE", "POST", "HEAD", "OPTIONS")),
        *(("PUT", f"{HOST}/?{query}") for query in ("policy", "acl", "versioning", "lifecycle")),
        ("POST", f"{HOST}/?delete&versionId=1"),
        ("POST", f"{HOST}/?uploads"),
    ],
)
def test_other_operations_are_refused(method, uri):
    with pytest.raises(InvalidInput, match="cannot be signed"):
        read(method, uri, body=delete_objects("tables/t/1") if "?delete" in uri else None)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-acl": ["public-read"]},
        {"X-AMZ-ACL": ["public-read"]},
        {"x-amz-grant-read": ["id=1"]},
        {"x-amz-website-redirect-location": ["/x"]},
        {"x-amz-tagging": ["a=b"]},
        {"x-amz-object-lock-mode": ["GOVERNANCE"]},
        {"x-amz-bypass-governance-retention": ["true"]},
        {"x-amz-mfa": ["1"]},
        {"x-amz-expected-bucket-owner": ["1"]},
        {"x-amz-server-side-encryption-customer-key": ["a"]},
        {"x-amz-copy-source": ["/lake/tables/other/1"]},
        {"x-amz-content-sha256": ["x"]},
        {"x-amz-content-sha256": ["UNSIGNED-PAYLOAD", "UNSIGNED-PAYLOAD"]},
        {"x-amz-meta-a": ["b\r\nx-amz-acl: public-read"]},
        {"x-amz-meta-a": ["é"]},
        {"X-HTTP-Method-Override": ["DELETE"]},
        {"x-http-method": ["DELETE"]},
        {"x-method-override": ["DELETE"]},
        {"x amz": ["b"]},
        {"a\nb": ["c"]},
        {"Range": ["a"], "range": ["b"]},
        {f"h{number}": ["a"] for number in range(101)},
    ],
)
def test_other_headers_are_refused(headers):
    with pytest.raises(InvalidInput, match="cannot be signed"):
        read(headers=headers)


@pytest.mark.parametrize(
    "source",
    [
        *(
            "",
            "/",
            "lake",
            "/lake/",
            "/lake//a",
            "/lake/tables/../u",
            "lake/a?versionId=1",
            "lake/a%3FversionId=1",
            "/x/a%2f..",
        ),
        *("arn:aws:s3:eu-central-1:1:accesspoint/x/object/a", "/LAKE/a", "/la*ke/a", "/lake/a%00"),
    ],
)
def test_other_copies_are_refused(source):
    with pytest.raises(InvalidInput, match="cannot be signed"):
        read("PUT", headers={"x-amz-copy-source": [source]})


@pytest.mark.parametrize(
    "body",
    [
        None,
        "",
        "x",
        "<Delete/>",
        "<Delete></Delete>",
        "<Other><Object><Key>tables/t/1</Key></Object></Other>",
        "<Delete><Object/></Delete>",
        "<Delete><Object><Key/></Object></Delete>",
        "<Delete><Object><Key>a</Key><VersionId>1</VersionId></Object></Delete>",
        "<Delete><Object><Key>a</Key><Key>b</Key></Object></Delete>",
        "<Delete><Object><Key>a<b/></Key></Object></Delete>",
        "<Delete><Key>a</Key></Delete>",
        "<Delete><Object><Key>a</Key></Object><Quiet><Object><Key>b</Key></Object></Quiet></Delete>",
        "<Delete><Object><Key>../a</Key></Object></Delete>",
        "<Delete><Object><Key>a//b</Key></Object></Delete>",
        '<!DOCTYPE Delete [<!ENTITY e "u">]><Delete><Object><Key>&e;</Key></Object></Delete>',
        "<Delete><Object><Key><![CDATA[a]]></Key></Object></Delete>",
        "<Delete><!-- a --><Object><Key>a</Key></Object></Delete>",
        "<?xml version='1.0'?><?php x?><Delete><Object><Key>a</Key></Object></Delete>",
        delete_objects(*(f"tables/t/{number}" for number in range(1001))),
    ],
)
def test_other_bodies_are_refused(body):
    with pytest.raises(InvalidInput, match="cannot be signed"):
        read("POST", f"{HOST}/?delete", body=body)


def test_bodies_of_other_requests_are_refused():
    with pytest.raises(InvalidInput, match="cannot be signed"):
        read("PUT", body="x")


def test_another_region_is_refused():
    with pytest.raises(InvalidInput, match="region"):
        read(region="us-east-1")


def test_all_headers_of_s3_are_signed_and_the_clients_own_signature_is_replaced():
    headers = {
        "Authorization": ["AWS4-HMAC-SHA256 Credential=client"],
        "x-amz-date": ["20000101T000000Z"],
        "x-amz-security-token": ["of the client"],
        "x-amz-checksum-crc32": ["AAAAAA=="],
        "x-amz-sdk-checksum-algorithm": ["CRC32"],
        "Content-Type": ["application/octet-stream"],
        "User-Agent": ["client"],
    }
    signed = s3_signing.sign(
        read("PUT", headers=headers),
        SessionCredentials("id", "secret", "token"),
        "eu-central-1",
        datetime(2026, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=1))),
    )
    assert signed["authorization"].startswith("AWS4-HMAC-SHA256 Credential=id/")
    assert (
        "SignedHeaders=content-type;host;x-amz-checksum-crc32;x-amz-content-sha256;x-amz-date;"
        "x-amz-sdk-checksum-algorithm;x-amz-security-token"
    ) in signed["authorization"]
    assert signed["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert signed["x-amz-security-token"] == "token"
    assert signed["x-amz-date"] == "20260203T030506Z"
    assert "Credential=id/20260203/eu-central-1/s3/aws4_request" in signed["authorization"]
    assert signed["user-agent"] == "client"
    assert "secret" not in str(signed)
