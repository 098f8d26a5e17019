"""The rows of a snapshot: decodes data files, which ``catalog.row_reader`` does in a process of its own."""
