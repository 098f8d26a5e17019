"""Storage profiles over HTTP."""

import json
from typing import Any

import pytest

from catalog.models import AuditEvent, Namespace, StorageProfile
from tests.cases import shared_cases
from tests.factories import make_namespace, make_root, make_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
SECRETS = ("the-first-secret", "the-second-secret", "the-third-secret", "the-session-token")
LAKE = {
    "name": "lake",
    "kind": "s3",
    "roots": ["s3://lake/tables"],
    "region": "eu-central-1",
    "identity": "key",
    "key": {"id": "AKIAFIRST", "secret": SECRETS[0], "token": SECRETS[3]},
}


@pytest.fixture(autouse=True)
def _root():
    make_root()


@pytest.mark.operation("CreateStorageProfile")
@pytest.mark.operation("GetStorageProfile")
@pytest.mark.operation("ListStorageProfiles")
@pytest.mark.operation("UpdateStorageProfile")
@pytest.mark.operation("RotateStorageProfileKey")
@pytest.mark.operation("DeleteStorageProfile")
def test_the_life_of_a_profile_shows_no_secret(management, caplog):
    caplog.set_level("DEBUG")
    answers: list[Any] = [management.post("storage-profiles", LAKE, status=201)]
    assert answers[0]["key_id"] == "AKIAFIRST"
    assert answers[0]["has_secret"] is True
    assert management.get("storage-profiles/lake") == answers[0]
    answers.append(management.get("storage-profiles"))
    assert answers[1]["storage_profiles"] == [answers[0]]
    key = {"id": "AKIASECOND", "secret": SECRETS[1]}
    rotated = management.post("storage-profiles/lake/rotate", key)
    assert (rotated["key_id"], rotated["version"]) == ("AKIASECOND", 2)
    changes = {"region": "eu-west-1", "key": {"id": "AKIATHIRD", "secret": SECRETS[2]}}
    changed = management.send("PATCH", "storage-profiles/lake", changes)
    assert (changed["region"], changed["roots"], changed["version"]) == (
        "eu-west-1",
        ["s3://lake/tables"],
        3,
    )
    stored = bytes(StorageProfile.objects.get().secret)
    trail = list(AuditEvent.objects.values_list("before", "after", "context", "target"))
    exported = management.call("GET", "audit/export?format=jsonl")
    answers += [rotated, changed, trail, management.get("audit"), management.get("governance")]
    answers.append(b"".join(exported.streaming_content).decode())
    management.delete("storage-profiles/lake")
    for secret in SECRETS:
        assert secret not in json.dumps(answers, default=str)
        assert secret.encode() not in stored
        assert secret not in caplog.text
    management.refused(404, "storage-profile-not-found", "'lake'", "GET storage-profiles/lake")


@shared_cases(
    ("changed", "detail"),
    [
        ({"name": "a b"}, "name: 'a b' has other characters"),
        ({"kind": "ftp"}, "kind"),
        ({"kind": "file"}, "kind: 'file' needs no profile"),
        ({"roots": "s3://lake"}, "roots"),
        ({"roots": [1]}, "roots"),
        ({"roots": ["s3://lake/*"]}, "roots: 's3://lake/*' holds a character"),
        ({"endpoint": "http://169.254.169.254"}, "metadata services"),
        ({"endpoint": "http://user:word@s3.example.com"}, "holds a user or a password"),
        ({"key": None}, "needs a key"),
        ({"key": {"id": "AKIA"}}, "secret"),
        ({"key": {"id": "AKIA", "secret": SECRETS[0], "more": 1}}, "more"),
        ({"key": {"id": "AKIA", "secret": [SECRETS[0]]}}, "secret"),
        ({"key": {"id": "AKIA", "secret": SECRETS[0] + " "}}, "secret: it has a space"),
        ({"key": SECRETS[0]}, "key"),
        ({"secret": SECRETS[0]}, "secret: Unknown field"),
        ({"lifetime_seconds": True}, "lifetime_seconds"),
        ({"client_access": "sts"}, "role: '' is empty"),
    ],
)
def test_refused_profiles(management, changed, detail):
    response = management.refused(
        400, "invalid-input", detail, "POST storage-profiles", LAKE | changed
    )
    assert not any(secret in response.content.decode() for secret in SECRETS)


