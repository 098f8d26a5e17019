"""The checks of a storage profile: a good profile passes, and each mistake fails the check that names it."""

import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate
from functools import partial
from typing import Any

import pytest

from catalog.services.storage import profiles
from catalog.services.storage.client_sessions import token_services
from catalog.services.storage.profile_checks import leftovers, runner
from catalog.services.storage.profile_checks.results import CheckResult, CheckStatus
from catalog.services.storage.profile_checks.s3_client import Answer, S3Client
from catalog.storage.configuration import ClientAccess, Key, ServerIdentity, StoreConfiguration
from tests.catalog.services.storage.rewriting_proxy import RewritingProxy
from tests.ports import free_port
from tests.stores.directory_signatures import DirectoryGate
from tests.stores.s3 import Moto, S3Store

pytestmark = pytest.mark.django_db

PASSED, WARNING, FAILED, SKIPPED = CheckStatus
BASE = [
    *(
        "endpoint",
        "clock",
        "credentials",
        "bucket",
        "region",
        "path_style",
        "list",
        "write",
        "read",
    ),
    *("range", "conditional_write", "multipart", "delete", "bulk_delete"),
]
CLIENTS = [
    *("client_credentials", "client_own", "client_sibling", "client_twin", "client_list"),
    *("client_parent", "client_read_only"),
]


def mint_of(configuration: StoreConfiguration) -> Callable[[str, bool], Key]:
    """Credentials as the server issues them to clients."""

    def mint(location: str, write: bool) -> Key:
        return token_services.open_session(
            configuration, [location], write=write, principal="ada"
        ).key

    return mint


def results_of(
    configuration: StoreConfiguration, mint: Callable[[str, bool], Key] | None = None
) -> dict[str, CheckResult]:
    checks = runner.run_checks(configuration, mint or mint_of(configuration))
    return {result.key: result for result in checks}


def statuses(results: dict[str, CheckResult]) -> dict[str, CheckStatus]:
    return {key: result.status for key, result in results.items()}


@pytest.fixture
def on_moto(moto_s3: Moto, make_profile: Any) -> StoreConfiguration:
    """A profile of a new bucket of moto, whose clients get credentials from the token service."""
    fields = moto_s3.profile_fields() | {"client_access": "sts", "role": moto_s3.role}
    row = make_profile(name="lake", roots=[f"s3://{moto_s3.new_bucket()}/root"], **fields)
    return profiles.configuration(row)


@pytest.fixture
def on_s3(s3: S3Store, make_profile: Any) -> StoreConfiguration:
    roots = [f"s3://{s3.new_bucket()}/root"]
    return profiles.configuration(make_profile(name="lake", roots=roots, **s3.profile_fields()))


def remaining(store: S3Store, configuration: StoreConfiguration) -> list[str]:
    """The objects in the bucket of a profile, and its unfinished uploads."""
    bucket = configuration.roots[0].removeprefix("s3://").partition("/")[0]
    uploads = store.client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    return store.keys(bucket) + [upload["Key"] for upload in uploads]


# --- good profiles


def test_a_good_profile_with_a_token_service_passes_every_check(on_moto, moto_s3):
    results = results_of(on_moto)
    # Its endpoint is on this machine, so that plain HTTP is no risk.
    assert statuses(results) == dict.fromkeys([*BASE, *CLIENTS, "cleanup"], PASSED)
    assert {result.remedy for result in results.values()} == {""}
    assert remaining(moto_s3, on_moto) == []


def test_seaweedfs_passes_every_check(seaweedfs, make_profile):
    fields = seaweedfs.profile_fields() | {"client_access": "sts", "role": seaweedfs.role}
    row = make_profile(roots=[f"s3://{seaweedfs.new_bucket()}/root"], **fields)
    configuration = profiles.configuration(row)
    results = results_of(configuration)
    assert statuses(results) == dict.fromkeys([*BASE, *CLIENTS, "cleanup"], PASSED)
    assert remaining(seaweedfs, configuration) == []


