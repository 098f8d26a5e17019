"""Answers of stores as errors of the interface, without secrets and addresses."""

import contextlib
import errno
import json
import logging
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from catalog.storage import object_clients, object_errors
from catalog.storage.configuration import Key, ServerIdentity, StoreKind
from catalog.storage.object_store import ObjectStore
from catalog.storage.stores import AccessDenied, Pending, StorageUnavailable
from tests.catalog.storage import configurations
from tests.catalog.storage.answering_server import Answer, AnsweringServer, Request

PATH = "s3://lake/root/f"


def single(pending: Pending[Any]) -> object:
    """The result for a single file; its error is raised."""
    (result,) = pending.results()
    if isinstance(result, OSError):
        raise result
    return result


SECRETS = ("profile-secret", "AKIDPROFILE", "session-token", "the-external-id")
OPERATIONS = {
    "read": lambda store: store.read(PATH, 10),
    "read_end": lambda store: store.read_end(PATH, lambda tail, size: 0, 10),
    "read_range": lambda store: store.read_range(PATH, 0, 10),
    "read_ahead": lambda store: single(store.read_ahead([PATH], 10, {})),
    "read_ahead by size": lambda store: single(store.read_ahead([PATH], 10, {PATH: 10})),
    "sizes_ahead": lambda store: single(store.sizes_ahead([PATH])),
    "status": lambda store: store.status(PATH),
    "open": lambda store: store.open(PATH),
    "size": lambda store: store.size(PATH),
    "write_new": lambda store: store.write_new(PATH, b"content"),
    "remove": lambda store: store.remove(PATH),
    "remove_many": lambda store: list(store.remove_many([PATH])),
    "list_tree": lambda store: list(store.list_tree("s3://lake/root")),
    "list_files": lambda store: list(store.list_files("s3://lake/root", "")),
    "list_directories": lambda store: store.list_directories("s3://lake/root", ""),
    "require_reachable": lambda store: store.require_reachable(PATH),
    "set_aside": lambda store: store.set_aside("s3://lake/root", "x"),
    "remove_tree": lambda store: list(store.remove_tree("s3://lake/root")),
    "move_manifest": lambda store: store.move_manifest("s3://lake/root", "s", "f"),
}
ANSWERS = [
    (403, "AccessDenied", AccessDenied, "HTTP 403"),
    (403, "SignatureDoesNotMatch", AccessDenied, "HTTP 403"),
    (403, "RequestTimeTooSkewed", AccessDenied, "HTTP 403"),
    (401, "", AccessDenied, "HTTP 401"),
    (429, "TooManyRequests", StorageUnavailable, "HTTP 429"),
    (500, "InternalError", StorageUnavailable, "HTTP 500"),
    (503, "SlowDown", StorageUnavailable, "HTTP 503"),
    (418, "Teapot", StorageUnavailable, "HTTP 418"),
    (301, "PermanentRedirect", StorageUnavailable, "another region"),
]


@pytest.fixture(autouse=True)
def _few_retries(monkeypatch):
    monkeypatch.setattr(object_clients, "RETRIES", 1)


@pytest.fixture
def store(answering: AnsweringServer) -> ObjectStore:
    key = Key("AKIDPROFILE", "profile-secret", "session-token")
    configuration = configurations.of_endpoint(
        answering.url, key=key, external_id="the-external-id"
    )
    return ObjectStore(configuration, "s3://lake")


def text_of(error: BaseException) -> str:
    """Everything that a log may show of an error."""
    return "".join(traceback.format_exception(error)) + repr(error) + repr(error.args)


def require_no_secret(error: BaseException) -> None:
    text = text_of(error)
    assert not [secret for secret in SECRETS if secret in text]
    assert "http://" not in text
    assert error.__cause__ is None
    assert error.__context__ is None


