"""The operations of the protocols, with an example and an access rule for each."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any
from urllib.parse import quote

from django.http import HttpResponse
from django.utils import timezone

from catalog import access
from catalog.access import credentials
from catalog.models import ApiKey, Grant, Namespace, Principal, PrincipalKind, Table
from catalog.privileges import Privilege, closure
from catalog.services.search import documents as search_documents
from tests.access import iceberg_examples, rules
from tests.access.rules import Rule, Target
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.api.iceberg.test_coverage import operations as iceberg_operations
from tests.api.lance import examples as lance_examples
from tests.api.lance.test_coverage import operations as lance_operations
from tests.api.lancedb import examples as lancedb_examples
from tests.api.lancedb.client import Database
from tests.api.management import examples as management_examples
from tests.api.management.client import Management
from tests.api.management.test_coverage import operations as management_operations
from tests.factories import make_namespace, make_root
from tests.recall import recall

KEY = "mnd_the_key_of_who_asks"
_ABSENT = "zz"
"""A name that no object has."""
ABSENT = "987654321"
"""A number that no object has."""
NUMBERED = r"^(jobs|trash|approvals)/(\d+)"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: dict[str, Any] | None = None
    status: int = 200
    options: dict[str, Any] = field(default_factory=dict)

    def with_words(self, substitutes: dict[str, str]) -> "Request":
        path, body = self.path, json.dumps(self.body)
        for word, text in substitutes.items():
            path = re.sub(rf"\b{word}\b", str(text), path)
            body = re.sub(rf'"{word}"', json.dumps(text), body)
        return replace(self, path=path, body=json.loads(body))

    def elsewhere(self, names: tuple[str, ...]) -> "Request":
        """The same request with the names of missing namespaces or tables."""
        path, body = self.path, json.dumps(self.body)
        for name in names:
            path = re.sub(rf"(?<![\w-]){name}(?![\w-])", _ABSENT * len(name), path)
            body = body.replace(f'"{name}"', f'"{_ABSENT * len(name)}"')
        path = re.sub(NUMBERED, rf"\1/{ABSENT}", path)
        return replace(self, path=path, body=json.loads(body))

    def spelled(self, name: str, spelling: str) -> "Request":
        """The same request with another spelling of a name."""
        path = re.sub(rf"(?<![\w-]){name}(?![\w-])", quote(spelling), self.path)
        body = json.dumps(self.body).replace(f'"{name}"', json.dumps(spelling))
        return replace(self, path=path, body=json.loads(body))


@dataclass(frozen=True)
class Protocol:
    name: str
    rules: dict[str, Rule]
    operations: dict[str, Any]
    requests: dict[str, Request]
    client: Callable[[str], Any]
    base: Callable[[access.Principal], dict[str, str]]
    """Make the catalog of all examples; returns substitutes for words of the requests."""
    prepare: Callable[[str], dict[str, str]]
    """Add what one operation needs, and return more substitutes."""

    def make_catalog(self, operation: str) -> dict[str, str]:
        """A catalog for an operation, with the requester. Returns substitutes for words of its request."""
        if self.name == "iceberg" and operation in iceberg_examples.EMPTY:
            make_root()
            make_requester()
            make_namespace("ws")
            return {}
        return recall(f"access-{self.name}", self._make) | self.prepare(operation)

    def _make(self) -> dict[str, str]:
        make_root()
        return self.base(access.of_row(make_requester()))

    def send(self, request: Request) -> HttpResponse:
        client = self.client(KEY)
        response = client.call(request.method, request.path, request.body, **request.options)
        return _beginning(response) if response.streaming else response


def _beginning(response: Any) -> HttpResponse:
    """The beginning of a stream. A stream of events has its first event there, if it has one."""
    content = b"".join(islice(response.streaming_content, 2))
    # Not the whole response: that would end the test's own connection.
    response._resource_closers[0]()
    return HttpResponse(content, status=response.status_code, content_type=response["content-type"])


def _lance_base(requester: access.Principal) -> dict[str, str]:
    lance_examples.make_catalog()
    return {}


def _lance(operation: str) -> dict[str, str]:
    prepare = lance_examples.EXAMPLES[operation].prepare
    if prepare is not None:
        prepare(Lance(administrator()))
    return {}


def _lancedb(operation: str) -> dict[str, str]:
    prepare = lancedb_examples.EXAMPLES[operation].prepare
    if prepare is not None:
        prepare(Lance(administrator()))
    row = Table.objects.named(("ws", "data")).first()
    return {} if row is None else {"LOCATION": row.location}


def _management_base(requester: access.Principal) -> dict[str, str]:
    substitutes = management_examples.make_catalog()
    principal(GRANTEE)
    for target in ({"namespace": _named("ws")}, {"table": _table()}):
        Grant.objects.create(
            principal=Principal.objects.get(name=GRANTEE), mask=Privilege.BROWSE.value, **target
        )
    return {word: str(value) for word, value in substitutes.items()}


def _management(operation: str) -> dict[str, str]:
    if operation == "Search":
        search_documents.update()
    return {"NOW": timezone.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")}


# The times in the examples are before the tests create their objects.
_MANAGEMENT_REQUESTS = {
    "GetHistory": "history?at=NOW",
    "ListChanges": "history/changes?from=2020-01-01&to=NOW",
    "CountChanges": "history/counts?from=2020-01-01&to=NOW",
    "Search": "search?q=t",
}


GRANTEE = "grantee"
PROTOCOLS = {
    "lance": Protocol(
        "lance",
        rules.LANCE
        | {
            name: example.rule
            for name, example in lance_examples.EXAMPLES.items()
            if example.rule is not None
        },
        lance_operations(),
        {
            name: Request(
                request.method, request.path, request.body, request.status, request.options
            )
            for name, request in lance_examples.EXAMPLES.items()
        },
        Lance,
        _lance_base,
        _lance,
    ),
    "lancedb": Protocol(
        "lancedb",
        lancedb_examples.RULES,
        lancedb_examples.OPERATIONS,
        {
            name: Request(
                request.method, request.path, request.body, request.status, request.options
            )
            for name, request in lancedb_examples.EXAMPLES.items()
        },
        Database,
        _lance_base,
        _lancedb,
    ),
    "iceberg": Protocol(
        "iceberg",
        rules.ICEBERG,
        {
            name: operation
            for name, operation in iceberg_operations().items()
            if name not in rules.WITHOUT_SIGN_IN
        },
        {
            name: Request(request.method, request.path, request.body, request.status)
            for name, request in iceberg_examples.EXAMPLES.items()
        },
        Iceberg,
        iceberg_examples.make_catalog,
        iceberg_examples.prepare,
    ),
    "management": Protocol(
        "management",
        rules.MANAGEMENT,
        {
            name: operation
            for name, operation in management_operations().items()
            if name not in rules.WITHOUT_SIGN_IN
        },
        {
            name: Request(
                request.method,
                _MANAGEMENT_REQUESTS.get(name, request.path),
                request.body,
                request.status,
            )
            for name, request in management_examples.EXAMPLES.items()
            if name not in rules.WITHOUT_SIGN_IN
        },
        Management,
        _management_base,
        _management,
    ),
}
EVERY = [
    (name, operation) for name, protocol in PROTOCOLS.items() for operation in protocol.operations
]


# --- principals and privileges --------------------------------------------------------------------


def principal(name: str, **fields: Any) -> Principal:
    return Principal.objects.get_or_create(
        name=name, defaults={"kind": PrincipalKind.SERVICE, **fields}
    )[0]


def administrator() -> str:
    row = principal("administrator", level="admin")
    key = "mnd_the_key_of_the_administrator"
    digest = credentials.key_digest(key)
    ApiKey.objects.get_or_create(name=row.name, defaults={"principal": row, "digest": digest})
    return key


def make_requester() -> Principal:
    """A principal with a key and without privileges, in a catalog that also has namespace ``other``."""
    make_namespace("other")
    row = principal("who")
    ApiKey.objects.create(name="who", principal=row, digest=credentials.key_digest(KEY))
    return row


def _named(*path: str) -> Namespace:
    return Namespace.objects.named(path).get()


def _table() -> Table:
    return Table.objects.named(("ws", "t")).get()


def table_of(request: Request) -> Table:
    """The table or view that an example concerns."""
    if request.path.startswith("jobs/"):
        return _table()
    text = f"{request.path} {json.dumps(request.body)}"
    rows = Table.objects.present().filter(namespace__path=["ws"])
    matches = [
        row
        for row in rows
        if re.search(rf"(ws\$|/tables/|/views/|\"name\": \"){row.name}(?![\w])", text)
        or f'["ws", "{row.name}"]' in text
    ]
    assert len(matches) == 1, (request.path, matches)
    return matches[0]


def give(requester: Principal, privilege: Privilege, target: Namespace | Table) -> None:
    """Grant a principal this privilege on the target, and revoke all its other grants."""
    Grant.objects.filter(principal=requester).delete()
    where = {"table": target} if isinstance(target, Table) else {"namespace": target}
    Grant.objects.create(principal=requester, mask=closure(privilege).value, **where)


def namespace_of(rule: Rule) -> Namespace:
    if rule.target in {Target.APPROVAL, Target.REQUESTER}:
        return _named("guarded")
    return _named() if rule.target is Target.ROOT else _named("ws")
