"""Clients of two releases behind a load balancer. Each counts its steps and records every failed request."""

import http.client
import json
import re
import secrets
import threading
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

import lance
import pyarrow as pa
from lance.namespace import RestNamespace
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tests.api.client import stream
from tests.clients import pyice
from tests.live import KEY

SPACE = "up"
ROWS = 3
ARROW = "application/vnd.apache.arrow.stream"
ICEBERG_SCHEMA = Schema(
    NestedField(1, "name", StringType(), required=False),
    NestedField(2, "row", LongType(), required=False),
)
_SCHEMA_JSON = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "n", "type": "long", "required": False}],
}
_WITHIN = 120.0


def uuid7() -> str:
    """A UUID that begins with the time, as keys of idempotent requests do."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return str(uuid.UUID(int=number & ~(0xF << 76 | 0x3 << 62) | 7 << 76 | 2 << 62))


class Refused(Exception):
    """An answer that the request must not get."""


class Front:
    """Sends each request over a connection of its own, so the balancer alternates between servers."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = f"http://127.0.0.1:{port}"
        self.cookies: dict[str, str] = {}

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        expected: Collection[int] = (200,),
        key: str = KEY,
        **headers: str,
    ) -> tuple[int, Any]:
        """Send a request once; return the status and the answer. Raises Refused for another status."""
        sent = {"connection": "close", "content-type": "application/json"} | headers
        if key:
            sent["x-api-key"] = key
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={text}" for name, text in self.cookies.items())
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, path, content if method != "GET" else None, sent)
            answer = connection.getresponse()
            data = answer.read()
            for line in answer.headers.get_all("set-cookie") or []:
                name, _, value = line.partition("=")
                self.cookies[name] = value.partition(";")[0]
        finally:
            connection.close()
        if answer.status not in expected:
            raise Refused(f"{method} {path}: {answer.status} {data[:500]!r}")
        is_json = "json" in (answer.headers.get("content-type") or "")
        return answer.status, json.loads(data) if is_json and data else data

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        return self.send("POST", path, body, **options)[1]

    def get(self, path: str, **options: Any) -> Any:
        return self.send("GET", path, **options)[1]


class Load(threading.Thread):
    """Repeats a step until it is stopped. A failed step is recorded, and the next one follows."""

    pause: ClassVar[float] = 0.3

    def __init__(self, front: Front, number: int = 0) -> None:
        super().__init__(name=f"{type(self).__name__}-{number}")
        self.front = Front(front._port)
        self.number = number
        self.steps = 0
        self.conflicts = 0
        self.longest = 0.0
        """Seconds of the longest step."""
        self.failures: list[str] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.is_set():
            began = time.monotonic()
            try:
                self.step()
            except Exception as error:  # noqa: BLE001 -- every failure is reported
                moment = time.strftime("%X")
                failure = f"{moment} {self.name}, step {self.steps}: {error!r}"
                self.failures.append(failure)
                print(failure, flush=True)
            self.steps += 1
            self.longest = max(self.longest, time.monotonic() - began)
            self.stopped.wait(self.pause)

    def step(self) -> None:
        raise NotImplementedError


class LanceAppends(Load):
    """pylance appends to a table that all of these share."""

    pause = 0.2
    table: ClassVar[list[str]] = [SPACE, "rows"]

    def __init__(self, front: Front, number: int = 0) -> None:
        super().__init__(front, number)
        self.acknowledged: list[str] = []

    def client(self) -> RestNamespace:
        return RestNamespace(uri=self.front.url, **{"header.x-api-key": KEY})

    def step(self) -> None:
        name = f"{self.number}/{self.steps}"
        data = pa.table({"attempt": [name] * ROWS, "row": list(range(ROWS))})
        try:
            lance.write_dataset(
                data, namespace_client=self.client(), table_id=self.table, mode="append"
            )
        except OSError as error:
            if "Too many concurrent writers" not in str(error):
                raise
            self.conflicts += 1
        else:
            self.acknowledged.append(name)


class CloneAppends(LanceAppends):
    """pylance appends to a shallow clone, which refers to files of another table."""

    table: ClassVar[list[str]] = ["clones", "first"]


class LanceVersions(Load):
    """Plain HTTP enters versions into the ledger, in a race with others of its kind."""

    def __init__(self, front: Front, number: int = 0) -> None:
        super().__init__(front, number)
        self.accepted: list[int] = []

    def step(self) -> None:
        table = f"/v1/table/{SPACE}$plain"
        newest = self.front.post(f"{table}/version/list", {"descending": True, "limit": 1})
        version = newest["versions"][0]["version"] + 1 if newest["versions"] else 1
        body = {"version": version, "manifest_path": f"elsewhere/{version}-{self.number}.manifest"}
        status, _ = self.front.send("POST", f"{table}/version/create", body, expected=(200, 409))
        if status == 200:
            self.accepted.append(version)
            got = self.front.post(f"{table}/version/describe", {"version": version})
            assert got["version"]["manifest_path"] == body["manifest_path"], got
        else:
            self.conflicts += 1


