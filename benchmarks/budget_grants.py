"""A principal of the budget whose privileges come from many grants."""

KEY = "budget-granted-key-0123456789"
GROUPS = 50
GRANTS = 1_000


def create_principal() -> None:
    """Create a principal with READ on the tables of ``budget_operations.seed``, by 1,000 grants in 50 groups.

    The groups have grants on all of these tables, and the remaining ones on namespaces without tables.
    """
    from catalog.access import SYSTEM
    from catalog.access.credentials import key_digest
    from catalog.models import ApiKey, Grant, Namespace, Principal, Table
    from catalog.privileges import READ_ONLY
    from catalog.services.engine.commit import commit
    from catalog.services.tables.namespace_operations import CreateNamespace

    tables = list(Table.objects.order_by("pk"))
    paths = [(f"granted{number}",) for number in range(GRANTS - len(tables))]
    commit([CreateNamespace(namespace=path) for path in paths], actor=SYSTEM)
    namespaces = Namespace.objects.filter(name__in=[name for (name,) in paths])
    targets: list[dict[str, Table | Namespace]] = [{"table": row} for row in tables]
    targets += [{"namespace": row} for row in namespaces]
    principal = Principal.objects.create(name="granted", kind="service")
    groups = Principal.objects.bulk_create(
        Principal(name=f"group:{number}", kind="group") for number in range(GROUPS)
    )
    principal.groups.set(groups)
    Grant.objects.bulk_create(
        Grant(principal=groups[number % GROUPS], mask=READ_ONLY.value, **target)
        for number, target in enumerate(targets)
    )
    ApiKey.objects.create(
        name="granted", principal=principal, digest=key_digest(KEY), prefix=KEY[:6]
    )
