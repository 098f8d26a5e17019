"""Everything that changes a row: the only package with transactions."""
