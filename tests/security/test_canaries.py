"""Secrets are sent through every interface, and appear nowhere but in the answers that show them
once."""

import json
import logging
from urllib.parse import urlencode

import pytest
from django.test import Client

from catalog.access import SYSTEM
from catalog.models import AuditEvent, Namespace, Table, Transaction
from catalog.services.access import api_keys
from catalog.services.audit import refusals
from catalog.services.events import feed as event_feed
from tests.api.management.client import Management
from tests.catalog.admin.conftest import _plain_static_files
from tests.factories import make_root

__all__ = ["_plain_static_files"]

IN_PROPERTIES = {
    "s3.secret-access-key": "canary-of-s3",
    "client.token": "canary-of-token",
    "adls.sas-token": "canary-of-sas",
    "db.password": "canary-of-password",
}
URL = "https://user:canary-of-url@example.com/x?sig=canary-of-signature"


@pytest.fixture
def administrator(django_user_model) -> Client:
    user = django_user_model.objects.create_superuser("root", password="canary-of-sign-on")
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.django_db(transaction=True)
def test_no_output_contains_a_canary(lance, administrator, caplog, monkeypatch):
    make_root()
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(refusals, "ledger", refusals.Ledger(refusals.write))
    monkeypatch.setattr(event_feed, "_horizon", lambda: 1 << 62)
    canaries = {*IN_PROPERTIES.values(), "canary-of-url", "canary-of-signature"}
    outputs: dict[str, str] = {}

    # Keys, tokens and webhook secrets are shown once.
    management = Management(lance.headers["x-api-key"])
    made = management.post("keys", {"principal": "tester", "name": "second"}, status=201)
    hook = {"name": "hook", "url": "https://example.com/hook"}
    signing = management.post("webhooks", hook, status=201)["secret"]
    form = {"grant_type": "client_credentials", "client_id": "second", "client_secret": made["key"]}
    answer = administrator.post(
        "/v1/oauth/tokens", urlencode(form), content_type="application/x-www-form-urlencoded"
    )
    token = answer.json()["access_token"]
    assert answer.status_code == 200
    canaries |= {lance.headers["x-api-key"], made["key"], signing, token, "canary-of-sign-on"}

    # In properties, context headers, refused requests, and wrong fields.
    namespace = {"properties": IN_PROPERTIES | {"remote": URL}}
    lance.post("/v1/namespace/ws/create", namespace)
    lance.post("/v1/table/ws$t/declare", {"properties": IN_PROPERTIES})
    for request, headers in (
        ("/v1/table/ws$t/declare", {"authorization": f"Bearer {token}"}),
        ("/v1/table/no$t/declare", {"x-api-key": made["key"], "x-lance-ctx-api-key": made["key"]}),
        ("/v1/table/ws$t/drop", {"x-api-key": "canary-of-wrong-key"}),
    ):
        refused = administrator.post(
            request, json.dumps(namespace), content_type="application/json", headers=headers
        )
        assert refused.status_code in {401, 404, 409}
        outputs[request] = refused.content.decode()
    wrong = form | {"client_secret": "canary-of-wrong-secret"}
    outputs["token"] = administrator.post(
        "/v1/oauth/tokens", urlencode(wrong), content_type="application/x-www-form-urlencoded"
    ).content.decode()
    outputs["sign on"] = (
        Client()
        .post("/admin/login/", {"username": "root", "password": "canary-of-wrong-word"})
        .content.decode()
    )
    canaries |= {"canary-of-wrong-key", "canary-of-wrong-secret", "canary-of-wrong-word"}
    refusals.ledger.flush()

    outputs["audit"] = json.dumps(list(AuditEvent.objects.values()), default=str)
    outputs["transactions"] = json.dumps(list(Transaction.objects.values()), default=str)
    for path in ("audit/export?format=csv", "audit/export?format=jsonl"):
        outputs[path] = b"".join(management.call("GET", path).streaming_content).decode()
    for path in ("audit", "events?after=0-0", "webhooks", "keys", "governance"):
        outputs[path] = json.dumps(management.get(path))
    row = AuditEvent.objects.filter(action="namespace.create").get()
    for path in (
        *("", "catalog/auditevent/", f"catalog/auditevent/{row.pk}/change/"),
        *("catalog/apikey/", "catalog/webhook/", "catalog/transaction/"),
        f"catalog/table/{Table.objects.get().pk}/change/?tab=history",
        f"catalog/namespace/{Namespace.objects.get(name='ws').pk}/change/?tab=history",
    ):
        page = administrator.get(f"/admin/{path}")
        assert page.status_code == 200, path
        if "change" not in path or "audit" in path:  # a page shows the unmasked properties
            outputs[path] = page.content.decode()
    outputs["log"] = caplog.text
    assert api_keys.find_api_key(actor=SYSTEM, name="second").prefix in outputs["keys"]
    leaks = {
        (canary, source)
        for source, text in outputs.items()
        for canary in canaries
        if canary in text
    }
    assert not leaks
