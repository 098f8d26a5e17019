"""Prepare the database and the home directory for the first start; quick if already prepared."""

import os
import secrets
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import BaseCommand, call_command

from catalog import access
from catalog.access import credentials
from catalog.errors import PrincipalAlreadyExists
from catalog.models import ApiKey, Principal
from catalog.services.access import api_keys
from catalog.services.audit import partitions as audit_partitions
from catalog.services.maintenance import schedules

_FIRST_KEY = "admin"


class Command(BaseCommand):
    # System checks import the whole API, which takes seconds at every start.
    requires_system_checks: list[str] = []
    help = "Migrate, collect static files, and create the first admin user and API key."

    def handle(self, *args: Any, **options: Any) -> None:
        self._say("Applying migrations")
        call_command("migrate", interactive=False, verbosity=0)
        audit_partitions.make_partitions()
        schedules.restore_changed_tasks()
        self._collect_static()
        Path(settings.MONODON_WAREHOUSE).mkdir(parents=True, exist_ok=True)
        self._admin_user()
        self._api_key()

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()

    def _collect_static(self) -> None:
        """Collect static files once for each set of installed packages, because it takes seconds."""
        stamp = Path(settings.STATIC_ROOT) / ".collected"
        mark = f"{sys.version} {(settings.BASE_DIR / 'requirements.txt').read_text()}"
        if stamp.is_file() and stamp.read_text() == mark:
            return
        self._say("Collecting the admin's static files")
        call_command("collectstatic", interactive=False, verbosity=0)
        stamp.write_text(mark)

    def _admin_user(self) -> None:
        users = get_user_model().objects
        if users.filter(is_superuser=True).exists():
            return
        configured = settings.MONODON_ADMIN_PASSWORD
        password = configured or secrets.token_urlsafe(12)
        try:
            users.create_superuser(settings.MONODON_ADMIN_USER, "", password)
        except PrincipalAlreadyExists as refused:
            # A deleted or deactivated user is not created again when the server starts.
            self._say(
                f"Admin user:  not created. {refused.message}. {refused.detail or ''}".rstrip()
            )
            return
        password_text = "that of MONODON_ADMIN_PASSWORD" if configured else password
        self._say(f"Admin user:  {settings.MONODON_ADMIN_USER}   password: {password_text}")

    def _api_key(self) -> None:
        """Create the first key. A configured key is created even if other keys exist."""
        configured = settings.MONODON_ADMIN_API_KEY
        if configured:
            is_registered = ApiKey.objects.filter(
                digest=credentials.key_digest(configured)
            ).exists()
            if not is_registered:
                name = self._free_name(configured)
                api_keys.create_api_key(actor=access.SYSTEM, name=name, key=configured)
                self._say(f"API key:     that of MONODON_ADMIN_API_KEY, named '{name}'")
        elif not ApiKey.objects.exists():
            _, key = api_keys.create_api_key(actor=access.SYSTEM, name=_FIRST_KEY)
            self._say(f"API key:     {key}   (not shown again)")
            self._say(f"             also saved in {self._save(key)}, which only you can read")

    @staticmethod
    def _free_name(configured: str) -> str:
        """The name of a configured key: ``admin``, or with a suffix if that is in use."""
        is_used = (
            ApiKey.objects.filter(name=_FIRST_KEY).exists()
            or Principal.objects.filter(name=_FIRST_KEY).exists()
        )
        suffix = f"-{credentials.key_digest(configured)[:8]}" if is_used else ""
        return f"{_FIRST_KEY}{suffix}"

    @staticmethod
    def _save(key: str) -> Path:
        """Save the key for programs of the same user, such as the demo."""
        path = Path(settings.MONODON_HOME) / "admin_api_key"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{key}\n")
        return path
