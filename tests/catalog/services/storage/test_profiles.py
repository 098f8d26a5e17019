"""The profiles that each process keeps for a second."""

import pytest

from catalog.errors import InvalidLocation
from catalog.models import Namespace, StorageProfile
from catalog.services.storage import object_placement, profiles
from catalog.storage import locations, stores
from catalog.token_bucket import TokenBucket
from tests.catalog.services.storage.test_credentials import ALICE


@pytest.fixture
def new_profile(make_profile) -> StorageProfile:
    """A profile that another process has created since this one read the profiles."""
    profiles.configurations()
    row: StorageProfile = StorageProfile.objects.create(
        name="new", kind="s3", roots=["s3://new/root"]
    )
    assert list(profiles.configurations()) == []
    return row


def test_a_table_below_a_new_profile_is_served(new_profile):
    configuration = stores.configuration_of("s3://new/root/t")
    assert configuration is not None
    assert configuration.profile == "new"


def test_a_location_below_a_new_profile_is_accepted(new_profile):
    assert locations.check_location("s3://new/root/t") == "s3://new/root/t"
    with pytest.raises(InvalidLocation):
        locations.check_location("s3://new/root")
    with pytest.raises(InvalidLocation):
        locations.check_location("s3://new/other")


def test_a_new_table_goes_to_a_new_profile(new_profile):
    root = Namespace.objects.get(path=[])
    Namespace.objects.filter(pk=root.pk).update(storage_profile=new_profile)
    assert object_placement.new_location(ALICE, (), "t").startswith("s3://new/root/")


def test_known_profiles_cost_no_statement(new_profile, django_assert_num_queries):
    profiles.configurations(fresh=True)
    with django_assert_num_queries(0):
        stores.configuration_of("s3://new/root/t")
    with django_assert_num_queries(1):
        assert stores.configuration_of("s3://elsewhere/t") is None


def test_paths_below_no_profile_cost_a_bounded_number_of_statements(
    new_profile, monkeypatch, django_assert_num_queries
):
    clock = Clock()
    monkeypatch.setattr(profiles, "_FRESH_SECONDS", 3600.0)
    monkeypatch.setattr(stores, "rereads", TokenBucket(20, 20, clock=clock))
    with django_assert_num_queries(20):
        for number in range(1000):
            assert stores.configuration_of(f"s3://elsewhere-{number}/t") is None
    row = StorageProfile.objects.create(name="newer", kind="s3", roots=["s3://newer/root"])
    assert stores.configuration_of("s3://newer/root/t") is None  # until the profiles are read again
    clock.seconds += 0.06
    configuration = stores.configuration_of("s3://newer/root/t")
    assert configuration is not None
    assert configuration.profile == row.name


def test_a_new_profile_is_known_after_a_second_however_many_paths_are_tried(
    new_profile, monkeypatch
):
    monkeypatch.setattr(stores, "rereads", TokenBucket(0, 0))
    monkeypatch.setattr(profiles, "_FRESH_SECONDS", 3600.0)
    assert stores.configuration_of("s3://new/root/t") is None
    monkeypatch.setattr(profiles, "_FRESH_SECONDS", 0.0)
    assert stores.configuration_of("s3://new/root/t") is not None


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds
