"""Each page of the admin computes once in a request which rows its user may see."""

from collections import Counter

import pytest
from django.contrib.auth.models import User
from django.test import Client

from catalog.admin.pages import ReadOnlyAdmin
from catalog.admin.tables.tables import TableAdmin
from catalog.models import Grant, Namespace, Principal
from catalog.privileges import Privilege
from tests.factories import make_root, make_table


@pytest.fixture
def bob(db, warehouse) -> Client:
    """A user who may browse one namespace."""
    make_root()
    make_table("ws", "t")
    user = User.objects.create_user("bob", is_staff=True)
    principal = Principal.objects.get(name="user:bob")
    namespace = Namespace.objects.named(("ws",)).get()
    Grant.objects.create(principal=principal, namespace=namespace, mask=Privilege.BROWSE.value)
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.parametrize("url", ["/admin/", "/admin/catalog/table/", "/admin/catalog/namespace/"])
def test_the_condition_of_each_page_is_computed_once_per_request(bob, monkeypatch, url):
    computed: Counter[type] = Counter()

    def counting(page: type[ReadOnlyAdmin]) -> None:
        visibility = page.visibility

        def counted(self, principal):
            computed[type(self)] += 1
            return visibility(self, principal)

        monkeypatch.setattr(page, "visibility", counted)

    for page in (ReadOnlyAdmin, *_subclasses(ReadOnlyAdmin)):
        if "visibility" in vars(page):
            counting(page)
    answer = bob.get(url)
    assert answer.status_code == 200
    assert computed[TableAdmin] == 1
    assert set(computed.values()) == {1}
    bob.get(url)
    assert computed[TableAdmin] == 2, "another request may be that of another user"


def _subclasses(page: type) -> list[type]:
    return [sub for child in page.__subclasses__() for sub in (child, *_subclasses(child))]
