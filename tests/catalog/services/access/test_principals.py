import threading

import pytest
from django.contrib.auth import get_user_model
from django.db import connection

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import CatalogError, InvalidInput, LastAdministrator, PrincipalAlreadyExists
from catalog.models import (
    ApiKey,
    AuditEvent,
    Grant,
    Namespace,
    Principal,
    PrincipalKind,
    PrincipalLevel,
)
from catalog.privileges import Privilege
from catalog.services.access import api_keys, grant_operations, grants, principals, users
from tests.cases import shared_cases
from tests.factories import make_root, unchanged


@pytest.mark.django_db(transaction=True)
def test_concurrent_demotions_keep_one_administrator():
    """Each transaction sees the other administrator at its start. One of them must remain."""
    make_root()
    for name in ("one", "two"):
        api_keys.create_api_key(actor=SYSTEM, name=name)
    barrier, outcomes = threading.Barrier(2), []

    def lower(name: str) -> None:
        barrier.wait()
        try:
            principals.update_principal(actor=SYSTEM, name=name, level=PrincipalLevel.READ)
            outcomes.append("lowered")
        except LastAdministrator:
            outcomes.append("stays")
        finally:
            connection.close()

    threads = [threading.Thread(target=lower, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lowered", "stays"]
    assert Principal.objects.filter(level=PrincipalLevel.ADMIN).count() == 1
    assert AuditEvent.objects.filter(action="principal.update").count() == 1


@pytest.mark.django_db
def test_a_key_of_an_existing_account_has_the_requested_level():
    make_root()
    Principal.objects.create(name="etl", kind="service", level=PrincipalLevel.ADMIN)
    with pytest.raises(InvalidInput, match="with level admin"), unchanged():
        api_keys.create_api_key(actor=SYSTEM, name="etl", level=PrincipalLevel.READ)
    key, _ = api_keys.create_api_key(actor=SYSTEM, name="etl", level=PrincipalLevel.ADMIN)
    assert key.principal.name == "etl"


def test_the_last_administrator_is_not_removed_by_deactivating_a_group(db):
    """Members have the level of a group while it is active."""
    principals.create_principal(
        actor=SYSTEM, name="group:admins", kind=PrincipalKind.GROUP, level=PrincipalLevel.ADMIN
    )
    key, _ = api_keys.create_api_key(actor=SYSTEM, name="etl", level=PrincipalLevel.READ)
    principals.add_member(actor=SYSTEM, group="group:admins", member="etl")
    assert list(principals.administrators()) == [key.principal]
    with unchanged(), pytest.raises(LastAdministrator):
        principals.update_principal(actor=SYSTEM, name="group:admins", is_active=False)


def test_lists_of_principals_take_two_statements(db, django_assert_num_queries):
    get_user_model().objects.create_user("ada")
    with django_assert_num_queries(2):
        (row,), _ = principals.list_principals(actor=SYSTEM)
        assert (row.user.username, list(row.groups.all())) == ("ada", [])
    make("group:g", PrincipalKind.GROUP)
    principals.add_member(actor=SYSTEM, group="group:g", member="user:ada")
    with django_assert_num_queries(3):
        (row,), _ = principals.list_members(actor=SYSTEM, group="group:g")
        assert (row.user.username, len(row.groups.all())) == ("ada", 1)


def test_a_new_principal_has_no_description_issuer_and_privileges(db):
    row = principals.create_principal(actor=SYSTEM, name="etl", kind=PrincipalKind.SERVICE)
    row.refresh_from_db()
    assert (row.level, row.description, row.issuer, row.subject) == ("granted", "", "", "")
    assert (row.is_active, row.user, row.groups.count()) == (True, None, 0)


@shared_cases(
    "name",
    [
        "ada\u034f",
        "\uff41da",
        "ada\ufe0f",
        "a\u200bda",
        "ada\u3164",
        "e\u0301ve",
        "\ufb01lip",
        "\u202eada",
        "\u0430da",
        "ada.m\u03bfore",
    ],
)
def test_names_that_look_like_others_are_refused(db, name):
    with unchanged(), pytest.raises(InvalidInput):
        principals.create_principal(actor=SYSTEM, name=f"user:{name}", kind=PrincipalKind.USER)


def test_names_in_other_scripts_are_accepted(db):
    for name in ("user:Ève", "user:Ольга", "user:Ольга (IT)", "user:田中", "user:राम"):
        assert principals.check_name(name, PrincipalKind.USER) == name


NORMAL = "must be in the normal form NFKC of Unicode, without characters that are not displayed"
MIXED = "letters in one word, which could pass for another name"
PRINTABLE = "must be printable, without slashes, further colons, and leading or trailing blanks"


@shared_cases(
    ("name", "message"),
    [
        ("ada", "The name of a person looks like 'user:name', not 'ada'"),
        ("user:", "The name of a person looks like 'user:name', not 'user:'"),
        ("user:\uff41", f"Name 'user:\uff41' {NORMAL}"),
        ("user:a\u115f", f"Name {'user:a' + chr(0x115F)!r} {NORMAL}"),
        (
            "user:\u0430da",
            f"Name 'user:\\u0430da' mixes Cyrillic and Latin {MIXED}",
        ),
        *(
            (name, f"Name {name!r} {PRINTABLE}")
            for name in ("user:a\nb", "user: a", "user:a ", "user:a:b", "user:a/b")
        ),
        ("user:" + "x" * 196, "A name has at most 200 characters"),
    ],
)
def test_refused_names_are_explained(name, message):
    with pytest.raises(InvalidInput) as error:
        principals.check_name(name, PrincipalKind.USER)
    assert error.value.message == message


def test_the_longest_names_are_accepted():
    for kind in PrincipalKind:
        name = principals.PREFIXES[kind].ljust(200, "x")
        assert principals.check_name(name, kind) == name


def make(name: str, kind: PrincipalKind = PrincipalKind.SERVICE, **more) -> Principal:
    return principals.create_principal(actor=SYSTEM, name=name, kind=kind, **more)


def prepare() -> None:
    for name in ("group:a", "group:b"):
        make(name, PrincipalKind.GROUP)
    make("etl")


@shared_cases(
    ("call", "message"),
    [
        (
            lambda: make("new", issuer="https://id.example.com"),
            "Issuer and subject belong together: set both, or neither",
        ),
        (
            lambda: make("new", issuer="https://id.example.com", subject="a\nb"),
            "Issuer and subject must be printable",
        ),
        (
            lambda: make("new", issuer="a\nb", subject="x"),
            "Issuer and subject must be printable",
        ),
        (lambda: make("etl"), "Principal 'etl' exists already, or another has its subject"),
        (lambda: make("system"), "The name 'system' is reserved for the catalog itself"),
        (
            lambda: principals.find_principal(actor=SYSTEM, name="a\x00b"),
            "Principal 'a?b' does not exist",
        ),
        (
            lambda: principals.find_principal(actor=SYSTEM, name="nobody"),
            "Principal 'nobody' does not exist",
        ),
        (
            lambda: principals.update_principal(actor=SYSTEM, name="etl", subject="x"),
            "Issuer and subject belong together: set both, or neither",
        ),
        (
            lambda: principals.add_member(actor=SYSTEM, group="etl", member="etl"),
            "'etl' is not a group",
        ),
        (lambda: principals.list_members(actor=SYSTEM, group="etl"), "'etl' is not a group"),
        (
            lambda: principals.add_member(actor=SYSTEM, group="group:a", member="group:b"),
            "'group:b' is a group, and a group cannot be a member of a group",
        ),
        (
            lambda: users.check_new_name("ada/x"),
            f"Name 'user:ada/x' {PRINTABLE}",
        ),
        (lambda: grant_operations.require_days(0), "Access is granted for 1 to 3650 days"),
        (lambda: grant_operations.require_days(3651), "Access is granted for 1 to 3650 days"),
    ],
    prepare=prepare,
)
def test_refusals_name_the_rule(db, call, message):
    with unchanged(), pytest.raises(CatalogError) as error:
        call()
    assert error.value.message == message


def test_grants_may_last_for_a_day_and_for_ten_years():
    for days in (1, 3650):
        grant_operations.require_days(days)


def test_a_user_gets_no_principal_of_another(db):
    make("user:ada", PrincipalKind.USER, issuer="https://id.example.com", subject="1")
    make("user:bob", PrincipalKind.USER)
    principals.update_principal(actor=SYSTEM, name="user:bob", is_active=False)
    Namespace.objects.filter(pk=make_root().pk).update(owner="user:carl")
    retired = (
        "The principal is inactive, for example because its user was deleted. A new user of this"
        " name would get everything that it owns. Activate the principal first."
    )
    owner = (
        "No principal has this name, but it still owns objects. A new user of this name would get"
        " them. Create the principal first."
    )
    for name, detail in (("ada", None), ("bob", retired), ("carl", owner)):
        with unchanged(), pytest.raises(PrincipalAlreadyExists) as error:
            users.check_new_name(name)
        assert (error.value.name, error.value.detail) == (f"user:{name}", detail)
    users.check_new_name("dora")
    ada = Principal.objects.get(name="user:ada")
    with users.joining(ada):
        users.check_new_name("ada")
        for name in ("bob", "dora"):
            with pytest.raises(PrincipalAlreadyExists) as error:
                users.check_new_name(name)
            assert error.value.name == f"user:{name}"


def _namespace() -> access.On:
    return access.On.namespace(())


def prepare_pages() -> None:
    root = make_root()
    group = make("group:g", PrincipalKind.GROUP)
    for name in "Abcd":
        row = Principal.objects.create(name=name, kind=PrincipalKind.SERVICE)
        row.groups.add(group)
        ApiKey.objects.create(name=name, principal=row, digest=name)
        Grant.objects.create(principal=row, namespace=root, mask=Privilege.BROWSE)


@shared_cases(
    ("module", "pages_of"),
    [
        (
            principals,
            lambda **page: principals.list_principals(
                actor=SYSTEM, kinds=[PrincipalKind.SERVICE], **page
            ),
        ),
        (
            principals,
            lambda **page: principals.list_members(actor=SYSTEM, group="group:g", **page),
        ),
        (api_keys, lambda **page: api_keys.list_api_keys(actor=SYSTEM, **page)),
        (grants, lambda **page: grants.list_grants(actor=SYSTEM, on=_namespace(), **page)),
        (grants, lambda **page: grants.explain(actor=SYSTEM, on=_namespace(), **page)),
        (
            grants,
            lambda **page: grants.what_if(
                actor=SYSTEM, on=_namespace(), principal="group:g", **page
            ),
        ),
    ],
    ids=["principals", "members", "keys", "grants", "holders", "losses"],
    prepare=prepare_pages,
)
def test_lists_have_pages_of_limited_size(db, monkeypatch, module, pages_of):
    monkeypatch.setattr(module, "PAGE_SIZE", 2)
    monkeypatch.setattr(module, "MAX_PAGE", 3)

    def names(**page) -> tuple[list[str], str | None]:
        rows, token = pages_of(**page)
        return [getattr(row, "name", None) or row.principal.name for row in rows], token

    assert names() == (["A", "b"], "b")
    assert names(page_token="b") == (["c", "d"], None)
    assert names(limit=1, page_token="A") == (["b"], "b")
    assert names(limit=9) == (["A", "b", "c"], "c")
    assert names(limit=9, page_token="c") == (["d"], None)
