"""dlt's program in the whole catalog and in a warehouse, on local files and in S3."""

import json
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.engines import dlt as engine
from tests.engines import toolkit
from tests.live import LiveServer
from tests.stores.fixtures import MakeLiveProfile
from tests.stores.s3 import S3Store

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]
DOCUMENTED_ROOT = "file:///path/to/the/warehouse/loads"
PROGRAM = engine.PROGRAM.read_text(encoding="utf-8")
SECRETS = engine.SECRETS.read_text(encoding="utf-8")
TOKEN = 'token = "mnd_..."'
CREDENTIAL = """\
credential = "admin:mnd_..."
oauth2-server-uri = "http://127.0.0.1:2333/v1/oauth/tokens"
"""


@pytest.fixture(scope="module")
def server(server_without_spaces: LiveServer) -> LiveServer:
    """dlt writes `%20` into locations where a path has a space."""
    return server_without_spaces


def catalog_of(server: LiveServer, **properties: str) -> RestCatalog:
    return RestCatalog("tests", uri=server.url, token=server.key, **properties)


def test_program(server: LiveServer, tmp_path: Path) -> None:
    """The namespace has the location where dlt puts the tables, so that they are in it."""
    toolkit.require(engine.prepare)
    output = engine.run(PROGRAM, toolkit.configured(SECRETS, server), tmp_path)
    assert output.splitlines() == toolkit.expected_output(PROGRAM)
    orders = catalog_of(server).load_table("dlt.orders")
    assert orders.location() == f"file://{server.warehouse}/loads/dlt/orders"
    assert orders.scan().to_arrow()["id"].to_pylist() == [9]


def test_a_warehouse_is_a_namespace(server: LiveServer, tmp_path: Path) -> None:
    """The client has an id and a secret instead of a token."""
    toolkit.require(engine.prepare)
    catalog = catalog_of(server)
    catalog.create_namespace("loads")
    root = str(catalog.load_namespace_properties("loads")["location"])
    text = SECRETS.replace(TOKEN, CREDENTIAL).replace(DOCUMENTED_ROOT, root)
    text = text.replace('"monodon"', '"loads"')
    output = engine.run(PROGRAM, toolkit.configured(text, server), tmp_path)
    assert output.splitlines() == toolkit.expected_output(PROGRAM)
    assert catalog.load_table("loads.dlt.orders").location() == f"{root}/dlt/orders"


def test_a_store(
    server: LiveServer,
    s3: S3Store,
    make_live_profile: MakeLiveProfile,
    tmp_path: Path,
) -> None:
    """dlt has a key of its own for the store, and its tables the credentials of the catalog."""
    toolkit.require(engine.prepare)
    _, root = make_live_profile(server, s3)
    toolkit.wait_for_profiles()
    store = {
        "aws_access_key_id": s3.access_key,
        "aws_secret_access_key": s3.secret_key,
        "endpoint_url": s3.endpoint,
        "region_name": s3.region,
        "s3_url_style": "path",
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in store.items()]
    keys = "\n".join(["[destination.filesystem.credentials]", *lines])
    text = f"{SECRETS.replace(DOCUMENTED_ROOT, root)}\n{keys}\n"
    name = "dlt_objects"
    text = text.replace(f"{root}/dlt", f"{root}/{name}")
    output = engine.run(
        PROGRAM.replace('"dlt"', f'"{name}"').replace('"dlt.', f'"{name}.'),
        toolkit.configured(text, server),
        tmp_path,
    )
    assert output.splitlines() == toolkit.expected_output(PROGRAM)
    assert catalog_of(server).load_table(f"{name}.orders").location() == f"{root}/{name}/orders"


def test_a_wrong_key_is_refused(server: LiveServer, tmp_path: Path) -> None:
    toolkit.require(engine.prepare)
    text = toolkit.configured(SECRETS, server).replace(server.key, "mnd_wrong")
    with pytest.raises(AssertionError, match="The API key is unknown, expired or revoked"):
        engine.run(PROGRAM, text, tmp_path)
