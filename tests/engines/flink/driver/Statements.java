import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.ResultKind;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * Executes the statements that come on standard input, each ended by a NUL. Answers each with its rows, a line for
 * each, and a last line that says OK or what the error is. As in the SQL client, SET changes the session; an
 * environment keeps its runtime mode, so there is one of each.
 */
public class Statements {
  private static final char SEPARATOR = '\u001f';
  private static final Pattern SET = Pattern.compile("SET '(.+)' = '(.+)'");
  private static final String MODE = "execution.runtime-mode";

  private final Map<String, TableEnvironment> environments = Map.of(
      "streaming", TableEnvironment.create(EnvironmentSettings.inStreamingMode()),
      "batch", TableEnvironment.create(EnvironmentSettings.inBatchMode()));
  private TableEnvironment current = environments.get("streaming");

  public static void main(String[] args) throws IOException {
    Statements session = new Statements();
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    StringBuilder statement = new StringBuilder();
    for (int character = input.read(); character >= 0; character = input.read()) {
      if (character != 0) {
        statement.append((char) character);
        continue;
      }
      session.answer(statement.toString());
      statement.setLength(0);
    }
    // A job that goes on ends with this process.
    Runtime.getRuntime().halt(0);
  }

  private void answer(String statement) {
    try {
      execute(statement);
      print("OK", "");
    } catch (Exception error) {
      StringJoiner causes = new StringJoiner(" ");
      for (Throwable cause = error; cause != null; cause = cause.getCause()) {
        causes.add(String.valueOf(cause.getMessage()).replace('\n', ' '));
      }
      print("ERROR", causes.toString());
    }
  }

  private void execute(String statement) throws Exception {
    Matcher setting = SET.matcher(statement);
    if (setting.matches()) {
      set(setting.group(1), setting.group(2));
    } else if (statement.startsWith("CREATE CATALOG") || statement.startsWith("USE")) {
      environments.values().forEach(environment -> environment.executeSql(statement));
    } else {
      TableResult result = current.executeSql(statement);
      if (statement.startsWith("INSERT")) {
        // A job that reads a stream has no end.
        if (!statement.contains("'streaming'")) {
          result.await();
        }
      } else if (result.getResultKind() == ResultKind.SUCCESS_WITH_CONTENT) {
        rows(result).forEach(row -> print("ROW", row));
      }
    }
  }

  private void set(String key, String value) {
    if (key.equals(MODE)) {
      current = environments.get(value);
    } else {
      environments.values().forEach(environment -> environment.getConfig().set(key, value));
    }
  }

  private static List<String> rows(TableResult result) throws Exception {
    List<String> lines = new ArrayList<>();
    try (CloseableIterator<Row> rows = result.collect()) {
      while (rows.hasNext()) {
        Row row = rows.next();
        StringJoiner line = new StringJoiner(String.valueOf(SEPARATOR));
        for (int field = 0; field < row.getArity(); field++) {
          line.add(row.getField(field) == null ? "NULL" : row.getField(field).toString());
        }
        lines.add(line.toString());
      }
    }
    return lines;
  }

  private static void print(String kind, String text) {
    System.out.println(kind + SEPARATOR + text);
    System.out.flush();
  }
}
