"""The page "My access and keys": own keys, own privileges, and requests for access."""

import contextlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils import timezone

from api.management.serializers.recovery import ApprovalSerializer
from catalog import access
from catalog.access import SYSTEM, On
from catalog.errors import InvalidInput, PermissionDenied
from catalog.models import ApiKey, ApprovalRequest, AuditEvent, Grant, Table
from catalog.privileges import Privilege, parse
from catalog.services.access import grant_expiry, grants
from catalog.services.governance import access_requests, approvals
from catalog.services.tables import approval_gate
from tests.factories import make_namespace, make_root, make_table, unchanged

URL = "/admin/my-access/"
TABLE = On.table(("prod", "t"))


@pytest.fixture
def people(db, warehouse) -> dict[str, Client]:
    """Clients of bob, who holds nothing, of carl, who manages ``prod``, and of olga, who owns it."""
    make_table("prod", "t")
    make_table("prod", "other")
    clients = {}
    for name in ("bob", "carl", "olga"):
        user = User.objects.create_user(name, is_staff=True)
        clients[name] = Client()
        clients[name].force_login(user)
    for name, privilege in (("carl", "manage"), ("olga", "all")):
        grants.set_grant(
            actor=SYSTEM,
            on=On.namespace(("prod",)),
            principal=f"user:{name}",
            privileges=parse([privilege]),
        )
    return clients


def principal(name: str) -> access.Principal:
    return access.named(f"user:{name}")


def ask(name: str = "bob", on: On = TABLE, days: int | None = 30) -> ApprovalRequest:
    return access_requests.request_access(
        actor=principal(name), on=on, privileges=Privilege.READ, reason="reports", days=days
    )


def held(name: str) -> Privilege:
    table = Table.objects.get(name="t")
    return Privilege.READ & (
        access.held_on(principal(name), table)
        if access.is_visible(principal(name), table)
        else Privilege(0)
    )


def test_a_key_is_narrow_by_default_and_shown_once(people):
    bob = people["bob"]
    form = bob.get(f"{URL}keys/add/").content.decode()
    assert re.search(r'<option value="browser" selected', form)
    assert re.search(r'<option value="90" selected', form)
    refused = bob.post(f"{URL}keys/add/", {"name": "report", "scope": "browser", "days": "90"})
    assert "Enter a namespace" in refused.content.decode()
    assert not ApiKey.objects.filter(name="report").exists()
    data = {"name": "report", "scope": "reader", "days": "90", "everywhere": "on"}
    page = bob.post(f"{URL}keys/add/", data).content.decode()
    (key,) = re.findall(r"mnd_[\w-]{30,}", page)
    row = ApiKey.objects.get(name="report")
    assert (row.principal.name, row.scopes, row.namespace) == ("user:bob", ["read"], None)
    assert timedelta(days=89) < row.expires_at - timezone.now() < timedelta(days=90)
    assert key not in bob.get(URL).content.decode()


def test_own_keys_are_rotated_and_revoked_and_those_of_others_are_not(people):
    bob, olga = people["bob"], people["olga"]
    data = {"name": "report", "scope": "reader", "days": "7", "everywhere": "on"}
    bob.post(f"{URL}keys/add/", data)
    row = ApiKey.objects.get(name="report")
    for action in ("rotate", "revoke"):
        with unchanged():
            assert olga.post(f"{URL}keys/{row.pk}/{action}/", {"hours": "1"}).status_code == 404
    assert "mnd_" in bob.post(f"{URL}keys/{row.pk}/rotate/", {"hours": "1"}).content.decode()
    new = ApiKey.objects.get(name="report-2")
    assert bob.post(f"{URL}keys/{new.pk}/revoke/").status_code == 302
    new.refresh_from_db()
    assert new.revoked_at is not None
    actions = AuditEvent.objects.filter(actor="user:bob").values_list("action", flat=True)
    assert {"api_key.create", "api_key.rotate", "api_key.revoke"} <= set(actions)


