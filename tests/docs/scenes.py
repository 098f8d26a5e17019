"""What the pages presuppose: the tables and principals that their code names."""

import base64
import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import lance
import pyarrow as pa
from lance_namespace_urllib3_client import models as m
from standardwebhooks.webhooks import Webhook

from tests.docs.reader import Reader


def _vectors(rows: int, length: int) -> pa.Array:
    chance = random.Random(7)
    return pa.array(
        [[chance.random() for _ in range(length)] for _ in range(rows)],
        pa.list_(pa.float32(), length),
    )


def _users(reader: Reader, *, versions: int = 1, **columns: pa.Array) -> None:
    rows = {"id": [1, 2, 3], "name": ["ada", "bob", "cyd"], "age": [36, 7, 61], **columns}
    reader.lance_table("prod", "users", pa.table(rows), versions=versions)


def readme(reader: Reader) -> Iterator[None]:
    flights = pa.table({"flight": [1, 2, 3], "origin": ["JFK", "EWR", "JFK"]})
    reader.iceberg_table("nycflights13_iceberg", "flights", flights)
    yield  # pylance
    assert "[[1,2],[3]]" in reader.output
    yield  # LanceDB
    assert "[[1,2],[3]]" in reader.output
    yield  # PyIceberg
    assert '[["JFK","EWR","JFK"]]' in reader.output


def access(reader: Reader) -> Iterator[None]:
    reader.lance_table("nyc", "flights", pa.table({"flight": [1]}))
    reader.principal("group:analysts", "group")
    reader.principal("etl")
    for path in ("namespaces/nyc", "tables/nyc$flights"):
        reader.request(
            "PUT",
            f"/management/v1/{path}/grants",
            {"principal": "etl", "privileges": ["read"]},
        )
    yield  # grants
    grants = reader.request("GET", "/management/v1/namespaces/nyc/grants")["grants"]
    assert {grant["principal"]: set(grant["privileges"]) for grant in grants} == {
        "etl": {"browse", "read", "write", "create"},
        "group:analysts": {"browse", "read"},
    }


def _connect(reader: Reader) -> None:
    """Let `monodon` use the server without a profile."""
    reader.environment |= {
        "MONODON_URL": reader.server.url,
        "MONODON_API_KEY": reader.server.key,
    }


def command_line(reader: Reader) -> None:
    _users(reader)
    _connect(reader)
    reader.replaced["https://catalog.example.com"] = reader.server.url


def events(reader: Reader) -> None:
    reader.namespace("prod")
    secret = "whsec_" + base64.b64encode(b"a secret of the receiver").decode()
    reader.replaced["whsec_…"] = secret
    webhook = Webhook(secret)
    now = datetime.now(UTC)
    body = '{"type": "monodon.table.declare"}'
    reader.variables |= {
        "body": body,
        "headers": {
            "webhook-id": "8131-702",
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": webhook.sign("8131-702", now, body),
        },
    }


def history(reader: Reader) -> None:
    reader.namespace("sales")
    (event,) = reader.request("GET", "/management/v1/audit?action=namespace.create")["events"]
    today = datetime.now(UTC).date()
    reader.replaced |= {
        "--at 2027-01-31 --diff-to 2027-02-01": f"--at {today}T00:00Z --diff-to {event['at']}",
        "from=2027-01-31T12:00:00Z&to=2027-02-01T12:00:00Z": f"from={today}&to={event['at']}",
        "2027-01-31T12:00:00Z&namespace": f"{event['at']}&namespace",
        "from=2027-01-31T12:00:00Z&to=019c1a2b-…&page_token=…": (
            f"from={event['transaction_id']}&to={event['transaction_id']}"
        ),
    }


def labels_and_search(reader: Reader) -> Iterator[None]:
    customer = pa.array([{"email": "a@example.com"}])
    reader.lance_table("prod", "orders", pa.table({"id": [1], "customer": customer}))
    reader.principal("group:sales", "group")
    for key, values in (("domain", ["sales"]), ("pii", ["yes"])):
        label = {"key": key, "values": values, "applies_to": ["table", "column"]}
        reader.request("POST", "/management/v1/labels", label)
    yield  # annotations of a table
    annotations = "/management/v1/tables/prod$orders/annotations"
    reader.request("PATCH", annotations, {"columns": {"customer.email": {"labels": {"pii": []}}}})
    reader.request("DELETE", "/management/v1/labels/pii")
    yield  # the definition of a label


def lance_indexes(reader: Reader) -> None:
    rows = pa.table({"id": range(300), "embedding": _vectors(300, 8)})
    reader.lance_table("ws", "docs", rows)


def lance_queries(reader: Reader) -> None:
    texts = ["the red fox", "a brown fox", "a dog", "no animal"] * 5
    rows = pa.table(
        {"id": range(20), "text": texts, "title": texts[::-1], "vector": _vectors(20, 4)}
    )
    reader.lance_table("ws", "docs", rows)
    index = m.CreateTableIndexRequest(
        id=["ws", "docs"], column="text", index_type="INVERTED", with_position=True
    )
    reader.server.client().create_table_scalar_index(index)


def lance_schemas(reader: Reader) -> None:
    _users(reader, x=pa.array([1, 2, 3]), a=pa.array([{"b c": 1}, {"b c": 2}, {"b c": 3}]))


