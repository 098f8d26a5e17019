"""The management API: maintenance of tables of either format, under ``/management/v1``."""
