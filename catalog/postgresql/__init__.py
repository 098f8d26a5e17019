"""Django's PostgreSQL backend with bounded reconnects, and with outcomes that stay known."""
