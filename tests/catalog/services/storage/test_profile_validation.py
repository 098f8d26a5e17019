"""The fields of storage profiles: what is accepted, and what a refusal says."""

import json

import pytest

from catalog.errors import InvalidInput
from catalog.models import StorageProfile
from catalog.services.storage import endpoint_validation, profile_validation
from catalog.services.storage.profile_presets import PRESETS
from catalog.storage.configuration import Key

SECRET = "a-secret-that-no-message-shows"
KEY = Key("AKIAEXAMPLE", SECRET)
ACCOUNT = json.dumps(
    {"type": "service_account", "client_email": "a@b", "private_key": f"-----{SECRET}"}
)
S3 = {"kind": "s3", "roots": ["s3://lake/tables"], "region": "eu-central-1"}
ROLE = "arn:aws:iam::123456789012:role/lake"
AZURE = "abfss://files@lake.dfs.core.windows.net/tables"


def check(key: Key | None = None, **fields: object) -> StorageProfile:
    row = StorageProfile(**{"name": "lake", **S3, **fields})
    profile_validation.check(row, key)
    return row


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({}, None),
        ({"identity": "key"}, KEY),
        ({"identity": "key"}, Key("AKIA", SECRET, "token/+=")),
        ({"identity": "role", "role": ROLE, "external_id": "tenant-1"}, None),
        ({"identity": "role", "role": ROLE}, KEY),
        ({"client_access": "sts", "role": ROLE, "lifetime_seconds": 900}, None),
        ({"client_access": "signing"}, None),
        ({"client_access": "static", "identity": "key"}, KEY),
        ({"roots": ["s3://lake"]}, None),
        ({"roots": ["s3://lake/a", "s3://lake/ab", "s3://lake/a.b"]}, None),
        ({"region": "", "endpoint": "http://127.0.0.1:9000"}, None),
        (
            {
                "endpoint": "https://rgw.example.com",
                "role": "arn:aws:iam:::role/lake",
                "client_access": "sts",
                "lifetime_seconds": 10,
            },
            None,
        ),
        ({"kind": "gcs", "roots": ["gs://lake/tables"], "region": ""}, None),
        *(
            (
                {"kind": "gcs", "roots": ["gs://lake"], "region": "", "sts_endpoint": url},
                None,
            )
            for url in ("https://sts-lake.p.googleapis.com/v1/token", "http://127.0.0.1:9000/token")
        ),
        ({"kind": "gcs", "roots": ["gs://lake"], "identity": "key"}, Key("", ACCOUNT)),
        ({"kind": "adls", "roots": [AZURE], "region": ""}, None),
        ({"kind": "adls", "roots": [AZURE], "identity": "key"}, Key("lake", SECRET + "==")),
    ],
)
def test_profiles_that_are_accepted(fields, key):
    check(key, **fields)


