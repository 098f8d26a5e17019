"""Clones of clones of Lance tables: the rights of those who made them, and the purge of the first table."""

from dataclasses import dataclass
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from catalog.access import credentials
from catalog.models import ApiKey, Grant, Table
from catalog.privileges import Privilege, closure
from catalog.services.access import known_keys
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import versions as lance_versions
from tests.access.protocols import principal
from tests.api.client import Lance
from tests.factories import make_lance_table, make_namespace, make_root
from tests.security.inotify import watched

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
READS = (
    ("count_rows", {"predicate": "id > 0"}),
    ("query", {"k": 10, "vector": {}}),
    ("update", {"updates": [["name", "'q'"]]}),
    ("delete", {"predicate": "name = 'secret'"}),
)


def _grant(name: str, privilege: Privilege, **where: object) -> Grant:
    return Grant.objects.create(principal=principal(name), mask=closure(privilege).value, **where)


def _client(name: str) -> Lance:
    key = f"mnd_the_key_of_{name}"
    ApiKey.objects.create(name=name, principal=principal(name), digest=credentials.key_digest(key))
    return Lance(key)


@dataclass
class Chain:
    """The table of ``b``, its clone in ``a``, and the clone of that one in ``c``."""

    first: Table
    clients: dict[str, Lance]

    def clone(self, source: Path, owner: str) -> tuple[int, str]:
        target = source.parent / f"clone-{owner}"
        lance.dataset(str(source)).shallow_clone(str(target), 1)
        answer = self.clients[owner].call(
            "POST", f"/v1/table/{owner}$t/register", {"location": str(target)}
        )
        lance_versions.settle_pending()
        return answer.status_code, str(target)

    def count(self, owner: str) -> int:
        body = {"predicate": "id > 0"}
        path = f"/v1/table/{owner}$t/count_rows"
        return self.clients[owner].call("POST", path, body).status_code

    def revoke(self, owner: str) -> None:
        Grant.objects.filter(principal__name=owner, table=self.first).delete()
        known_keys.forget_keys()


@pytest.fixture
def chain(db):
    make_root()
    rows = pa.table({"id": [7, 8], "name": ["secret", "secret"]})
    spaces = {name: make_namespace(name) for name in "abc"}
    first = make_lance_table(("b", "t"), rows)
    lance_versions.settle_pending()
    for name in "ac":
        _grant(name, Privilege.ALL, namespace=spaces[name])
    _grant("a", Privilege.READ, table=first)
    yield Chain(first, {name: _client(name) for name in "ac"})
    lance_datasets.clear_caches()


def _second(chain: Chain) -> str:
    status, location = chain.clone(Path(chain.first.location), "a")
    assert status == 200
    _grant("c", Privilege.READ, table=Table.objects.named(("a", "t")).get())
    return location


def test_a_reader_of_a_clone_registers_no_clone_that_names_the_files_of_the_first_table(chain):
    location = _second(chain)
    with watched(f"{chain.first.location}/data") as touched:
        assert chain.clone(Path(location), "c")[0] == 400
    assert touched.events == []
    assert not Table.objects.named(("c", "t")).exists()


def test_each_clone_depends_on_the_right_of_its_own_maker(chain):
    location = _second(chain)
    right = _grant("c", Privilege.READ, table=chain.first)
    assert chain.clone(Path(location), "c")[0] == 200
    assert (chain.count("a"), chain.count("c")) == (200, 200)
    chain.revoke("a")
    assert (chain.count("a"), chain.count("c")) == (400, 200)
    chain.revoke("c")
    with watched(f"{chain.first.location}/data") as touched:
        for owner, client in chain.clients.items():
            for operation, body in READS:
                answer = client.call("POST", f"/v1/table/{owner}$t/{operation}", body)
                assert answer.status_code == 400, (owner, operation, answer.content)
                assert b"secret" not in answer.content
    assert touched.events == []
    right.pk = None
    right.save(force_insert=True)
    known_keys.forget_keys()
    assert (chain.count("a"), chain.count("c")) == (400, 200)