def test_a_static_key_is_a_warning(on_s3, s3):
    results = results_of(on_s3)
    assert statuses(results) == (
        dict.fromkeys(BASE, PASSED) | {"client_access": WARNING, "cleanup": PASSED}
    )
    assert "server's own key" in results["client_access"].cause
    assert "signing" in results["client_access"].remedy
    assert remaining(s3, on_s3) == []


def test_signed_requests_open_only_their_object(on_s3, s3):
    results = results_of(replace(on_s3, client_access=ClientAccess.SIGNING))
    signing = FAILED if s3.name == "moto" else PASSED
    passed = dict.fromkeys([*BASE, "client_access", "cleanup"], PASSED)
    assert statuses(results) == passed | {"client_access": signing}
    assert remaining(s3, on_s3) == []


def test_a_store_that_obeys_headers_without_a_signature_is_refused(on_moto, moto_s3):
    """A writer of one table could copy objects of others into it."""
    results = results_of(replace(on_moto, client_access=ClientAccess.SIGNING))
    assert results["client_access"].status is FAILED
    assert "copies an object of another table" in results["client_access"].cause
    assert remaining(moto_s3, on_moto) == []


def test_a_store_that_does_not_compare_bodies_with_their_hash_is_refused(
    on_moto, moto_s3, monkeypatch
):
    """A writer of one table could delete files of others with the signature of a deletion of its own."""
    refused = Answer(403, {}, b"")  # as of a store that refuses headers without a signature
    monkeypatch.setattr(S3Client, "send_copy", lambda *_: refused)
    results = results_of(replace(on_moto, client_access=ClientAccess.SIGNING))
    assert results["client_access"].status is FAILED
    assert "deletes an object of another table" in results["client_access"].cause
    assert remaining(moto_s3, on_moto) == []


def test_other_objects_of_the_root_stay(on_s3, s3):
    bucket = on_s3.roots[0].removeprefix("s3://").partition("/")[0]
    for key in ("root/table/data", "root/.monodon-test-other/object", "elsewhere"):
        s3.client().put_object(Bucket=bucket, Key=key, Body=b"x")
    before = s3.keys(bucket)
    results_of(replace(on_s3, client_access=ClientAccess.NONE))
    assert s3.keys(bucket) == before


def test_objects_of_earlier_tests_are_removed_after_a_day(on_s3, s3, monkeypatch):
    bucket = on_s3.roots[0].removeprefix("s3://").partition("/")[0]
    leftovers_of_tests = [
        "root/.monodon-test-1/object",
        "root/.monodon-test-1/t/data/1",
        "other/.monodon-test-2/a",
    ]
    other_keys = ["elsewhere/.monodon-test-3/a", "root/t/.monodon-test-4", "root/monodon-test-5/a"]
    for key in leftovers_of_tests + other_keys:
        s3.client().put_object(Bucket=bucket, Key=key, Body=b"x")
    roots = (*on_s3.roots, f"s3://{bucket}/other")
    configuration = replace(on_s3, client_access=ClientAccess.NONE, roots=roots)
    assert "earlier" not in results_of(configuration)["cleanup"].cause
    assert s3.keys(bucket) == sorted(leftovers_of_tests + other_keys)
    monkeypatch.setattr(leftovers, "MIN_AGE_SECONDS", -60)
    cleanup = results_of(configuration)["cleanup"]
    assert (cleanup.status, cleanup.cause.partition(", ")[2]) == (PASSED, "and 3 of earlier tests")
    assert s3.keys(bucket) == sorted(other_keys)