@pytest.mark.parametrize(
    ("fields", "key", "message"),
    [
        ({"name": ""}, None, r"name: ''"),
        ({"name": "a/b"}, None, r"name: 'a/b' has other characters"),
        ({"name": "a\n"}, None, "name: "),
        ({"name": "x" * 101}, None, "name: "),
        ({"kind": "file"}, None, r"kind: 'file' needs no profile"),
        ({"kind": "ftp"}, None, r"kind: 'ftp' is no kind .*; use s3, gcs, adls"),
        ({"roots": []}, None, r"roots: \[\] is empty; add one such as s3://bucket/tables"),
        ({"roots": ["s3://lake/a", "s3://lake/a"]}, None, "overlap; remove the inner one"),
        ({"roots": ["s3://lake/a", "s3://lake/a/b"]}, None, "overlap"),
        ({"roots": ["s3://lake/a/b", "s3://lake"]}, None, "overlap"),
        ({"roots": ["gs://lake/a"]}, None, "is not a location of kind s3; use s3://"),
        ({"roots": ["s3a://lake/a"]}, None, "uses s3a://; write s3://"),
        ({"roots": ["/lake/a"]}, None, "has no scheme"),
        ({"roots": ["s3://lake/../a"]}, None, r"holds '\.\.'"),
        ({"roots": ["s3://lake/%2e%2e/a"]}, None, "roots: "),
        ({"roots": ["s3://lake/*"]}, None, "holds a character that policies"),
        ({"roots": ["s3://user:word@lake/a"]}, None, "does not name a bucket"),
        ({"roots": ["s3://lake//a"]}, None, "empty segment"),
        ({"roots": ["s3://LAKE/a"]}, None, "does not name a bucket"),
        ({"roots": [f"s3://lake/{'a' * 500}"]}, None, "is longer than 500"),
        ({"roots": [f"s3://lake/{number}" for number in range(101)]}, None, "101 are more than"),
        ({"region": "eu central"}, None, "region: 'eu central' is not a region"),
        ({"region": ""}, None, "region: '' is empty; set the region"),
        ({"identity": "key"}, None, "identity: 'key' needs a key; set the key"),
        ({"identity": "nobody"}, None, "use key, environment, role"),
        ({}, KEY, "identity: 'environment' uses no key"),
        ({"identity": "role"}, None, "role: '' is empty, and identity role needs it"),
        ({"identity": "role", "role": "lake"}, None, "is not the ARN of a role"),
        ({"identity": "role", "role": "arn:aws:iam:::role/lake"}, None, "is not the ARN"),
        ({"role": ROLE + "\n"}, None, "is not the ARN"),
        ({"external_id": "x1"}, None, "external_id: 'x1' is set without a role"),
        ({"role": ROLE, "external_id": "a b"}, None, "is not an external ID"),
        ({"kms_key": "a\0b"}, None, "kms_key: .* has control characters"),
        ({"client_access": "sts"}, None, "role: '' is empty, and client_access sts needs it"),
        ({"client_access": "static"}, None, "static' gives clients the key"),
        ({"client_access": "static", "identity": "role", "role": ROLE}, KEY, "gives clients"),
        ({"client_access": "all"}, None, "use sts, signing, static, none"),
        (
            {"client_access": "sts", "role": ROLE, "lifetime_seconds": 899},
            None,
            "899 is not between 900 and 43200",
        ),
        ({"lifetime_seconds": 9}, None, "9 is not between 10 and 43200"),
        ({"lifetime_seconds": 43201}, None, "is not between"),
        ({"identity": "key"}, Key("", SECRET), "key_id: '' is no access key id"),
        ({"identity": "key"}, Key("AK IA", SECRET), "key_id: 'AK IA' is no access key id"),
        ({"identity": "key"}, Key("AKIA", ""), "secret: it is empty"),
        ({"identity": "key"}, Key("AKIA", SECRET + " "), "secret: it has a space"),
        ({"identity": "key"}, Key("AKIA", SECRET + "\n"), "secret: it has a space"),
        ({"identity": "key"}, Key("AKIA", SECRET, "a b"), "token: it has a space"),
        ({"identity": "key"}, Key("AKIA", SECRET * 1000), "more than 20000"),
        (
            {"kind": "gcs", "roots": ["gs://lake"], "role": ROLE},
            None,
            "role: .* is only for kind s3",
        ),
        ({"kind": "gcs", "roots": ["gs://lake"], "path_style": True}, None, "path_style: True is"),
        ({"kind": "gcs", "roots": ["gs://lake"], "identity": "role"}, None, "is only for kind s3"),
        (
            {"kind": "gcs", "roots": ["gs://lake"], "client_access": "signing"},
            None,
            "'signing' is only served for kind s3; use none",
        ),
        (
            {
                "kind": "gcs",
                "roots": ["gs://lake"],
                "client_access": "sts",
                "lifetime_seconds": 900,
            },
            None,
            "lifetime_seconds: 900 is not 3600, the lifetime of Google's tokens; use 3600",
        ),
        *(
            (
                {"kind": "gcs", "roots": ["gs://lake"], "sts_endpoint": url},
                None,
                "is not an address of Google, and would get the server's own token",
            )
            for url in (
                "https://sts.example.com/v1/token",
                "https://sts.googleapis.com.example.com/v1/token",
                "https://examplegoogleapis.com",
                "https://googleapis.com",
                "http://sts.googleapis.com/v1/token",
            )
        ),
        (
            {"kind": "adls", "roots": [AZURE], "sts_endpoint": "https://sts.example.com"},
            None,
            "sts_endpoint: 'https://sts.example.com' is only for kind",
        ),
        (
            {
                "kind": "gcs",
                "roots": ["gs://lake"],
                "client_access": "static",
                "identity": "key",
            },
            Key("", ACCOUNT),
            "'static' is only served for kinds s3 and adls",
        ),
        (
            {"kind": "gcs", "roots": ["gs://lake"], "identity": "key"},
            KEY,
            "is not used by kind gcs",
        ),
        (
            {"kind": "gcs", "roots": ["gs://lake"], "identity": "key"},
            Key("", SECRET),
            "secret: it is not JSON",
        ),
        (
            {"kind": "gcs", "roots": ["gs://lake"], "identity": "key"},
            Key("", json.dumps({"type": "authorized_user", "x": SECRET})),
            "is not the key of a service account",
        ),
        (
            {"kind": "gcs", "roots": ["gs://lake"], "identity": "key"},
            Key("", json.dumps({"type": "service_account", "client_email": SECRET})),
            "has no private_key",
        ),
        *(
            (
                {"kind": "gcs", "roots": ["gs://lake"], "identity": "key"},
                Key("", json.dumps({**json.loads(ACCOUNT), **fields})),
                text,
            )
            for fields, text in (
                ({"token_uri": "https://tokens.example.com"}, "token_uri is not https://oauth2"),
                ({"token_uri": ["https://oauth2.googleapis.com/token"]}, "token_uri is not"),
                ({"gcs_base_url": "https://gcs.example.com"}, "for emulators on this machine only"),
                ({"gcs_base_url": "http://127.0.0.1.example.com"}, "for emulators"),
                ({"gcs_base_url": "http://[x"}, "for emulators"),
                ({"disable_oauth": True}, "for emulators on this machine only"),
            )
        ),
        ({"kind": "adls", "roots": ["abfss://files/tables"]}, None, "does not name a bucket"),
        (
            {"kind": "adls", "roots": ["abfss://files@lake.example.com/tables"]},
            None,
            "does not name a bucket or container",
        ),
        (
            {"kind": "adls", "roots": [AZURE], "identity": "key"},
            Key("other", SECRET),
            "is in the storage account 'lake', and the key is of 'other'",
        ),
        (
            {"kind": "adls", "roots": [AZURE], "identity": "key"},
            Key("lake", SECRET, SECRET),
            "token: only keys of kind s3",
        ),
    ],
)
def test_a_refusal_names_the_field_the_value_the_rule_and_the_remedy(fields, key, message):
    with pytest.raises(InvalidInput, match=message) as refused:
        check(key, **fields)
    assert SECRET not in str(refused.value)
    assert ";" in str(refused.value)


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        ("s3://b/a", "s3://b/a", True),
        ("s3://b/a", "s3://b/a/c", True),
        ("s3://b", "s3://b/a", True),
        ("s3://b/a", "s3://b/ab", False),
        ("s3://b/a", "s3://b/a.b", False),
        ("s3://b", "s3://b2", False),
        ("s3://b/a", "gs://b/a", False),
    ],
)
def test_only_whole_segments_overlap(first, second, overlap):
    assert profile_validation.overlaps(first, second) is overlap
    assert profile_validation.overlaps(second, first) is overlap


