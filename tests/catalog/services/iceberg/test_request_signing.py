"""Which requests are signed: the store, and the objects that a request names. Whole requests are in ``tests/api/iceberg``."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from catalog.access import SYSTEM
from catalog.errors import ForeignFile, Unsupported
from catalog.services.iceberg import request_signing
from catalog.services.storage.file_owners import Belonging, FileOwner
from catalog.storage import stores
from catalog.storage.configuration import ClientAccess, StoreConfiguration, StoreKind
from catalog.storage.s3.requests import Action, S3Request

LAKE = StoreConfiguration(
    "lake", 1, StoreKind.S3, ("s3://lake/t",), client_access=ClientAccess.SIGNING
)
OTHER = replace(LAKE, profile="other")
PLAIN = S3Request(Action.READ, "GET", "https://lake", (), (), "", {}, "")


class Files:
    """The files of a table in ``s3://lake/t``; ``s3://lake/t/in`` belongs to another table."""

    own, foreign = ("s3://lake/t",), ("s3://lake/t/in",)

    def __init__(self) -> None:
        self.read: list[tuple[str, ...]] = []

    def prefixes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.own, self.foreign

    def require_readable(self, actor: object, paths: tuple[str, ...]) -> None:
        assert actor is SYSTEM
        self.read.append(paths)

    def classify(self, paths: tuple[str, ...]) -> dict[str, FileOwner]:
        owners = {
            "s3://lake/t/a": FileOwner(Belonging.OWN, path="s3://lake/t/a"),
            "s3://lake/t/b": FileOwner(Belonging.OTHER, frozenset({7}), "s3://lake/t/b"),
            "s3://lake/t/%63": FileOwner(Belonging.OWN, path="s3://lake/t/c"),
        }
        return {path: owners[path] for path in paths}

    def refusal(self, path: str, verb: str) -> ForeignFile:
        return ForeignFile(path, ("ns", "t"), verb)


def refused(path: str, verb: str) -> Any:
    return pytest.raises(ForeignFile, match=f"^File '{path}' .* may not be {verb} for it$")


@pytest.mark.parametrize(
    ("location", "configuration", "provider", "message"),
    [
        ("/warehouse/t", LAKE, "s3", "The storage of this table does not sign requests"),
        ("s3://lake/t", None, "s3", "The storage of this table does not sign requests"),
        (
            "s3://lake/t",
            replace(LAKE, client_access=ClientAccess.STS),
            "s3",
            "The storage of this table does not sign requests",
        ),
        ("s3://lake/t", LAKE, "gcs", "Requests to 'gcs' are not signed"),
        ("gs://lake/t", replace(LAKE, kind=StoreKind.GCS), "s3", "Requests to 's3' are not signed"),
    ],
)
def test_requests_to_these_stores_are_not_signed(
    monkeypatch, location, configuration, provider, message
):
    monkeypatch.setattr(stores, "configuration_of", lambda _: configuration)
    with pytest.raises(Unsupported) as error:
        request_signing._configuration(location, provider)
    assert error.value.message == message


def test_requests_to_a_profile_that_signs_are_signed(monkeypatch):
    monkeypatch.setattr(stores, "configuration_of", lambda _: LAKE)
    assert request_signing._configuration("s3://lake/t", "s3") is LAKE


@pytest.mark.parametrize("attribute", ["paths", "sources", "prefix"])
@pytest.mark.parametrize(("action", "verb"), [(Action.READ, "read"), (Action.DELETE, "changed")])
def test_names_in_other_stores_are_refused(monkeypatch, attribute, action, verb):
    holders = {"s3://lake/t/a": LAKE, "s3://lake/t/x": OTHER, "s3://lake/t/none": None}
    monkeypatch.setattr(stores, "configuration_of", holders.__getitem__)

    def request(path: str) -> S3Request:
        value = path if attribute == "prefix" else (path,)
        return replace(PLAIN, action=action, **{attribute: value})  # type: ignore[arg-type]

    files: Any = Files()
    request_signing._require_in_store(files, request("s3://lake/t/a"), LAKE)
    for path in ("s3://lake/t/x", "s3://lake/t/none"):
        with refused(path, verb):
            request_signing._require_in_store(files, request(path), LAKE)


@pytest.mark.parametrize(
    ("prefix", "is_own"),
    [
        ("s3://lake/t/", False),  # it lists what is in the directory of the other table
        ("s3://lake/t/data/", True),
        ("s3://lake/t/data/a", True),
        ("s3://lake/t/out", True),
        ("s3://lake/t", False),  # other keys begin with it, such as s3://lake/t2
        ("s3://lake/other/", False),
        ("s3://lake/t/i", False),
        ("s3://lake/t/in", False),
        ("s3://lake/t/in/x", False),
        ("s3://lake/t/in2", True),
    ],
)
def test_a_list_stays_below_the_directories_of_the_table(prefix, is_own):
    files: Any = Files()
    request = replace(PLAIN, action=Action.LIST, prefix=prefix)
    if is_own:
        request_signing._require_own(SYSTEM, files, request)
    else:
        with refused(prefix, "listed"):
            request_signing._require_own(SYSTEM, files, request)
    assert files.read == []


def test_a_read_needs_readable_objects_and_a_change_own_ones():
    files: Any = Files()
    others = ("s3://lake/t/b",)
    request_signing._require_own(SYSTEM, files, replace(PLAIN, paths=others))
    assert files.read == [others]
    own = replace(PLAIN, action=Action.WRITE, paths=("s3://lake/t/a",), sources=others)
    request_signing._require_own(SYSTEM, files, own)
    assert files.read == [others, others]
    for path in ("s3://lake/t/b", "s3://lake/t/%63"):
        for action in (Action.WRITE, Action.DELETE):
            change = replace(PLAIN, action=action, paths=("s3://lake/t/a", path))
            with refused(path, "changed"):
                request_signing._require_own(SYSTEM, files, change)


@pytest.mark.parametrize("is_fresh", [True, False])
def test_only_a_key_that_has_to_be_fetched_counts_as_a_call_of_the_store(monkeypatch, is_fresh):
    calls: list[object] = []
    key = object()

    @contextmanager
    def calling():
        calls.append("calling")
        yield

    source = SimpleNamespace(is_fresh=is_fresh, current=lambda: key)
    monkeypatch.setattr(request_signing, "credential_source", lambda _: source)
    monkeypatch.setattr(
        request_signing.object_clients,
        "availability_of",
        lambda configuration: calls.append(configuration) or SimpleNamespace(calling=calling),
    )
    assert request_signing._key(LAKE) is key
    assert calls == ([] if is_fresh else [LAKE, "calling"])
