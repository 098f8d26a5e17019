"""Random requests of random principals, between random changes, are answered by the event loop as by Django.

Neither answers something else, and both count the same. A refusal, with its audit event, is Django's alone.
"""

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from api.iceberg.frequent import IcebergReads
from api.lance.frequent import LanceReads
from catalog.access import SYSTEM
from catalog.errors import CatalogError
from catalog.models import (
    ApiKey,
    AuditEvent,
    Branch,
    Grant,
    Namespace,
    Principal,
    PrincipalLevel,
    Table,
    TableKind,
    TableVersion,
)
from catalog.privileges import SINGLE, Privilege, closure
from catalog.services.access import api_keys, authentication, known_keys
from catalog.services.tables import usage
from tests.api.event_loop import Asker, comparable, request_of
from tests.api.lance.reads import make_live_table
from tests.factories import make_iceberg_table, make_namespace, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]

NAMESPACES: list[tuple[str, ...]] = [(), ("a",), ("a", "b"), ("a", "b c"), ("z",), ("a.b",)]
TABLES: list[tuple[str, ...]] = [
    ("t",),
    ("a", "t"),
    ("a", "many"),
    ("a", "declared"),
    ("a", "ice"),
    ("a", "view"),
    ("a", "b", "t"),
    ("a", "b c", "t u"),
    ("a", "b", "remote"),
    ("z", "t"),
    ("z", "Tä"),
]
REQUESTS = [
    ("POST", "/v1/table/{table}/describe"),
    ("POST", "/v1/table/{table}/exists"),
    ("POST", "/v1/table/{table}/version/list"),
    ("POST", "/v1/namespace/{namespace}/describe"),
    ("POST", "/v1/namespace/{namespace}/exists"),
    ("GET", "/v1/namespace/{namespace}/table/list"),
    ("POST", "/v1/table/{table}/version/describe"),
    ("GET", "/v1/namespaces/{namespace}/tables"),
    ("HEAD", "/v1/namespaces/a/tables/ice"),
]
QUERIES = {
    "limit": ["", "0", "1", "2", "3", "-1", "x", "49", "50", "51", "1e3", str(2**62), str(10**30)],
    "page_token": ["", "0", "1", "2", "-1", "t", "x", str(2**63 - 1), str(2**63), str(10**18)],
    "descending": ["true", "false", "1", "0", "TRUE", "no", ""],
    "include_declared": ["true", "false", "1", ""],
    "with_table_uri": ["true", "0", "perhaps"],
    "check_declared": ["true", "false", ""],
    "load_detailed_metadata": ["false", ""],
    "branch": ["", "main", "b", "none", "%00"],
    "delimiter": ["%24", ".", "%2F", "", "%1F", "a"],
    "unknown": ["1"],
    "pageToken": ["t"],
}
MEMBERS: dict[str, list[Any]] = {
    "id": [None, [], ["a"], ["a", "t"], ["A", "t"], ["z", "t"], "a$t", [1], ["a", "b c"]],
    "version": [None, 1, 3, 99, -1, 2**63, 2**64, "1", 1.0, True],
    "tag": [None, "tag", "none", ""],
    "branch": [None, "", "main", "b", "none", "\u0000"],
    "limit": [None, 0, 1, 2, 51, -1, 2**40, "1", 10**30],
    "page_token": [None, "", "1", "2", "x", 3],
    "descending": [None, True, False, "yes"],
    "with_table_uri": [None, True, False, 1],
    "check_declared": [None, True, "x"],
    "load_detailed_metadata": [None, False],
    "vend_credentials": [None, True, False],
    "context": [None, {}, {"a": "b"}],
    "identity": [None, {"api_key": "x"}],
    "unknown": [1],
}
HEADERS: list[dict[str, str]] = [
    {"CONTENT_TYPE": "text/plain"},
    {"CONTENT_TYPE": "application/json; charset=utf-8"},
    {"HTTP_ACCEPT_ENCODING": "gzip"},
    {"HTTP_ACCEPT": "text/html"},
    {"HTTP_IF_NONE_MATCH": "*"},
    {"HTTP_ORIGIN": "http://evil.example.com"},
    {"HTTP_X_REQUEST_ID": "mine"},
    {"HTTP_X_LANCEDB_DATABASE": "a"},
    {"HTTP_X_FORWARDED_FOR": "10.0.0.1"},
    {"HTTP_IDEMPOTENCY_KEY": "018f3c1e-0000-7000-8000-000000000001"},
    {"HTTP_X_LANCE_CTX_A": "b"},
    {"HTTP_COOKIE": "sessionid=x"},
    {"HTTP_HOST": "evil.example.com"},
    {"HTTP_CONTENT_ENCODING": "gzip"},
    {"HTTP_X_HTTP_METHOD_OVERRIDE": "DELETE"},
    {"HTTP_RANGE": "bytes=0-1"},
]


