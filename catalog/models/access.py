from django.conf import settings
from django.db import models
from django.db.models.functions import Now


class ApiKey(models.Model):
    """A key that a program presents. The key itself is shown once and kept nowhere.

    Only its SHA-256 is stored. That is enough, because a key is 32 random bytes, not a password.
    """

    class Access(models.TextChoices):
        READ = "read", "read only"
        ADMIN = "admin", "everything"

    name = models.CharField(
        max_length=100, unique=True, help_text="Who or what uses it; shown in the audit trail."
    )
    digest = models.CharField(max_length=64, unique=True, editable=False)
    prefix = models.CharField(
        max_length=16, editable=False, help_text="How the key begins, to recognise it."
    )
    access = models.TextField(choices=Access, default=Access.ADMIN)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, editable=False
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="Empty: never.")
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        verbose_name = "API key"

    def __str__(self) -> str:
        return self.name
