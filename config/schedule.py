"""The periodic tasks that beat sends, with their intervals in seconds.

A worker discards a task that it receives after the next round has been sent: that round does the same
work, and messages do not pile up without a worker.
"""

from typing import Any

_SECONDS = {
    "settle_versions": 15.0,
    "reconcile_versions": 60.0,
    "send_queued_jobs": 15.0,
    "send_waiting_storage_tests": 15.0,
    "delete_expired_idempotency_records": 3600.0,
    "delete_expired_scan_plans": 600.0,
    "refresh_views": 30.0,
    "read_unread_snapshots": 60.0,
    "read_view_sources": 15.0,
    "sweep_metadata_files": 60.0,
    "measure_due": 60.0,
    "start_due": 60.0,
    "seal_audit": 5.0,
    "make_audit_partitions": 86_400.0,
    "drop_audit_months": 86_400.0,
    "deliver_webhooks": 2.0,
    "delete_expired_deliveries": 3600.0,
    "empty_trash": 60.0,
    "review_remaining_files": 60.0,
    "update_search_documents": 5.0,
    "update_table_summaries": 5.0,
    "delete_old_health": 86_400.0,
}

SCHEDULE: dict[str, dict[str, Any]] = {
    name.replace("_", "-"): {
        "task": f"tasks.maintenance.{name}",
        "schedule": seconds,
        "options": {"expires": seconds},
    }
    for name, seconds in _SECONDS.items()
}
