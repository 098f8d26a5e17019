"""Common properties of the commands: the audit trail records the interface."""

import re
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

from catalog.access import SYSTEM
from catalog.management import commands
from catalog.models import AuditEvent
from catalog.services.engine.commit import commit
from catalog.services.tables import table_operations
from tests.factories import make_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]

GOVERNANCE = "version: 1\nnamespaces:\n- {name: [ws], description: Made by a file}\n"


@pytest.fixture(autouse=True)
def _quiet(monkeypatch, settings):
    settings.MONODON_TRASH_SECONDS = 3600
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)


@pytest.mark.parametrize(
    ("command", "action"),
    [
        (["create_key", "etl"], "api_key.create"),
        (["grant", "set", "bob", "read", "--namespace", "ws"], "grant.set"),
        (["undrop", "ws$gone"], "table.undrop"),
        (["governance", "apply", "{file}"], "description.set"),
        (["maintain", "policy", "ws$t", "--set", "keep_versions=7"], "policy.set"),
        (["audit_export", "--format", "jsonl", "--output", "{out}"], "audit.export"),
    ],
)
def test_changes_are_recorded_with_the_interface_command(command, action, tmp_path):
    make_table("ws", "t")
    make_table("ws", "gone")
    commit([table_operations.DropTable(table=("ws", "gone"))], actor=SYSTEM)
    call_command("create_key", "bob", stdout=StringIO(), stderr=StringIO())
    file = tmp_path / "governance.yaml"
    file.write_text(GOVERNANCE)
    before = AuditEvent.objects.latest("pk").pk
    arguments = [word.format(file=file, out=tmp_path / "out") for word in command]
    call_command(*arguments, stdout=StringIO(), stderr=StringIO())
    events = AuditEvent.objects.filter(pk__gt=before)
    assert {(event.actor, event.interface) for event in events} == {("system", "command")}
    assert action in {event.action for event in events}


def test_no_command_acts_as_the_system():
    """Except the command that prepares a new catalog."""
    names = {
        path.stem
        for path in Path(next(iter(commands.__path__))).glob("*.py")
        if re.search(r"\bSYSTEM\b", path.read_text())
    }
    assert names == {"bootstrap"}
