"""A tenant whose every name contains ``CANARY``, beside the example catalog of a test.

Whatever the example catalog has, this tenant has too, and what it has depends on objects of the example catalog.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import SequenceMatcher
from functools import lru_cache

import pyarrow as pa
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpResponse
from django.utils import timezone

from catalog.access import SYSTEM, On, Principal
from catalog.errors import ApprovalRequired
from catalog.models import (
    ApiKey,
    Branch,
    FileReference,
    JobStatus,
    MetricsReport,
    Namespace,
    PrincipalKind,
    PrincipalLevel,
    Table,
    TableColumnUse,
    TableUse,
)
from catalog.models import Principal as PrincipalRow
from catalog.privileges import Privilege
from catalog.services.access import api_keys, grants, principals
from catalog.services.audit import refusals
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.events import webhooks
from catalog.services.governance import annotations
from catalog.services.governance.annotations import Changes, ColumnChanges
from catalog.services.iceberg import functions, view_sources
from catalog.services.iceberg.functions import Content
from catalog.services.lance.refs import tags
from catalog.services.maintenance import measurements, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.recovery import undrop
from catalog.services.search import documents as search_documents
from catalog.services.storage import profile_operations
from catalog.services.tables import namespace_operations, summaries, table_operations, terms
from catalog.storage.configuration import Key, ServerIdentity, StoreKind
from tests.access.iceberg_examples import DEFINITION
from tests.factories import make_iceberg_table, make_lance_table, make_namespace, make_table
from tests.lineage import make_view, materialize

CANARY = "canary"
ROWS = 4711
FIRST_ID = 800_000_000
"""The primary keys of the tenant's rows are not lower, and those of others are not in this range."""
LATER_ID = 900_000_000
NS = "canaryns"


def skip_ids(first: int) -> None:
    """Let the primary keys of later rows begin here."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT setval(oid::regclass, %s) FROM pg_class WHERE relkind = 'S'", [first]
        )
        # Pages of jobs show those among the newest 10,000 numbers.
        cursor.execute("SELECT setval('catalog_job_id_seq', %s)", [first // 200_000])


@contextmanager
def ids_restored() -> Iterator[None]:
    """Restore the sequences of primary keys, which no rollback restores."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT quote_ident(sequencename), coalesce(last_value, start_value), last_value IS NOT NULL"
            " FROM pg_sequences WHERE schemaname = 'public'"
        )
        values = cursor.fetchall()
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            for name, value, is_used in values:
                cursor.execute("SELECT setval(%s::regclass, %s, %s)", [name, value, is_used])


# --- answers -------------------------------------------------------------------------------------

_HIDDEN = re.compile(
    rf"[\w.-]*{CANARY}[\w.-]*|\b8\d{{8}}\b|\b8\d\d,\d{{3}},\d{{3}}\b", re.IGNORECASE
)
_VOLATILE = [
    (re.compile(pattern), name)
    for pattern, name in {
        r"\d{4}-\d\d-\d\d[T ]\d\d(:|%3A)\d\d((:|%3A)\d\d)?(\.\d+)?(Z|\+00:00)?": "time",
        r"\b\d{8}T\d{6}Z|\d\d:\d\d(:\d\d)?( UTC)?": "time",
        r"\b(just )?now\b|\b\d+\s+(second|minute)s?( ago)?": "ago",
        r"\b1[789]\d{8}(\d{3})?\b": "seconds",
        r"\b[\d.]+[µnm]?s\b": "duration",
        r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}": "uuid",
        r"(?<=[/_-])[0-9a-f]{8,32}(?=[/_.-])": "hex",
        r"(?<=Signature=)[0-9a-f]{64}": "signature",
        r'csrfmiddlewaretoken" value="\w+|nonce="[^"]+': "token",
        r'(?<=ize":)\d+': "size",
        # The numbers of events and rows count those of all tenants (docs/security-model.md).
        r'\b\d+-[89]\d{8}\b|(?<="position":")\d+-\d+': "position",
        r"\b9\d{8}\b|\b9\d\d,\d{3},\d{3}\b": "id",
        # Who may maintain a table learns how many tables refer to its files.
        r'(?<="others":)\d+|(?<="detached":)\d+|(?<="remaining":)\d+(?=})': "number",
    }.items()
]
_DEPENDENTS = re.compile(r"\s*<p>Other tables refer to files of .*? exist\.</p>")
"""A paragraph that only those who may maintain a table see."""


