"""Django's PostgreSQL backend with bounded reconnects and distinct errors for lost connections."""