class IcebergAppends(Load):
    """PyIceberg appends to a table that all of these share."""

    pause = 0.2

    def __init__(self, front: Front, number: int = 0) -> None:
        super().__init__(front, number)
        self.acknowledged: list[str] = []

    def step(self) -> None:
        name = f"{self.number}/{self.steps}"
        catalog = pyice.connect(self.front.url, token=KEY)
        try:
            table = catalog.load_table((SPACE, "ice"))
            for _ in range(20):
                try:
                    table.append(pa.table({"name": [name], "row": pa.array([self.steps])}))
                except CommitFailedException:
                    self.conflicts += 1
                    table.refresh()
                else:
                    self.acknowledged.append(name)
                    return
        finally:
            catalog._session.close()


class Objects(Load):
    """Creates, lists, renames and drops namespaces and tables; each request sees those before it."""

    pause = 1.0

    def step(self) -> None:
        front, name = self.front, f"objects{self.number}x{self.steps}"
        front.post(f"/v1/namespace/{name}/create")
        names = {f"t{number}" for number in range(3)}
        for table in names:
            front.post(f"/v1/table/{name}${table}/declare")
        assert self._tables(name) == names
        where = f"/v1/namespaces/{name}/tables"
        key = {"idempotency-key": uuid7()}
        created = [
            front.post(where, {"name": "ice", "schema": _SCHEMA_JSON}, **key) for _ in range(2)
        ]
        assert created[0]["metadata"]["table-uuid"] == created[1]["metadata"]["table-uuid"]
        self._rename(name, "ice", "floe")
        loaded = front.get(f"{where}/floe")
        self._commit(f"{where}/floe", loaded["metadata"]["table-uuid"])
        for table in names:
            front.post(f"/v1/table/{name}${table}/describe")
            front.post(f"/v1/table/{name}${table}/drop")
        front.send("DELETE", f"{where}/floe", expected=(204,))
        assert self._tables(name) == set()
        front.post(f"/v1/namespace/{name}/drop")
        front.send("POST", f"/v1/namespace/{name}/describe", expected=(404,))

    def _tables(self, name: str) -> set[str]:
        """All names, in pages of which each may come from another server."""
        names: list[str] = []
        token = ""
        while True:
            query = urlencode({"limit": 2} | ({"page_token": token} if token else {}))
            answer = self.front.get(f"/v1/namespace/{name}/table/list?{query}")
            names += answer["tables"]
            token = answer.get("page_token") or ""
            if not token:
                assert len(names) == len(set(names))
                return set(names)

    def _rename(self, name: str, old: str, new: str) -> None:
        body = {
            "source": {"namespace": [name], "name": old},
            "destination": {"namespace": [name], "name": new},
        }
        self.front.send("POST", "/v1/tables/rename", body, expected=(204,))

    def _commit(self, path: str, table_uuid: str) -> None:
        body = {
            "requirements": [{"type": "assert-table-uuid", "uuid": table_uuid}],
            "updates": [{"action": "set-properties", "updates": {"step": str(self.steps)}}],
        }
        answer = self.front.post(path, body)
        assert answer["metadata"]["properties"]["step"] == str(self.steps)
        assert self.front.get(path)["metadata"]["properties"]["step"] == str(self.steps)


class Scans(Load):
    """Plans scans of the Iceberg table, and fetches plans from whichever server answers."""

    pause = 0.3

    def step(self) -> None:
        path = f"/v1/namespaces/{SPACE}/tables/ice"
        plan = self.front.post(f"{path}/plan", {})
        assert plan["status"] == "completed", plan
        for task in plan.get("plan-tasks") or []:
            self.front.post(f"{path}/tasks", {"plan-task": task})
        if not plan.get("plan-id", "whole-").startswith("whole-"):  # those are not stored
            again = self.front.get(f"{path}/plan/{plan['plan-id']}")
            assert again["status"] == "completed", again


