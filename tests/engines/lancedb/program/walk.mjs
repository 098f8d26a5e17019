// Uses LanceDB's client for TypeScript with a database, and prints each result as a line of JSON.
import * as lancedb from "@lancedb/lancedb";
import { Field, Float32, Int64, Schema, Utf8, FixedSizeList } from "apache-arrow";

const [url, key, database] = process.argv.slice(2);
const db = await lancedb.connect(`db://${database}`, {
  apiKey: key,
  hostOverride: url,
  clientConfig: { retryConfig: { retries: 0 } },
});
const plain = (value) =>
  JSON.parse(JSON.stringify(value ?? null, (_, v) => (typeof v === "bigint" ? Number(v) : v)));
async function step(name, work) {
  let result;
  try {
    result = plain(await work());
  } catch (error) {
    result = { error: String(error.message).slice(0, 200) };
  }
  console.log(JSON.stringify([name, result]));
}
const animals = (names, first = 1) =>
  names.map((name, at) => ({ id: first + at, name, vector: [first + at, 0] }));
const ids = async (query) => (await query.toArray()).map((row) => Number(row.id));

let table;
await step("create", async () => {
  table = await db.createTable("animals", animals(["narwhal", "walrus", "seal", "orca"]));
  return table.countRows();
});
await step("exists", () => db.createTable("animals", animals(["seal"])));
await step("exist_ok", async () =>
  (await db.createTable("animals", animals(["seal"]), { existOk: true })).countRows(),
);
await step("empty", async () => {
  const vector = new FixedSizeList(2, new Field("item", new Float32(), true));
  const schema = new Schema([
    new Field("id", new Int64(), true),
    new Field("name", new Utf8(), true),
    new Field("vector", vector, true),
  ]);
  return (await db.createEmptyTable("empty", schema)).countRows();
});
await step("names", () => db.tableNames());
await step("schema", async () => (await table.schema()).fields.map((f) => `${f.name}: ${f.type}`));
await step("add", async () => (await table.add(animals(["beluga"], 5))).version);
await step("update", async () =>
  (await table.update({ where: "id = 1", values: { name: "unicorn" } })).rowsUpdated,
);
await step("delete", async () => (await table.delete("id = 2")).version);
await step("merge", async () =>
  (
    await table
      .mergeInsert("id")
      .whenMatchedUpdateAll()
      .whenNotMatchedInsertAll()
      .execute(animals(["bowhead", "dolphin"], 5))
  ).numInsertedRows,
);
await step("count", () => table.countRows("id > 3"));
await step("search", () => ids(table.search([3.2, 0]).limit(2)));
await step("filter", () => ids(table.vectorSearch([3.2, 0]).where("id <> 3").select(["id"]).limit(1)));
await step("alias", async () =>
  (await table.vectorSearch([3.2, 0]).select({ twice: "id * 2" }).limit(1).toArray()).map((r) =>
    Number(r.twice),
  ),
);
await step("scan", async () => (await ids(table.query())).sort());
await step("plan", async () => (await table.vectorSearch([3.2, 0]).explainPlan()).length > 20);
await step("fts index", () => table.createIndex("name", { config: lancedb.Index.fts() }));
await step("btree", () => table.createIndex("id", { config: lancedb.Index.btree() }));
await step("wait", () => table.waitForIndex(["name_idx", "id_idx"], 30));
await step("indices", async () => (await table.listIndices()).map((i) => i.name).sort());
await step("stats", async () => (await table.indexStats("id_idx")).numIndexedRows);
await step("text", () => ids(table.search("seal", "fts").limit(5)));
await step("drop index", () => table.dropIndex("id_idx"));
await step("columns", async () => {
  await table.addColumns([{ name: "twice", valueSql: "id * 2" }]);
  await table.alterColumns([{ path: "twice", rename: "double" }]);
  await table.dropColumns(["double"]);
  return (await table.schema()).fields.map((f) => f.name);
});
await step("tags", async () => {
  const tags = await table.tags();
  await tags.create("first", 1);
  await tags.update("first", 2);
  const version = await tags.getVersion("first");
  await tags.delete("first");
  return [version, Object.keys(await tags.list())];
});
await step("checkout", async () => {
  await table.checkout(1);
  const rows = await table.countRows();
  await table.checkoutLatest();
  return rows;
});
await step("versions", async () => (await table.listVersions()).length);
await step("restore", async () => {
  await table.checkout(1);
  await table.restore();
  return table.countRows();
});
await step("drop", async () => {
  await db.dropTable("empty");
  return db.tableNames();
});
await step("missing", () => db.openTable("missing"));
