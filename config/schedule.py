"""The periodic tasks that beat sends, with their intervals in seconds.

A worker discards a task that it receives after ``expires``: the next round does the same work.
"""

from typing import Any

SCHEDULE: dict[str, dict[str, Any]] = {
    "settle-versions": {"task": "tasks.maintenance.settle_versions", "schedule": 15.0},
    "reconcile-versions": {
        "task": "tasks.maintenance.reconcile_versions",
        "schedule": 60.0,
        "options": {"expires": 60.0},
    },
    "send-queued-jobs": {"task": "tasks.maintenance.send_queued_jobs", "schedule": 15.0},
    "delete-expired-idempotency-records": {
        "task": "tasks.maintenance.delete_expired_idempotency_records",
        "schedule": 3600.0,
    },
    "delete-expired-scan-plans": {
        "task": "tasks.maintenance.delete_expired_scan_plans",
        "schedule": 600.0,
    },
    "refresh-views": {"task": "tasks.maintenance.refresh_views", "schedule": 30.0},
    "read-unread-snapshots": {
        "task": "tasks.maintenance.read_unread_snapshots",
        "schedule": 60.0,
        "options": {"expires": 60.0},
    },
    "sweep-metadata-files": {"task": "tasks.maintenance.sweep_metadata_files", "schedule": 60.0},
    "measure-due": {
        "task": "tasks.maintenance.measure_due",
        "schedule": 60.0,
        "options": {"expires": 60.0},
    },
    "start-due": {
        "task": "tasks.maintenance.start_due",
        "schedule": 60.0,
        "options": {"expires": 60.0},
    },
    "seal-audit": {
        "task": "tasks.maintenance.seal_audit",
        "schedule": 5.0,
        "options": {"expires": 5.0},
    },
    "make-audit-partitions": {
        "task": "tasks.maintenance.make_audit_partitions",
        "schedule": 86_400.0,
    },
    "drop-audit-months": {"task": "tasks.maintenance.drop_audit_months", "schedule": 86_400.0},
    "deliver-webhooks": {
        "task": "tasks.maintenance.deliver_webhooks",
        "schedule": 2.0,
        "options": {"expires": 2.0},
    },
    "delete-expired-deliveries": {
        "task": "tasks.maintenance.delete_expired_deliveries",
        "schedule": 3600.0,
    },
    "empty-trash": {"task": "tasks.maintenance.empty_trash", "schedule": 60.0},
    "update-search-documents": {
        "task": "tasks.maintenance.update_search_documents",
        "schedule": 5.0,
        "options": {"expires": 5.0},
    },
    "delete-old-health": {"task": "tasks.maintenance.delete_old_health", "schedule": 86_400.0},
}
