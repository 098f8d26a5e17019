"""The management API under ``/management/v1``: operations that neither protocol defines."""
