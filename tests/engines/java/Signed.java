import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.stream.StreamSupport;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.data.parquet.GenericParquetWriter;
import org.apache.iceberg.deletes.EqualityDeleteWriter;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.io.FileInfo;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.io.SupportsBulkOperations;
import org.apache.iceberg.io.SupportsPrefixOperations;
import org.apache.iceberg.parquet.Parquet;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.types.Types;

/** Everything that Iceberg does in a table's bucket, without credentials: arguments are URL, key and namespace. */
public class Signed {
  static final int PART = 5 * 1024 * 1024;

  public static void main(String[] args) throws IOException {
    try (RESTCatalog catalog = new RESTCatalog()) {
      catalog.initialize("signed", Map.of(
          "uri", args[0],
          "token", args[1],
          "io-impl", "org.apache.iceberg.aws.s3.S3FileIO",
          "s3.multipart.part-size-bytes", String.valueOf(PART),
          "s3.multipart.threshold", "1.0"));
      Schema schema = new Schema(
          List.of(
              Types.NestedField.required(1, "id", Types.LongType.get()),
              Types.NestedField.optional(2, "item", Types.StringType.get())),
          Set.of(1));
      TableIdentifier name = TableIdentifier.of(Namespace.of(args[2]), "t a+b");
      Table table = catalog.createTable(name, schema, PartitionSpec.unpartitioned(), Map.of("format-version", "2"));
      Table other = catalog.createTable(TableIdentifier.of(Namespace.of(args[2]), "u"), schema);
      append(other, 9);
      for (long id = 1; id <= 4; id++) {
        append(table, id);
      }
      System.out.println(read(table)); // [1, 2, 3, 4]
      delete(table, 2);
      System.out.println(read(table) + " in " + files(table).size()); // [1, 3, 4] in 4

      // Compaction
      List<DataFile> small = files(table);
      List<Record> rows = rows(table);
      DataFile whole = write(table, rows);
      long snapshot = table.currentSnapshot().snapshotId();
      table.newRewrite().validateFromSnapshot(snapshot).rewriteFiles(Set.copyOf(small), Set.of(whole)).commit();
      table.rewriteManifests().clusterBy(file -> "all").commit();
      System.out.println(read(table) + " in " + files(table).size()); // [1, 3, 4] in 1

      // A multi-part upload
      String big = table.location() + "/data/big";
      byte[] content = new byte[3 * PART + 1];
      Arrays.fill(content, (byte) 7);
      try (OutputStream output = table.io().newOutputFile(big).create()) {
        output.write(content);
      }
      InputFile file = table.io().newInputFile(big);
      try (InputStream input = file.newStream()) {
        System.out.println(file.getLength() + " " + input.readAllBytes().length); // 15728641 15728641
      }
      System.out.println(list(table, "/data/big")); // 1
      table.io().deleteFile(big);
      System.out.println(table.io().newInputFile(big).exists()); // false

      // Expiry removes the files that no snapshot has any more, by DeleteObjects
      table.expireSnapshots().expireOlderThan(System.currentTimeMillis()).retainLast(1).cleanExpiredFiles(true).commit();
      System.out.println(read(table) + " in " + list(table, "/data/")); // [1, 3, 4] in 2
      List<String> scratch = new ArrayList<>();
      for (int number = 0; number < 3; number++) {
        String path = table.location() + "/data/scratch " + number + "+%.txt";
        table.io().newOutputFile(path).create().close();
        scratch.add(path);
      }
      System.out.println(list(table, "/data/scratch")); // 3
      ((SupportsBulkOperations) table.io()).deleteFiles(scratch);
      System.out.println(list(table, "/data/scratch")); // 0

      // Files of another table, which this principal may read
      String foreign = files(other).get(0).location();
      System.out.println(refused(() -> table.io().newInputFile(foreign).newStream().read())); // done
      System.out.println(refused(() -> table.io().deleteFile(foreign))); // refused
      System.out.println(refused(() -> ((SupportsBulkOperations) table.io()).deleteFiles(List.of(foreign)))); // refused
      System.out.println(refused(() -> ((SupportsPrefixOperations) table.io()).listPrefix(other.location()).iterator().next())); // refused
      System.out.println(read(other)); // [9]
    }
  }

  interface Operation {
    void run() throws IOException;
  }

  /** "refused", or "done". */
  static String refused(Operation operation) {
    try {
      operation.run();
    } catch (IOException | RuntimeException error) {
      return "refused";
    }
    return "done";
  }

  static long list(Table table, String directory) {
    Iterable<FileInfo> files = ((SupportsPrefixOperations) table.io()).listPrefix(table.location() + directory);
    return StreamSupport.stream(files.spliterator(), false).count();
  }

  static List<DataFile> files(Table table) throws IOException {
    List<DataFile> files = new ArrayList<>();
    try (CloseableIterable<FileScanTask> tasks = table.newScan().planFiles()) {
      tasks.forEach(task -> files.add(task.file()));
    }
    return files;
  }

  static List<Record> rows(Table table) throws IOException {
    List<Record> rows = new ArrayList<>();
    try (CloseableIterable<Record> records = IcebergGenerics.read(table).build()) {
      records.forEach(record -> rows.add(record.copy()));
    }
    return rows;
  }

  static List<Object> read(Table table) throws IOException {
    return rows(table).stream().map(record -> record.get(0)).sorted().toList();
  }

  static void append(Table table, long id) throws IOException {
    Record record = GenericRecord.create(table.schema());
    record.set(0, id);
    record.set(1, id + "/100%");
    table.newAppend().appendFile(write(table, List.of(record))).commit();
  }

  static DataFile write(Table table, List<Record> rows) throws IOException {
    DataWriter<Record> writer = Parquet.writeData(output(table))
        .forTable(table)
        .createWriterFunc(type -> GenericParquetWriter.create(table.schema(), type))
        .build();
    try (writer) {
      rows.forEach(writer::write);
    }
    return writer.toDataFile();
  }

  static void delete(Table table, long id) throws IOException {
    Schema key = table.schema().select("id");
    Record row = GenericRecord.create(key);
    row.set(0, id);
    EqualityDeleteWriter<Record> writer = Parquet.writeDeletes(output(table))
        .forTable(table)
        .rowSchema(key)
        .createWriterFunc(type -> GenericParquetWriter.create(key, type))
        .equalityFieldIds(1)
        .buildEqualityWriter();
    try (writer) {
      writer.write(row);
    }
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit();
  }

  static OutputFile output(Table table) {
    return table.io().newOutputFile(table.locationProvider().newDataLocation(UUID.randomUUID() + ".parquet"));
  }
}
