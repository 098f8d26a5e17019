"""A table that is registered at a location inside another table: nothing of that table is read."""

import json
from pathlib import Path

import pytest

from catalog.access import SYSTEM, On
from catalog.privileges import Privilege
from catalog.services.access import grants
from tests.api.iceberg.client import Iceberg
from tests.factories import unchanged
from tests.security.foreign import World, registrable
from tests.security.watching import untouched

pytestmark = pytest.mark.django_db


def write_metadata(world: World, location: Path, manifest_list: Path) -> str:
    """A metadata file in the attacker's table that claims another location; returns its path."""
    document, _ = registrable(location, manifest_list)
    file = world.mine / "metadata" / "00007-x.metadata.json"
    file.write_text(json.dumps(document))
    return f"file://{file}"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("directory", ["", "metadata"])
@pytest.mark.parametrize("kind", ["hidden", "dropped", "twin"])
def test_a_registration_at_the_location_of_another_table_reads_nothing(
    world: World, attacker: Iceberg, kind: str, directory: str, overwrite: bool
):
    listed = world.victims[kind].list
    location = listed.parents[1] / directory
    body = {
        "name": "t" if overwrite else "n",
        "metadata-location": write_metadata(world, location, listed),
        "overwrite": overwrite,
    }
    with untouched(world.canaries()), unchanged():
        response = attacker.call("POST", "namespaces/mine/register", body)
    assert response.status_code == 409, response.content
    text = response.json()["error"]["message"].replace(str(location), "")
    assert "secret" not in text
    assert str(world.mine.parents[1]) not in text


@pytest.mark.parametrize("name", ["t", "twin"])
def test_an_overwrite_reads_nothing_of_a_table_that_the_principal_may_not_replace(
    world: World, attacker: Iceberg, name: str
):
    """Its name may be taken over only with ``manage``, although the principal creates tables beside it."""
    grants.set_grant(
        actor=SYSTEM, on=On.namespace(("secret",)), principal="who", privileges=Privilege.CREATE
    )
    listed = world.victims["hidden" if name == "t" else "twin"].list
    body = {
        "name": name,
        "metadata-location": write_metadata(world, listed.parents[1], listed),
        "overwrite": True,
    }
    with untouched(world.canaries()), unchanged():
        response = attacker.call("POST", "namespaces/secret/register", body)
    assert response.status_code == 403, response.content
    assert "manage" in response.json()["error"]["message"]
