import pytest

from catalog.models import AuditEvent, Job, Namespace, Table, TableState
from tests.api.client import Lance, spell
from tests.cases import shared_cases
from tests.factories import make_namespace, make_table, unchanged

pytestmark = pytest.mark.operation("CreateNamespace")


def test_creates_with_properties(lance: Lance):
    answer = lance.post("/v1/namespace/ws/create", {"properties": {"owner": "Ralph"}})
    assert answer["properties"] == {"owner": "Ralph"}
    row = Namespace.objects.get(name="ws")
    assert row.path == ["ws"]
    assert row.parent.path == []
    assert row.owner == "tester"
    assert lance.post("/v1/namespace/ws/describe", {}) == {"properties": {"owner": "Ralph"}}


def test_a_body_is_not_needed(lance: Lance):
    assert lance.post("/v1/namespace/ws/create")["properties"] == {}
    assert lance.get("/v1/namespace/$/list")["namespaces"] == ["ws"]


def test_transaction_is_describable(lance: Lance):
    answer = lance.post("/v1/namespace/ws/create", {"id": ["ws"]})
    description = lance.post(f"/v1/transaction/{answer['transaction_id']}/describe")
    assert description["status"] == "Succeeded"
    assert description["properties"]["monodon.operations"] == "CreateNamespace"
    assert description["properties"]["monodon.targets"] == "ws"


@pytest.mark.parametrize("mode", [None, "Create", "create", "CREATE"])
def test_create_mode_refuses_an_existing_one(lance: Lance, mode):
    make_namespace("ws", properties={"a": "1"})
    lance.refused(
        409,
        2,
        "Namespace 'ws' exists already",
        "/v1/namespace/ws/create",
        {"mode": mode, "properties": {"a": "2"}},
    )


@pytest.mark.parametrize("mode", ["ExistOk", "exist_ok", "EXIST_OK", "existok", "eXiStOk"])
def test_exist_ok_keeps_the_existing_one(lance: Lance, mode):
    make_namespace("ws", properties={"a": "1"})
    with unchanged():
        answer = lance.post("/v1/namespace/ws/create", {"mode": mode, "properties": {"a": "2"}})
    assert answer == {"properties": {"a": "1"}}


def test_exist_ok_creates_a_missing_one(lance: Lance):
    answer = lance.post("/v1/namespace/ws/create", {"mode": "ExistOk", "properties": {"a": "2"}})
    assert answer["properties"] == {"a": "2"}
    assert answer["transaction_id"]


@pytest.mark.parametrize("mode", ["Overwrite", "overwrite", "OVERWRITE"])
def test_overwrite_makes_an_empty_one(lance: Lance, mode):
    old = make_namespace("ws", properties={"a": "1"})
    make_namespace("ws", "inner")
    table = make_table("ws", "inner", "t")
    other = make_table("other", "t")
    answer = lance.post("/v1/namespace/ws/create", {"mode": mode, "properties": {"b": "2"}})
    assert answer["properties"] == {"b": "2"}
    assert lance.get("/v1/namespace/ws/list") == {"namespaces": []}
    assert lance.get("/v1/namespace/ws/table/list") == {"tables": []}
    assert Namespace.objects.live().get(name="ws").pk != old.pk
    table.refresh_from_db()
    other.refresh_from_db()
    assert table.state == TableState.DROPPED
    assert other.state == TableState.DECLARED
    assert Job.objects.get().table == table


def test_overwrite_creates_a_missing_one(lance: Lance):
    lance.post("/v1/namespace/ws/create", {"mode": "Overwrite"})
    assert lance.get("/v1/namespace/$/list") == {"namespaces": ["ws"]}


def test_unknown_mode(lance: Lance):
    lance.refused(400, 13, "'replace' is not known", "/v1/namespace/ws/create", {"mode": "replace"})


def test_the_parent_must_exist(lance: Lance):
    lance.refused(404, 1, "Namespace 'a' does not exist", "/v1/namespace/a$b/create", {})
    lance.refused(
        404, 1, "Namespace 'a.b' does not exist", "/v1/namespace/a$b$c/create", {"mode": "ExistOk"}
    )