def test_access_is_requested_approved_and_expires(people):
    data = {"on": "prod.t", "kind": "table", "role": "reader", "days": "30", "reason": "reports"}
    assert people["bob"].post(f"{URL}request/", data).status_code == 302
    row = ApprovalRequest.objects.get()
    assert (row.requester, row.table.name, held("bob")) == ("user:bob", "t", 0)
    page = f"/admin/catalog/approvalrequest/{row.pk}/"
    assert "Requests that wait for you: 1" in people["olga"].get(URL).content.decode()
    with unchanged():
        assert people["bob"].post(f"{page}approve/").status_code == 403
    assert people["olga"].post(f"{page}approve/", {"days": "7"}).status_code == 302
    grant = Grant.objects.get(principal__name="user:bob")
    assert (grant.table.name, grant.privileges) == ("t", parse(["read", "browse"]))
    assert grant.granted_by == "user:olga"
    assert timedelta(days=6) < grant.expires_at - timezone.now() <= timedelta(days=7)
    assert held("bob") == Privilege.READ
    assert "granted by user:olga" in people["bob"].get(URL).content.decode()
    event = AuditEvent.objects.get(action="approval.approve")
    assert (event.actor, event.target) == ("user:olga", "prod.t")
    Grant.objects.filter(pk=grant.pk).update(expires_at=timezone.now() - timedelta(hours=1))
    assert held("bob") == 0
    assert not Table.objects.filter(access.visible_tables(principal("bob"))).exists()
    assert not access.readable_tables(principal("bob"), [grant.table_id])
    assert grant_expiry.delete_expired() == 1
    assert not Grant.objects.filter(pk=grant.pk).exists()
    assert AuditEvent.objects.filter(action="grant.expire", target="prod.t").count() == 1


def test_nobody_approves_the_own_request_or_grants_what_they_may_not_grant(people):
    of_olga = ask("olga")
    with unchanged(), pytest.raises(PermissionDenied, match="another principal must decide"):
        approvals.approve(actor=principal("olga"), request=of_olga.pk)
    of_bob = ask("bob")
    with unchanged(), pytest.raises(PermissionDenied):  # carl manages, but may not grant
        approvals.approve(actor=principal("carl"), request=of_bob.pk)
    assert held("bob") == 0
    refused = approvals.refuse(actor=principal("carl"), request=of_bob.pk, reason="no")
    assert refused.status == "refused"


def test_a_request_does_not_reveal_which_names_exist(people):
    existing, missing = ask(), ask(on=On.table(("prod", "missing")))
    bob = people["bob"]
    texts = [
        bob.get(f"/admin/catalog/approvalrequest/{row.pk}/change/").content.decode()
        for row in (existing, missing)
    ]
    pages = [
        re.sub(r'value="[\w-]+"|nonce="[^"]+"', "", re.sub(r"\d+", "N", text)).replace(
            "missing", "t"
        )
        for text in texts
    ]
    assert re.sub("<time.*?</time>", "", pages[0]) == re.sub("<time.*?</time>", "", pages[1])
    assert "/admin/catalog/table/" not in re.sub(r'href="/admin/catalog/table/"', "", texts[0])
    with unchanged(), pytest.raises(Exception, match="missing"):
        approvals.approve(actor=principal("olga"), request=missing.pk)


def test_a_table_of_the_same_name_is_not_granted(people):
    row = ask()
    Table.objects.filter(name="t").update(
        name="moved", digest="00000000-0000-0000-0000-000000000001"
    )
    make_table("prod", "t")
    with unchanged(), pytest.raises(Exception, match="changed"):
        approvals.approve(actor=principal("olga"), request=row.pk)


def test_the_owner_of_a_table_decides(people):
    Table.objects.filter(name="t").update(owner="user:olga")
    Grant.objects.filter(principal__name="user:olga").delete()
    row = ask()
    assert list(approvals.waiting_for(principal("olga"))) == [row]
    approvals.approve(actor=principal("olga"), request=row.pk)
    assert held("bob") == Privilege.READ


def test_a_lasting_grant_does_not_get_an_end(people):
    grants.set_grant(actor=SYSTEM, on=TABLE, principal="user:bob", privileges=parse(["browse"]))
    row = ask()
    with unchanged(), pytest.raises(InvalidInput, match="without an end"):
        approvals.approve(actor=principal("olga"), request=row.pk)
    lasting = ask(days=None)
    approvals.approve(actor=principal("olga"), request=lasting.pk)
    assert Grant.objects.get(principal__name="user:bob").expires_at is None


def test_an_approval_does_not_prolong_or_shorten_a_present_grant(people):
    def hold(word: str, days: int) -> None:
        end = timezone.now() + timedelta(days=days)
        privileges = parse([word])
        grants.set_grant(
            actor=SYSTEM, on=TABLE, principal="user:bob", privileges=privileges, expires_at=end
        )

    hold("manage", 1)  # for a day, and never again
    requested = ask(days=3650)
    with unchanged(), pytest.raises(InvalidInput, match="would prolong all of it"):
        approvals.approve(actor=principal("olga"), request=requested.pk)
    hold("browse", 60)
    with unchanged(), pytest.raises(InvalidInput, match="for more days"):
        approvals.approve(actor=principal("olga"), request=requested.pk, days=30)
    form = people["olga"].get(f"/admin/catalog/approvalrequest/{requested.pk}/approve/")
    assert "is granted browse here, until" in form.content.decode()
    approvals.approve(actor=principal("olga"), request=requested.pk, days=90)
    grant = Grant.objects.get(principal__name="user:bob")
    assert grant.privileges == parse(["browse", "read"])
    assert grant.expires_at > timezone.now() + timedelta(days=89)