class Jobs(Load):
    """Starts the compaction of a new table, and waits until a worker has done it."""

    pause = 0.5

    def __init__(self, front: Front, number: int = 0) -> None:
        super().__init__(front, number)
        self.succeeded: list[int] = []

    def step(self) -> None:
        table = f"{SPACE}$jobs{self.number}x{self.steps}"
        data = stream(pa.table({"n": [1, 2]}))
        for operation in ("create", "insert", "insert"):
            self.front.post(f"/v1/table/{table}/{operation}", data, **{"content-type": ARROW})
        job = self.front.post(
            f"/management/v1/tables/{table}/maintenance", {"kind": "compact"}, expected=(202,)
        )
        deadline = time.monotonic() + _WITHIN
        while (state := self.front.get(f"/management/v1/jobs/{job['id']}"))["status"] in {
            "queued",
            "running",
        }:
            assert time.monotonic() < deadline, f"the job does not end: {state}"
            time.sleep(0.3)
        assert state["status"] == "succeeded", state
        self.succeeded.append(int(job["id"]))
        count = self.front.post(f"/v1/table/{table}/count_rows")
        assert int(count) == 6, count


class Management(Load):
    """Calls of the management API that write, and read what was written."""

    pause = 0.1

    def step(self) -> None:
        front, name = self.front, f"made{self.number}x{self.steps}"
        api = "/management/v1"
        front.post(f"{api}/labels", {"key": name}, expected=(201,))
        path = f"{api}/tables/{SPACE}$plain"
        front.send("PATCH", f"{path}/annotations", {"labels": {name: ["a"]}})
        assert name in json.dumps(front.get(f"{path}/annotations"))
        front.post(f"{api}/principals", {"name": name, "kind": "service"}, expected=(201,))
        made = front.post(f"{api}/keys", {"principal": name, "name": name}, expected=(201,))
        grant = {"principal": name, "privileges": ["read"]}
        front.send("PUT", f"{path}/grants", grant)
        front.post(f"/v1/table/{SPACE}$plain/describe", key=made["key"])
        front.send("POST", f"/v1/table/{SPACE}$plain/drop", expected=(403,), key=made["key"])
        front.send("DELETE", f"{path}/grants?principal={quote(name)}", expected=(204,))
        front.post(f"{api}/keys/{quote(name)}/revoke")
        front.send("PUT", f"{path}/policy", {"values": {"cleanup": "on"}})
        front.send("DELETE", f"{path}/policy", expected=(204,))
        front.send("PATCH", f"{path}/annotations", {"labels": {name: []}})
        front.send("DELETE", f"{api}/labels/{name}", expected=(204,))
        for listed in (
            "jobs",
            "health",
            "trash",
            "principals",
            "keys",
            "webhooks",
            "audit?limit=5",
        ):
            front.get(f"{api}/{listed}")
        for shown in ("summary", "rules", "search?q=plain", "storage-profiles", "governance"):
            front.get(f"{api}/{shown}")


class Events(Load):
    """Follows the feed of events from its beginning, one page from each server in turn."""

    pause = 0.3

    def __init__(self, front: Front, number: int = 0) -> None:
        super().__init__(front, number)
        self.ids: list[str] = []
        self._position = "0-0"

    def step(self) -> None:
        path = f"/management/v1/events?after={self._position}&limit=200"
        page = self.front.get(path)
        self.ids += [event["id"] for event in page["events"]]
        self._position = page["position"]


class AdminPages(Load):
    """A user of the admin, with one session on both servers."""

    pause = 0.3

    def __init__(self, front: Front, password: str) -> None:
        super().__init__(front)
        self._password = password
        self._pages: Iterator[str] = iter(())
        self.statuses: Counter[int] = Counter()
        self.paths: list[str] = []

    def sign_in(self) -> None:
        """Sign in, and note the pages of this release: an older one has no others."""
        login = "/admin/login/"
        page = self.front.get(login, key="").decode()
        form = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
        assert form is not None
        fields = {
            "csrfmiddlewaretoken": form[1],
            "username": "admin",
            "password": self._password,
        }
        self.front.send(
            "POST",
            login,
            urlencode(fields).encode(),
            expected=(302,),
            key="",
            **{"content-type": "application/x-www-form-urlencoded", "referer": self.front.url},
        )
        index = self.front.get("/admin/", key="").decode()
        links = re.findall(r'href="(/admin/[^"#]*)"', index)
        self.paths = sorted({link for link in links if "logout" not in link})
        assert len(self.paths) > 5, self.paths

    def step(self) -> None:
        path = next(self._pages, None)
        if path is None:
            self._pages = iter(self.paths)
            return
        page = self.front.get(path.replace("&amp;", "&"), key="", expected=(200, 302))
        assert b"</html>" in page or not page, path


def all_loads(front: Front) -> list[Load]:
    """The loads that need no preparation of their own."""
    return [
        *(LanceAppends(front, number) for number in range(2)),
        CloneAppends(front),
        *(LanceVersions(front, number) for number in range(2)),
        *(IcebergAppends(front, number) for number in range(2)),
        *(Objects(front, number) for number in range(2)),
        Scans(front),
        *(Jobs(front, number) for number in range(2)),
        Management(front),
        Events(front),
    ]
