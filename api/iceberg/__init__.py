"""The Iceberg REST catalog protocol. One class an operation, named as in the specification."""
