//! Uses LanceDB's client for Rust with a database, and prints each result as a line of JSON.
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{FixedSizeListArray, Int64Array, RecordBatch, RecordBatchIterator, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::TryStreamExt;
use lancedb::database::CreateTableMode;
use lancedb::index::Index;
use lancedb::index::scalar::{BTreeIndexBuilder, FtsIndexBuilder, FullTextSearchQuery};
use lancedb::query::{ExecutableQuery, QueryBase, Select};
use lancedb::remote::{ClientConfig, RetryConfig};
use lancedb::table::{ColumnAlteration, NewColumnTransform};
use lancedb::{Result, connect};
use serde_json::{Value, json};

fn schema() -> SchemaRef {
    let vector = Field::new("item", DataType::Float32, true);
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, true),
        Field::new("name", DataType::Utf8, true),
        Field::new("vector", DataType::FixedSizeList(Arc::new(vector), 2), true),
    ]))
}

/// Rows with ids from `first`, and a vector that begins with the id.
fn animals(names: &[&str], first: i64) -> RecordBatch {
    let ids: Vec<i64> = (first..).take(names.len()).collect();
    let vectors = ids.iter().map(|id| Some(vec![Some(*id as f32), Some(0.0)]));
    let vectors = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(vectors, 2);
    let columns: Vec<arrow_array::ArrayRef> = vec![
        Arc::new(Int64Array::from(ids)),
        Arc::new(StringArray::from(names.to_vec())),
        Arc::new(vectors),
    ];
    RecordBatch::try_new(schema(), columns).unwrap()
}

/// The whole numbers in a column of all rows that a query returns.
async fn numbers(query: impl ExecutableQuery, column: &str) -> Result<Vec<i64>> {
    let batches: Vec<RecordBatch> = query.execute().await?.try_collect().await?;
    let columns = batches.iter().map(|batch| batch[column].as_primitive::<Int64Type>().values().to_vec());
    Ok(columns.flatten().collect())
}

