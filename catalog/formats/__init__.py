"""The on-disk formats of tables: pure functions without the ORM."""