def test_every_root_is_used(on_s3, s3):
    (first,) = on_s3.roots
    second = f"s3://{s3.new_bucket()}"
    results = results_of(replace(on_s3, roots=(first, second)))
    assert results["other_roots"].status == PASSED
    assert results["other_roots"].cause == second
    assert s3.keys(second.removeprefix("s3://")) == []

    results = results_of(replace(on_s3, roots=(first, "s3://no-such-bucket-here/x")))
    assert failing(results) == ["other_roots"]
    assert results["other_roots"].cause.startswith("Root s3://no-such-bucket-here/x: ")
    assert remaining(s3, on_s3) == []


def test_the_objects_are_removed_if_the_caller_stops_early(on_s3, s3):
    checks = runner.run_checks(on_s3, mint_of(on_s3))
    for result in checks:
        if result.key == "multipart":
            assert remaining(s3, on_s3) != []
            break
    checks.close()
    assert remaining(s3, on_s3) == []


OTHER_KINDS = [
    *("endpoint", "clock", "list", "write", "read", "range", "conditional_write", "multipart"),
    *("delete", "bulk_delete", "cleanup"),
]


def test_google_cloud_storage(fake_gcs, make_profile):
    row = make_profile(roots=[f"gs://{fake_gcs.new_bucket()}/root"], **fake_gcs.profile_fields())
    results = results_of(profiles.configuration(row))
    assert statuses(results) == dict.fromkeys(OTHER_KINDS, PASSED) | {"client_access": SKIPPED}


def test_azure(azurite, make_profile):
    container = azurite.new_container()
    root = f"abfss://{container}@{azurite.account}.dfs.core.windows.net/root"
    row = make_profile(roots=[root], **azurite.profile_fields())
    results = results_of(profiles.configuration(row))
    assert statuses(results) == dict.fromkeys(OTHER_KINDS, PASSED) | {"client_access": SKIPPED}


def test_azure_limits_clients_to_their_directory(azurite, make_profile):
    root = f"abfss://{azurite.new_container()}@{azurite.account}.dfs.core.windows.net/root"
    with DirectoryGate(azurite) as gate:
        fields = azurite.profile_fields() | {"endpoint": gate.endpoint, "client_access": "sts"}
        results = results_of(profiles.configuration(make_profile(roots=[root], **fields)))
    assert statuses(results) == dict.fromkeys([*OTHER_KINDS, *CLIENTS], PASSED)
    assert len(gate.refused) > 10


def test_an_account_without_directories_fails(azurite, make_profile):
    """Azurite refuses signatures for a directory, as accounts without a hierarchical namespace do."""
    root = f"abfss://{azurite.new_container()}@{azurite.account}.dfs.core.windows.net/root"
    fields = azurite.profile_fields() | {"client_access": "sts"}
    results = results_of(profiles.configuration(make_profile(roots=[root], **fields)))
    assert results["client_own"].status == FAILED
    assert "A client cannot read an object of its table" in results["client_own"].cause
    assert "hierarchical namespace" in results["client_own"].remedy


# --- the connection


def test_a_closed_port(on_moto):
    results = results_of(replace(on_moto, endpoint=f"http://127.0.0.1:{free_port()}"))
    assert results["endpoint"].status == FAILED
    assert "refuses the connection" in results["endpoint"].cause
    assert "listens on this port" in results["endpoint"].remedy
    assert set(statuses(results).values()) == {FAILED, SKIPPED}
    assert sum(result.status == FAILED for result in results.values()) == 1


def test_an_unknown_host(on_moto):
    results = results_of(replace(on_moto, endpoint="https://store.invalid"))
    assert results["endpoint"].status == FAILED
    assert "'store.invalid' has no address" in results["endpoint"].cause
    assert "spelling" in results["endpoint"].remedy


def test_a_store_without_tls(on_moto):
    results = results_of(replace(on_moto, endpoint=on_moto.endpoint.replace("http:", "https:")))
    assert results["endpoint"].status == FAILED
    assert "does not answer with TLS" in results["endpoint"].cause
    assert "http://" in results["endpoint"].remedy