def body(code: str) -> bytes:
    echo = "profile-secret session-token http://169.254.169.254/?X-Amz-Signature=profile-secret"
    return f"<Error><Code>{code}</Code><Message>{echo}</Message></Error>".encode()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", ANSWERS, ids=str)
def test_answers_are_errors(store, answering, operation, case):
    status, code, error, text = case
    answering.answer = lambda request: Answer(status, body(code))
    with pytest.raises(error) as refused:
        OPERATIONS[operation](store)
    assert type(refused.value) is error
    assert text in str(refused.value)
    assert "'lake'" in str(refused.value)
    assert refused.value.errno == (errno.EACCES if error is AccessDenied else errno.EIO)
    require_no_secret(refused.value)


def _deletions(error_code: str, single: Answer) -> Callable[[Request], Answer]:
    """Answers of a store that removes the second of three objects neither in bulk nor, perhaps, alone."""
    failed = f"<Error><Key>root/2</Key><Code>{error_code}</Code><Message>m</Message></Error>"
    removed = "".join(f"<Deleted><Key>root/{number}</Key></Deleted>" for number in (1, 3))

    def answer(request: Request) -> Answer:
        if request.method == "POST":
            return Answer(200, f"<DeleteResult>{removed}{failed}</DeleteResult>".encode())
        return single if request.path.endswith("/2") else Answer(204)

    return answer


@pytest.mark.parametrize("code", ["SlowDown", "InternalError", "AccessDenied", "NoSuchKey"])
def test_what_one_request_did_not_remove_is_removed_alone(store, answering, code):
    answering.answer = _deletions(code, Answer(204))
    paths = [f"s3://lake/root/{number}" for number in (1, 2, 3)]
    assert list(store.remove_many(paths)) == paths
    sent = [(request.method, request.path.partition("?")[0]) for request in answering.requests]
    bulk = [request for request in sent if request == ("POST", "/lake")]
    assert 1 <= len(bulk) <= 2  # a store that asks for fewer requests gets the same one again
    assert sent == bulk + [("DELETE", f"/lake/root/{number}") for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("answer", "error", "count"),
    [
        (Answer(403, body("AccessDenied")), AccessDenied, 2),
        (Answer(503, body("SlowDown")), StorageUnavailable, 1),
    ],
    ids=["denied", "throttled"],
)
def test_an_object_that_stays_is_an_error(store, answering, answer, error, count):
    """A refusal concerns one object. A store that does not answer is not asked for the others."""
    answering.answer = _deletions("InternalError", answer)
    removal = store.remove_many([f"s3://lake/root/{number}" for number in (1, 2, 3)])
    removed: list[str] = []
    with pytest.raises(error, match=f"'lake' .*HTTP {answer.status}"):
        removed.extend(removal)
    assert len(removed) == count


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidToken"])
def test_an_expired_token_is_a_denial(store, answering, code):
    answering.answer = lambda request: Answer(400, body(code))
    with pytest.raises(AccessDenied, match=code):
        store.read(PATH, 10)


_LANCE = (
    "LanceError(IO): Generic S3 error: Error performing GET http://store/lake/root/status: 200/x in 2 ms,"
    " after 1 retries, max_retries: 1, retry_timeout: 2s  - "
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Server returned non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>",
            (False, "HTTP 503 SlowDown"),
        ),
        (
            "Server returned non-2xx status code: 403 Forbidden: <Code>AccessDenied</Code>",
            (True, "HTTP 403 AccessDenied"),
        ),
        (
            "Server returned non-2xx status code: 400 Bad Request: <Code>ExpiredToken</Code>",
            (True, "HTTP 400 ExpiredToken"),
        ),
        ("Server returned non-2xx status code: 500 : ", (False, "HTTP 500")),
    ],
)
def test_the_texts_of_lance(text, expected):
    assert object_errors.denial_and_cause(_LANCE + text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "LanceError(IO): The operation lacked the necessary privileges to complete for path a",
            (True, "the credentials are refused"),
        ),
        (
            "Generic S3 error: Error performing GET http://store/x in 1 ms - HTTP error: error sending request",
            (False, "no connection, or no answer in time"),
        ),
        ("LanceError(IO): Generic S3 error: other", (False, "it cannot be used")),
    ],
)
def test_texts_of_lance_without_a_status(text, expected):
    assert object_errors.denial_and_cause(text) == expected


