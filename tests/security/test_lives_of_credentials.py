"""What the credentials of clients open after renames, moves, revocations, drops and undrops, in a store that enforces them."""

from typing import Any

import pytest
from django.http import HttpResponse

from catalog.access import SYSTEM
from catalog.models import Grant, Namespace, Table, TrashItem
from catalog.privileges import Privilege, closure
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.recovery import undrop
from catalog.services.storage import credentials
from tests import vending
from tests.api.iceberg.client import Iceberg
from tests.factories import ICEBERG_SCHEMA, unchanged
from tests.security.test_staged_locations import CREATOR, Lake, lake, make_tenant
from tests.vending import DELEGATED, outcomes

__all__ = ["lake"]

pytestmark = pytest.mark.django_db
TABLE = "namespaces/ns/tables/t"
EVERYTHING = {"get", "head", "list", "put", "delete", "delete many", "upload"}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    settings.MONODON_TRASH_SECONDS = 86_400
    credentials.discard_cache()


def create(lake: Lake, name: str, at: str) -> Table:
    body = {"name": name, "schema": ICEBERG_SCHEMA, "location": f"{lake.base}/{at}"}
    answer = Iceberg(lake.ann).call("POST", "namespaces/ns/tables", body)
    assert answer.status_code == 200, answer.content
    put(lake, at)
    return Table.objects.get(name=name)


def put(lake: Lake, at: str) -> None:
    bucket, _, key = f"{lake.base}/{at}".removeprefix("s3://").partition("/")
    lake.store.client().put_object(Bucket=bucket, Key=f"{key}/data/1", Body=b"x")


def load(key: str, path: str = TABLE, query: str = "") -> HttpResponse:
    return Iceberg(key).call("GET", path + query, headers=DELEGATED)


def config(answer: HttpResponse) -> dict[str, str]:
    assert answer.status_code == 200, answer.content
    settings: dict[str, str] = answer.json()["config"]
    return settings


def reach(lake: Lake, settings: dict[str, str], at: str) -> set[str]:
    client = vending.client_of(lake.store, settings)
    bucket, _, directory = f"{lake.base}/{at}".removeprefix("s3://").partition("/")
    return {name for name, is_ok in outcomes(client, bucket, directory).items() if is_ok}


def test_names_that_are_exchanged(lake: Lake):
    for name in ("t", "u"):
        create(lake, name, f"place-{name}")
    before = config(load(lake.ann))
    assert reach(lake, before, "place-t") == EVERYTHING
    assert reach(lake, before, "place-u") == set()
    for old, new in (("t", "x"), ("u", "t"), ("x", "u")):
        iceberg_tables.rename_table(actor=SYSTEM, table=("ns", old), new=("ns", new))
    after = config(load(lake.ann))
    put(lake, "place-t")
    assert reach(lake, after, "place-u") == EVERYTHING
    assert reach(lake, after, "place-t") == set()
    assert reach(lake, before, "place-u") == set()


def test_a_former_location_stays_that_of_the_table(lake: Lake):
    create(lake, "t", "old")
    updates = [{"action": "set-location", "location": f"{lake.base}/new"}]
    body = {"requirements": [], "updates": updates}
    before = config(load(lake.ann))
    assert Iceberg(lake.ann).call("POST", TABLE, body).status_code == 200
    put(lake, "new")
    after = config(load(lake.ann))
    assert reach(lake, before, "new") == set()
    assert reach(lake, after, "new") == reach(lake, after, "old") == EVERYTHING - {"x"}
    carl = make_tenant("carl", CREATOR)
    for at in ("old", "old/x", "new", "new/x"):
        body = {"name": "c", "schema": ICEBERG_SCHEMA, "location": f"{lake.base}/{at}"}
        for stage in (False, True):
            with unchanged():
                answer = Iceberg(carl).call(
                    "POST",
                    "namespaces/ns/tables",
                    body | {"stage-create": stage},
                    headers=DELEGATED,
                )
            assert answer.status_code == 409, (at, answer.content)


def test_cached_credentials_are_for_one_principal_with_its_present_rights(lake: Lake):
    table = create(lake, "t", "orders")
    first = config(load(lake.ann))
    assert config(load(lake.ann)) == first
    others = config(load(lake.bob))
    assert others["s3.access-key-id"] != first["s3.access-key-id"]
    Table.objects.filter(pk=table.pk).update(owner="system")
    ann = lake.principal(lake.ann)
    Namespace.objects.get(name="ns").grants.filter(principal__in=ann.ids).delete()
    for path in (TABLE, f"{TABLE}/credentials"):
        answer = load(lake.ann, path)
        assert answer.status_code in {403, 404}, answer.content
        assert first["s3.access-key-id"].encode() not in answer.content
    reader = Grant(principal_id=ann.ids[0], mask=closure(Privilege.READ).value, table=table)
    reader.save()
    again = config(load(lake.ann))
    assert again["s3.access-key-id"] not in {first["s3.access-key-id"], others["s3.access-key-id"]}
    assert reach(lake, again, "orders") == {"get", "head", "list"}


def test_a_dropped_table_gets_none_until_it_is_restored(lake: Lake):
    create(lake, "t", "orders")
    before = config(load(lake.ann))
    for purge in (True, False):
        iceberg_tables.drop_table(actor=SYSTEM, table=("ns", "t"), purge=purge)
        for path in (TABLE, f"{TABLE}/credentials"):
            answer = load(lake.ann, path)
            assert answer.status_code == 404
            assert b"access-key" not in answer.content
        carl = make_tenant(f"carl-{purge}", CREATOR)
        body = {"name": "c", "schema": ICEBERG_SCHEMA, "location": f"{lake.base}/orders"}
        for stage in (False, True):
            with unchanged():
                answer = Iceberg(carl).call(
                    "POST",
                    "namespaces/ns/tables",
                    body | {"stage-create": stage},
                    headers=DELEGATED,
                )
            assert answer.status_code == 409, answer.content
            assert b"access-key" not in answer.content
        undrop.undrop(actor=SYSTEM, item=TrashItem.objects.latest("pk").pk)
    assert reach(lake, config(load(lake.ann)), "orders") == EVERYTHING
    assert reach(lake, before, "orders") == EVERYTHING


@pytest.mark.parametrize("view", ["v", "t", "missing"])
def test_a_view_that_refers_to_a_table_opens_none_of_its_files(lake: Lake, view: str):
    create(lake, "t", "orders")
    dora = make_tenant("dora", Privilege.BROWSE)
    for path in (TABLE, f"{TABLE}/credentials"):
        answer = load(dora, path, f"?referenced-by=ns%1F{view}")
        assert answer.status_code in {400, 403, 404}, answer.content
        assert b"access-key" not in answer.content
    answer = load(lake.ann, "namespaces/ns/views/v", "?referenced-by=ns%1Ft")
    assert b"access-key" not in answer.content
    assert b"session-token" not in answer.content
