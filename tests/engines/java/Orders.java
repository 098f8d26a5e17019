import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.PartitionKey;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.RowLevelOperationMode;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SortOrder;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.Transaction;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableCommit;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.GenericAppenderFactory;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.deletes.EqualityDeleteWriter;
import org.apache.iceberg.encryption.EncryptedFiles;
import org.apache.iceberg.encryption.EncryptedOutputFile;
import org.apache.iceberg.exceptions.AlreadyExistsException;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.NamespaceNotEmptyException;
import org.apache.iceberg.exceptions.NoSuchTableException;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.view.View;

public class Orders {
  static final Namespace SALES = Namespace.of("java", "sales");
  static final TableIdentifier ORDERS = TableIdentifier.of(SALES, "orders");

  public static void main(String[] args) throws IOException {
    try (RESTCatalog catalog = new RESTCatalog()) {
      catalog.initialize("lake", Map.of("uri", "http://127.0.0.1:2333", "token", "mnd_..."));

      // Namespaces
      catalog.createNamespace(Namespace.of("java"));
      catalog.createNamespace(SALES, Collections.singletonMap("owner", "tusk"));
      catalog.setProperties(SALES, Collections.singletonMap("comment", "what we sell"));
      catalog.removeProperties(SALES, Collections.singleton("owner"));
      System.out.println(catalog.listNamespaces(Namespace.of("java"))); // [java.sales]
      System.out.println(catalog.loadNamespaceMetadata(SALES).get("comment")); // what we sell

      // A table
      Schema schema = new Schema(
          List.of(
              Types.NestedField.required(1, "id", Types.LongType.get()),
              Types.NestedField.optional(2, "item", Types.StringType.get()),
              Types.NestedField.optional(3, "day", Types.DateType.get())),
          Set.of(1));
      Table orders = catalog.buildTable(ORDERS, schema)
          .withPartitionSpec(PartitionSpec.builderFor(schema).bucket("id", 4).build())
          .withSortOrder(SortOrder.builderFor(schema).asc("id").build())
          .withProperty(TableProperties.FORMAT_VERSION, "2")
          .create();
      System.out.println(orders.spec().fields().size() + " " + orders.sortOrder().isSorted()); // 1 true
      System.out.println(catalog.tableExists(ORDERS)); // true
      try {
        catalog.createTable(ORDERS, schema);
      } catch (AlreadyExistsException error) {
        System.out.println(error.getMessage()); // Table already exists: java.sales.orders
      }

      // Rows
      append(orders, row(orders, 1L, "ice"), row(orders, 2L, "tusk"), row(orders, 3L, "fin"));
      Snapshot first = orders.currentSnapshot();
      System.out.println(first.operation() + " " + read(orders)); // append [1 ice, 2 tusk, 3 fin]
      deleteById(orders, 2L);
      System.out.println(orders.currentSnapshot().operation() + " " + read(orders)); // delete [1 ice, 3 fin]
      orders.newDelete().deleteFromRowFilter(Expressions.alwaysTrue()).commit();
      System.out.println(read(orders)); // []
      orders.manageSnapshots().rollbackTo(first.snapshotId()).commit();
      System.out.println(read(orders)); // [1 ice, 2 tusk, 3 fin]

      // Another client, with an id and a secret instead of a token; the server plans its scans
      try (RESTCatalog planned = new RESTCatalog()) {
        planned.initialize("planned", Map.of(
            "uri", "http://127.0.0.1:2333",
            "credential", "admin:mnd_...",
            "oauth2-server-uri", "http://127.0.0.1:2333/v1/oauth/tokens",
            "scan-planning-mode", "server"));
        Table same = planned.loadTable(ORDERS);
        System.out.println(same.newScan().getClass().getSimpleName()); // RESTTableScan
        System.out.println(read(same)); // [1 ice, 2 tusk, 3 fin]
        deleteById(same, 3L);
        System.out.println(read(same)); // [1 ice, 2 tusk]
      }
      orders.refresh();
      orders.manageSnapshots().rollbackTo(first.snapshotId()).commit();

      // Branches, tags and time travel
      orders.manageSnapshots().createTag("audited", first.snapshotId()).createBranch("draft").commit();
      orders.newAppend().appendFile(write(orders, row(orders, 4L, "horn"))).toBranch("draft").commit();
      System.out.println(orders.snapshot("draft").parentId() == first.snapshotId()); // true
      orders.manageSnapshots().fastForwardBranch("main", "draft").removeBranch("draft").commit();
      System.out.println(read(orders)); // [1 ice, 2 tusk, 3 fin, 4 horn]
      System.out.println(orders.refs().keySet().stream().sorted().toList()); // [audited, main]

      // Schema, partitions and properties, each on its own and all in one commit
      orders.updateSchema().addColumn("price", Types.DecimalType.of(10, 2)).renameColumn("item", "article").commit();
      Transaction transaction = orders.newTransaction();
      transaction.updateSchema().deleteColumn("day").updateColumn("price", Types.DecimalType.of(12, 2)).commit();
      transaction.updateSpec().removeField("id_bucket").addField(Expressions.truncate("article", 1)).commit();
      transaction.replaceSortOrder().desc("price").commit();
      transaction.updateProperties()
          .set(TableProperties.DELETE_MODE, RowLevelOperationMode.MERGE_ON_READ.modeName())
          .set(TableProperties.COMMIT_NUM_RETRIES, "10")
          .commit();
      transaction.newAppend().appendFile(write(transaction.table(), row(transaction.table(), 5L, "fur"))).commit();
      transaction.commitTransaction();
      orders.refresh();
      System.out.println(orders.schema().columns().stream().map(Types.NestedField::name).toList()); // [id, article, price]
      System.out.println(read(orders)); // [1 ice, 2 tusk, 3 fin, 4 horn, 5 fur]

      // Two writers: the second one's update is made again on the new metadata, unless it cannot be
      Table another = catalog.loadTable(ORDERS);
      another.updateProperties().set("writer", "other").commit();
      orders.updateProperties().set("reader", "me").commit();
      System.out.println(orders.properties().get("writer") + " " + orders.properties().get("reader")); // other me
      Transaction stale = another.newTransaction();
      stale.updateSchema().addColumn("note", Types.StringType.get()).commit();
      orders.updateSchema().addColumn("remark", Types.StringType.get()).commit();
      try {
        stale.commitTransaction();
      } catch (CommitFailedException error) {
        System.out.println("the schema has changed"); // the schema has changed
      }

      // A table and its first rows, and a new table in place of another, in one commit
      TableIdentifier returns = TableIdentifier.of(SALES, "returns");
      Transaction creation = catalog.buildTable(returns, schema).createTransaction();
      creation.newAppend().appendFile(write(creation.table(), row(creation.table(), 1L, "broken"))).commit();
      System.out.println(catalog.tableExists(returns)); // false
      creation.commitTransaction();
      System.out.println(read(catalog.loadTable(returns))); // [1 broken]
      Transaction replacement = catalog.buildTable(returns, schema).createOrReplaceTransaction();
      replacement.newAppend().appendFile(write(replacement.table(), row(replacement.table(), 2L, "late"))).commit();
      replacement.commitTransaction();
      Table returned = catalog.loadTable(returns);
      System.out.println(read(returned) + " of " + returned.history().size()); // [2 late] of 2

      // Two tables in one commit: all of it or nothing
      Transaction both = orders.newTransaction();
      both.updateProperties().set("returns", "counted").commit();
      Transaction too = returned.newTransaction();
      too.updateProperties().set("orders", "counted").commit();
      catalog.commitTransaction(commit(orders, both), commit(returned, too));
      System.out.println(catalog.loadTable(ORDERS).properties().get("returns")); // counted
      System.out.println(catalog.loadTable(returns).properties().get("orders")); // counted

      // Upkeep
      orders.refresh();
      orders.manageSnapshots().removeTag("audited").commit();
      orders.expireSnapshots().expireOlderThan(System.currentTimeMillis()).retainLast(1).commit();
      orders.rewriteManifests().clusterBy(file -> "all").commit();
      System.out.println(orders.currentSnapshot().operation() + " " + read(orders)); // replace [1 ice, 2 tusk, 3 fin, 4 horn, 5 fur]
      orders.updateLocation().setLocation(orders.location() + "-moved").commit();
      append(orders, row(orders, 6L, "claw"));
      System.out.println(read(orders).size()); // 6

      // Views; this one is made without properties
      TableIdentifier name = TableIdentifier.of(SALES, "dear");
      View dear = catalog.buildView(name)
          .withSchema(schema.select("id"))
          .withDefaultNamespace(SALES)
          .withQuery("spark", "SELECT id FROM orders WHERE price > 5")
          .create();
      System.out.println(dear.properties() + " " + dear.sqlFor("spark").sql()); // {} SELECT id FROM orders WHERE price > 5
      dear.replaceVersion()
          .withSchema(schema.select("id"))
          .withDefaultNamespace(SALES)
          .withQuery("spark", "SELECT id FROM orders WHERE price > 9")
          .withQuery("trino", "SELECT id FROM orders WHERE price > DECIMAL '9'")
          .commit();
      dear.updateProperties().set("comment", "dear ones").commit();
      TableIdentifier dearest = TableIdentifier.of(SALES, "dearest");
      catalog.renameView(name, dearest);
      System.out.println(catalog.listViews(SALES) + " " + catalog.loadView(dearest).history().size()); // [java.sales.dearest] 2
      System.out.println(catalog.viewExists(name) + " " + catalog.dropView(dearest)); // false true

      // Moving, dropping and coming back
      TableIdentifier moved = TableIdentifier.of(Namespace.of("java"), "orders");
      catalog.renameTable(ORDERS, moved);
      String metadata = ((org.apache.iceberg.HasTableOperations) catalog.loadTable(moved))
          .operations().current().metadataFileLocation();
      System.out.println(catalog.dropTable(moved, false) + " " + catalog.dropTable(moved, false)); // true false
      try {
        catalog.loadTable(moved);
      } catch (NoSuchTableException error) {
        System.out.println(error.getMessage()); // Table does not exist: java.orders
      }
      System.out.println(read(catalog.registerTable(moved, metadata)).size()); // 6
      try {
        catalog.dropNamespace(SALES);
      } catch (NamespaceNotEmptyException error) {
        System.out.println("java.sales is not empty"); // java.sales is not empty
      }
      System.out.println(catalog.dropTable(returns, true) + " " + catalog.dropNamespace(SALES)); // true true
    }
  }

