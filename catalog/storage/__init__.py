"""The storage in which tables lie: their locations, and the file operations of the catalog."""
