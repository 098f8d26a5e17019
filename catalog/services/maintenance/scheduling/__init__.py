"""The facts on which the decisions of ``catalog.scheduling`` depend, read from the database."""