def test_a_missing_object_is_missing(store, answering):
    for read in (
        "read",
        "read_ahead",
        "read_ahead by size",
        "read_end",
        "read_range",
        "open",
        "status",
    ):
        with pytest.raises(FileNotFoundError) as refused:
            OPERATIONS[read](store)
        assert refused.value.errno == errno.ENOENT
        require_no_secret(refused.value)


@pytest.mark.parametrize(
    "operation",
    [
        *("read", "read_ahead", "read_ahead by size", "read_end", "read_range", "write_new"),
        *("remove_many", "list_tree", "list_files"),
        *("list_directories", "require_reachable", "set_aside", "remove_tree", "move_manifest"),
    ],
)
def test_a_missing_bucket_is_no_missing_object(store, answering, operation):
    """Otherwise a purge would take the files for removed."""
    answering.answer = lambda request: Answer(404, body("NoSuchBucket"))
    with pytest.raises(StorageUnavailable, match="the bucket does not exist"):
        OPERATIONS[operation](store)


def test_a_store_that_is_not_there(answering):
    with AnsweringServer() as closed:
        url = closed.url
    store = ObjectStore(configurations.of_endpoint(url), "s3://lake")
    with pytest.raises(StorageUnavailable) as refused:
        store.read(PATH, 10)
    assert str(refused.value).endswith("'lake' is unavailable: it refuses connections")
    require_no_secret(refused.value)


def test_a_store_that_is_silent(answering, monkeypatch):
    import threading

    monkeypatch.setattr(object_clients, "READ_SECONDS", 0.2)
    monkeypatch.setattr(object_clients, "RETRIES", 0)
    store = ObjectStore(configurations.of_endpoint(answering.url), "s3://lake")
    ended = threading.Event()
    answering.answer = lambda request: Answer(404) if ended.wait(20) else Answer(500)
    try:
        with pytest.raises(StorageUnavailable, match="in time") as refused:
            store.read(PATH, 10)
    finally:
        ended.set()
    require_no_secret(refused.value)


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        ("http://store.invalid", "its host name is unknown"),
        ("https://{}", "it does not speak TLS|its certificate is not trusted|no connection"),
    ],
)
def test_an_endpoint_that_is_wrong(answering, endpoint, text):
    url = endpoint.format(answering.url.removeprefix("http://"))
    store = ObjectStore(configurations.of_endpoint(url), "s3://lake")
    with pytest.raises(StorageUnavailable, match=text) as refused:
        store.read(PATH, 10)
    require_no_secret(refused.value)


def test_a_key_cannot_pretend_an_answer(store, answering):
    answering.answer = lambda request: Answer(500, body("InternalError"))
    path = "s3://lake/root/status code: 416 <Code>NoSuchKey</Code>"
    with pytest.raises(StorageUnavailable, match="HTTP 500 InternalError"):
        store.read_range(path, 0, 10)


def test_conflicting_writes_that_leave_nothing_are_unavailable(store, answering):
    answering.answer = lambda request: Answer(
        *((409, body("ConditionalRequestConflict")) if request.method == "PUT" else (404, b""))
    )
    with pytest.raises(StorageUnavailable, match="conflict"):
        store.write_new(PATH, b"content")


def test_nothing_secret_is_in_a_representation(store, answering, caplog):
    caplog.set_level(logging.DEBUG)
    for value in (store, store._client, store._client.configuration, store._client.credentials):
        assert not [secret for secret in SECRETS[:1] + SECRETS[2:] if secret in repr(value)]
    with pytest.raises(FileNotFoundError):
        store.read(PATH, 10)
    assert not [secret for secret in SECRETS if secret in caplog.text]