def comparable(response: HttpResponse) -> str:
    """An answer without what differs at each time."""
    content = b"".join(response.streaming_content) if response.streaming else response.content
    text = (
        f"{response.status_code} {response.get('location', '')} {content.decode(errors='replace')}"
    )
    if "Other tables refer to files of" in text:
        text = _DEPENDENTS.sub("", text)
    return "\n".join(map(_comparable_line, text.split("\n")))


# Pages have most of their lines in common, and the patterns take a third of the time of a page.
@lru_cache(100_000)
def _comparable_line(line: str) -> str:
    for pattern, name in _VOLATILE:
        line = pattern.sub(f"<{name}>", line)
    return line


@lru_cache(100_000)
def _hidden_words(line: str) -> list[str]:
    return _HIDDEN.findall(line)


def leaks(before: dict[str, str], after: dict[str, str]) -> dict[str, list[str]]:
    """What the answers beside the tenant give away, by request: how they differ, and what they name.

    A request may repeat a name of the tenant that it contains.
    """
    by_request: dict[str, list[str]] = {}
    for request, text in after.items():
        signs: list[str] = []
        if CANARY not in request:
            signs = sorted({word for line in text.split("\n") for word in _hidden_words(line)})
        if text != before[request]:
            signs += _differences(before[request].split(), text.split())
        if signs:
            by_request[request] = signs
    return by_request


def _differences(old: list[str], new: list[str]) -> list[str]:
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [
        f"{' '.join(old[max(0, a - 3) : b])} → {' '.join(new[max(0, c - 3) : d])}"[:500]
        for tag, a, b, c, d in matcher.get_opcodes()
        if tag != "equal"
    ]


# --- the tenant ----------------------------------------------------------------------------------


def make_hidden_tenant() -> None:
    """The tenant. It reads ``ws.t``, and depends on it."""
    skip_ids(FIRST_ID)
    make_namespace(NS, properties={"note": "canaryproperty"})
    make_namespace(NS, "canarychild")
    owner = _principals()
    data = _data(owner)
    _dependents()
    _maintained(data)
    _recoverable(owner)
    _administered()
    refresh()


def refresh() -> None:
    """Do what workers do in the background."""
    view_sources.read_due()
    search_documents.update()
    summaries.update()
    terms.update()


def _principals() -> Principal:
    for name, kind in (
        ("canaryprincipal", PrincipalKind.SERVICE),
        ("group:canarygroup", PrincipalKind.GROUP),
        ("user:canaryuser", PrincipalKind.USER),
    ):
        principals.create_principal(actor=SYSTEM, name=name, kind=kind)
        grants.set_grant(
            actor=SYSTEM, on=On.namespace((NS,)), principal=name, privileges=Privilege.ALL
        )
    api_keys.create_api_key(actor=SYSTEM, name="canarykey", level=PrincipalLevel.GRANTED)
    User.objects.create_user("canarystaff", is_staff=True)
    # A principal that may also see objects of the example catalog works for the tenant.
    for row in PrincipalRow.objects.filter(name="grantee"):
        ApiKey.objects.create(
            name="canarygrantee",
            principal=row,
            digest=CANARY,
            namespace=Namespace.objects.named((NS,)).get(),
        )
    return Principal("canaryprincipal", Privilege.ALL)


