"""Previews of the rows of Iceberg tables."""
