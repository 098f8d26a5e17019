"""Browsers: Django's test client, signed in as different users."""

from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from catalog.access import SYSTEM, On
from catalog.models import Principal, PrincipalKind
from catalog.privileges import parse
from catalog.services.access import grants


@pytest.fixture(autouse=True)
def _plain_static_files(settings, tmp_path: Path) -> None:
    """The hashed names of static files exist only after collectstatic."""
    settings.STATIC_ROOT = tmp_path
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }


@pytest.fixture
def browser(db, warehouse) -> Client:
    """A browser that is signed in as ada, an administrator."""
    client = Client()
    client.force_login(User.objects.create_superuser("ada", password="x"))
    return client


@pytest.fixture
def sign_in(db, warehouse) -> Callable[..., Client]:
    """Function that signs in a staff user with these privileges on the whole catalog."""

    def signed_in(*privileges: str) -> Client:
        user = User.objects.create_user("bob", password="x", is_staff=True)
        row, _ = Principal.objects.get_or_create(
            name="user:bob", defaults={"kind": PrincipalKind.USER}
        )
        Principal.objects.filter(pk=row.pk).update(user=user)
        if privileges:
            grants.set_grant(
                actor=SYSTEM, on=On.namespace(()), principal=row.name, privileges=parse(privileges)
            )
        client = Client()
        client.force_login(user)
        return client

    return signed_in