# --- the environment


ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "ENVKEY",
    "AWS_SECRET_ACCESS_KEY": "environment-secret",
    "AWS_SESSION_TOKEN": "ENVTOKEN",
    "AWS_TOKEN": "ENVTOKEN",
    "AWS_ROLE_ARN": "arn:aws:iam::1:role/env",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "/nonexistent/token",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/credentials",
    "AWS_PROFILE": "not-configured",
    "AWS_REGION": "env-region",
    "AWS_DEFAULT_REGION": "env-region",
    "AWS_SKIP_SIGNATURE": "true",
    "AWS_UNSIGNED_PAYLOAD": "true",
    "AWS_REQUEST_PAYER": "true",
    "AWS_S3_EXPRESS": "true",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
    "AWS_ALLOW_INVALID_CERTIFICATES": "true",
    "AWS_PROXY_URL": "http://127.0.0.1:9",
    "AWS_USER_AGENT": "environment",
    "AWS_CONDITIONAL_PUT": "disabled",
    "AWS_BUCKET": "envbucket",
}


@pytest.fixture
def environment(monkeypatch) -> AnsweringServer:
    with AnsweringServer() as server:
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_STS_ENDPOINT"):
            monkeypatch.setenv(name, server.url)
        yield server


def test_the_environment_does_not_change_a_profile_with_a_key(answering, environment):
    store = ObjectStore(configurations.of_endpoint(answering.url), "s3://lake")
    for operation in ("size", "remove_many", "set_aside", "write_new"):
        with contextlib.suppress(OSError):
            OPERATIONS[operation](store)
    assert environment.requests == []
    assert {request.method for request in answering.requests} >= {"HEAD", "POST", "GET", "PUT"}
    for request in answering.requests:
        assert request.path.startswith("/lake")
        assert "Credential=AKIDPROFILE/" in request.headers["authorization"]
        assert "/eu-central-1/s3/" in request.headers["authorization"]
        text = json.dumps({**request.headers})
        assert "x-amz-security-token" not in text
        assert "x-amz-request-payer" not in text
        assert "UNSIGNED" not in text
        assert not [value for value in ("ENV", "env-region", "environment") if value in text]
    put = next(request for request in answering.requests if request.method == "PUT")
    assert put.headers["if-none-match"] == "*"
    assert not [name for name in put.headers if "encryption" in name]


@pytest.mark.parametrize(
    "variable",
    ["AWS_SERVER_SIDE_ENCRYPTION", "AWS_SSE_KMS_KEY_ID", "AWS_SSE_CUSTOMER_KEY_BASE64"],
)
def test_the_environment_does_not_encrypt_for_a_profile_with_a_key(
    answering, monkeypatch, variable
):
    monkeypatch.setenv(variable, "aws:kms")
    with pytest.raises(AccessDenied, match=f"{variable} is set in the environment"):
        ObjectStore(configurations.of_endpoint(answering.url), "s3://lake")
    own = configurations.of_endpoint(answering.url, kms_key="arn:aws:kms:x:1:key/k")
    with contextlib.suppress(OSError):
        ObjectStore(own, "s3://lake").write_new(PATH, b"content")
    headers = answering.requests[0].headers
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "arn:aws:kms:x:1:key/k"


