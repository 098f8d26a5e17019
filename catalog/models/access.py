from typing import Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from catalog.models.namespaces import Namespace
from catalog.models.tables import Table
from catalog.privileges import Privilege, closure, essence


class PrincipalKind(models.TextChoices):
    USER = "user", "person"
    GROUP = "group"
    SERVICE = "service", "service account"


class PrincipalLevel(models.TextChoices):
    """The privileges of a principal everywhere, in addition to its grants."""

    GRANTED = "granted", "only what is granted"
    READ = "read", "read everything"
    ADMIN = "admin", "everything"


class Principal(models.Model):
    """A person, a group of principals, or a service account, to which privileges are granted.

    Owners, grants and the audit trail refer to it by its name, which never changes: ``user:ada``,
    ``group:analysts``, and a service account without a prefix: ``etl``. An inactive principal has no
    privileges, and neither have its keys.
    """

    name = models.TextField(unique=True)
    kind = models.TextField(choices=PrincipalKind)
    level = models.TextField(
        choices=PrincipalLevel,
        default=PrincipalLevel.GRANTED,
        help_text="Privileges on the whole catalog. Members of a group have the group's privileges too.",
    )
    description = models.TextField(blank=True)
    is_active = models.BooleanField(default=True)
    user = models.OneToOneField(
        settings.AUTH_USER_MODEL,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="principal",
        editable=False,
    )
    issuer = models.TextField(
        blank=True,
        help_text="The OpenID Connect issuer that authenticates the principal; empty: none.",
    )
    subject = models.TextField(
        blank=True, help_text="The principal's subject in that issuer's tokens (the sub claim)."
    )
    groups_issued_at = models.DateTimeField(
        null=True,
        editable=False,
        help_text="When the newest token was issued that has set the memberships; older ones do not change them.",
    )
    groups = models.ManyToManyField(
        "self",
        symmetrical=False,
        blank=True,
        related_name="members",
        limit_choices_to={"kind": PrincipalKind.GROUP},
    )
    created_by = models.TextField(blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["issuer", "subject"],
                condition=~Q(issuer=""),
                name="principal_subject_unique",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class GrantQuerySet(models.QuerySet["Grant"]):
    def on(self, target: Namespace | Table) -> Self:
        """The direct grants on a namespace or a table."""
        if isinstance(target, Namespace):
            return self.filter(namespace=target)
        return self.filter(table=target)

    def valid(self) -> Self:
        """The grants that have not expired. PostgreSQL's clock decides."""
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=Now()))


class Grant(models.Model):
    """The privileges of a principal on a namespace and everything below it, or on a table.

    There is no denial: what is not granted is not allowed.
    """

    principal = models.ForeignKey(Principal, models.CASCADE, related_name="grants")
    namespace = models.ForeignKey(
        Namespace, models.CASCADE, null=True, blank=True, related_name="grants"
    )
    table = models.ForeignKey(Table, models.CASCADE, null=True, blank=True, related_name="grants")
    mask = models.PositiveSmallIntegerField(
        help_text="A catalog.privileges.Privilege, including the privileges it implies."
    )
    granted_by = models.TextField(blank=True)
    granted_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="From this time on the grant permits nothing; null: it does not expire.",
    )

    objects = GrantQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(namespace__isnull=False, table__isnull=True)
                | Q(namespace__isnull=True, table__isnull=False),
                name="grant_on_one_thing",
            ),
            models.CheckConstraint(
                condition=Q(mask__gte=1, mask__lte=Privilege.ALL.value), name="grant_of_something"
            ),
            models.UniqueConstraint(
                fields=["principal", "namespace"],
                condition=Q(table=None),
                name="grant_on_namespace_unique",
            ),
            models.UniqueConstraint(
                fields=["principal", "table"],
                condition=Q(namespace=None),
                name="grant_on_table_unique",
            ),
        ]
        indexes = [
            models.Index(
                fields=["expires_at"], condition=Q(expires_at__isnull=False), name="grant_expiring"
            ),
        ]

    def __str__(self) -> str:
        return f"{', '.join(essence(self.privileges))} on {self.target} to {self.principal}"

    @property
    def privileges(self) -> Privilege:
        return Privilege(self.mask)

    @property
    def target(self) -> Namespace | Table:
        row = self.namespace or self.table
        if row is None:
            raise AssertionError("the database has a constraint for this")
        return row


class GrantVersion(models.Model):
    """The version of all grants: a single row.

    Triggers set it to a new random value in each transaction that changes a grant, and so lock it: two
    snapshots with the same version have the same grants. Processes cache grants by it
    (``access.cached_grants``).
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    version = models.UUIDField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="grant_version_single")]

    def __str__(self) -> str:
        return str(self.version)


class ApiKey(models.Model):
    """A key with which a principal authenticates. The key itself is shown once and never stored.

    Only its SHA-256 is stored. That is sufficient, because a key is 32 random bytes, not a password.
    A key may have fewer privileges than its principal, and may be limited to one namespace.
    """

    name = models.CharField(
        max_length=100,
        unique=True,
        help_text="Name of the application that uses the key; shown in the audit trail.",
    )
    principal = models.ForeignKey(Principal, models.CASCADE, related_name="keys")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    prefix = models.CharField(
        max_length=16, editable=False, help_text="The first characters of the key, to identify it."
    )
    scopes = ArrayField(
        models.TextField(),
        null=True,
        blank=True,
        help_text="The privileges to which the key is limited; null: all of its principal.",
    )
    namespace = models.ForeignKey(
        Namespace,
        models.CASCADE,
        null=True,
        blank=True,
        help_text="The namespace to which the key is limited, with everything below it; null: no limit.",
    )
    created_by = models.TextField(blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(
        null=True, blank=True, help_text="Empty: the key does not expire."
    )
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    replaced_by = models.OneToOneField(
        "self",
        models.SET_NULL,
        null=True,
        blank=True,
        editable=False,
        related_name="replaces",
        help_text="The key that replaces this one, which expires at the end of the overlap.",
    )

    class Meta:
        verbose_name = "API key"

    def __str__(self) -> str:
        return self.name

    @property
    def ceiling(self) -> Privilege:
        """The privileges to which the key limits its principal."""
        if self.scopes is None:
            return Privilege.ALL
        return closure(Privilege(sum(Privilege[word.upper()] for word in set(self.scopes))))