def _data(owner: Principal) -> Table:
    rows = pa.table({"id": range(ROWS), "canarycolumn": ["canaryvalue"] * ROWS})
    data = make_lance_table((NS, "canarydata"), rows)
    Table.objects.filter(pk=data.pk).update(owner="user:canaryuser")
    Namespace.objects.named((NS,)).update(owner="user:canaryuser")
    tags.create_tag(actor=SYSTEM, table=(NS, "canarydata"), tag="canarytag", version=1)
    Branch.objects.get_or_create(table=data, name="canarybranch")
    make_iceberg_table(NS, "canaryice", properties={"canarykey": "canaryvalue"})
    make_table(NS, "canarychild", "canarydeep")
    changes = Changes(
        description="canarydescription",
        labels={"known": ["canarylabel"]},
        owner="user:canaryuser",
        columns={"canarycolumn": ColumnChanges(description="canarycomment")},
    )
    annotations.annotate_table(actor=SYSTEM, table=(NS, "canarydata"), changes=changes)
    annotations.annotate_namespace(
        actor=SYSTEM,
        namespace=(NS,),
        changes=Changes(description="canarydescription", labels={"known": ["canarylabel"]}),
    )
    return data


def _dependents() -> None:
    """What the tenant makes from ``ws.t``: views, a clone, and a view of the view."""
    source = Table.objects.named(("ws", "t")).get()
    make_view((NS, "canaryview"), "SELECT id AS canaryid FROM ws.t JOIN canaryns.canarydata")
    make_view((NS, "canaryviews"), "SELECT canaryid FROM canaryns.canaryview")
    materialize(make_table(NS, "canarymaterialized"), source)
    clone = make_table(NS, "canaryclone")
    FileReference.objects.create(
        table=clone, source=source, principal="canaryprincipal", directories=[source.location]
    )


def _maintained(data: Table) -> None:
    table = (NS, "canarydata")
    policies.set_namespace_policy(actor=SYSTEM, namespace=(NS,), values={"keep_versions": 5})
    measurements.measure(actor=SYSTEM, table=table)
    failed = maintenance_scheduler.start(actor=SYSTEM, table=table, kind="compact")
    taken = jobs.take(failed.pk)
    assert taken is not None
    jobs.finish(taken, JobStatus.FAILED, "canaryerror")
    maintenance_scheduler.start(actor=SYSTEM, table=table, kind="clean_up")
    today = timezone.now().date()
    TableUse.objects.create(table=data, day=today, loads=ROWS, queries=ROWS)
    TableColumnUse.objects.create(
        table=data, day=today, column="canarycolumn", use="filter", queries=ROWS
    )
    ice = Table.objects.named((NS, "canaryice")).get()
    MetricsReport.objects.create(
        table=ice, kind="scan-report", actor="canaryprincipal", report={"canary": 1}
    )


def _recoverable(owner: Principal) -> None:
    """Renamed and dropped objects, and what waits for a second person."""
    make_table(NS, "canaryold")
    rename = table_operations.RenameTable(table=(NS, "canaryold"), new=(NS, "canarynew"))
    commit([rename], actor=SYSTEM)
    make_table(NS, "canarygone")
    commit([table_operations.DeregisterTable(table=(NS, "canarygone"))], actor=SYSTEM)
    make_namespace("canaryguarded")
    undrop.set_namespace_protection(actor=SYSTEM, namespace=("canaryguarded",), is_protected=True)
    undrop.set_approval_rule(actor=SYSTEM, namespace=("canaryguarded",), actions=["drop_protected"])
    with suppress(ApprovalRequired):
        commit([namespace_operations.DropNamespace(namespace=("canaryguarded",))], actor=owner)
    functions.create_function(
        actor=SYSTEM,
        function=(NS, "canaryfunction"),
        content=Content(definitions=[DEFINITION], doc="canary"),
    )


def _administered() -> None:
    """What administrators see only."""
    webhooks.create_webhook(actor=SYSTEM, name="canaryhook", url="https://example.com/canary")
    profile_operations.create_profile(
        actor=SYSTEM,
        name="canaryprofile",
        kind=StoreKind.S3,
        roots=["s3://canary/root"],
        region="eu-central-1",
        identity=ServerIdentity.KEY,
        key=Key("AKIACANARY", "a-canary-secret"),
    )
    refusals.ledger.flush()