class World:
    """Objects, principals and keys, and random changes of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        for path in NAMESPACES:
            make_namespace(*path, properties={"owner": "é"} if path else None)
        for identifier in TABLES:
            if identifier[-1] in {"ice", "view"}:
                make_iceberg_table(*identifier)
            elif identifier[-1] == "declared":
                make_table(*identifier)
            else:
                make_live_table(*identifier)
        Table.objects.filter(name="view").update(kind=TableKind.VIEW)
        remote = Table.objects.filter(name="remote")
        remote.update(location="s3://bucket/remote", properties={"a": "b"})
        Namespace.objects.filter(name="z").update(properties={"location": "/secret", "x": "y"})
        many = Table.objects.get(name="many")
        TableVersion.objects.bulk_create(
            TableVersion(table=many, version=number, manifest_path=f"x/{number}")
            for number in range(10, 70)
        )
        Branch.objects.create(table=Table.objects.get(name="t", namespace__path=["a"]), name="b")
        self.keys = [self._key(number) for number in range(12)]
        self.changes: list[Callable[[], Any]] = [
            *[self._grant] * 8,
            *[self._end_grant] * 4,
            *[self._own] * 3,
            *[self._move_end_of_grant] * 2,
            *[self._change_versions] * 3,
            self._change_table,
            self._change_properties,
            self._rename,
            self._limit_key,
            self._disable,
            *[self._join] * 2,
            known_keys.forget_keys,
        ]

        for _ in range(30):
            self._grant()

    def _key(self, number: int) -> str:
        level = [PrincipalLevel.ADMIN, PrincipalLevel.READ, *[PrincipalLevel.GRANTED] * 2][
            number % 4
        ]
        return api_keys.create_api_key(actor=SYSTEM, name=f"p{number}", level=level)[1]

    def any(self, model: Any, **filters: Any) -> Any:
        rows = list(model.objects.filter(**filters).order_by("pk"))
        return self.random.choice(rows) if rows else None

    def change(self) -> None:
        self.random.choice(self.changes)()

    def _grant(self) -> None:
        choice = self.random.choice
        mask = closure(choice(SINGLE))
        where = choice(["table", "namespace", "namespace"])
        model = Table if where == "table" else Namespace
        end = choice([None, None, timedelta(hours=1), timedelta(seconds=-1)])
        row = self.any(Principal)
        target = {where: self.any(model)}
        Grant.objects.filter(principal=row, **target).delete()
        Grant.objects.create(
            principal=row,
            mask=choice([mask, Privilege.BROWSE, Privilege.ALL]).value,
            expires_at=None if end is None else timezone.now() + end,
            **target,
        )

    def _end_grant(self) -> None:
        row = self.any(Grant)
        if row is not None:
            row.delete()

    def _move_end_of_grant(self) -> None:
        seconds = self.random.choice([-1, 3600])
        row = self.any(Grant)
        if row is not None:
            Grant.objects.filter(pk=row.pk).update(
                expires_at=timezone.now() + timedelta(seconds=seconds)
            )

    def _own(self) -> None:
        row = self.any(self.random.choice([Table, Namespace]))
        owner = self.random.choice(["", self.any(Principal).name])
        type(row).objects.filter(pk=row.pk).update(owner=owner)

    def _change_versions(self) -> None:
        row = self.any(TableVersion)
        deleted_at = self.random.choice([None, timezone.now()])
        TableVersion.objects.filter(pk=row.pk).update(deleted_at=deleted_at)

    def _change_table(self) -> None:
        row = self.any(Table)
        state = self.random.choice(["live", "live", "declared", "dropped"])
        dropped_at = timezone.now() if state == "dropped" else None
        Table.objects.filter(pk=row.pk).update(
            state=state,
            dropped_at=dropped_at,
            managed_versioning=self.random.random() < 0.5,
            is_protected=self.random.random() < 0.5,
        )

    def _change_properties(self) -> None:
        row = self.any(self.random.choice([Table, Namespace]))
        properties = self.random.choice(
            [{}, {"a": "b"}, {"location": "/secret"}, {"é\u2028": '"\\'}, {"long": "x" * 3_000}]
        )
        type(row).objects.filter(pk=row.pk).update(properties=properties)

    def _rename(self) -> None:
        """Give a table the name of a dropped one, or another name."""
        row = self.any(Table)
        other = self.any(Table)
        names = row.name, row.digest
        is_free = other.state == "dropped" and row.namespace_id == other.namespace_id
        if is_free and row.state != "dropped":
            Table.objects.filter(pk=row.pk).update(name=other.name, digest=other.digest)
            Table.objects.filter(pk=other.pk).update(name=names[0], digest=names[1])

    def _limit_key(self) -> None:
        row = self.any(ApiKey)
        ApiKey.objects.filter(pk=row.pk).update(
            namespace=self.random.choice([None, self.any(Namespace)]),
            scopes=self.random.choice([None, ["browse"], ["browse", "read"], ["browse", "write"]]),
            expires_at=timezone.now() + timedelta(hours=self.random.choice([1] * 9 + [-1])),
            revoked_at=self.random.choice([None] * 9 + [timezone.now()]),
        )

    def _disable(self) -> None:
        row = self.any(Principal)
        Principal.objects.filter(pk=row.pk).update(is_active=self.random.random() < 0.8)

    def _join(self) -> None:
        """Put a principal into a group, which may be disabled later."""
        group, _ = Principal.objects.get_or_create(
            name=f"group:{self.random.randrange(3)}",
            defaults={"kind": "group", "level": self.random.choice(["granted", "read"])},
        )
        member = self.any(Principal, keys__isnull=False)
        self.random.choice([member.groups.add, member.groups.remove])(group)

    # -- requests

    def request(self) -> tuple[dict[str, Any], bytes]:
        """A request, and its body: mostly one that an operation accepts."""
        rare = self.random.random
        choice = self.random.choice
        method, path = choice(REQUESTS if rare() < 0.2 else REQUESTS[:6])
        if rare() < 0.05:
            method = choice(["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS"])
        names = [(key, choice(QUERIES[key])) for key in self._some(QUERIES)]
        delimiter = dict(names).get("delimiter", "%24").replace("%24", "$").replace("%2F", "/")
        identifier = self._identifier("table" if "{table}" in path else "namespace", delimiter)
        path = path.replace("{table}", identifier).replace("{namespace}", identifier)
        request = request_of(
            choice(self.keys),
            path + choice(["/"] + [""] * 20),
            method,
            QUERY_STRING="&".join(f"{key}={value}" for key, value in names),
            CONTENT_TYPE="application/json",
        )
        if rare() < 0.15:
            request |= choice(HEADERS)
        if rare() < 0.1:
            request["HTTP_AUTHORIZATION"] = f"Bearer {choice([*self.keys, 'mnd_wrong', 'None'])}"
            if rare() < 0.7:
                request.pop("HTTP_X_API_KEY")
        return request, b"" if method in {"GET", "HEAD"} and rare() < 0.95 else self._body(request)

    def _some(self, names: Any) -> list[str]:
        number = self.random.choice([0, 0, 0, 0, 0, 1, 1, 2, 3])
        return [self.random.choice(list(names)) for _ in range(number)]

    def _identifier(self, kind: str, delimiter: str) -> str:
        names = self.random.choice(TABLES if kind == "table" else NAMESPACES)
        separator = delimiter if self.random.random() < 0.95 and delimiter else "$"
        text = separator.join(names) or separator
        odd = [
            text + separator,
            text.upper(),
            text.replace(" ", "+"),
            text + "\u00e4",
            text + " ",
            text + "/describe",
            text * 60,
            "x" + text,
            text.replace("$", "%24"),
        ]
        return self.random.choice(odd) if self.random.random() < 0.1 else text

    def _body(self, request: dict[str, Any]) -> bytes:
        body = {key: self.random.choice(MEMBERS[key]) for key in self._some(MEMBERS)}
        content = json.dumps(body, ensure_ascii=self.random.random() < 0.5).encode()
        if self.random.random() < 0.1:
            content = self.random.choice(
                [
                    b"",
                    b"null",
                    b"[]",
                    b" ",
                    b"{",
                    content[:-1] + b', "limit": 1, "limit": 2}',
                    content + b" " * self.random.choice([1, 990, 1_000]),
                    content.replace(b"a", b"\xff"),
                    b"\xef\xbb\xbf" + content,
                    b'{"a":' * 150 + b"1" + b"}" * 150,
                    content.replace(b"null", b"NaN"),
                    content.decode().encode("utf-16"),
                ]
            )
        if "HTTP_CONTENT_ENCODING" in request and self.random.random() < 0.5:
            content = gzip.compress(content)
        return content


def effects() -> tuple[int, int]:
    """What a request may leave behind: counted loads, and audit events."""
    return sum(usage._counts.values()), AuditEvent.objects.count()


def walk(asker: Asker, seed: int, steps: int) -> Counter[str]:
    """Compare the answers to random requests; return their number by outcome."""
    usage.flush()
    world = World(seed)
    outcomes: Counter[str] = Counter()
    for _ in range(steps):
        if world.random.random() < 0.4:
            world.change()
        request, body = world.request()
        if world.random.random() < 0.9:
            try:
                authentication.authenticate(request.get("HTTP_X_API_KEY"))
            except CatalogError:
                outcomes["without a valid key"] += 1
        before = effects()
        answer = asker.in_loop(dict(request), body)
        between = effects()
        expected = asker.ordinary(dict(request), body)
        after = effects()
        again = asker.in_loop(dict(request), body)
        description = f"seed {seed}: {request} {body!r}"
        for other in (answer, again):
            assert other is None or comparable(other) == comparable(expected), description
        own = between[0] - before[0], between[1] - before[1]
        of_django = after[0] - between[0], after[1] - between[1]
        assert own == ((0, 0) if answer is None else of_django), description
        kind = "repeated" if again is not None else str(expected.status)
        outcomes[kind if answer is None else "in the loop"] += 1
    return outcomes


@pytest.mark.parametrize("seed", range(3))
def test_random_requests(make_asker, seed):
    outcomes = walk(make_asker(LanceReads(), IcebergReads()), seed, 200)
    assert outcomes["in the loop"] > 20
    assert outcomes["404"] > 10
    assert outcomes["400"] > 10