@pytest.mark.parametrize(("skew", "status"), [(-900, FAILED), (400, FAILED), (120, WARNING)])
def test_a_skewed_clock(on_s3, s3, skew, status):
    date = formatdate(time.time() + skew, usegmt=True)
    with RewritingProxy(s3, date=date) as proxy:
        results = results_of(replace(on_s3, endpoint=proxy.url))
    assert results.pop("clock").status == status
    assert not any(result.status == FAILED for result in results.values())
    assert remaining(s3, on_s3) == []


def test_a_skewed_clock_names_its_remedy(on_moto, moto_s3):
    with RewritingProxy(moto_s3, date=formatdate(time.time() - 900, usegmt=True)) as proxy:
        configuration = replace(on_moto, endpoint=proxy.url, sts_endpoint=moto_s3.endpoint)
        clock = results_of(configuration)["clock"]
    assert "the store is behind" in clock.cause
    assert "Synchronize the clock" in clock.remedy


# --- the key, the bucket, the region, the URL style


def failing(results: dict[str, CheckResult]) -> list[str]:
    return [key for key, result in results.items() if result.status == FAILED]


def with_key(configuration: StoreConfiguration, **parts: str) -> StoreConfiguration:
    assert configuration.key is not None
    return replace(configuration, key=replace(configuration.key, **parts))


def test_an_unknown_key(on_moto, moto_s3):
    results = results_of(with_key(on_moto, id="AKIAUNKNOWNUNKNOWN00"))
    assert failing(results) == ["credentials"]
    assert "does not know the access key 'AKIAUNKNOWNUNKNOWN00'" in results["credentials"].cause
    assert "Correct the key id" in results["credentials"].remedy
    assert results["write"].status == SKIPPED
    assert remaining(moto_s3, on_moto) == []


@pytest.mark.parametrize("store", ["on_moto", "on_s3"])
def test_a_wrong_secret(store, request):
    configuration = request.getfixturevalue(store)
    results = results_of(with_key(configuration, secret="not-the-secret-of-this-key"))
    assert failing(results) == ["credentials"]
    assert "secret does not belong" in results["credentials"].cause
    assert "Enter the secret again" in results["credentials"].remedy
    assert "not-the-secret-of-this-key" not in str(results)


