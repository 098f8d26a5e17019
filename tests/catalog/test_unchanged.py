"""The check of the other tests that nothing has changed."""

import pytest
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.models import ApiKey, IcebergMetadata, Namespace
from catalog.services.access import api_keys
from tests.factories import make_iceberg_table, make_namespace, unchanged

pytestmark = pytest.mark.django_db


def test_new_and_changed_rows_are_noticed():
    with pytest.raises(AssertionError), unchanged():
        make_namespace("ns")
    with pytest.raises(AssertionError), unchanged():
        Namespace.objects.filter(path=["ns"]).update(properties={"a": "b"})
    with pytest.raises(AssertionError), unchanged():
        Namespace.objects.filter(path=["ns"]).delete()


def test_changed_bytes_are_noticed():
    make_iceberg_table("ns", "t")
    with pytest.raises(AssertionError), unchanged():
        IcebergMetadata.objects.update(answer=b"other")


def test_the_use_of_a_key_is_no_change():
    api_keys.create_api_key(actor=SYSTEM, name="tester")
    with unchanged():
        ApiKey.objects.update(last_used_at=timezone.now())
