"""The tasks. Each loads nothing of its own: it calls a service, which records the outcome."""

import time

from celery import shared_task

from catalog.services.access import grant_expiry, sign_on
from catalog.services.audit import chain as audit_chain
from catalog.services.audit import partitions as audit_partitions
from catalog.services.engine import idempotency, jobs
from catalog.services.events import webhook_dispatch
from catalog.services.governance import approvals
from catalog.services.iceberg import metadata_files, references, scans, view_sources
from catalog.services.lance.ledger import reconcile as lance_reconcile
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.lance.materialized_views import refreshes
from catalog.services.maintenance import job_runner, measurements
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.recovery import remaining_files, undrop
from catalog.services.search import documents as search_documents
from catalog.services.storage.profile_checks import tests as profile_tests
from catalog.services.tables import summaries as table_summaries
from catalog.services.tables import terms as table_terms
from catalog.storage import object_store  # noqa: F401 -- before the pool's processes start
from tasks import spark


@shared_task(name="tasks.maintenance.run_job", soft_time_limit=86_400, time_limit=86_700)
def run_job(pk: int) -> None:
    job_runner.run_job(pk, spark=spark.run)


@shared_task(name="tasks.maintenance.send_queued_jobs", time_limit=60)
def send_queued_jobs() -> int:
    return jobs.send_waiting_jobs()


@shared_task(name="tasks.maintenance.test_storage_profile", time_limit=300)
def test_storage_profile(pk: int) -> None:
    profile_tests.run_test(pk)


@shared_task(name="tasks.maintenance.send_waiting_storage_tests", time_limit=60)
def send_waiting_storage_tests() -> int:
    return profile_tests.send_waiting_tests()


@shared_task(name="tasks.maintenance.settle_versions", time_limit=300)
def settle_versions() -> int:
    return lance_versions.settle_pending()


@shared_task(name="tasks.maintenance.reconcile_versions", time_limit=300)
def reconcile_versions() -> int:
    return lance_reconcile.reconcile_due()


@shared_task(name="tasks.maintenance.sweep_metadata_files", time_limit=300)
def sweep_metadata_files() -> int:
    return metadata_files.sweep()


@shared_task(name="tasks.maintenance.read_unread_snapshots", time_limit=1800)
def read_unread_snapshots() -> int:
    return references.read_unread()


@shared_task(name="tasks.maintenance.read_view_sources", time_limit=300)
def read_view_sources() -> int:
    return view_sources.read_due()


@shared_task(name="tasks.maintenance.delete_expired_idempotency_records", time_limit=300)
def delete_expired_idempotency_records() -> int:
    return idempotency.delete_expired()


@shared_task(name="tasks.maintenance.delete_expired_scan_plans", time_limit=300)
def delete_expired_scan_plans() -> int:
    return scans.delete_expired_plans()


@shared_task(name="tasks.maintenance.refresh_views", time_limit=300)
def refresh_views() -> int:
    return refreshes.start_due_refreshes()


@shared_task(name="tasks.maintenance.measure_due", time_limit=300)
def measure_due() -> int:
    return measurements.measure_due()


@shared_task(name="tasks.maintenance.start_due", time_limit=300)
def start_due() -> int:
    return maintenance_scheduler.start_due()


@shared_task(name="tasks.maintenance.deliver_webhooks", time_limit=300)
def deliver_webhooks() -> int:
    """Until nothing is due, for half a minute at most; beat calls again soon."""
    until = time.monotonic() + 30
    deliveries = webhook_dispatch.fan_out()
    while (sent := webhook_dispatch.deliver()) and time.monotonic() < until:
        deliveries += sent
    return deliveries


@shared_task(name="tasks.maintenance.delete_expired_deliveries", time_limit=300)
def delete_expired_deliveries() -> int:
    return webhook_dispatch.delete_expired_deliveries()


@shared_task(name="tasks.maintenance.empty_trash", time_limit=300)
def empty_trash() -> int:
    """Delete what has expired: items, requests for approval, grants and sessions of the admin."""
    return (
        undrop.delete_expired_items()
        + approvals.expire()
        + grant_expiry.delete_expired()
        + sign_on.delete_expired_sessions()
    )


@shared_task(name="tasks.maintenance.review_remaining_files", time_limit=300)
def review_remaining_files() -> int:
    """For half a minute at most; beat calls again soon."""
    return remaining_files.review(30)


@shared_task(name="tasks.maintenance.update_search_documents", time_limit=120)
def update_search_documents() -> int:
    return search_documents.update()


@shared_task(name="tasks.maintenance.update_table_summaries", time_limit=120)
def update_table_summaries() -> int:
    return table_summaries.update() + table_terms.update()


@shared_task(name="tasks.maintenance.delete_old_health", time_limit=600)
def delete_old_health() -> int:
    return measurements.delete_old_health()


@shared_task(name="tasks.maintenance.seal_audit", time_limit=600)
def seal_audit() -> int:
    return audit_chain.seal()


@shared_task(name="tasks.maintenance.make_audit_partitions", time_limit=300)
def make_audit_partitions() -> int:
    return audit_partitions.make_partitions()


@shared_task(name="tasks.maintenance.drop_audit_months", time_limit=600)
def drop_audit_months() -> int:
    return audit_partitions.drop_due_months()
