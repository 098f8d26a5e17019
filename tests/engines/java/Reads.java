import java.io.InputStream;
import java.util.Map;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.types.Types;

/** A thousand reads with one FileIO, each after a pause: arguments are URL, key, namespace and milliseconds. */
public class Reads {
  public static void main(String[] args) throws Exception {
    try (RESTCatalog catalog = new RESTCatalog()) {
      catalog.initialize("reads", Map.of(
          "uri", args[0],
          "token", args[1],
          "header.X-Iceberg-Access-Delegation", "vended-credentials",
          "io-impl", "org.apache.iceberg.aws.s3.S3FileIO"));
      Schema schema = new Schema(Types.NestedField.required(1, "id", Types.LongType.get()));
      Table table = catalog.createTable(TableIdentifier.of(Namespace.of(args[2]), "t"), schema);
      table = catalog.loadTable(TableIdentifier.of(Namespace.of(args[2]), "t"));
      String path = table.location() + "/data/file";
      OutputFile file = table.io().newOutputFile(path);
      try (var output = file.create()) {
        output.write(new byte[1000]);
      }
      long began = System.currentTimeMillis();
      long pause = Long.parseLong(args[3]);
      int bytes = 0;
      for (int number = 0; number < 1000; number++) {
        try (InputStream input = table.io().newInputFile(path).newStream()) {
          bytes += input.readAllBytes().length;
        }
        Thread.sleep(Math.max(0, began + number * pause - System.currentTimeMillis()));
      }
      System.out.println(bytes); // 1000000
    }
  }
}
