"""ClickHouse's statements on tables in S3, with the catalog's credentials and with its own key."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.engines import clickhouse as engine
from tests.engines import statements, toolkit
from tests.engines.sessions import StatementError
from tests.live import LiveServer
from tests.stores.fixtures import MakeLiveProfile
from tests.stores.s3 import Moto

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]
SCRIPT = engine.DIRECTORY / "statements.sql"


def test_statements(
    server: LiveServer, moto_s3: Moto, make_live_profile: MakeLiveProfile, tmp_path: Path
) -> None:
    """The credentials that the catalog issues are for the files of one table, and the store enforces it."""
    toolkit.require(engine.prepare)
    fields = {"client_access": "sts", "role": moto_s3.role}
    _, root = make_live_profile(server, moto_s3, **fields)
    toolkit.wait_for_profiles()
    catalog = RestCatalog("tests", uri=server.url, token=server.key)
    create_tables(catalog, f"{root}/clickhouse")
    text = toolkit.configured(SCRIPT.read_text(encoding="utf-8"), server)
    for placeholder, value in {
        "http://127.0.0.1:9000/bucket": f"{moto_s3.endpoint}/{root.removeprefix('s3://')}",
        "http://127.0.0.1:9000": moto_s3.endpoint,
        "KEY_ID": moto_s3.access_key,
        "SECRET": moto_s3.secret_key,
    }.items():
        text = text.replace(placeholder, value)
    with engine.session(tmp_path) as session:
        version = session("SELECT version()")[0][0]
        assert version.startswith(f"{engine.CLICKHOUSE}.")
        count = statements.check(statements.parse(text), session, errors=StatementError)
    assert count > 25
    others_read_the_rows(catalog, f"{root}/clickhouse")


def create_tables(catalog: RestCatalog, location: str) -> None:
    catalog.create_namespace("clickhouse", {"location": location})
    catalog.create_namespace("clickhouse.europe")
    rows = pa.table({"id": [1, 2], "item": ["ice", "tusk"]})
    catalog.create_table("clickhouse.orders", schema=rows.schema).append(rows)
    towns = pa.table({"name": ["Tromsø"]})
    catalog.create_table("clickhouse.europe.towns", schema=towns.schema).append(towns)


def others_read_the_rows(catalog: RestCatalog, location: str) -> None:
    orders = catalog.load_table("clickhouse.orders").scan().to_arrow().sort_by("id")
    assert orders.to_pylist() == [
        {"id": 2, "item": "horn", "price": None},
        {"id": 3, "item": "fin", "price": None},
        {"id": 4, "item": None, "price": None},
        {"id": 5, "item": "fur", "price": 7.5},
    ]
    stock = catalog.load_table("clickhouse.stock")
    assert stock.location() == f"{location}/stock"
    assert stock.scan().to_arrow().sort_by("item").to_pylist() == [
        {"item": "ice", "pieces": 3},
        {"item": "tusk", "pieces": None},
    ]


def test_a_wrong_key_is_refused(server: LiveServer, tmp_path: Path) -> None:
    toolkit.require(engine.prepare)
    with engine.session(tmp_path) as session:
        session("SET allow_database_iceberg = 1")
        with pytest.raises(StatementError, match="401 'Unauthorized'"):
            session(
                f"CREATE DATABASE lake ENGINE = DataLakeCatalog('{server.url}/v1')"
                " SETTINGS catalog_type = 'rest', warehouse = 'monodon',"
                " auth_header = 'Authorization: Bearer mnd_wrong'"
            )
