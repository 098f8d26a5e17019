"""Locations in requests cannot leave the allowed directories, in either protocol.

Every form is sent to every operation. Each is refused in the protocol's form, or is an unusual name of a
directory in the warehouse. Nothing outside is opened, created or changed, and no server is contacted.
"""

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from django.conf import settings
from django.http import HttpResponse

from catalog.models import Table
from tests.api.client import Lance, stream
from tests.api.iceberg.client import Iceberg
from tests.cases import shared_cases
from tests.factories import (
    ICEBERG_SCHEMA,
    files,
    make_iceberg_table,
    make_namespace,
    make_table,
    snapshot,
)
from tests.security.location_operations import (
    ICEBERG,
    LANCE,
    MANIFESTS,
    Send,
    iceberg_operations,
    is_iceberg,
    is_lance,
    lance_operations,
    manifest_operations,
    view_body,
)

pytestmark = pytest.mark.django_db

# --- forms of locations --------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path, warehouse: Path) -> Path:
    """A directory outside the warehouse with files that an attacker wants, and links to it."""
    directory = tmp_path / "outside"
    (directory / "metadata").mkdir(parents=True)
    (directory / "secret").write_text("not for you")
    (directory / "metadata" / "v1.metadata.json").write_text("{}")
    (directory / "x.metadata.json").write_text("{}")
    (warehouse / "link").symlink_to(directory)
    (warehouse / "link_to_file").symlink_to(directory / "secret")
    (warehouse / "link_up").symlink_to("..")
    (warehouse / "link_to_link").symlink_to("link")
    (warehouse / "absolute_link").symlink_to("/etc")
    return directory


def forms(outside: Path, warehouse: Path) -> list[str]:
    """Forms that leave the warehouse, at least for a careless reader, and must all be refused."""
    targets = [
        str(outside),
        f"{outside}/secret",
        f"{outside}/x.metadata.json",
        f"{outside}/new",
        "/etc/passwd",
        "/etc",
        "/proc/self/environ",
        "/dev/zero",
        "/root/.ssh/id_rsa",
        str(settings.MONODON_HOME),
        f"{settings.MONODON_HOME}/postgres",
        str(warehouse.parent),
        f"{warehouse}x/t",
    ]
    spelled = [
        prefix + target
        for target in targets
        for prefix in (
            "",
            "/",
            "///",
            "file:",
            "file://",
            "file:///",
            "file://localhost",
            "FILE://",
        )
    ]
    ups = ["../", "..//", "./../", "%2e%2e/", "..%2f", "%2E%2E%2F", ".%2e/", "x/../../"]
    stems = ["", f"{warehouse}/", f"file://{warehouse}/", f"{warehouse}/a/", "/"]
    climbing = [
        stem + up * count + "etc/passwd" for stem in stems for up in ups for count in (1, 3, 12)
    ]
    remote = [
        f"{scheme}://{host}/latest/meta-data/t"
        for scheme in ("http", "https", "ftp", "s3", "s3a", "gs", "az", "abfss", "hdfs", "memory")
        for host in (
            "169.254.169.254",
            "[::ffff:169.254.169.254]",
            "localhost:5432",
            "user:pw@host",
        )
    ]
    hosts = [
        f"file://{host}{path}"
        for host in ("host", "169.254.169.254", "127.0.0.1", "localhost:80", "u@localhost", "..")
        for path in ("/etc/passwd", f"{warehouse}/t")
    ]
    odd = [
        "jar:file:///etc/passwd!/x",
        "gopher://127.0.0.1:6379/_FLUSHALL",
        "s3+ddb://bucket/t",
        "file-object-store:///etc/passwd",
        "//host/share/t",
        "/",
        "//",
        ".",
        "./",
        "./.",
        "file:///",
        "file://",
        str(warehouse),
        f"{warehouse}/",
        f"{warehouse}/.",
        f"file://{warehouse}",
        "..",
        "../",
        "%2e%2e",
        f"{warehouse}/..",
        "link",
        "link/t",
        "link/../t",
        "link_to_file",
        "link_to_link/t",
        "link_up/outside/t",
        "absolute_link/passwd",
        f"{warehouse}/link",
        f"{warehouse}/link/x.metadata.json",
        f"{warehouse}/link_up/outside",
        f"file://{warehouse}/link/secret",
        f"{warehouse}/t\x00",
        f"{warehouse}/\x00/../../etc",
        f"{warehouse}/t%00.json",
        f"{warehouse}/a\nb",
        f"{warehouse}/a\r\nx-evil: 1",
        f"{warehouse}/a\x7fb",
        f"{warehouse}/" + "a" * 3000,
        f"{warehouse}/" + "d/" * 1500 + "t",
        f"{warehouse}/" + "é" * 1500,
        f"{warehouse}/t.purged-1",
        f"file://{warehouse}/t?versionId=1",
        f"file://{warehouse}/t#part",
    ]
    return list(dict.fromkeys([*spelled, *climbing, *remote, *hosts, *odd]))


