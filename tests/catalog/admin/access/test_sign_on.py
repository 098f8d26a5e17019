"""Log-in to the admin: passwords, single sign-on, and limits on guessing."""

import logging
import threading
import time
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit

import pytest
from axes.models import AccessAttempt
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db.models.signals import post_delete, post_save, pre_delete, pre_save
from django.http import HttpRequest
from django.test import Client
from django.utils import timezone

from catalog import encryption
from catalog.access import SYSTEM
from catalog.admin.access import sign_on
from catalog.errors import InvalidInput, LastAdministrator, PermissionDenied
from catalog.models import ApiKey, AuditEvent, Principal, PrincipalKind, PrincipalLevel
from catalog.services.access import api_keys, oidc, principals, timed_calls, users
from catalog.services.access import sign_on as users_sign_on
from catalog.services.audit import refusals
from tasks import maintenance
from tests import issuer as issuers
from tests.factories import unchanged
from tests.issuer import CLIENT, SECRET, Issuer

LOGIN = "/admin/login/"


@pytest.fixture
def issuer(db, settings):
    oidc.forget()
    with issuers.running() as provider:
        settings.MONODON_OIDC_ISSUERS = [provider.url]
        settings.MONODON_OIDC_CLIENT_ID = CLIENT
        settings.MONODON_OIDC_CLIENT_SECRET = SECRET
        settings.MONODON_OIDC_AUTO_CREATE = True
        settings.MONODON_OIDC_STAFF_GROUPS = ["staff"]
        settings.MONODON_OIDC_ADMIN_GROUPS = ["admins"]
        provider.claims = {"preferred_username": "ada", "groups": ["staff", "x"]}
        yield provider
    oidc.forget()


def go(client: Client, issuer: Issuer, query: str = ""):
    """Press the button, consent at the issuer, and follow the redirect back."""
    redirect = client.get(f"/admin/sign-on/{query}")
    assert redirect.status_code == 302
    return client.get(issuer.authorize(redirect["location"]))


def is_in(client: Client) -> bool:
    return client.get("/admin/").status_code == 200


def is_refused(client: Client, answer, text: str) -> None:
    assert (answer.status_code, answer["location"]) == (302, LOGIN)
    assert text in client.get(LOGIN).content.decode()
    assert not is_in(client)


# --- passwords -----------------------------------------------------------------------------------


def log_in(client: Client, password: str, username: str = "ada"):
    return client.post(LOGIN + "?next=/admin/", {"username": username, "password": password})


@pytest.fixture
def recorded(monkeypatch) -> list:
    refusals_: list = []
    monkeypatch.setattr(refusals.ledger, "deliver", refusals_.extend)
    return refusals_


def test_log_ins_and_log_outs_are_in_the_trail(client, db, recorded):
    User.objects.create_superuser("ada", password="right")
    before = client.get(LOGIN).cookies["csrftoken"]
    assert (before["samesite"], before["httponly"]) == ("Lax", True)
    session = client.session
    session["seen"] = 1
    session.save()
    client.cookies["sessionid"] = fixed = session.session_key
    log_in(client, "wrong")
    answer = log_in(client, "right")
    cookie = answer.cookies["sessionid"]
    # The log-in does not use a session that another person may know.
    assert cookie.value != fixed
    assert not Session.objects.filter(pk=fixed).exists()
    assert (cookie["samesite"], cookie["httponly"], cookie["secure"]) == ("Lax", True, "")
    client.post("/admin/logout/")
    events = AuditEvent.objects.filter(action__startswith="session.").order_by("pk")
    assert [(e.action, e.actor, e.target, e.interface) for e in events] == [
        ("session.begin", "user:ada", "user:ada", "admin"),
        ("session.end", "user:ada", "user:ada", "admin"),
    ]
    assert len({event.request_id for event in events} - {""}) == 2
    assert events[0].after == {"address": "127.0.0.1", "by": "password"}
    assert events[1].after == {"address": "127.0.0.1"}
    [(refusal, times)] = recorded
    assert times == 1
    assert refusal.request_id
    assert refusal == refusals.Refusal(
        interface="admin",
        actor=refusals.NOBODY,
        action="session.begin",
        target="user:ada",
        error="Unauthenticated",
        message="The user name or the password is wrong",
        address="127.0.0.1",
        request_id=refusal.request_id,
        is_anonymous=True,
    )


