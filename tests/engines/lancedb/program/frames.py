"""Creates, extends, merges and reads a table with frames of Polars, and prints results."""

import sys

import lancedb
import polars as pl

url, key, database = sys.argv[1:]
db = lancedb.connect(f"db://{database}", api_key=key, host_override=url)


def animals(*names: str, first: int = 1) -> pl.DataFrame:
    ids = range(first, first + len(names))
    vectors = pl.Series([[float(number), 0.0] for number in ids], dtype=pl.Array(pl.Float32, 2))
    kinds = pl.Series(["whale"] * len(names), dtype=pl.Categorical)
    return pl.DataFrame({"id": ids, "name": names, "vector": vectors, "kind": kinds})


table = db.create_table("animals", animals("narwhal", "beluga"))
table.add(animals("orca", first=3))
table.add(animals("bowhead", first=4).lazy().collect())
merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
merge.execute(animals("killer whale", "minke", first=4))
rows = table.search().select(["id", "name", "kind"]).to_polars().sort("id")
print(rows["id"].to_list(), rows["name"].to_list(), set(rows["kind"].to_list()))
nearest = table.search([2.2, 0.0]).limit(1).to_polars()
print(nearest["name"].to_list(), nearest.schema["vector"])
