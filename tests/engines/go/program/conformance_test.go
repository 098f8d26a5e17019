package main

import (
	"context"
	"os"
	"testing"

	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/catalogtest"
	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/stretchr/testify/require"
)

// The tests that iceberg-go has for every catalog.
func TestConformance(t *testing.T) {
	catalogtest.RunCatalogTests(t, catalogtest.Config{
		SupportsNamespaceProperties: true,
		NewCatalog: func(t *testing.T) catalog.Catalog {
			lake, err := rest.NewCatalog(context.Background(), "lake", os.Getenv("CATALOG_URI"),
				rest.WithOAuthToken(os.Getenv("CATALOG_TOKEN")))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, lake.Close()) })
			return lake
		},
	})
}