def test_invalid_user_names_are_not_recorded(client, db, recorded):
    log_in(client, "x", "my-password-in-the-wrong-field")
    assert [refusal.target for refusal, _ in recorded] == ["(unknown user)"]


def test_password_guessing_is_locked_out(client, db, settings):
    User.objects.create_superuser("ada", password="right")
    User.objects.create_superuser("bob", password="right")
    for i in range(4):
        assert log_in(client, f"wrong {i}").status_code == 200
    answer = log_in(client, "wrong 5")
    assert (answer.status_code, answer["retry-after"]) == (429, "900")
    assert "Try again in 15 minutes" in answer.content.decode()
    assert log_in(client, "right").status_code == 429
    assert not is_in(client)
    # Other users, and ada at another address, are not locked out.
    assert log_in(Client(), "right", "bob").status_code == 302
    assert log_in(Client(REMOTE_ADDR="192.0.2.7"), "right").status_code == 302
    assert AccessAttempt.objects.get().failures_since_start == 5
    AccessAttempt.objects.all().delete()
    assert log_in(client, "right").status_code == 302


def test_one_password_for_many_users_is_refused_after_some_time(client, db, monkeypatch):
    """Each user has failed once. A wrong password costs as much as many requests, and is not checked any more."""
    User.objects.create_superuser("ada", password="right")
    assert log_in(client, "right").status_code == 302
    stranger = Client()
    for i in range(30):
        assert log_in(stranger, "Summer2026", f"user {i}").status_code == 200
    checked = Mock(return_value=None)
    monkeypatch.setattr("django.contrib.auth.forms.authenticate", checked)
    answer = log_in(stranger, "Summer2026", "ada")
    assert (answer.status_code, checked.call_count) == (429, 0)
    assert 0 < int(answer["retry-after"]) <= 60
    assert "Try again in 1 minute," in answer.content.decode()
    # A password that was right recently is checked, and other addresses are not refused.
    log_in(stranger, "right", "ada")
    log_in(Client(REMOTE_ADDR="192.0.2.7"), "Summer2026", "ada")
    assert checked.call_count == 2


# --- single sign-on ------------------------------------------------------------------------------


def test_the_button_exists_if_sign_on_is_configured(client, issuer: Issuer, settings):
    settings.MONODON_OIDC_BUTTON = "Our company"
    page = client.get(LOGIN + "?next=/admin/catalog/").content.decode()
    assert "Our company" in page
    assert 'href="/admin/sign-on/?next=%2Fadmin%2Fcatalog%2F"' in page
    settings.MONODON_OIDC_CLIENT_ID = ""
    assert "sign-on" not in client.get(LOGIN).content.decode()
    for path in ("/admin/sign-on/", "/admin/sign-on/callback?code=x&state=y"):
        assert client.get(path)["location"] == LOGIN


def test_a_user_signs_on(client, issuer: Issuer):
    answer = go(client, issuer, "?next=/admin/catalog/table/")
    assert answer["location"] == "/admin/catalog/table/"
    assert is_in(client)
    user = User.objects.get()
    assert (user.username, user.is_staff, user.is_superuser) == ("ada", True, False)
    assert not user.has_usable_password()
    row = Principal.objects.get()
    assert (row.name, row.user, row.subject) == ("user:ada", user, "ada-1")
    event = AuditEvent.objects.get(action="session.begin")
    assert (event.actor, event.after["by"]) == ("user:ada", "sign-on")
    assert client.session.get_expiry_age() == 12 * 3600
    # The second sign-on uses the same principal.
    go(Client(), issuer)
    assert (User.objects.count(), Principal.objects.count()) == (1, 1)


