"""A table that is registered at a location inside another table: nothing of that table is read."""

import json
import uuid
from pathlib import Path

import pytest

from tests.api.iceberg.client import Iceberg
from tests.catalog.services.iceberg.writing import open_table
from tests.factories import unchanged
from tests.security.foreign import MINE, World, snapshot
from tests.security.watching import untouched

pytestmark = pytest.mark.django_db


def write_metadata(world: World, location: Path, manifest_list: Path) -> str:
    """A metadata file in the attacker's table that claims another location; returns its path."""
    added = snapshot("list", f"file://{manifest_list}")
    document = open_table(*MINE).metadata.model_dump(mode="json", by_alias=True, exclude_none=True)
    document |= {
        "table-uuid": str(uuid.uuid4()),
        "location": f"file://{location}",
        "last-updated-ms": added["timestamp-ms"],
        "last-sequence-number": added["sequence-number"],
        "snapshots": [added],
    }
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