  static Record row(Table table, long id, String item) {
    Record record = GenericRecord.create(table.schema());
    record.set(0, id);
    record.set(1, item);
    return record;
  }

  static List<String> read(Table table) throws IOException {
    List<Record> records = new ArrayList<>();
    try (CloseableIterable<Record> rows = IcebergGenerics.read(table).build()) {
      rows.forEach(records::add);
    }
    records.sort(Comparator.comparing(record -> (Long) record.get(0)));
    return records.stream().map(record -> record.get(0) + " " + record.get(1)).toList();
  }

  static void append(Table table, Record... rows) throws IOException {
    org.apache.iceberg.AppendFiles append = table.newAppend();
    for (Record row : rows) {
      append.appendFile(write(table, row));
    }
    append.commit();
  }

  /** A Parquet file with one row, in the partition of the row. */
  static DataFile write(Table table, Record row) throws IOException {
    PartitionKey partition = new PartitionKey(table.spec(), table.schema());
    partition.partition(row);
    DataWriter<Record> writer = new GenericAppenderFactory(table.schema(), table.spec())
        .newDataWriter(output(table), FileFormat.PARQUET, table.spec().isPartitioned() ? partition : null);
    try (writer) {
      writer.write(row);
    }
    return writer.toDataFile();
  }

  /** An equality delete: the rows with this id, wherever they are. */
  static void deleteById(Table table, long id) throws IOException {
    Schema key = table.schema().select("id");
    Record row = GenericRecord.create(key);
    row.set(0, id);
    PartitionKey partition = new PartitionKey(table.spec(), key);
    partition.partition(row);
    EqualityDeleteWriter<Record> writer =
        new GenericAppenderFactory(table.schema(), table.spec(), new int[] {1}, key, null)
            .newEqDeleteWriter(output(table), FileFormat.PARQUET, partition);
    try (writer) {
      writer.write(row);
    }
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit();
  }

  static EncryptedOutputFile output(Table table) {
    String path = table.locationProvider().newDataLocation(UUID.randomUUID() + ".parquet");
    return EncryptedFiles.plainAsEncryptedOutput(table.io().newOutputFile(path));
  }

  static TableCommit commit(Table table, Transaction transaction) {
    return TableCommit.create(
        TableIdentifier.of(SALES, table.name().substring(table.name().lastIndexOf('.') + 1)),
        ((org.apache.iceberg.HasTableOperations) table).operations().current(),
        ((org.apache.iceberg.BaseTransaction) transaction).currentMetadata());
  }
}
