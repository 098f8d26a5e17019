"""The principal of a user, of a stored name and of a row."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.utils import timezone

from catalog import access
from catalog.errors import PermissionDenied, Unauthenticated
from catalog.models import ApiKey, Principal, PrincipalKind, PrincipalLevel
from catalog.privileges import NOTHING, READ_ONLY, Privilege
from tests.factories import make_namespace, make_root

pytestmark = pytest.mark.django_db


def make_user(name, **keys):
    return get_user_model().objects.create(username=name, **keys)


def make_row(name, kind=PrincipalKind.SERVICE, **keys):
    return Principal.objects.create(name=name, kind=kind, **keys)


def row_of(user):
    """The row of a user, which the database adds."""
    return Principal.objects.get(user=user)


def make_key(row, name="k1", **keys):
    return ApiKey.objects.create(name=name, principal=row, digest=name, **keys)


# -- users


def test_an_active_superuser_has_all_privileges():
    ada = make_user("ada", is_superuser=True)
    assert access.of_user(ada) == access.Principal("user:ada", Privilege.ALL)
    ada.is_active = False
    assert access.of_user(ada) == access.Principal("user:ada")


def test_a_user_has_the_privileges_of_its_row():
    user = make_user("ann")
    Principal.objects.filter(user=user).update(level=PrincipalLevel.READ)
    expected = access.Principal("user:ann", READ_ONLY, ids=(row_of(user).pk,))
    assert access.of_user(user) == expected
    user.is_active = False
    assert access.of_user(user) == access.Principal("user:ann")
    user.is_active = True
    row_of(user).delete()
    assert access.of_user(user) == access.Principal("user:ann")


def test_the_anonymous_user_has_no_privileges():
    assert access.of_user(AnonymousUser()) == access.Principal("user:")


def test_a_user_without_the_superuser_attribute_is_no_superuser():
    user = SimpleNamespace(get_username=lambda: "ann", is_active=True)
    assert access.of_user(user) == access.Principal("user:ann")


# -- names


def test_a_name_finds_an_active_principal():
    assert access.named("etl") is None
    row = make_row("etl")
    assert access.named("etl") == access.Principal("etl", ids=(row.pk,))
    Principal.objects.update(is_active=False)
    assert access.named("etl") is None


def test_the_name_of_an_inactive_user_finds_no_principal():
    make_user("ann")
    assert access.named("user:ann") is not None
    get_user_model().objects.update(is_active=False)
    assert access.named("user:ann") is None


def test_work_on_behalf_of_an_unknown_name_is_refused():
    with pytest.raises(PermissionDenied) as refusal:
        access.on_behalf_of("x" * 201)
    name = "x" * 200
    assert refusal.value.message == (
        f"Nothing is done on behalf of '{name}': no principal has this name"
    )
    with pytest.raises(PermissionDenied) as refusal:
        access.on_behalf_of("")
    assert refusal.value.message == ("Nothing is done on behalf of nobody: no principal is named")


def powerless(name):
    return access.Principal(name, ceiling=NOTHING)


def test_work_on_behalf_of_an_inactive_principal_has_no_privileges():
    row = make_row("etl", issuer="https://idp", level=PrincipalLevel.ADMIN)
    assert access.on_behalf_of("etl").everywhere == Privilege.ALL
    Principal.objects.filter(pk=row.pk).update(is_active=False)
    assert access.on_behalf_of("etl") == powerless("etl")


def test_work_on_behalf_of_a_user_requires_an_active_user():
    row = row_of(make_user("ann"))
    assert access.on_behalf_of("user:ann") == access.Principal("user:ann", ids=(row.pk,))
    get_user_model().objects.update(is_active=False)
    assert access.on_behalf_of("user:ann") == powerless("user:ann")


@pytest.mark.parametrize(
    ("key", "is_able"),
    [
        (None, False),
        ({}, True),
        ({"expires_at": timedelta(hours=1)}, True),
        ({"expires_at": -timedelta(hours=1)}, False),
        ({"revoked_at": -timedelta(hours=1)}, False),
        ({"expires_at": timedelta(hours=1), "revoked_at": -timedelta(hours=1)}, False),
    ],
)
def test_a_service_account_requires_a_valid_key(key, is_able):
    row = make_row("etl")
    if key is not None:
        make_key(row, **{name: timezone.now() + distance for name, distance in key.items()})
    expected = access.Principal("etl", ids=(row.pk,)) if is_able else powerless("etl")
    assert access.on_behalf_of("etl") == expected


def test_an_account_of_an_issuer_requires_no_key():
    row = make_row("etl", issuer="https://idp", subject="1")
    assert access.on_behalf_of("etl") == access.Principal("etl", ids=(row.pk,))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("none", None),
        ("read", access.Principal("anonymous", READ_ONLY, ceiling=READ_ONLY)),
        ("admin", access.Principal("anonymous", Privilege.ALL)),
    ],
)
def test_the_anonymous_principal_has_the_level_of_the_setting(settings, setting, expected):
    settings.MONODON_ANONYMOUS = setting
    assert access.anonymous() == expected
    assert access.on_behalf_of("anonymous") == (expected or powerless("anonymous"))


# -- rows


def test_a_principal_has_the_levels_of_its_active_groups():
    row = make_row("etl")
    readers = make_row("group:readers", PrincipalKind.GROUP, level=PrincipalLevel.READ)
    inactive = make_row(
        "group:gone", PrincipalKind.GROUP, level=PrincipalLevel.ADMIN, is_active=False
    )
    row.groups.set([readers, inactive])
    assert access.of_row(row) == access.Principal(
        "etl", READ_ONLY, ids=(row.pk, readers.pk), groups=("group:readers",)
    )


def test_the_row_of_a_superuser_has_all_privileges():
    row = row_of(make_user("ada", is_superuser=True))
    assert access.of_row(row).everywhere == Privilege.ALL
    assert access.of_row(row_of(make_user("ann"))).everywhere == NOTHING


def test_a_key_limits_its_principal():
    make_root()
    sales = make_namespace("sales")
    row = make_row("etl", level=PrincipalLevel.ADMIN)
    ends_at = timezone.now()
    key = make_key(row, "nightly", scopes=["read"], namespace=sales, expires_at=ends_at)
    assert access.of_row(row, key) == access.Principal(
        "etl",
        READ_ONLY,
        ids=(row.pk,),
        ceiling=READ_ONLY,
        within=sales.pk,
        key="nightly",
        ends_at=ends_at,
    )
    assert access.of_row(row) == access.Principal("etl", Privilege.ALL, ids=(row.pk,))


# -- requests that outlive the look-up of their key


def test_the_present_principal_has_the_present_level_and_groups_within_its_ceiling():
    row = make_row("etl", level=PrincipalLevel.ADMIN)
    key = make_key(row, scopes=["write"])
    actor = access.of_row(row, key).through(request_id="r")
    readers = make_row("group:readers", PrincipalKind.GROUP, level=PrincipalLevel.READ)
    row.groups.set([readers])
    Principal.objects.filter(pk=row.pk).update(level=PrincipalLevel.GRANTED)
    present = access.current(actor)
    assert (present.ids, present.groups) == ((row.pk, readers.pk), ("group:readers",))
    assert (present.everywhere, present.ceiling, present.request_id) == (
        READ_ONLY,
        key.ceiling,
        "r",
    )
    for unchanged in (access.Principal("etl"), access.Principal("etl", ids=(1,), tables=(2,))):
        assert access.current(unchanged) is unchanged


@pytest.mark.parametrize("change", ["revoked_at", "expires_at"])
def test_a_key_that_has_ended_since_then_is_refused(change):
    row = make_row("etl")
    key, other = make_key(row), make_key(row, "k2", revoked_at=timezone.now())
    actor = access.of_row(row, key)
    assert access.current(actor).ids == actor.ids
    ApiKey.objects.filter(pk=key.pk).update(**{change: timezone.now()})
    with pytest.raises(Unauthenticated) as error:
        access.current(actor)
    assert error.value.message == "The API key is unknown, expired or revoked"
    # The name of an issuer's client may be that of a key.
    client = actor.through(key=other.name, is_vouched_for=True)
    assert access.current(client).ids == actor.ids
    Principal.objects.filter(pk=row.pk).update(is_active=False)
    with pytest.raises(Unauthenticated) as error:
        access.current(client)
    assert error.value.message == "'etl' is no longer active"


def test_a_principal_without_the_limits_of_its_key():
    make_root()
    row = make_row("etl", level=PrincipalLevel.READ)
    whole = access.Principal("etl", READ_ONLY, ids=(row.pk,))
    for limit in ({"scopes": ["browse"]}, {"namespace": make_namespace("sales")}):
        actor = access.of_row(row, make_key(row, str(limit)[:9], **limit))
        assert access.without_limits(actor) == whole
    assert access.without_limits(whole) is whole
    limited = access.Principal("nobody", ceiling=NOTHING)
    assert access.without_limits(limited) is limited


# -- statements


def test_the_principal_of_a_name_takes_one_statement(django_assert_num_queries):
    make_user("ada")
    with django_assert_num_queries(1):
        assert access.named("user:ada") is not None
    with django_assert_num_queries(1):
        assert access.on_behalf_of("user:ada").name == "user:ada"
