"""The profile test passes with each store that docs/object-stores.md calls tested."""

import pytest
from django.core.management import CommandError, call_command

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("name", "client_access"),
    [("seaweedfs", "sts"), ("versitygw", "signing"), ("moto_s3", "sts")],
)
def test_profile_passes_its_test(request, make_profile, capsys, name, client_access):
    store = request.getfixturevalue(name)
    role = store.role if client_access == "sts" else ""
    fields = store.profile_fields() | {"client_access": client_access, "role": role}
    make_profile(name="lake", roots=[f"s3://{store.new_bucket()}/root"], **fields)
    call_command("storage", "test", "lake")  # raises if a check fails
    statuses = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert statuses.count("passed") >= 15


def test_seaweedfs_does_not_compare_bodies_with_their_hash(seaweedfs, make_profile, capsys):
    """docs/seaweedfs.md warns of it."""
    fields = seaweedfs.profile_fields() | {"client_access": "signing"}
    make_profile(name="lake", roots=[f"s3://{seaweedfs.new_bucket()}/root"], **fields)
    with pytest.raises((CommandError, SystemExit)):
        call_command("storage", "test", "lake")
    lines = capsys.readouterr().out.splitlines()
    (failed,) = (line for line in lines if line.startswith("failed"))
    assert "deletes an object of another table" in failed