def test_the_root_exists(lance: Lance):
    lance.refused(409, 2, "(root)", "/v1/namespace/%24/create", {"mode": "Create"})
    lance.refused(400, 13, "root", "/v1/namespace/%24/create", {"mode": "Overwrite"})
    with unchanged():
        assert lance.post("/v1/namespace/%24/create", {"mode": "ExistOk"}) == {"properties": {}}


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "a/b",
        "a.b",
        "100%",
        "größe",
        "東京",
        "🦭🧊",
        "a+b",
        "a$b",
        "..",
        "'\"\\;--",
        "x" * 255,
    ],
)
def test_any_printable_name(lance: Lance, name):
    path = f"/v1/namespace/{spell(name, delimiter='|')}"
    lance.post(f"{path}/create?delimiter=|", {"id": [name]})
    assert lance.get("/v1/namespace/$/list") == {"namespaces": [name]}
    assert lance.post(f"{path}/describe?delimiter=|", {"id": [name]}) == {"properties": {}}
    lance.post(f"{path}/exists?delimiter=|", {})
    lance.refused(409, 2, name, f"{path}/create?delimiter=|", {"id": [name]})


@shared_cases(
    ("path", "error"),
    [
        ("a%24%24b", "A name must not be empty"),
        ("%24a", "A name must not be empty"),
        ("a%00b", "holds a control character"),
        ("a%0Ab", "holds a control character"),
        ("a%0A", "holds a control character"),
        ("x" * 256, "255 are allowed"),
    ],
)
def test_invalid_names_are_refused(lance: Lance, path, error):
    lance.refused(400, 13, error, f"/v1/namespace/{path}/create", {})


def test_sixty_levels_of_long_names(lance: Lance):
    names = [f"{'n' * 197}{level:03d}" for level in range(60)]
    for depth in range(1, 61):
        lance.post(f"/v1/namespace/{spell(*names[:depth])}/create", {"id": names[:depth]})
    assert lance.get(f"/v1/namespace/{spell(*names[:59])}/list") == {"namespaces": [names[59]]}
    lance.post(f"/v1/table/{spell(*names, 't')}/declare", {})
    assert lance.get("/v1/table")["tables"] == ["$".join([*names, "t"])]
    lance.post(f"/v1/namespace/{spell(names[0])}/drop", {"behavior": "Cascade"})
    assert Namespace.objects.live().count() == 1
    assert Table.objects.present().count() == 0


def test_body_id_must_be_the_path_id(lance: Lance):
    lance.refused(400, 13, "['other']", "/v1/namespace/ws/create", {"id": ["other"]})
    lance.refused(400, 13, "is not the path's id", "/v1/namespace/a$b/create", {"id": ["a$b"]})


@shared_cases(
    "body",
    [
        {"properties": {"a": 1}},
        {"properties": {"a": None}},
        {"properties": ["a"]},
        {"mode": 1},
        {"id": "ws"},
        {"id": [1]},
    ],
)
def test_wrong_types(lance: Lance, body):
    lance.refused(400, 13, next(iter(body)), "/v1/namespace/ws/create", body)


def test_unstorable_values_are_refused(lance: Lance):
    lance.refused(
        400, 13, "cannot be stored", "/v1/namespace/ws/create", {"properties": {"a": "x\0y"}}
    )


def test_context_headers_and_request_id_are_audited(lance: Lance):
    lance.post(
        "/v1/namespace/ws/create",
        {},
        headers={
            "x-lance-ctx-trace_id": "abc123",
            "x-lance-ctx-Team": "Sea",
            "x-request-id": "r-1",
        },
    )
    event = AuditEvent.objects.get(action="namespace.create")
    assert event.context["team"] == "Sea"
    assert event.request_id == "r-1"
    assert (event.actor, event.target) == ("tester", "ws")
    assert event.after == {"properties": {}}


def test_read_only_key(reader: Lance):
    reader.refused(
        403, 15, "'reader' may not create anything in '(root)'", "/v1/namespace/ws/create", {}
    )
