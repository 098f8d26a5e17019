package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/url"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
	"github.com/apache/iceberg-go/view"
)

func main() {
	ctx := context.Background()
	lake := must(rest.NewCatalog(ctx, "lake", "http://127.0.0.1:2333", rest.WithOAuthToken("mnd_...")))

	// Namespaces
	sales := catalog.ToIdentifier("go", "sales")
	check(lake.CreateNamespace(ctx, catalog.ToIdentifier("go"), nil))
	check(lake.CreateNamespace(ctx, sales, iceberg.Properties{"owner": "tusk"}))
	must(lake.UpdateNamespaceProperties(ctx, sales, []string{"owner"}, iceberg.Properties{"comment": "what we sell"}))
	fmt.Println(must(lake.ListNamespaces(ctx, catalog.ToIdentifier("go")))) // [[go sales]]
	fmt.Println(must(lake.LoadNamespaceProperties(ctx, sales))["comment"])  // what we sell

	// A table
	name := catalog.ToIdentifier("go", "sales", "orders")
	schema := iceberg.NewSchemaWithIdentifiers(0, []int{1},
		iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true},
		iceberg.NestedField{ID: 2, Name: "item", Type: iceberg.PrimitiveTypes.String})
	spec := iceberg.NewPartitionSpec(iceberg.PartitionField{
		SourceIDs: []int{1}, FieldID: 1000, Name: "id_bucket", Transform: iceberg.BucketTransform{NumBuckets: 4},
	})
	orders := must(lake.CreateTable(ctx, name, schema, catalog.WithPartitionSpec(&spec)))
	_, err := lake.CreateTable(ctx, name, schema)
	fmt.Println(errors.Is(err, catalog.ErrTableAlreadyExists)) // true

	// Rows
	orders = must(orders.AppendTable(ctx, rows(`{"id": 1, "item": "ice"}`, `{"id": 2, "item": "tusk"}`, `{"id": 3, "item": "fin"}`), 100, nil))
	first := orders.CurrentSnapshot().SnapshotID
	fmt.Println(read(ctx, orders)) // 1 ice, 2 tusk, 3 fin
	orders = must(orders.Delete(ctx, iceberg.EqualTo(iceberg.Reference("id"), int64(2)), nil))
	fmt.Println(read(ctx, orders)) // 1 ice, 3 fin
	orders = must(orders.OverwriteTable(ctx, rows(`{"id": 4, "item": "horn"}`), 100, nil,
		table.WithOverwriteFilter(iceberg.EqualTo(iceberg.Reference("item"), "fin"))))
	fmt.Println(read(ctx, orders))                                 // 1 ice, 4 horn
	fmt.Println(read(ctx, orders, table.WithSnapshotID(first)))    // 1 ice, 2 tusk, 3 fin
	fmt.Println(read(ctx, orders, table.WithSelectedFields("id"))) // 1, 4

	// The server plans the scan
	filter := table.WithRowFilter(iceberg.GreaterThan(iceberg.Reference("id"), int64(1)))
	fmt.Println(read(ctx, orders, filter, table.WithScanPlanningMode(table.ScanPlanningRemote))) // 4 horn

	// Another client, with an id and a secret instead of a token
	tokens := must(url.Parse("http://127.0.0.1:2333/v1/oauth/tokens"))
	second := must(rest.NewCatalog(ctx, "second", "http://127.0.0.1:2333",
		rest.WithCredential("admin:mnd_..."), rest.WithAuthURI(tokens)))
	fmt.Println(read(ctx, must(second.LoadTable(ctx, name)))) // 1 ice, 4 horn

	// Deletes by key
	keys := array.NewTableReader(rows(`{"id": 4}`), 100)
	deletion := orders.NewTransaction()
	check(deletion.CommitEqualityDeletes(ctx, []int{1}, array.IterFromReader(keys), nil))
	orders = must(deletion.Commit(ctx))
	fmt.Println(read(ctx, orders)) // 1 ice

	// Going back, and a branch
	rollback := orders.NewTransaction()
	check(rollback.RollbackToSnapshot(first))
	orders = must(rollback.Commit(ctx))
	draft := orders.NewTransactionOnBranch("draft")
	check(draft.AppendTable(ctx, rows(`{"id": 5, "item": "fur"}`), 100, nil))
	orders = must(draft.Commit(ctx))
	fmt.Println(read(ctx, orders))                                                  // 1 ice, 2 tusk, 3 fin
	fmt.Println(orders.SnapshotByName("draft").Summary.Properties["total-records"]) // 4

	// Schema, partitions, order, properties and rows in one commit
	change := orders.NewTransaction()
	check(change.UpdateSchema(true, false).
		AddColumn([]string{"price"}, iceberg.DecimalTypeOf(10, 2), "of one piece", false, nil).
		RenameColumn([]string{"item"}, "article").Commit())
	check(change.UpdateSpec(true).RemoveField("id_bucket").AddField("article", iceberg.TruncateTransform{Width: 1}, "initial").Commit())
	check(change.SetProperties(iceberg.Properties{"commit.retry.num-retries": "10"}))
	orders = must(change.Commit(ctx))
	spec = orders.Spec()
	fmt.Println(columns(orders), spec.NumFields()) // id article price 1

	// Two writers: what conflicts is refused
	stale := must(lake.LoadTable(ctx, name)).NewTransaction()
	check(stale.UpdateSchema(true, false).AddColumn([]string{"note"}, iceberg.PrimitiveTypes.String, "", false, nil).Commit())
	quick := orders.NewTransaction()
	check(quick.UpdateSchema(true, false).AddColumn([]string{"remark"}, iceberg.PrimitiveTypes.String, "", false, nil).Commit())
	orders = must(quick.Commit(ctx))
	_, err = stale.Commit(ctx)
	fmt.Println(errors.Is(err, table.ErrCommitFailed)) // true

	// Two tables in one commit: all of it or nothing
	returns := must(lake.CreateTable(ctx, catalog.ToIdentifier("go", "sales", "returns"), schema))
	both := must(catalog.NewMultiTableTransaction(lake))
	for _, t := range []*table.Table{orders, returns} {
		part := t.NewTransaction()
		check(part.SetProperties(iceberg.Properties{"counted": "yes"}))
		check(both.AddTransaction(part))
	}
	reloaded := must(both.CommitAndReload(ctx))
	fmt.Println(reloaded[0].Properties()["counted"], reloaded[1].Properties()["counted"]) // yes yes

	// A view
	late := catalog.ToIdentifier("go", "sales", "late")
	version := must(view.NewVersionFromSQL(1, 0, "SELECT id FROM returns", sales))
	must(lake.CreateView(ctx, late, version, schema))
	fmt.Println(must(lake.LoadView(ctx, late)).CurrentVersion().Representations[0].Sql) // SELECT id FROM returns
	check(lake.DropView(ctx, late))

	// Moving, dropping and coming back
	moved := must(lake.RenameTable(ctx, name, catalog.ToIdentifier("go", "orders")))
	check(lake.DropTable(ctx, moved.Identifier()))
	_, err = lake.LoadTable(ctx, moved.Identifier())
	fmt.Println(errors.Is(err, catalog.ErrNoSuchTable)) // true
	orders = must(lake.RegisterTable(ctx, moved.Identifier(), moved.MetadataLocation()))
	fmt.Println(orders.Properties()["counted"])                                          // yes
	fmt.Println(errors.Is(lake.DropNamespace(ctx, sales), catalog.ErrNamespaceNotEmpty)) // true
	check(lake.PurgeTable(ctx, returns.Identifier()))
	check(lake.DropNamespace(ctx, sales))
}

func rows(lines ...string) arrow.Table {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "item", Type: arrow.BinaryTypes.String, Nullable: true},
	}, nil)
	return must(array.TableFromJSON(memory.DefaultAllocator, schema, []string{"[" + strings.Join(lines, ",") + "]"}))
}

func read(ctx context.Context, t *table.Table, options ...table.ScanOption) string {
	scan := t.Scan(options...)
	defer scan.Close()
	data := must(scan.ToArrowTable(ctx))
	defer data.Release()
	reader := array.NewTableReader(data, 100)
	defer reader.Release()
	var lines []string
	for reader.Next() {
		batch := reader.RecordBatch()
		for row := range int(batch.NumRows()) {
			values := make([]string, batch.NumCols())
			for column := range values {
				values[column] = batch.Column(column).ValueStr(row)
			}
			lines = append(lines, strings.Join(values, " "))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

func columns(t *table.Table) string {
	var names []string
	for _, field := range t.Schema().Fields() {
		names = append(names, field.Name)
	}
	return strings.Join(names, " ")
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