def test_the_parameters_of_the_request_to_the_issuer(client, issuer: Issuer, settings):
    location = client.get("/admin/sign-on/")["location"]
    parameters = parse_qs(urlsplit(location).query)
    assert {"state", "nonce", "code_challenge"} <= parameters.keys()
    assert parameters["redirect_uri"] == ["http://testserver/admin/sign-on/callback"]
    assert SECRET not in location
    settings.MONODON_PUBLIC_URL = "https://catalog.example.com"
    location = client.get("/admin/sign-on/")["location"]
    parameters = parse_qs(urlsplit(location).query)
    assert parameters["redirect_uri"] == ["https://catalog.example.com/admin/sign-on/callback"]


@pytest.mark.parametrize(
    "target", ["https://evil.example.com/", "//evil.example.com", "javascript:x"]
)
def test_redirects_to_other_hosts_are_ignored(client, issuer: Issuer, target):
    assert go(client, issuer, f"?next={target}")["location"] == "/admin/"


def test_sign_on_starts_a_new_session(client, issuer: Issuer):
    client.session.save()
    fixed = client.session.session_key
    assert fixed
    go(client, issuer)
    assert client.session.session_key != fixed
    assert not Session.objects.filter(pk=fixed).exists()


def test_each_sign_on_applies_the_groups(client, issuer: Issuer):
    issuer.claims["groups"] = ["admins"]
    User.objects.create_superuser("root", password="x")
    go(client, issuer)
    user = User.objects.get(username="ada")
    assert (user.is_staff, user.is_superuser) == (True, True)
    issuer.claims["groups"] = ["x"]
    stranger = Client()
    is_refused(stranger, go(stranger, issuer), "may not enter the admin")
    user.refresh_from_db()
    assert (user.is_staff, user.is_superuser) == (False, False)
    assert not is_in(client)


def test_without_administrators_groups_only_the_staff_groups_apply(issuer: Issuer, settings):
    claims = {"sub": "ada-1", "groups": ["staff"]}
    user = User.objects.create_user("ada", is_superuser=True)
    principals.update_principal(actor=SYSTEM, name="user:ada", issuer=issuer.url, subject="ada-1")
    settings.MONODON_OIDC_ADMIN_GROUPS = []
    users_sign_on.user_of(issuer.url, claims)
    user.refresh_from_db()
    assert (user.is_staff, user.is_superuser) == (True, True)
    settings.MONODON_OIDC_STAFF_GROUPS, settings.MONODON_OIDC_ADMIN_GROUPS = [], ["admins"]
    api_keys.create_api_key(actor=SYSTEM, name="root")  # another administrator
    with pytest.raises(PermissionDenied) as error:
        users_sign_on.user_of(issuer.url, claims)
    assert error.value.message == "'user:ada' may not enter the admin"
    user.refresh_from_db()
    assert (user.is_staff, user.is_superuser) == (False, False)


def test_without_groups_the_flag_of_the_user_applies(client, issuer: Issuer, settings):
    settings.MONODON_OIDC_STAFF_GROUPS = settings.MONODON_OIDC_ADMIN_GROUPS = []
    User.objects.create_user("ada", is_staff=True)
    principals.update_principal(actor=SYSTEM, name="user:ada", issuer=issuer.url, subject="ada-1")
    go(client, issuer)
    assert is_in(client)
    User.objects.update(is_staff=False)
    stranger = Client()
    is_refused(stranger, go(stranger, issuer), "may not enter the admin")


def test_sign_on_with_the_name_of_another_user_is_refused(client, issuer: Issuer):
    User.objects.create_superuser("ada", password="x")
    is_refused(client, go(client, issuer), "another principal has the name")
    assert Principal.objects.get().issuer == ""