def test_conflicts(management):
    management.post("storage-profiles", LAKE, status=201)
    management.refused(
        409,
        "storage-profile-already-exists",
        "'lake' exists already",
        "POST storage-profiles",
        LAKE | {"roots": ["s3://another"]},
    )
    management.refused(
        400,
        "invalid-input",
        "overlaps root 's3://lake/tables' of storage profile 'lake'",
        "POST storage-profiles",
        LAKE | {"name": "twin", "roots": ["s3://lake"]},
    )
    management.refused(
        400, "invalid-input", "changes nothing", "PATCH storage-profiles/lake", {"confirm": True}
    )


@pytest.mark.operation("PreviewStorageProfile")
def test_a_preview_shows_what_a_change_would_break(management):
    management.post("storage-profiles", LAKE, status=201)
    make_namespace("ns")
    management.put("namespaces/ns/storage-profile", {"profile": "lake"})
    make_table("ns", "t")
    with unchanged():
        impact = management.post("storage-profiles/lake/preview", {"roots": ["s3://lake/other"]})
        removal = management.post("storage-profiles/lake/preview", {"delete": True})
        rotation = management.post(
            "storage-profiles/lake/preview", {"key": {"id": "NEW", "secret": SECRETS[1]}}
        )
    assert impact["is_possible"] is False
    assert impact["tables_outside"] == {"number": 1, "names": ["ns.t"]}
    assert impact["changes"] == {
        "roots": {"before": ["s3://lake/tables"], "after": ["s3://lake/other"]}
    }
    assert removal["obstacles"] == [
        "tables are below its roots: 1 (ns.t)",
        "namespaces are bound to it: 1 (ns)",
    ]
    assert rotation["changes"] == {"key": {"before": "AKIAFIRST", "after": "NEW"}}
    assert SECRETS[1] not in json.dumps(rotation)
    path = "storage-profiles/lake"
    for request, body in (
        (f"PATCH {path}", {"roots": ["s3://lake/other"], "confirm": True}),
        (f"DELETE {path}", None),
        (f"PATCH {path}", {"endpoint": "https://s3.example.com"}),
    ):
        management.refused(409, "storage-profile-in-use", "1 (ns.t)", request, body)
    management.refused(
        400, "invalid-input", "either 'delete'", f"POST {path}/preview",
        {"delete": True, "region": "x"},
    )  # fmt: skip
    changed = management.send(
        "PATCH", path, {"endpoint": "https://s3.example.com", "confirm": True}
    )
    assert changed["endpoint"] == "https://s3.example.com"


@pytest.mark.operation("GetNamespaceStorageProfile")
@pytest.mark.operation("SetNamespaceStorageProfile")
@pytest.mark.operation("DeleteNamespaceStorageProfile")
def test_the_storage_of_namespaces(management, warehouse):
    management.post("storage-profiles", LAKE, status=201)
    make_namespace("ns", "inner")
    before = management.get("namespaces/ns/storage-profile")
    assert (before["profile"], before["is_inherited"], before["bound_namespace"]) == (
        None,
        False,
        None,
    )
    assert before["location"].startswith(f"file://{warehouse}/")
    bound = management.put("namespaces/ns/storage-profile", {"profile": "lake"})
    assert (bound["profile"], bound["is_inherited"]) == ("lake", False)
    inner = management.get("namespaces/ns$inner/storage-profile")
    assert (inner["profile"], inner["is_inherited"], inner["bound_namespace"]) == (
        "lake",
        True,
        ["ns"],
    )
    assert inner["location"].startswith("s3://lake/tables/")
    path = "namespaces/ns/storage-profile"
    management.refused(
        404, "storage-profile-not-found", "'nope'", f"PUT {path}", {"profile": "nope"}
    )
    management.refused(400, "invalid-input", "profile", f"PUT {path}", {})
    management.refused(404, "namespace-not-found", "nope", "GET namespaces/nope/storage-profile")
    management.delete(path)
    assert Namespace.objects.get(name="ns").storage_profile is None
    management.delete(path)