def test_no_key_in_the_environment(on_moto, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    results = results_of(replace(on_moto, identity=ServerIdentity.ENVIRONMENT, key=None))
    assert failing(results) == ["credentials"]
    assert "environment of the server has no credentials" in results["credentials"].cause
    assert "store a key in the profile" in results["credentials"].remedy


@pytest.mark.parametrize("store", ["on_moto", "on_s3"])
def test_a_bucket_that_does_not_exist(store, request):
    configuration = request.getfixturevalue(store)
    results = results_of(replace(configuration, roots=("s3://no-such-bucket-here/root",)))
    assert failing(results) == ["bucket"]
    assert "has no bucket 'no-such-bucket-here'" in results["bucket"].cause
    assert "Create the bucket" in results["bucket"].remedy


def test_a_wrong_region(versitygw, make_profile):
    roots = [f"s3://{versitygw.new_bucket()}/root"]
    row = make_profile(roots=roots, **versitygw.profile_fields() | {"region": "eu-central-1"})
    configuration = profiles.configuration(row)
    results = results_of(configuration)
    assert failing(results) == ["region"]
    assert "'eu-central-1'" in results["region"].cause
    assert results["region"].remedy == "Set the region to 'us-east-1'."
    assert statuses(results)["credentials"] == PASSED
    assert remaining(versitygw, configuration) == []


@pytest.fixture
def _named_store(monkeypatch) -> None:
    """Give the name "storehost" the address of this machine, and names below it none."""
    original = socket.getaddrinfo

    def resolve(host: str, *arguments: Any, **options: Any) -> Any:
        if host.endswith(".storehost"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return original("127.0.0.1" if host == "storehost" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.usefixtures("_named_store")
def test_a_bucket_in_the_host_name_that_the_store_does_not_serve(on_s3, s3):
    endpoint = on_s3.endpoint.replace("127.0.0.1", "storehost")
    results = results_of(replace(on_s3, endpoint=endpoint, path_style=False))
    assert failing(results) == ["path_style"]
    assert "Switch path style on" in results["path_style"].remedy
    assert remaining(s3, on_s3) == []


# --- objects


def test_a_store_that_ignores_conditions(on_s3, s3):
    with RewritingProxy(s3, ignores_conditions=True) as proxy:
        configuration = replace(on_s3, endpoint=proxy.url)
        results = results_of(configuration)
        stated = results_of(replace(configuration, conditional_writes=False))
    assert failing(results) == ["conditional_write"]
    assert "the second write replaced the object" in results["conditional_write"].cause
    assert "Clear “conditional writes”" in results["conditional_write"].remedy
    assert stated["conditional_write"].status == PASSED
    assert remaining(s3, on_s3) == []


def test_conditions_that_the_profile_does_not_know_of_are_a_warning(on_s3):
    result = results_of(replace(on_s3, conditional_writes=False))["conditional_write"]
    assert result.status == WARNING
    assert "Set “conditional writes”" in result.remedy


def with_rights(
    store: Moto, configuration: StoreConfiguration, *statements: dict[str, Any]
) -> StoreConfiguration:
    """The profile with a session of its role that has only these rights."""
    policy = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
    answer = store.client("sts").assume_role(
        RoleArn=store.role, RoleSessionName="limited", Policy=policy
    )["Credentials"]
    key = Key(answer["AccessKeyId"], answer["SecretAccessKey"], answer["SessionToken"])
    return replace(configuration, key=key, client_access=ClientAccess.NONE)


def allow(configuration: StoreConfiguration, *actions: str) -> dict[str, Any]:
    path = configuration.roots[0].removeprefix("s3://")
    resources = [f"arn:aws:s3:::{path.partition('/')[0]}", f"arn:aws:s3:::{path}/*"]
    return {"Effect": "Allow", "Action": list(actions), "Resource": resources}


@pytest.mark.parametrize(
    ("rights", "failed", "needed"),
    [
        (["s3:ListBucket", "s3:GetObject"], "write", "s3:PutObject"),
        (["s3:ListBucket", "s3:PutObject", "s3:DeleteObject"], "read", "s3:GetObject"),
    ],
)
def test_a_missing_right_is_named(on_moto, moto_s3, rights, failed, needed):
    configuration = with_rights(moto_s3, on_moto, allow(on_moto, *rights))
    results = results_of(configuration)
    assert failing(results)[0] == failed
    assert results[failed].remedy.startswith(f"Grant the server's key {needed}")
    assert results["credentials"].status == results["bucket"].status == PASSED
    assert remaining(moto_s3, on_moto) == []


def test_a_key_that_may_not_list_cleans_up_all_the_same(on_moto, moto_s3):
    rights = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")
    results = results_of(with_rights(moto_s3, on_moto, allow(on_moto, *rights)))
    assert failing(results)[0] == "list"
    assert "s3:ListBucket" in results["list"].remedy
    assert remaining(moto_s3, on_moto) == []


def test_objects_that_cannot_be_removed_are_named(on_moto, moto_s3):
    rights = ("s3:ListBucket", "s3:GetObject", "s3:PutObject")
    results = results_of(with_rights(moto_s3, on_moto, allow(on_moto, *rights)))
    assert {"delete", "cleanup"} <= set(failing(results))
    assert f"below {on_moto.roots[0]}/.monodon-test-" in results["cleanup"].remedy
    assert remaining(moto_s3, on_moto) != []


# --- credentials of clients


def test_a_token_service_that_ignores_the_policy(on_moto, moto_s3):
    assert on_moto.key is not None
    results = results_of(on_moto, lambda _location, _write: on_moto.key)
    assert failing(results) == [
        *("client_sibling", "client_twin", "client_list", "client_parent", "client_read_only")
    ]
    assert "read another table, write to another table" in results["client_sibling"].cause
    assert "list the bucket" in results["client_list"].cause
    assert "does not limit credentials" in results["client_twin"].remedy
    assert remaining(moto_s3, on_moto) == []


def limited_to(store: Moto, pattern: str, actions: str, location: str, _write: bool) -> Key:
    """Credentials with a policy whose resource is the location and a pattern."""
    path = location.removeprefix("s3://")
    bucket, _, prefix = path.partition("/")
    statements = [
        {"Effect": "Allow", "Action": actions, "Resource": f"arn:aws:s3:::{path}{pattern}"},
        {
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": f"arn:aws:s3:::{bucket}",
            "Condition": {"StringLike": {"s3:prefix": f"{prefix}/*"}},
        },
    ]
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    answer = store.client("sts").assume_role(
        RoleArn=store.role, RoleSessionName="client", Policy=policy
    )["Credentials"]
    return Key(answer["AccessKeyId"], answer["SecretAccessKey"], answer["SessionToken"])


def test_a_prefix_without_its_slash_opens_the_twin(on_moto, moto_s3):
    results = results_of(on_moto, partial(limited_to, moto_s3, "*", "s3:*Object"))
    # Readers get the same rights, which the last check finds.
    assert failing(results) == ["client_twin", "client_read_only"]
    assert "read table 'A2' with credentials for 'A'" in results["client_twin"].cause
    assert remaining(moto_s3, on_moto) == []


def test_a_role_that_is_too_narrow(on_moto, moto_s3):
    results = results_of(on_moto, partial(limited_to, moto_s3, "/*", "s3:GetObject"))
    assert failing(results) == ["client_own"]
    assert "cannot write an object of its table" in results["client_own"].cause
    assert results["client_own"].remedy.startswith("Grant the role s3:GetObject, s3:PutObject")


def test_a_role_that_cannot_be_assumed(on_moto, moto_s3):
    configuration = replace(on_moto, sts_endpoint=f"http://127.0.0.1:{free_port()}")
    results = results_of(configuration)
    assert failing(results) == ["client_credentials"]
    assert "cannot issue credentials" in results["client_credentials"].cause
    assert "token service" in results["client_credentials"].remedy
    assert statuses(results)["client_twin"] == SKIPPED
    assert remaining(moto_s3, on_moto) == []


# --- limits


def test_a_check_ends_at_its_limit(on_s3, monkeypatch):
    monkeypatch.setattr(runner, "CHECK_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"https://127.0.0.1:{silent.getsockname()[1]}"
        result = results_of(replace(on_s3, endpoint=endpoint))["endpoint"]
    assert result.status == FAILED
    assert "did not end within" in result.cause
    assert "network" in result.remedy


def test_no_check_starts_after_the_end_of_the_test(on_s3, s3, monkeypatch):
    monkeypatch.setattr(runner, "TEST_SECONDS", -1.0)
    results = results_of(on_s3)
    assert set(statuses(results).values()) == {SKIPPED}
    assert "The test ended after" in results["endpoint"].cause
    assert remaining(s3, on_s3) == []


def test_results_hold_no_secret(on_moto):
    secret = on_moto.key.secret if on_moto.key else ""
    scrubbed = runner.scrub(f"denied for {secret} at the store", on_moto)
    assert secret
    assert scrubbed == "denied for *** at the store"


def test_control_characters_of_an_answer_are_spaces():
    answer = Answer(400, {}, b"<Error><Code>a\x00b</Code><Region>eu\r\nHost: x</Region></Error>")
    assert (answer.code, answer.region) == ("a b", "eu  Host: x")
    assert answer.summary == "HTTP 400, a b"