# --- endpoints -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https://s3.example.com",
        "http://127.0.0.1:9000",
        "http://localhost:9000",
        "http://[::1]:9000",
        "http://10.1.2.3",
        "https://account.r2.cloudflarestorage.com",
        "https://project.supabase.co/storage/v1/s3",
        "http://minio_1:9000",
    ],
)
def test_endpoints_that_are_accepted(url):
    assert endpoint_validation.checked("endpoint", url) == url
    assert endpoint_validation.checked("endpoint", f"{url}/" if url else "") == url


HOSTILE = [
    "http://169.254.169.254",
    "http://169.254.169.254/latest/meta-data",
    "http://169.254.170.2",
    "http://[fd00:ec2::254]",
    "http://[fe80::1]",
    "http://[fe80::1%25eth0]",
    "http://[::ffff:169.254.169.254]",
    "http://[::ffff:a9fe:a9fe]",
    "http://[::169.254.169.254]",
    "http://[64:ff9b::169.254.169.254]",
    "http://[2002:a9fe:a9fe::]",
    "http://[::ffff:127.0.0.1]",
    "http://2852039166",
    "http://0xa9fea9fe",
    "http://0xa9.0xfe.0xa9.0xfe",
    "http://0251.0376.0251.0376",
    "http://169.254.43518",
    "http://169.16689662",
    "http://0x7f.1",
    "http://127.1",
    "http://999.1.1.1",
    "http://169.254.169.254.",
    "http://metadata.google.internal",
    "http://METADATA.google.internal:80",
    "http://metadata",
    "http://100.100.100.200",
    "http://168.63.129.16",
    "http://192.0.0.192",
    "http://0.0.0.0:9000",
    "http://[::]:9000",
    "http://224.0.0.1",
    "http://[ff02::1]",
    "ftp://s3.example.com",
    "file:///etc/passwd",
    "s3.example.com",
    "//s3.example.com",
    "https:s3.example.com",
    "https:///path",
    "https://",
    "https://user:hunter2@s3.example.com",
    "https://user:hunter2 @s3.example.com",
    "ftp://user:hunter2@s3.example.com",
    "https://@s3.example.com",
    "https://s3.example.com@169.254.169.254",
    "https://169.254.169.254#@s3.example.com",
    "https://s3.example.com\\@169.254.169.254",
    "https://s3.example.com?x=1",
    "https://s3.example.com?",
    "https://s3.example.com#x",
    "https://s3.example.com/../x",
    "https://s3.example.com/./x",
    "https://s3.example.com//x",
    "https://s3.example.com/%2e%2e/x",
    "https://s3.example.com/a b",
    "https://s3.example.com\n",
    "https://s3.example.com\r\nHost: x",
    "https://s3.example.com\t",
    "https://s3.example.com\0",
    " https://s3.example.com",
    "https://s3.exämple.com",
    "https://１６９.254.169.254",
    "https://s3..example.com",
    "https://-s3.example.com",
    "https://s3.example.com:0",
    "https://s3.example.com:",
    "https://s3.example.com:99999",
    "https://s3.example.com:x",
    "https://{bucket}.example.com",
    "https://[s3.example.com]",
    "https://" + "a" * 500,
]


@pytest.mark.parametrize("url", HOSTILE)
@pytest.mark.parametrize("field", ["endpoint", "sts_endpoint"])
def test_a_hostile_endpoint_is_refused(field, url):
    with pytest.raises(InvalidInput, match=f"^{field}: .*; ") as refused:
        check(**{field: url})
    assert "hunter2" not in str(refused.value)


# --- presets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_preset_with_its_hints_makes_a_valid_profile(preset):
    hints = {"bucket": "lake", "container": "files", "account": "lake"}
    root = preset.hints["roots"]
    for word, text in hints.items():
        root = root.replace(word, text)
    fields = {"kind": preset.kind, "roots": [root], "region": "", **preset.fields}
    if "endpoint" in preset.hints:
        fields["endpoint"] = preset.hints["endpoint"]
    if preset.name == "aws":
        fields |= {"region": "eu-central-1", "role": ROLE}
    if preset.name == "ceph":
        fields["role"] = preset.hints["role"].partition(";")[0]
    key = {"gcs": Key("", ACCOUNT), "azure": Key("lake", SECRET), "aws": None}.get(preset.name, KEY)
    check(key, **fields)
