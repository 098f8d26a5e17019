"""The periodic tasks of the audit trail."""

import pytest
from django.conf import settings as configured

from catalog.access import SYSTEM
from catalog.models.audit import AuditSeal
from catalog.services.audit import verification as audit_verification
from catalog.services.engine import audit_records
from tasks import maintenance
from tests.sealing import seal_all

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_task_seals_events():
    audit_records.record(SYSTEM, "tag.create", "ws.t")
    assert maintenance.seal_audit() + seal_all() == 1
    assert maintenance.seal_audit() == 0
    assert AuditSeal.objects.count() == 1
    assert audit_verification.verify().is_sound


def test_partitions_are_created_and_dropped_once():
    maintenance.make_audit_partitions()
    assert maintenance.make_audit_partitions() == 0
    assert maintenance.drop_audit_months() == 0


def test_the_tasks_are_scheduled():
    scheduled = {entry["task"] for entry in configured.CELERY_BEAT_SCHEDULE.values()}
    for task in (
        maintenance.seal_audit,
        maintenance.make_audit_partitions,
        maintenance.drop_audit_months,
    ):
        assert task.name in scheduled