def test_a_name_that_django_would_normalize_is_refused(client, issuer: Issuer):
    """Its normal form, in which Django stores names of users, is the name of another principal."""
    waiting = principals.create_principal(
        actor=SYSTEM, name="user:ada", kind=PrincipalKind.USER, level=PrincipalLevel.ADMIN
    )
    issuer.claims = {"preferred_username": "\uff41da", "groups": ["staff"]}
    is_refused(client, go(client, issuer), "normal form NFKC")
    assert not User.objects.exists()
    waiting.refresh_from_db()
    assert (waiting.user, waiting.issuer) == (None, "")


def test_unknown_and_inactive_subjects_are_refused(client, issuer: Issuer, settings):
    settings.MONODON_OIDC_AUTO_CREATE = False
    is_refused(client, go(client, issuer), "not known here")
    assert not User.objects.exists()
    principals.create_principal(
        actor=SYSTEM, name="svc", kind=PrincipalKind.SERVICE, issuer=issuer.url, subject="ada-1"
    )
    is_refused(client, go(client, issuer), "is not a person")
    principals.update_principal(actor=SYSTEM, name="svc", is_active=False)
    is_refused(client, go(client, issuer), "was deactivated")


def test_deactivation_ends_the_session_immediately(client, issuer: Issuer):
    go(client, issuer)
    assert is_in(client)
    principals.update_principal(actor=SYSTEM, name="user:ada", is_active=False)
    assert not is_in(client)


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another"},
        {"aud": [CLIENT, "another"], "azp": "another"},
        {"exp": 1},
        {"iss": "https://elsewhere.example.com"},
        {"sub": None},
    ],
)
def test_invalid_id_tokens_are_refused(client, issuer: Issuer, claims):
    issuer.claims |= claims
    answer = go(client, issuer)
    assert (answer.status_code, answer["location"]) == (302, LOGIN)
    assert not is_in(client)
    assert not User.objects.exists()


def test_an_id_token_of_another_log_in_is_refused(client, issuer: Issuer):
    issuer.nonce = "of-another"
    is_refused(client, go(client, issuer), "of another log-in")


def test_an_id_token_with_another_signature_is_refused(client, issuer: Issuer):
    client.get("/admin/sign-on/")
    real = issuer.token
    key = issuers.other_keys()["oct"]
    issuer.token = lambda **claims: real(key=key, header={"kid": "one"}, **claims)
    is_refused(client, go(client, issuer), "not valid")


def test_an_unknown_state_is_refused(client, issuer: Issuer):
    back = issuer.authorize(client.get("/admin/sign-on/")["location"])
    stranger = Client()
    is_refused(stranger, stranger.get(back), "was not completed")
    assert client.get(back)["location"] == "/admin/"
    # A code and a state are valid once.
    again = client.get(back)
    assert (again.status_code, again["location"]) == (302, LOGIN)


def test_sign_ons_that_nobody_completes_store_nothing(client, issuer: Issuer):
    for _ in range(3):
        assert client.get("/admin/sign-on/?next=/admin/catalog/").status_code == 302
    assert not Session.objects.exists()


def test_sessions_that_have_ended_are_deleted(client, db):
    User.objects.create_superuser("ada", password="right")
    log_in(client, "right")
    log_in(ended := Client(), "right")
    Session.objects.filter(pk=ended.session.session_key).update(expire_date=timezone.now())
    assert maintenance.empty_trash() == 1
    assert Session.objects.count() == 1
    assert is_in(client)


def test_several_sign_ons_in_one_browser(client, issuer: Issuer):
    first = client.get("/admin/sign-on/?next=/admin/catalog/table/")["location"]
    second = client.get("/admin/sign-on/")["location"]
    assert client.get(issuer.authorize(first))["location"] == "/admin/catalog/table/"
    assert client.get(issuer.authorize(second))["location"] == "/admin/"


