import dlt
from dlt.common.libs.pyiceberg import get_catalog

pipeline = dlt.pipeline("orders", destination="filesystem", dataset_name="dlt")


def load(rows, table="orders", **options):
    loaded = pipeline.run(rows, table_name=table, table_format="iceberg", **options)
    loaded.raise_on_failed_jobs()


def read(table="orders"):
    rows = pipeline.dataset()[table].select("id", "item").arrow().sort_by("id")
    return [f"{row['id']} {row['item']}" for row in rows.to_pylist()]


# Rows are appended, and new columns are added to the table
load([{"id": 1, "item": "ice"}, {"id": 2, "item": "tusk"}])
load([{"id": 3, "item": "fin", "price": 1.5}])
print(read())  # ['1 ice', '2 tusk', '3 fin']

# All rows are replaced in one commit
load([{"id": 4, "item": "fur"}], write_disposition="replace")
print(read())  # ['4 fur']

# Rows whose key is in the table are updated, the others inserted
upsert = {"primary_key": "id", "write_disposition": {"disposition": "merge", "strategy": "upsert"}}
load([{"id": 4, "item": "horn"}, {"id": 5, "item": "claw"}], **upsert)
print(read())  # ['4 horn', '5 claw']

# Lists become tables of their own; PyIceberg reads them through the same catalog
load([{"id": 1, "item": "all", "lines": [{"pieces": 1}, {"pieces": 2}]}], table="invoices")
catalog = get_catalog()
tables = sorted(name for _, name in catalog.list_tables("dlt"))
print(tables)  # ['invoices', 'invoices__lines', 'orders']
lines = catalog.load_table("dlt.invoices__lines").scan().to_arrow()
print(sorted(lines["pieces"].to_pylist()))  # [1, 2]

# All tables of the dataset are dropped and created again, at the same locations
load([{"id": 9, "item": "new"}], refresh="drop_sources")
print(read())  # ['9 new']