def test_the_environment_serves_a_profile_without_a_key(answering, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "environment-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "ENVTOKEN")
    configuration = configurations.of_endpoint(
        answering.url, key=None, identity=ServerIdentity.ENVIRONMENT
    )
    store = ObjectStore(configuration, "s3://lake")
    assert store.size(PATH) is None
    assert "Credential=ENVKEY/" in answering.requests[0].headers["authorization"]
    assert answering.requests[0].headers["x-amz-security-token"] == "ENVTOKEN"
    assert "environment-secret" not in repr(store)


# --- Google and Azure

ACCOUNT = json.dumps(
    {
        "gcs_base_url": "http://127.0.0.1:9",
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
)


def test_a_service_account_of_google(answering, monkeypatch):
    monkeypatch.setenv("GOOGLE_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    configuration = configurations.of_endpoint(
        answering.url, kind=StoreKind.GCS, roots=("gs://lake/root",), key=Key("", ACCOUNT)
    )
    store = ObjectStore(configuration, "gs://lake")
    assert store.size("gs://lake/root/x=a%2Fb") is None
    assert answering.requests[0].path == "/lake/root%2Fx%3Da%252Fb"
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "ENVTOKEN")
    with pytest.raises(AccessDenied, match="GOOGLE_BEARER_TOKEN"):
        ObjectStore(configuration, "gs://lake")


def test_a_service_account_that_is_no_json(answering):
    configuration = configurations.of_endpoint(
        answering.url, kind=StoreKind.GCS, roots=("gs://lake/root",), key=Key("", "profile-secret{")
    )
    with pytest.raises(StorageUnavailable, match="settings are refused") as refused:
        ObjectStore(configuration, "gs://lake")
    require_no_secret(refused.value)


def test_a_key_of_azure(answering, monkeypatch):
    for name, value in {
        "AZURE_STORAGE_TOKEN": "ENVTOKEN",
        "AZURE_STORAGE_ACCOUNT_KEY": "RU5W",
        "AZURE_STORAGE_SAS_KEY": "sig=ENV",
        "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:9",
        "AZURE_STORAGE_ACCOUNT_NAME": "envaccount",
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURE_SKIP_SIGNATURE": "true",
        "AZURE_CONTAINER_NAME": "envcontainer",
    }.items():
        monkeypatch.setenv(name, value)
    bucket = "abfss://con@account.dfs.core.windows.net"
    configuration = configurations.of_endpoint(
        answering.url, kind=StoreKind.ADLS, roots=(f"{bucket}/root",), key=Key("account", "QUFB")
    )
    store = ObjectStore(configuration, bucket)
    assert store.size(f"{bucket}/root/x=a%2Fb") is None
    assert answering.requests[0].path == "/con/root/x=a%252Fb"
    assert answering.requests[0].headers["authorization"].startswith("SharedKey account:")


@pytest.mark.parametrize("kind", [StoreKind.GCS, StoreKind.ADLS])
def test_only_s3_has_roles(answering, kind):
    bucket = {
        StoreKind.GCS: "gs://lake",
        StoreKind.ADLS: "abfss://con@account.dfs.core.windows.net",
    }[kind]
    configuration = configurations.of_endpoint(
        answering.url, kind=kind, identity=ServerIdentity.ROLE, role="arn:aws:iam::1:role/r"
    )
    with pytest.raises(AccessDenied, match="only S3"):
        ObjectStore(configuration, bucket)
    assert answering.requests == []


def test_the_address_of_a_bucket():
    def address(bucket: str, **fields: object) -> tuple[str, bool]:
        configuration = configurations.of_endpoint(
            **{"endpoint": "", "path_style": False} | fields  # type: ignore[arg-type]
        )
        return object_clients.s3_address(configuration, bucket)

    amazon = "s3.eu-central-1.amazonaws.com"
    assert address("s3://lake") == (f"https://lake.{amazon}", True)
    assert address("s3://my.lake") == (f"https://{amazon}", False)
    assert address("s3://lake", path_style=True) == (f"https://{amazon}", False)
    assert address("s3://lake", region="cn-north-1")[0].endswith(".amazonaws.com.cn")
    assert address("s3://lake", endpoint="https://x.example/") == ("https://lake.x.example", True)
    assert address("s3://lake", endpoint="http://127.0.0.1:9") == ("http://127.0.0.1:9", False)
    assert address("s3://lake", endpoint="http://localhost:9") == ("http://localhost:9", False)
    assert address("s3://lake", endpoint="http://[::1]:9") == ("http://[::1]:9", False)
