use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use futures::TryStreamExt;
use iceberg::arrow::schema_to_arrow_schema;
use iceberg::expr::Reference;
use iceberg::io::LocalFsStorageFactory;
use iceberg::spec::{
    DataFile, DataFileFormat, Datum, NestedField, NullOrder, PrimitiveType, Schema, Type,
};
use iceberg::table::Table;
use iceberg::transaction::{AddColumn, ApplyTransactionAction, Transaction};
use iceberg::writer::base_writer::data_file_writer::DataFileWriterBuilder;
use iceberg::writer::file_writer::ParquetWriterBuilder;
use iceberg::writer::file_writer::location_generator::{
    DefaultFileNameGenerator, DefaultLocationGenerator,
};
use iceberg::writer::file_writer::rolling_writer::RollingFileWriterBuilder;
use iceberg::writer::{IcebergWriter, IcebergWriterBuilder};
use iceberg::{Catalog, CatalogBuilder, NamespaceIdent, Result, TableCreation, TableIdent};
use iceberg_catalog_rest::RestCatalogBuilder;
use parquet::file::properties::WriterProperties;

#[tokio::main]
async fn main() -> Result<()> {
    let lake = RestCatalogBuilder::default()
        .with_storage_factory(Arc::new(LocalFsStorageFactory))
        .load("lake", properties(&[("uri", "http://127.0.0.1:2333"), ("token", "mnd_...")]))
        .await?;

    // Namespaces
    let rust = NamespaceIdent::new("rust".into());
    let sales = NamespaceIdent::from_strs(["rust", "sales"])?;
    lake.create_namespace(&rust, HashMap::new()).await?;
    lake.create_namespace(&sales, properties(&[("comment", "what we sell")])).await?;
    println!("{}", lake.list_namespaces(Some(&rust)).await? == [sales.clone()]); // true
    println!("{}", lake.get_namespace(&sales).await?.properties()["comment"]); // what we sell

    // A table
    let name = TableIdent::new(sales.clone(), "orders".into());
    let schema = Schema::builder()
        .with_fields([
            NestedField::required(1, "id", Type::Primitive(PrimitiveType::Long)).into(),
            NestedField::optional(2, "item", Type::Primitive(PrimitiveType::String)).into(),
        ])
        .with_identifier_field_ids([1])
        .build()?;
    let creation = || TableCreation::builder().name("orders".into()).schema(schema.clone()).build();
    let mut orders = lake.create_table(&sales, creation()).await?;
    let refusal = lake.create_table(&sales, creation()).await.unwrap_err();
    println!("{}", refusal.message()); // The table already exists

    // Rows
    orders = append(&lake, &orders, &[(1, "ice"), (2, "tusk")]).await?;
    let first = orders.metadata().current_snapshot_id();
    orders = append(&lake, &orders, &[(3, "fin")]).await?;
    println!("{}", read(&orders, None).await?); // 1 ice, 2 tusk, 3 fin
    println!("{}", read(&orders, first).await?); // 1 ice, 2 tusk
    let few = orders.scan().with_filter(Reference::new("id").greater_than(Datum::long(2))).build()?;
    println!("{}", lines(few.to_arrow().await?.try_collect().await?)); // 3 fin

    // Another client, with an id and a secret instead of a token
    let second = RestCatalogBuilder::default()
        .with_storage_factory(Arc::new(LocalFsStorageFactory))
        .load(
            "second",
            properties(&[
                ("uri", "http://127.0.0.1:2333"),
                ("credential", "admin:mnd_..."),
                ("oauth2-server-uri", "http://127.0.0.1:2333/v1/oauth/tokens"),
            ]),
        )
        .await?;
    println!("{}", read(&second.load_table(&name).await?, first).await?); // 1 ice, 2 tusk

    // Schema and properties in one commit. Several actions that look at the schema need one each.
    let change = Transaction::new(&orders);
    let price = Type::Primitive(PrimitiveType::Decimal { precision: 10, scale: 2 });
    let change = change.update_schema().add_column(AddColumn::optional("price", price)).apply(change)?;
    let change = change
        .update_table_properties()
        .set("commit.retry.num-retries".into(), "10".into())
        .remove("unknown".into())
        .apply(change)?;
    orders = change.commit(&lake).await?;
    let order = Transaction::new(&orders);
    let order = order.replace_sort_order().desc("id", NullOrder::Last).apply(order)?;
    orders = order.commit(&lake).await?;
    println!("{:?}", orders.metadata().current_schema().field_id_by_name("price")); // Some(3)
    println!("{}", orders.metadata().default_sort_order().fields.len()); // 1
    println!("{}", orders.metadata().properties()["commit.retry.num-retries"]); // 10

    // Two writers: an append is made again on the newest metadata
    let stale = lake.load_table(&name).await?;
    append(&lake, &orders, &[(4, "horn")]).await?;
    orders = append(&lake, &stale, &[(5, "fur")]).await?;
    println!("{}", read(&orders, None).await?); // 1 ice, 2 tusk, 3 fin, 4 horn, 5 fur

    // Upkeep
    let expiry = Transaction::new(&orders);
    let newest = orders.metadata().last_updated_ms();
    let expiry = expiry.expire_snapshots().expire_older_than_ms(newest).retain_last(1).apply(expiry)?;
    orders = expiry.commit(&lake).await?;
    println!("{}", orders.metadata().snapshots().len()); // 1

    // Moving, dropping and coming back
    let moved = TableIdent::new(rust.clone(), "orders".into());
    lake.rename_table(&name, &moved).await?;
    let metadata = lake.load_table(&moved).await?.metadata_location().unwrap().to_string();
    lake.drop_table(&moved).await?;
    println!("{}", lake.table_exists(&moved).await?); // false
    orders = lake.register_table(&moved, metadata).await?;
    println!("{}", read(&orders, None).await?); // 1 ice, 2 tusk, 3 fin, 4 horn, 5 fur
    println!("{}", lake.drop_namespace(&rust).await.is_err()); // true
    lake.drop_namespace(&sales).await
}

