"""Storage of tables: locations, and the file operations of the catalog."""
