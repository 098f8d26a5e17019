"""Page tokens that others got, or nobody: what they show is the same with and without a hidden tenant.

A token names a place in the order of a list. It works for everybody and shows nothing that its sender may
not see; a malformed one is refused.
"""

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.models import (
    ApiKey,
    ApprovalRequest,
    Job,
    LabelDefinition,
    Namespace,
    Principal,
    PrincipalLevel,
    TrashItem,
)
from catalog.privileges import Privilege
from catalog.services.governance import annotations
from tests.access import hidden_tenant, iceberg_examples
from tests.access.protocols import ABSENT, PROTOCOLS, Protocol, Request, give
from tests.factories import unchanged
from tests.recall import recall

pytestmark = pytest.mark.usefixtures("warehouse", "_plain_static_files")

_HIDDEN = str(hidden_tenant.FIRST_ID)
"""The primary key of a row of the hidden tenant."""
TOKENS = [
    *("0", "-1", "1.5", " ", "%", "\x00", "é", "٣", "null", "[]", "canaryns", "zz", "x" * 3000),
    *("9" * 18, "9" * 19, "9223372036854775807", "9223372036854775808", _HIDDEN, "0-0"),
    *(f"{_HIDDEN}-{_HIDDEN}", f"0-{2**63 - 1}", f"{2**63}-0", f"n.{_HIDDEN}", f"t.{_HIDDEN}"),
    *(f"t.{_HIDDEN}.{_HIDDEN}.canary", "t.1.2.\x00", "t.0.0.", "n.", "t", "ws$t", "ws\x1ft"),
    *("canaryns$canarydata", "AAAA", "e30=", "bnVsbA==", "W10=", "2020-01-01T00:00:00Z"),
    *("10000-01-01T00:00:00Z", "00000000-0000-7000-8000-000000000000"),
]
_PARAMETERS = {"iceberg": ("pageToken", "pageSize")}
_LISTS = [
    "history?at=NOW",
    "history/changes?from=2020-01-01&to=NOW",
    "search?q=t",
    "search?q=canary",
]


def _requests(protocol: Protocol, words: dict[str, str]) -> Iterator[Request]:
    for operation, request in protocol.requests.items():
        is_list = request.method == "GET" or operation.startswith("List")
        if is_list and operation in protocol.operations.keys() - iceberg_examples.EMPTY:
            yield request.with_words(words)
    if protocol.name == "management":
        yield from (Request("GET", path.replace("NOW", words["NOW"])) for path in _LISTS)


def _with(protocol: Protocol, request: Request, token: str) -> Request:
    name, size = _PARAMETERS.get(protocol.name, ("page_token", "limit"))
    if request.path.startswith("events"):
        name = "after"
    mark = "&" if "?" in request.path else "?"
    path = f"{request.path}{mark}{size}=1&{name}={quote(token, safe='')}"
    body = request.body
    if request.method == "POST":
        body = (body or {}) | {"limit": 1, "page_token": token}
        path = path if protocol.name == "lance" else request.path
    return Request(request.method, path, body, request.status, request.options)


def _answers(protocol: Protocol, requests: list[Request]) -> dict[str, str]:
    answers = {}
    for request in requests:
        for token in TOKENS:
            answer = protocol.send(_with(protocol, request, token))
            text = hidden_tenant.comparable(answer)
            for spelling in (_HIDDEN, "canaryns$canarydata", "canaryns", f"{_HIDDEN}.canary"):
                if spelling in token:  # a refusal repeats it
                    text = text.replace(spelling, "<token>").replace("<token>.canary", "<token>")
            answers[f"{request.method} {request.path} with {token!r:.50}"] = text
    return answers


@pytest.mark.parametrize("interface", PROTOCOLS)
def test_forged_page_tokens_reveal_nothing(interface):
    protocol = PROTOCOLS[interface]
    words = recall(f"access-{interface}", protocol._make)
    words["NOW"] = timezone.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    requester, ws = Principal.objects.get(name="who"), Namespace.objects.named(("ws",)).get()
    give(requester, Privilege.ALL, ws)
    if not LabelDefinition.objects.exists():
        annotations.create_label(actor=SYSTEM, key="known")
    hidden_tenant.refresh()
    with hidden_tenant.ids_restored():
        lists = []
        for request in _requests(protocol, words):
            without_token = _with(protocol, request, "")
            if "stream" not in request.path and protocol.send(without_token).status_code == 200:
                lists.append(request)
        assert len(lists) >= {"management": 8}.get(interface, 1), lists
        before = _answers(protocol, lists)
        hidden_tenant.make_hidden_tenant()
        after = _answers(protocol, lists)
    assert [text for text in after if after[text].startswith("5") or before[text][0] == "5"] == []
    changed = {
        text: (before[text], after[text])
        for text in after
        if hidden_tenant.CANARY in after[text] or before[text] != after[text]
    }
    assert changed == {}


NUMBERED = {
    Job: ["GET jobs/N", "GET jobs/N?page_token=0", "POST jobs/N/cancel", "POST jobs/N/retry"],
    TrashItem: [
        *("GET trash/N", "POST trash/N/undrop", "POST trash/N/purge", "POST trash/N/keep"),
    ],
    ApprovalRequest: [
        *("GET approvals/N", "POST approvals/N/approve", "POST approvals/N/refuse"),
        "POST approvals/N/withdraw",
    ],
}
_MALFORMED = ["0", "-1", "1.0", "٣", "%00", "x", "9" * 19, "9" * 400, "0x1", "1e3", "+1", "%201"]


@pytest.mark.parametrize("level", [PrincipalLevel.GRANTED, PrincipalLevel.ADMIN])
def test_numbers_of_others_are_missing(level):
    """Also for an administrator whose key is limited to another namespace."""
    protocol = PROTOCOLS["management"]
    recall("access-management", protocol._make)
    requester, ws = Principal.objects.get(name="who"), Namespace.objects.named(("ws",)).get()
    give(requester, Privilege.ALL, ws)
    if level == PrincipalLevel.ADMIN:
        Principal.objects.filter(pk=requester.pk).update(level=level)
        ApiKey.objects.filter(principal=requester).update(namespace=ws)
    if not LabelDefinition.objects.exists():
        annotations.create_label(actor=SYSTEM, key="known")
    earlier = {
        model: set(model._default_manager.values_list("pk", flat=True)) for model in NUMBERED
    }
    with hidden_tenant.ids_restored():
        hidden_tenant.make_hidden_tenant()
        for model, paths in NUMBERED.items():
            pks = set(model._default_manager.values_list("pk", flat=True)) - earlier[model]
            assert pks, model
            for path in paths:
                absent = _refusal(protocol, path, ABSENT)
                assert absent[0] == 404, path
                for number in map(str, pks):
                    assert _refusal(protocol, path, number) == absent, (path, number)
                for number in _MALFORMED:
                    assert _refusal(protocol, path, number)[0] in {400, 404}, (path, number)


def _refusal(protocol: Protocol, path: str, number: str) -> tuple[int, str]:
    method, url = path.replace("/N", f"/{number}").split(" ", 1)
    body = {"reason": "because"} if url.endswith(("refuse", "purge")) else {}
    with unchanged():
        answer = protocol.send(Request(method, url, None if method == "GET" else body))
    problem = {key: answer.json()[key] for key in ("type", "title", "detail")}
    return answer.status_code, str(problem).replace(number, "N")