fn properties(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

async fn append(lake: &dyn Catalog, table: &Table, rows: &[(i64, &str)]) -> Result<Table> {
    let transaction = Transaction::new(table);
    let action = transaction.fast_append().add_data_files(write(table, rows).await?);
    action.apply(transaction)?.commit(lake).await
}

async fn write(table: &Table, rows: &[(i64, &str)]) -> Result<Vec<DataFile>> {
    let schema = table.metadata().current_schema();
    let ids = Int64Array::from_iter_values(rows.iter().map(|row| row.0));
    let items = StringArray::from_iter_values(rows.iter().map(|row| row.1));
    let arrow = Arc::new(schema_to_arrow_schema(schema)?.project(&[0, 1])?);
    let batch = RecordBatch::try_new(arrow, vec![Arc::new(ids), Arc::new(items)])?;
    let first_columns = Schema::builder().with_fields(schema.as_struct().fields()[..2].to_vec()).build()?;
    let files = RollingFileWriterBuilder::new_with_default_file_size(
        ParquetWriterBuilder::new(WriterProperties::default(), Arc::new(first_columns)),
        table.file_io().clone(),
        DefaultLocationGenerator::new(table.metadata())?,
        DefaultFileNameGenerator::new(rows[0].1.into(), None, DataFileFormat::Parquet),
    );
    let mut writer = DataFileWriterBuilder::new(files).build(None).await?;
    writer.write(batch).await?;
    writer.close().await
}

async fn read(table: &Table, snapshot: Option<i64>) -> Result<String> {
    let scan = table.scan().select(["id", "item"]);
    let scan = if let Some(id) = snapshot { scan.snapshot_id(id) } else { scan };
    Ok(lines(scan.build()?.to_arrow().await?.try_collect().await?))
}

fn lines(batches: Vec<RecordBatch>) -> String {
    let mut rows = Vec::new();
    for batch in batches {
        let ids = batch.column(0).as_primitive::<Int64Type>();
        let items = batch.column(1).as_string::<i32>();
        rows.extend((0..batch.num_rows()).map(|row| (ids.value(row), items.value(row).to_string())));
    }
    rows.sort();
    rows.iter().map(|(id, item)| format!("{id} {item}")).collect::<Vec<_>>().join(", ")
}