def lance_tags(reader: Reader) -> None:
    _users(reader, versions=4)


def maintenance(reader: Reader) -> None:
    rows = pa.table({"country": ["NO", "GL"] * 200, "embedding": _vectors(400, 8)})
    reader.lance_table("sales", "orders", rows)
    table = {"namespace_client": reader.server.client(), "table_id": ["sales", "orders"]}
    lance.dataset(**table).create_index("embedding", "IVF_FLAT", num_partitions=2)


def management_api(reader: Reader) -> None:
    _users(reader, versions=3)
    table = {"namespace_client": reader.server.client(), "table_id": ["prod", "users"]}
    lance.dataset(**table).create_scalar_index("name", "BTREE", name="by_name")
    job = reader.request(
        "POST", "/management/v1/tables/prod$users/maintenance", {"kind": "compact"}
    )
    reader.replaced["maintain status 17"] = f"maintain status {job['id']}"


def materialized_views(reader: Reader) -> None:
    _users(reader)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    reader.environment["SCHEMA"] = base64.b64encode(schema.serialize()).decode()


def principals_and_keys(reader: Reader) -> Iterator[None]:
    reader.namespace("prod")
    reader.namespace("prod", "eu")
    yield  # principals
    yield  # keys over HTTP
    yield  # keys on the command line
    reader.replaced["$LOADER_KEY"] = reader.output.split()[0]
    yield  # a token
    assert "access_token" in json.loads(reader.output)


def protection_and_trash(reader: Reader) -> Iterator[None]:
    reader.namespace("prod")
    reader.drop_namespace("prod")
    _users(reader)
    yield  # protection
    table = "/management/v1/tables/prod$users"
    reader.request("PUT", f"{table}/protection", {"protected": False})
    reader.drop_table("prod", "users")
    _users(reader)
    reader.drop_table("prod", "users")
    items = reader.request("GET", "/management/v1/trash")["items"]
    first = min(item["id"] for item in items if item["name"] == ["prod", "users"])
    reader.replaced["trash/17"] = f"trash/{first}"
    yield  # undrop
    assert {"prod.users", "prod.users_old"} == reader.tables("prod")
    yield  # approvals
    rule = reader.request("GET", "/management/v1/namespaces/prod/approval-rule")
    assert set(rule["direct"]) == {"drop_protected", "purge"}


def quickstart(reader: Reader) -> Iterator[None]:
    flights = pa.table({"flight": [1, 2, 3], "origin": ["JFK", "EWR", "JFK"]})
    reader.lance_table("nycflights13", "flights", flights, versions=2)
    home = reader.directory / ".monodon"
    home.mkdir()
    (home / "admin_api_key").write_text(reader.server.key)
    yield  # Python
    assert reader.variables["flights"].version == 2
    assert reader.variables["january"].count_rows() == 3
    yield  # the command line
    assert "table\tlance\tnycflights13.flights" in reader.output
    yield  # HTTP
    assert [version["version"] for version in json.loads(reader.output)["versions"]] == [2, 1]


def registering_tables(reader: Reader) -> Iterator[None]:
    lake = reader.server.warehouse / "lake"
    for name in ("whales", "seals"):
        lance.write_dataset(pa.table({"id": [1]}), str(lake / "sea" / f"{name}.lance"))
    reader.namespace("prod")
    reader.replaced["s3://lake/tables"] = f"'{lake}'"
    yield  # the plan, and the registration
    assert reader.output.count(": registered\n") == 2
    assert len(json.loads((reader.directory / "plan.json").read_text())["tables"]) == 0
    assert reader.tables("prod$sea") == {"prod$sea.whales", "prod$sea.seals"}


def repair(reader: Reader) -> None:
    _connect(reader)
    reader.lance_table("sales", "orders", pa.table({"id": [1]}))


def sign_on(reader: Reader) -> None:
    reader.principal("etl")
    reader.environment["TOKEN"] = reader.token()


def storage_profiles(reader: Reader) -> None:
    reader.namespace("prod")
    reader.namespace("prod", "eu")
    secret = reader.directory / "lake"
    secret.write_text("another-secret")
    reader.replaced["/run/secrets/lake"] = str(secret)


def users(reader: Reader) -> None:
    _users(reader)


SCENES: dict[str, Callable[[Reader], Iterator[None] | None]] = {
    "README.md": readme,
    "access.md": access,
    "audit.md": users,
    "command-line.md": command_line,
    "events.md": events,
    "governance-files.md": users,
    "history.md": history,
    "labels-and-search.md": labels_and_search,
    "lance-indexes.md": lance_indexes,
    "lance-queries.md": lance_queries,
    "lance-schemas.md": lance_schemas,
    "lance-tags-and-branches.md": lance_tags,
    "maintenance.md": maintenance,
    "management-api.md": management_api,
    "materialized-views.md": materialized_views,
    "operations.md": repair,
    "principals-and-keys.md": principals_and_keys,
    "protection-and-trash.md": protection_and_trash,
    "quickstart.md": quickstart,
    "registering-tables.md": registering_tables,
    "sign-on.md": sign_on,
    "storage-profiles.md": storage_profiles,
}
"""By page. A page that is missing here presupposes nothing."""