HARMLESS = [
    "..\u2215..\u2215etc",  # characters that look like a slash
    "..\uff0f..\uff0fetc",
    "\uff0e\uff0e/etc",
    "..%252f..%252fetc",
    "....//....//etc",
    "...",
    "..\\..\\etc",
    "\\\\host\\share",
    "~/t",
    "$HOME/t",
    "`id`",
    "data:text",
    "a" * 300,  # a name that no file system accepts
]
"""Ordinary names of directories, which are accepted or refused but never leave the warehouse."""


# --- observation ---------------------------------------------------------------------------------

_watched: list[tuple[list[str], set[int]]] = []
"""The current logs of events, if any, each with the threads that ran before it."""
_WATCHED = {"open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.link", "os.symlink"}


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched:
        return
    log, others = _watched[-1]
    if event in {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname"}:
        # A client in another thread, such as a pool of connections, does not belong to the request.
        if threading.get_ident() not in others:
            log.append(f"{event} {arguments}")
    elif event in _WATCHED and isinstance(arguments[0], str | bytes):
        log.append(os.fsdecode(arguments[0]))


sys.addaudithook(_hook)  # cannot be removed


@contextmanager
def watched(outside: Path) -> Iterator[None]:
    """Assert that the block opens no file outside and contacts no server."""
    log: list[str] = []
    others = {thread.ident for thread in threading.enumerate() if thread.ident is not None}
    _watched.append((log, others - {threading.get_ident()}))
    try:
        yield
    finally:
        _watched.pop()
    secret = (str(outside), "/etc/", "/proc/self/environ", "/dev/zero", "/root", "socket.")
    # System libraries read these files in any case.
    usual = ("/etc/localtime", "/etc/nsswitch", "/etc/host", "/etc/resolv", "/etc/ssl", "/etc/mime")
    assert [s for s in log if s.startswith(secret) and not s.startswith(usual)] == []


@pytest.fixture
def world(tmp_path: Path, outside: Path, iceberg: Iceberg) -> Path:
    make_namespace("ns")
    make_table("ns", "t")
    make_iceberg_table("ns", "i")
    iceberg.post("namespaces/ns/views", view_body("v"))
    return tmp_path


def all_refused(
    send: Send, expected: list[str], world: Path, is_form: Callable[[Any], bool]
) -> None:
    before, on_disk = snapshot(), files(world)
    faults = []
    for form in expected:
        with watched(world / "outside"):
            answer = send(form)
        if not (400 <= answer.status_code < 500 and is_form(json.loads(answer.content))):
            faults.append((form, answer.status_code, answer.content[:300]))
    assert faults == []
    assert snapshot() == before
    assert files(world) == on_disk


def test_the_list_of_location_forms_is_long_enough(
    world: Path, outside: Path, warehouse: Path
) -> None:
    assert len(forms(outside, warehouse)) >= 200


@pytest.mark.parametrize("operation", LANCE)
def test_no_lance_operation_leaves_the_warehouse(lance, world, outside, warehouse, operation):
    send = lance_operations(lance)[operation]
    all_refused(send, forms(outside, warehouse), world, is_lance)


@pytest.mark.parametrize("operation", MANIFESTS)
def test_manifests_outside_the_table_are_refused(lance, world, settings, operation):
    settings.MONODON_MANIFEST_PATHS = []
    send = manifest_operations(lance)[operation]
    # Relative paths are relative to the table, and links of the warehouse are not in the table.
    sent = forms(world / "outside", world / "warehouse")
    expected = [form for form in sent if not form.startswith(("link", "absol"))]
    all_refused(send, [form for form in expected if form.strip("./")], world, is_lance)


@pytest.mark.parametrize("operation", ICEBERG)
def test_no_iceberg_operation_leaves_the_warehouse(iceberg, world, outside, warehouse, operation):
    send = iceberg_operations(iceberg)[operation]
    # Iceberg's readers decode nothing: these are names of directories in the warehouse.
    expected = [form for form in forms(outside, warehouse) if not form.endswith(("=1", "#part"))]
    if operation.startswith("create"):
        # Relative paths are below the namespace's location, which does not contain these links.
        expected = [form for form in expected if not form.startswith(("link", "absol"))]
    all_refused(send, expected, world, is_iceberg)


@shared_cases("form", HARMLESS)
def test_an_unusual_name_stays_in_the_warehouse(lance, iceberg, world, form):
    outside, warehouse = world / "outside", world / "warehouse"
    before = files(outside)
    with watched(outside):
        declared = lance.call("POST", "/v1/table/ns$odd/declare", {"location": form})
        made = iceberg.call(
            "POST",
            "namespaces/ns/tables",
            {"name": "o", "schema": ICEBERG_SCHEMA, "location": f"file://{warehouse}/i{form}"},
        )
    for answer in (declared, made):
        assert answer.status_code < 500 or form == "a" * 300, answer.content
    if declared.status_code == 200:
        real_location = os.path.realpath(declared.json()["location"].removeprefix("file://"))
        assert real_location.startswith(f"{warehouse}/")
    assert files(outside) == before


def test_a_namespace_gives_its_tables_no_location_outside(iceberg, world, outside, warehouse):
    faults = []
    for number, form in enumerate(forms(outside, warehouse)[::5]):
        made = iceberg.call(
            "POST", "namespaces", {"namespace": [f"n{number}"], "properties": {"location": form}}
        )
        if made.status_code != 200:
            assert 400 <= made.status_code < 500
            continue
        before = files(world)
        with watched(outside):
            answer = iceberg.call(
                "POST", f"namespaces/n{number}/tables", {"name": "t", "schema": ICEBERG_SCHEMA}
            )
        if answer.status_code == 200:
            location = answer.json()["metadata"]["location"].removeprefix("file://")
            if not os.path.realpath(location).startswith(f"{warehouse}/"):
                faults.append((form, location))
        elif not 400 <= answer.status_code < 500 or files(world) != before:
            faults.append((form, answer.content))
    assert faults == []


# --- requests without a location -----------------------------------------------------------------

_OPTIONS = (
    *("location", "uri", "path", "base_uri", "root", "table_uri", "base_paths", "storage_options"),
    *("aws_endpoint", "aws_endpoint_url", "endpoint", "proxy_url", "azure_storage_endpoint"),
    *("google_storage_endpoint", "allow_http", "aws_web_identity_token_file", "region"),
    *("google_service_account", "google_application_credentials", "account_name"),
    *("write.data.path", "write.metadata.path", "lance.location", "dataset_uri"),
)
"""Names of storage options and properties that might redirect a reader."""


def _all(form: str) -> dict[str, str]:
    return dict.fromkeys(_OPTIONS, form)


def _create(lance: Lance, number: int, form: str, **options: Any) -> HttpResponse:
    query = urlencode(options.pop("query", {}), errors="surrogateescape")
    rows = stream(pa.table({"id": [number]}))
    return lance.call("POST", f"/v1/table/ns$n{number}/create?{query}", raw=rows, **options)


def _body(lance: Lance, path: str, **body: Any) -> HttpResponse:
    return lance.call("POST", path, body)


WITHOUT_LOCATION: dict[str, Callable[[Lance, int, str], HttpResponse]] = {
    "CreateTable storage_options": lambda lance, number, form: _create(
        lance, number, form, query={"storage_options": json.dumps(_all(form))}
    ),
    "CreateTable properties": lambda lance, number, form: _create(
        lance, number, form, query={"properties": json.dumps(_all(form))}
    ),
    "CreateTable query": lambda lance, number, form: _create(
        lance, number, form, query=_all(form) | {"storage_options": "{}"}
    ),
    "CreateTable headers": lambda lance, number, form: _create(
        lance,
        number,
        form,
        headers={
            "x-lance-table-location": form,
            "x-lance-table-properties": json.dumps(_all(form)),
            "x-lance-storage-options": json.dumps(_all(form)),
            **{f"x-lance-ctx-{name.replace('.', '-')}": form for name in _OPTIONS},
        },
    ),
    "DeclareTable": lambda lance, number, form: _body(
        lance,
        f"/v1/table/ns$n{number}/declare",
        properties=_all(form),
        storage_options=_all(form),
        vend_credentials=True,
    ),
    "RegisterTable": lambda lance, number, form: _body(
        lance,
        f"/v1/table/ns$n{number}/register",
        location=f"registered-{number}",
        properties=_all(form),
        storage_options=_all(form),
    ),
    "BatchCommitTables": lambda lance, number, form: _body(
        lance,
        "/v1/table/batch-commit",
        operations=[
            {
                "declare_table": {
                    "id": ["ns", f"n{number}"],
                    "properties": _all(form),
                    "storage_options": _all(form),
                }
            }
        ],
        storage_options=_all(form),
    ),
}
"""Requests that create a table ``ns.n<number>`` at a location that the server chooses, with any
options."""


@pytest.mark.parametrize("door", WITHOUT_LOCATION)
def test_options_and_headers_do_not_change_the_location(lance, world, outside, warehouse, door):
    """Storage options, properties and headers: the table is in the warehouse, and is written, read
    and described there."""
    before = files(outside)
    taken = 0
    for number, form in enumerate(forms(outside, warehouse)[::9]):
        with watched(outside):
            made = WITHOUT_LOCATION[door](lance, number, form)
            assert made.status_code in {200, 400}, (form, made.content)
            if made.status_code != 200:
                assert is_lance(made.json())
                assert not Table.objects.named(("ns", f"n{number}")).exists()
                continue
            taken += 1
            name = f"/v1/table/ns$n{number}"
            more = stream(pa.table({"id": [number]}))
            added = lance.call("POST", f"{name}/insert", raw=more, headers={"x-lance-ctx-uri": "x"})
            assert added.status_code == 200, (form, added.content)
            response = lance.call(
                "POST", f"{name}/describe", {"storage_options": _all(form), "with_table_uri": True}
            )
            counted = lance.call("POST", f"{name}/count_rows", {"storage_options": _all(form)})
        assert int(counted.content) in {1, 2}
        table = Table.objects.named(("ns", f"n{number}")).get()
        location = response.json()["location"].removeprefix("file://")
        assert os.path.realpath(location) == table.location == f"{warehouse}/{Path(location).name}"
        assert not response.json().get("storage_options")
        assert files(location)
    assert taken > 20, "nothing was tried"
    assert files(outside) == before


def test_storage_options_must_be_strings(lance, world):
    for text in ("[]", "1", '{"a": 1}', '{"a": {"b": "c"}}', "{", '"x"'):
        before, on_disk = snapshot(), files(world)
        answer = _create(lance, 1, "", query={"storage_options": text})
        assert answer.status_code == 400, (text, answer.content)
        assert (snapshot(), files(world)) == (before, on_disk)


def test_a_default_location_does_not_reveal_namespaces(lance, iceberg, warehouse):
    """This includes former names: a location does not change when a table is renamed."""
    make_namespace("hidden", "project")
    schema = {"type": "struct", "schema-id": 0, "fields": []}
    iceberg.post("namespaces/hidden%1Fproject/tables", {"name": "t1", "schema": schema})
    lance.post("/v1/table/hidden$project$t2/declare", {})
    lance.post("/v1/table/hidden$project$t3/create", raw=stream(pa.table({"id": [1]})))
    locations = dict(Table.objects.values_list("name", "location"))
    assert len(locations) == 3
    for name, location in locations.items():
        assert re.fullmatch(rf"{warehouse}/{name}-[0-9a-f]{{32}}", location)