async fn step(name: &str, work: impl Future<Output = Result<Value>>) {
    let result = work.await.unwrap_or_else(|error| json!({"error": error.to_string()}));
    println!("{}", json!([name, result]));
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, key, database] = arguments.as_slice() else {
        panic!("the arguments are the URL, the key and the database");
    };
    let config = ClientConfig {
        retry_config: RetryConfig { retries: Some(0), ..Default::default() },
        ..Default::default()
    };
    let db = connect(&format!("db://{database}"))
        .api_key(key)
        .region("any")
        .host_override(url)
        .client_config(config)
        .execute()
        .await?;
    let first = animals(&["narwhal", "walrus", "seal", "orca"], 1);
    let table = db.create_table("animals", first).execute().await?;

    step("create", async { Ok(json!(table.count_rows(None).await?)) }).await;
    step("exists", async {
        db.create_table("animals", animals(&["seal"], 1)).execute().await?;
        Ok(Value::Null)
    })
    .await;
    step("exist_ok", async {
        let mode = CreateTableMode::exist_ok(|request| request);
        let table = db.create_table("animals", animals(&["seal"], 1)).mode(mode).execute().await?;
        Ok(json!(table.count_rows(None).await?))
    })
    .await;
    step("empty", async {
        let table = db.create_empty_table("empty", schema()).execute().await?;
        Ok(json!(table.count_rows(None).await?))
    })
    .await;
    step("names", async { Ok(json!(db.table_names().execute().await?)) }).await;
    step("schema", async {
        let schema = table.schema().await?;
        let fields = schema.fields().iter();
        Ok(json!(fields.map(|f| format!("{}: {}", f.name(), f.data_type())).collect::<Vec<_>>()))
    })
    .await;
    step("add", async { Ok(json!(table.add(animals(&["beluga"], 5)).execute().await?.version)) }).await;
    step("update", async {
        let update = table.update().only_if("id = 1").column("name", "'unicorn'");
        Ok(json!(update.execute().await?.rows_updated))
    })
    .await;
    step("delete", async { Ok(json!(table.delete("id = 2").await?.version)) }).await;
    step("merge", async {
        let rows = RecordBatchIterator::new([Ok(animals(&["bowhead", "dolphin"], 5))], schema());
        let mut merge = table.merge_insert(&["id"]);
        merge.when_matched_update_all(None).when_not_matched_insert_all();
        Ok(json!(merge.execute(Box::new(rows)).await?.num_inserted_rows))
    })
    .await;
    step("count", async { Ok(json!(table.count_rows(Some("id > 3".into())).await?)) }).await;
    step("search", async {
        let query = table.vector_search(&[3.2f32, 0.0])?.limit(2);
        Ok(json!(numbers(query, "id").await?))
    })
    .await;
    step("filter", async {
        let query = table.vector_search(&[3.2f32, 0.0])?.only_if("id <> 3");
        Ok(json!(numbers(query.select(Select::columns(&["id"])).limit(1), "id").await?))
    })
    .await;
    step("alias", async {
        let query = table.vector_search(&[3.2f32, 0.0])?.limit(1);
        Ok(json!(numbers(query.select(Select::dynamic(&[("twice", "id * 2")])), "twice").await?))
    })
    .await;
    step("scan", async {
        let mut ids = numbers(table.query(), "id").await?;
        ids.sort();
        Ok(json!(ids))
    })
    .await;
    step("plan", async {
        let plan = table.vector_search(&[3.2f32, 0.0])?.explain_plan(false).await?;
        Ok(json!(plan.len() > 20))
    })
    .await;
    step("fts index", async {
        table.create_index(&["name"], Index::FTS(FtsIndexBuilder::default())).execute().await?;
        Ok(Value::Null)
    })
    .await;
    step("btree", async {
        table.create_index(&["id"], Index::BTree(BTreeIndexBuilder::default())).execute().await?;
        Ok(Value::Null)
    })
    .await;
    step("wait", async {
        table.wait_for_index(&["name_idx", "id_idx"], Duration::from_secs(30)).await?;
        Ok(Value::Null)
    })
    .await;
    step("indices", async {
        let mut names: Vec<_> = table.list_indices().await?.into_iter().map(|i| i.name).collect();
        names.sort();
        Ok(json!(names))
    })
    .await;
    step("stats", async {
        Ok(json!(table.index_stats("id_idx").await?.map(|stats| stats.num_indexed_rows)))
    })
    .await;
    step("text", async {
        let query = FullTextSearchQuery::new("seal".into());
        Ok(json!(numbers(table.query().full_text_search(query).limit(5), "id").await?))
    })
    .await;
    step("hybrid", async {
        let query = FullTextSearchQuery::new("seal".into());
        let query = table.query().full_text_search(query).nearest_to(&[3.2f32, 0.0])?.limit(2);
        Ok(json!(numbers(query, "id").await?))
    })
    .await;
    step("drop index", async {
        table.drop_index("id_idx").await?;
        Ok(Value::Null)
    })
    .await;
    step("columns", async {
        let column = ("twice".to_string(), "id * 2".to_string());
        let column = NewColumnTransform::SqlExpressions(vec![column]);
        table.add_columns().transform(column).execute().await?;
        table.alter_columns(&[ColumnAlteration::new("twice".into()).rename("double".into())]).await?;
        table.drop_columns(&["double"]).await?;
        let schema = table.schema().await?;
        Ok(json!(schema.fields().iter().map(|f| f.name()).collect::<Vec<_>>()))
    })
    .await;
    step("tags", async {
        let mut tags = table.tags().await?;
        tags.create("first", 1).await?;
        tags.update("first", 2).await?;
        let version = tags.get_version("first").await?;
        tags.delete("first").await?;
        let names: Vec<_> = tags.list().await?.into_keys().collect();
        Ok(json!([version, names]))
    })
    .await;
    step("checkout", async {
        table.checkout(1).await?;
        let rows = table.count_rows(None).await?;
        table.checkout_latest().await?;
        Ok(json!(rows))
    })
    .await;
    step("versions", async { Ok(json!(table.list_versions().await?.len())) }).await;
    step("restore", async {
        table.checkout(1).await?;
        table.restore().await?;
        Ok(json!(table.count_rows(None).await?))
    })
    .await;
    step("drop", async {
        db.drop_table("empty", &[]).await?;
        Ok(json!(db.table_names().execute().await?))
    })
    .await;
    step("missing", async {
        db.open_table("missing").execute().await?;
        Ok(Value::Null)
    })
    .await;
    Ok(())
}
