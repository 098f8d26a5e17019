"""Browsers: Django's test client with different people signed in."""

from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client


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
    """Signed in as ada, who may do everything."""
    client = Client()
    client.force_login(User.objects.create_superuser("ada", password="x"))
    return client


@pytest.fixture
def sign_in(db, warehouse) -> Callable[..., Client]:
    """Sign a member of the staff in who has just these permissions."""

    def signed_in(*permissions: str) -> Client:
        user = User.objects.create_user("bob", password="x", is_staff=True)
        user.user_permissions.set(
            Permission.objects.filter(
                content_type__app_label="catalog", codename__in=list(permissions)
            )
        )
        client = Client()
        client.force_login(user)
        return client

    return signed_in