@pytest.mark.parametrize("change", ["forged", "of another sign-on", "expired", "stored secret"])
def test_a_sign_on_that_did_not_begin_here_is_refused(client, issuer: Issuer, monkeypatch, change):
    back = issuer.authorize(client.get("/admin/sign-on/")["location"])
    (name,) = (name for name in client.cookies if name.startswith("monodon_sign_on_"))
    cookie = client.cookies[name]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (
        True,
        "Lax",
        "/admin/sign-on/",
    )
    match change:
        case "forged":
            client.cookies[name] = cookie.value[:-4] + "AAAA"
        case "of another sign-on":
            other = Client()
            other.get("/admin/sign-on/")
            client.cookies[name] = next(
                value.value for key, value in other.cookies.items() if "sign_on" in key
            )
        case "expired":
            monkeypatch.setattr(sign_on, "_STATE_SECONDS", -1)
        case "stored secret":
            client.cookies[name] = encryption.encrypt(encryption.unseal(cookie.value, 60)).decode()
    is_refused(client, client.get(back), "was not completed")


def test_an_issuer_that_never_ends_its_answer_does_not_hold_threads(
    client, issuer: Issuer, monkeypatch
):
    monkeypatch.setattr(timed_calls, "WHOLE_SECONDS", 0.1)
    monkeypatch.setattr(timed_calls, "_MOST", 2)
    go_on, real = threading.Event(), issuer.answer

    def slow(path: str, form: dict[str, str], header: str) -> Any:
        answer = real(path, form, header)
        if path == "/token":
            go_on.wait(30)
        return answer

    issuer.answer = slow
    browsers = [Client() for _ in range(3)]
    try:
        for browser in browsers:
            is_refused(browser, go(browser, issuer), "does not answer in time")
        assert issuer.requests["/token"] == 2
    finally:
        go_on.set()
    until = time.monotonic() + 10
    while not all(future.done() for future in timed_calls._exchanges):
        assert time.monotonic() < until
        time.sleep(0.01)
    monkeypatch.setattr(timed_calls, "WHOLE_SECONDS", 10.0)
    go(client, issuer)
    assert is_in(client)


@pytest.mark.parametrize(
    "query", ["", "?code=x", "?state=x", "?error=access_denied&error_description=%3Cscript%3E"]
)
def test_invalid_callbacks_are_refused(client, issuer: Issuer, query):
    client.get("/admin/sign-on/")
    answer = client.get(f"/admin/sign-on/callback{query}")
    is_refused(client, answer, "was not completed")


@pytest.mark.parametrize("status", [302, 400, 500])
def test_a_failing_issuer_is_reported(client, issuer: Issuer, status):
    back = issuer.authorize(client.get("/admin/sign-on/")["location"])
    issuer.status = status
    is_refused(client, client.get(back), "was not completed")
    assert "/elsewhere" not in issuer.requests
    oidc.forget()
    is_refused(client, client.get("/admin/sign-on/"), "are not available")


def test_unsafe_endpoints_are_refused(client, issuer: Issuer):
    issuer.document = {"token_endpoint": "http://id.example.com/token"}
    is_refused(client, client.get("/admin/sign-on/"), "was not completed")


def test_secrets_are_neither_shown_logged_nor_stored(client, issuer: Issuer, caplog, capsys):
    caplog.set_level(logging.DEBUG)
    pages = [client.get(LOGIN), go(client, issuer), client.get("/admin/")]
    issuer.nonce = "other"
    stranger = Client()
    pages += [go(stranger, issuer), stranger.get(LOGIN)]
    output = "".join(page.content.decode() + str(page.headers) for page in pages)
    output += caplog.text + "".join(str(record.__dict__) for record in caplog.records)
    for model in (AuditEvent, Principal, ApiKey, User):
        output += str(list(model.objects.values()))
    output += str([row.get_decoded() for row in Session.objects.all()])
    output += "".join(capsys.readouterr())
    assert len(issuer.issued_secrets) == 8
    for secret in (SECRET, *issuer.issued_secrets):
        for segment in secret.split("."):
            assert segment not in output