def test_who_manages_only_the_table_decides(people):
    Grant.objects.filter(principal__name="user:olga").delete()
    grants.set_grant(actor=SYSTEM, on=TABLE, principal="user:olga", privileges=parse(["all"]))
    row, of_other = ask(), ask(on=On.table(("prod", "other")))
    assert list(approvals.waiting_for(principal("olga"))) == [row]
    assert not approvals.visible(principal("olga")).filter(pk=of_other.pk).exists()
    approvals.approve(actor=principal("olga"), request=row.pk)
    assert held("bob") == Privilege.READ


def test_the_api_does_not_reveal_which_namespaces_exist(people):
    rows = [ask(on=On.table((name, "t"))) for name in ("prod", "none")]
    assert [ApprovalSerializer.represent(row)["namespace"] for row in rows] == [["prod"], ["none"]]


def test_requests_are_limited_and_not_repeated(people):
    assert ask().pk == ask().pk
    for number in range(access_requests.MAX_PENDING - 1):
        ask(on=On.table(("prod", f"t{number}")))
    with unchanged(), pytest.raises(InvalidInput, match="pending requests"):
        ask(on=On.namespace(("prod",)))


@pytest.mark.django_db(transaction=True)
def test_concurrent_requests_do_not_exceed_the_limit(monkeypatch):
    make_root()
    make_namespace("prod")
    User.objects.create_user("eva")
    monkeypatch.setattr(access_requests, "MAX_PENDING", 1)
    save, both = approval_gate.save, threading.Barrier(2)

    def save_together(*args: Any) -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # for ever, if the other request waits for this one
        return save(*args)

    monkeypatch.setattr(approval_gate, "save", save_together)

    def request(name: str) -> bool:
        try:
            ask("eva", On.table(("prod", name)))
        except InvalidInput:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(request, ["t", "u"])) == [False, True]
    assert ApprovalRequest.objects.count() == 1
    assert AuditEvent.objects.filter(action="approval.request").count() == 1


def test_names_are_suggested_to_those_who_may_use_them(people):
    url = "/admin/suggest/{}/?q={}"
    assert people["bob"].get(url.format("principals", "o")).status_code == 403
    names = people["olga"].get(url.format("principals", "o")).json()["names"]
    assert names == ["user:olga"]
    objects = people["olga"].get(url.format("objects", "prod.")).json()["names"]
    assert objects == ["prod.other", "prod.t"]
    assert people["bob"].get(url.format("objects", "prod.")).json()["names"] == []
    assert people["bob"].get(url.format("nothing", "")).status_code == 404


def test_a_name_that_looks_like_another_is_marked_where_a_person_decides(people):
    name = "\u0430\u0440\u0435"  # Cyrillic letters that look like "ape"
    User.objects.create_user(name)
    request = ask(name)
    url = f"/admin/catalog/approvalrequest/{request.pk}"
    for page in (f"{url}/change/", f"{url}/approve/", "/admin/catalog/approvalrequest/"):
        assert "Cyrillic letters" in people["olga"].get(page).content.decode(), page
    answer = people["olga"].get(f"/admin/suggest/principals/?q={name}").json()
    assert answer == {"names": [f"user:{name}"], "notes": {f"user:{name}": "Cyrillic letters"}}
    grants.set_grant(actor=SYSTEM, on=TABLE, principal=f"user:{name}", privileges=Privilege.BROWSE)
    table = f"/admin/catalog/table/{Table.objects.get(name='t').pk}"
    assert "Cyrillic letters" in people["olga"].get(f"{table}/change/?tab=access").content.decode()
    form = {"principal": f"user:{name}", "privileges": []}
    assert "Cyrillic letters" in people["olga"].post(f"{table}/grant/", form).content.decode()


def test_a_grant_by_role_shows_its_effect_before_it_is_saved(people):
    url = f"/admin/catalog/table/{Table.objects.get(name='t').pk}/grant/"
    form = {"principal": "user:bob", "role": "reader", "days": "5"}
    with unchanged():
        page = people["olga"].post(url, form | {"preview": ""}).content.decode()
    assert "user:bob: none now, read afterwards" in page
    assert people["olga"].post(url, form).status_code == 302
    grant = Grant.objects.get(principal__name="user:bob")
    assert grant.privileges == parse(["read", "browse"])
    assert timedelta(days=4) < grant.expires_at - timezone.now() <= timedelta(days=5)
    again = people["olga"].get(f"{url}?principal=user:bob").content.decode()
    assert re.search(r'name="days" value="5"', again)