# --- users and principals ------------------------------------------------------------------------


def test_a_person_whose_name_no_user_may_have_is_refused(issuer: Issuer):
    def refused(name: str, message: str) -> None:
        row = Principal.objects.create(
            name=f"user:{name}", kind=PrincipalKind.USER, issuer=issuer.url, subject=name
        )
        with unchanged(), pytest.raises(PermissionDenied) as error:
            users_sign_on.user_of(issuer.url, {"sub": row.subject, "groups": ["staff"]})
        assert error.value.message == message

    refused("\uff41da", "'\uff41da', of principal 'user:\uff41da', is not a valid user name")
    long = "x" * 151
    refused(long, f"The name of 'user:{long}' is too long for a user: at most 150 characters")
    longest = Principal.objects.create(
        name="user:" + "x" * 150, kind=PrincipalKind.USER, issuer=issuer.url, subject="x"
    )
    user = users_sign_on.user_of(issuer.url, {"sub": "x", "groups": ["staff"]})
    longest.refresh_from_db()
    assert (longest.user, user.is_staff, user.is_superuser) == (user, True, False)


def test_a_user_may_sign_in_without_an_address(db):
    user = User.objects.create_superuser("ada")
    for request in (None, HttpRequest()):
        users.signed_in(request=request, user=user)
        users.signed_out(request=request, user=user)
        users.signed_out(request=request, user=None)
    events = AuditEvent.objects.filter(action__startswith="session.").order_by("pk")
    rows = [(event.action, event.after, event.request_id) for event in events]
    begin = ("session.begin", {"address": "", "by": "password"}, "")
    assert rows == [begin, ("session.end", {"address": ""}, "")] * 2


def test_receivers_are_connected_once():
    signals = (
        *(pre_save, post_save, pre_delete, post_delete),
        *(user_logged_in, user_logged_out, user_login_failed),
    )
    receivers = [list(signal.receivers) for signal in signals]
    assert all(receivers)
    users.connect()
    assert [signal.receivers for signal in signals] == receivers


def test_the_last_administrator_keeps_its_flags_and_every_user_its_name(db):
    ada = User.objects.create_superuser("ada")
    for name in ("is_active", "is_superuser"):
        setattr(ada, name, False)
        with unchanged(), pytest.raises(LastAdministrator):
            ada.save()
        setattr(ada, name, True)
    ada.username = "bob"
    with unchanged(), pytest.raises(InvalidInput) as error:
        ada.save()
    assert error.value.message == (
        "User 'user:ada' cannot be renamed: the audit trail, owners and grants refer to the name"
    )
    ada.username = "ada"
    ada.save()
    # An administrator by level needs no flag.
    Principal.objects.update(level=PrincipalLevel.ADMIN)
    ada.is_superuser = False
    ada.save()
    ada.is_active = False
    with unchanged(), pytest.raises(LastAdministrator):
        ada.save()
    event = AuditEvent.objects.get(action="user.update")
    assert (event.before, event.after) == ({"is_superuser": True}, {"is_superuser": False})


def test_principals_follow_the_changes_of_users(db):
    user = User.objects.create_user("bob", password="x")
    row = Principal.objects.get()
    assert (row.name, row.user, row.level) == ("user:bob", user, "granted")
    user.is_active = False
    user.save()
    row.refresh_from_db()
    assert not row.is_active
    event = AuditEvent.objects.get(action="principal.update")
    assert (event.before, event.after) == ({"is_active": True}, {"is_active": False})
    principals.update_principal(actor=SYSTEM, name="user:bob", is_active=True)
    user.refresh_from_db()
    assert user.is_active
    with users.acting_as(users.access.Principal("user:root")):
        user.delete()
    principal = Principal.objects.get()
    assert (principal.name, principal.is_active, principal.user) == ("user:bob", False, None)
    events = AuditEvent.objects.filter(target="user:bob").order_by("pk")
    assert [(event.action, event.actor) for event in events] == [
        ("principal.create", "system"),
        ("principal.update", "system"),
        ("principal.update", "system"),
        ("principal.delete", "user:root"),
    ]


# --- log-out -------------------------------------------------------------------------------------


def log_out(client: Client):
    answer = client.post("/admin/logout/")
    assert not is_in(client)
    return answer


def test_log_out_after_sign_on_continues_at_the_issuer(client, issuer: Issuer, settings):
    issuer.document = {"end_session_endpoint": f"{issuer.url}/logout?ui=short"}
    go(client, issuer)
    assert client.get("/admin/logout/").status_code == 405
    assert is_in(client)
    session_key = client.session.session_key
    answer = log_out(client)
    assert answer.status_code == 302
    location, _, query = answer["location"].partition("?")
    assert location == f"{issuer.url}/logout"
    assert parse_qs(query) == {
        "ui": ["short"],
        "client_id": [CLIENT],
        "post_logout_redirect_uri": ["http://testserver/admin/login/"],
    }
    assert not Session.objects.filter(pk=session_key).exists()
    event = AuditEvent.objects.get(action="session.end")
    assert (event.actor, event.target) == ("user:ada", "user:ada")
    settings.MONODON_PUBLIC_URL = "https://catalog.example.com"
    go(client, issuer)
    assert "https%3A%2F%2Fcatalog.example.com%2Fadmin%2Flogin%2F" in log_out(client)["location"]


def test_log_out_after_a_password_does_not_continue_at_the_issuer(client, issuer: Issuer):
    issuer.document = {"end_session_endpoint": f"{issuer.url}/logout"}
    User.objects.create_superuser("root", password="right")
    go(client, issuer)  # then another user in the same browser
    log_in(client, "right", "root")
    assert issuer.url not in log_out(client).headers.get("location", "")


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"end_session_endpoint": ""},
        {"end_session_endpoint": 5},
        {"end_session_endpoint": "http://elsewhere.example.com/logout"},
        {"end_session_endpoint": "javascript:alert(1)"},
    ],
)
def test_unsafe_log_out_urls_are_not_used(client, issuer: Issuer, document):
    issuer.document = document
    go(client, issuer)
    answer = log_out(client)
    assert "elsewhere" not in answer.headers.get("location", "")
    assert "javascript" not in answer.headers.get("location", "")
    assert answer.status_code in {200, 302}


def test_log_out_succeeds_while_the_issuer_is_unreachable(client, issuer: Issuer):
    issuer.document = {"end_session_endpoint": f"{issuer.url}/logout"}
    go(client, issuer)
    oidc.forget()
    issuer.status = 503
    answer = log_out(client)
    assert issuer.url not in answer.headers.get("location", "")
    assert AuditEvent.objects.filter(action="session.end").count() == 1


def test_the_setting_disables_log_out_at_the_issuer(client, issuer: Issuer, settings):
    settings.MONODON_OIDC_SIGN_OUT = False
    issuer.document = {"end_session_endpoint": f"{issuer.url}/logout"}
    go(client, issuer)
    assert issuer.url not in log_out(client).headers.get("location", "")


def test_a_log_in_replaces_the_session(client, db, settings):
    """A session that an attacker planted before the log-in is not used after it."""
    User.objects.create_superuser("ada", password="correct horse")
    store = SessionStore()
    store["planted"] = True
    store.create()
    client.cookies[settings.SESSION_COOKIE_NAME] = old_key = store.session_key
    answer = client.post(
        LOGIN,
        {"username": "ada", "password": "correct horse", "next": "https://evil.example/"},
    )
    assert (answer.status_code, answer.headers["location"]) == (302, "/admin/")
    assert client.cookies[settings.SESSION_COOKIE_NAME].value != old_key
    assert not SessionStore().exists(old_key)
    assert client.get("/admin/password_change/").status_code == 200
    client.cookies[settings.SESSION_COOKIE_NAME] = old_key
    assert client.get("/admin/password_change/").status_code == 302
