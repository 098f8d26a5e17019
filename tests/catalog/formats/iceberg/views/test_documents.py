import copy
import gzip

import orjson
import pytest

from catalog.errors import InvalidMetadata, RequirementFailed
from catalog.formats.iceberg.views import checking as view_checking
from catalog.formats.iceberg.views import documents as view_documents
from catalog.formats.iceberg.views import updates as view_updates
from tests.catalog.formats.iceberg.examples import UUID, column, schema
from tests.catalog.formats.iceberg.test_refusals import mutated, outcome

OTHER_UUID = UUID.replace("8a", "9a")
LOCATION = "s3://bucket/warehouse/recent"
SCHEMA = {"type": "struct", "fields": [column(1, "id", "long"), column(2, "name")]}
WIDER = {"type": "struct", "fields": [*SCHEMA["fields"], column(3, "city")]}
HISTORY = "version.history.num-entries"
DROP = "replace.drop-dialect.allowed"


def sql(dialect="spark", text="select 1"):
    return {"type": "sql", "sql": text, "dialect": dialect}


def version(number=1, *representations, **keys):
    """Version ``number``, created at 2,000 ms + its number."""
    return {
        "version-id": number,
        "schema-id": 0,
        "timestamp-ms": 2_000 + number,
        "summary": {"engine-name": "spark"},
        "representations": list(representations) or [sql(text=f"select {number}")],
        "default-namespace": ["ns"],
        **keys,
    }


def view(**keys):
    made = {"schema": SCHEMA, "view_version": version(), "location": LOCATION}
    return view_documents.new_view(**{**made, "now_ms": 1_000, "view_uuid": UUID, **keys})


def add(number, *representations, **keys):
    return {
        "action": "add-view-version",
        "view-version": version(number, *representations, **keys),
    }


def current(id=-1):
    return {"action": "set-current-view-version", "view-version-id": id}


def properties(**updates):
    return {"action": "set-properties", "updates": updates}


def apply(base, *updates, now_ms=9_000):
    before = orjson.dumps(base)
    try:
        return view_documents.apply(base, list(updates), now_ms=now_ms)
    finally:
        assert orjson.dumps(base) == before


def ids(document):
    return [v["version-id"] for v in document["versions"]]


def log(document):
    return [(e["version-id"], e["timestamp-ms"]) for e in document["version-log"]]


def replaced(times, **keys):
    """The view after this many replacements, one commit each."""
    document = view(**keys)
    for number in range(2, times + 2):
        document = apply(document, add(number), current())
    return document


# --- new ---------------------------------------------------------------------------------------


def test_a_new_view_has_all_fields():
    assert view(properties={"comment": "c"}) == {
        "view-uuid": UUID,
        "format-version": 1,
        "location": LOCATION,
        "properties": {"comment": "c"},
        "schemas": [{**SCHEMA, "schema-id": 0}],
        "current-version-id": 1,
        "versions": [version()],
        "version-log": [{"timestamp-ms": 2_001, "version-id": 1}],
    }


def test_ids_of_a_new_view():
    made = view(
        schema={**SCHEMA, "schema-id": 7},
        view_version=version(5, **{"schema-id": 7}),
        view_uuid=None,
    )
    assert made["schemas"][0]["schema-id"] == 0
    assert made["versions"] == [version(5)]
    assert made["current-version-id"] == 5
    assert len(made["view-uuid"]) == 36
    assert ids(view(view_version=version(-1))) == [1]
    assert view(location=f"{LOCATION}//")["location"] == LOCATION


def test_unknown_fields_survive():
    made = view(view_version=version(**{"storage-table": {"namespace": ["a"], "name": "b"}}, x=[1]))
    assert made["versions"][0]["storage-table"] == {"namespace": ["a"], "name": "b"}
    document = {**made, "future": {"a": None}}
    assert view_documents.parse(view_documents.dump(document)) == document
    assert apply(document, properties(a="b"))["future"] == {"a": None}


def without(key, **keys):
    return {name: value for name, value in version(**keys).items() if name != key}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"schema": None}, "schema must be an object, not null"),
        ({"schema": {"type": "struct"}}, "schema.fields is missing"),
        ({"view_version": []}, "view-version must be an object, not an array"),
        ({"view_version": without("schema-id")}, "view-version.schema-id is missing"),
        ({"view_version": without("timestamp-ms")}, "view-version.timestamp-ms is missing"),
        ({"view_version": without("summary")}, "view-version.summary is missing"),
        ({"view_version": without("representations")}, "view-version.representations is missing"),
        (
            {"view_version": without("default-namespace")},
            "view-version.default-namespace is missing",
        ),
        (
            {"view_version": version(True)},
            "view-version.version-id must be an integer, not a boolean",
        ),
        (
            {"view_version": version(**{"timestamp-ms": 1.5})},
            "view-version.timestamp-ms must be an integer, not a fractional or too large number",
        ),
        (
            {"view_version": version(summary={"a": 1})},
            "view-version.summary['a'] must be a string, not an integer",
        ),
        (
            {"view_version": version(**{"default-namespace": ["a", 1]})},
            "view-version.default-namespace[1] must be a string, not an integer",
        ),
        (
            {"view_version": version(**{"default-catalog": 1})},
            "view-version.default-catalog must be a string, not an integer",
        ),
        (
            {"view_version": version(representations=[])},
            "view-version.representations must not be empty: a view needs a query",
        ),
        (
            {"view_version": version(1, {"type": "sql", "sql": "select 1"})},
            "view-version.representations[0].dialect is missing",
        ),
        (
            {"view_version": version(1, {**sql(), "sql": ""})},
            "view-version.representations[0].sql must not be empty",
        ),
        (
            {"view_version": version(1, sql(), {**sql("trino"), "type": "plan"})},
            "view-version.representations[1].type must be 'sql', not 'plan'",
        ),
        (
            {"view_version": version(1, sql(), sql("SPARK"))},
            (
                "Invalid view version: Cannot add multiple queries for dialect spark"
                " (view-version.representations[1])"
            ),
        ),
        ({"location": ""}, "location must not be empty"),
        ({"location": "/"}, "location must not be empty"),
        ({"location": None}, "location must be a string, not null"),
        ({"properties": {"a": None}}, "properties['a'] must be a string, not null"),
        ({"properties": {HISTORY: "0"}}, f"{HISTORY} must be positive but was '0'"),
        ({"properties": {HISTORY: "many"}}, f"{HISTORY} must be positive but was 'many'"),
    ],
)
def test_invalid_views_are_refused(changed, words):
    with pytest.raises(InvalidMetadata) as caught:
        view(**changed)
    assert caught.value.message == words


# --- updates -----------------------------------------------------------------------------------


def test_a_replacement_adds_a_version():
    base = view(properties={"comment": "c"})
    made = apply(
        base,
        {"action": "assign-uuid", "uuid": UUID.upper()},
        {"action": "upgrade-format-version", "format-version": 1},
        {"action": "add-schema", "schema": {**WIDER, "schema-id": 9}, "last-column-id": 3},
        add(2, sql(text="select 2"), sql("trino"), **{"schema-id": -1}),
        current(),
        properties(owner="ann"),
        {"action": "remove-properties", "removals": ["comment", "none"]},
        {"action": "set-location", "location": "s3://bucket/elsewhere/"},
    )
    assert made == {
        "view-uuid": UUID,
        "format-version": 1,
        "location": "s3://bucket/elsewhere",
        "properties": {"owner": "ann"},
        "schemas": [{**SCHEMA, "schema-id": 0}, {**WIDER, "schema-id": 1}],
        "current-version-id": 2,
        "versions": [
            version(),
            version(2, sql(text="select 2"), sql("trino"), **{"schema-id": 1}),
        ],
        "version-log": [
            {"timestamp-ms": 2_001, "version-id": 1},
            {"timestamp-ms": 2_002, "version-id": 2},
        ],
    }


@pytest.mark.parametrize(
    "updates",
    [
        [],
        [{"action": "assign-uuid", "uuid": UUID}],
        [{"action": "add-schema", "schema": {**SCHEMA, "schema-id": 3}}],
        [add(1)],
        [add(8, sql(text="select 1"), **{"timestamp-ms": 7, "default-catalog": None}), current()],
        [current(1)],
        [{"action": "set-location", "location": f"{LOCATION}/"}],
        [{"action": "set-properties", "updates": {"comment": "c"}}],
        [{"action": "remove-properties", "removals": ["none"]}],
        [properties(a="b"), {"action": "remove-properties", "removals": ["a"]}],
    ],
)
def test_updates_that_change_nothing_give_the_base_itself(updates):
    base = view(properties={"comment": "c"})
    assert apply(base, *updates) is base


def test_updates_are_applied_in_order():
    made = apply(
        view(),
        properties(a="1"),
        {"action": "remove-properties", "removals": ["a", "b"]},
        properties(b="2"),
    )
    assert made["properties"] == {"b": "2"}


@pytest.mark.parametrize(("sent", "assigned"), [(1, 2), (0, 2), (-1, 2), (2, 2), (7, 7)])
def test_a_new_version_gets_an_id_above_all_others(sent, assigned):
    made = apply(view(), add(sent, sql(text="new")), current())
    assert ids(made) == [1, assigned]
    assert made["current-version-id"] == assigned


def test_different_versions_are_added():
    base = view()
    same = {"representations": [sql(text="select 1")]}
    for keys in (
        {"summary": {}},
        {"default-catalog": "c"},
        {"default-namespace": ["ns", "b"]},
        {"representations": [sql(text="select 1"), sql("trino")]},
    ):
        assert ids(apply(base, add(1, **{**same, **keys}))) == [1, 2]


def test_an_older_version_becomes_current_again():
    base = replaced(2)
    made = apply(base, current(1), now_ms=5_000)
    assert made["current-version-id"] == 1
    assert ids(made) == [1, 2, 3]
    assert log(made) == [(1, 2_001), (2, 2_002), (3, 2_003), (1, 5_000)]
    # An equal schema is reused too, and -1 then refers to it.
    assert apply(base, add(9, sql(text="select 1")), current(), now_ms=5_000) == made


def test_an_existing_schema_counts_as_added():
    base = apply(view(), {"action": "add-schema", "schema": WIDER})
    made = apply(
        base,
        {"action": "add-schema", "schema": SCHEMA},
        add(2, **{"schema-id": -1}),
        {"action": "add-schema", "schema": WIDER},
        add(3, **{"schema-id": -1}),
        current(2),
    )
    assert [s["schema-id"] for s in made["schemas"]] == [0, 1]
    assert [v["schema-id"] for v in made["versions"]] == [0, 0, 1]


def test_an_intermediate_current_version_is_not_logged():
    made = apply(view(), add(2), current(), add(3), current())
    assert log(made) == [(1, 2_001), (3, 2_003)]
    made = apply(view(), add(2), current(), current(1))
    assert ids(made) == [1, 2]
    assert log(made) == [(1, 2_001)]


# --- history -----------------------------------------------------------------------------------


def test_ten_versions_are_kept_by_default():
    assert ids(replaced(9)) == list(range(1, 11))
    made = replaced(11)
    assert ids(made) == list(range(3, 13))
    assert log(made) == [(number, 2_000 + number) for number in range(3, 13)]
    assert len(made["schemas"]) == 1


def test_the_number_of_kept_versions_is_configurable():
    made = replaced(4, properties={HISTORY: "2"})
    assert ids(made) == [4, 5]
    assert log(made) == [(4, 2_004), (5, 2_005)]
    # Versions of this request are kept, whatever their number.
    made = apply(made, add(6), add(7), add(8), current())
    assert ids(made) == [6, 7, 8]
    assert log(made) == [(8, 2_008)]
    # A no-op request removes no version.
    assert apply(made) is made
    assert ids(apply(made, properties(a="b"))) == [7, 8]


def test_the_current_version_is_kept():
    base = apply(replaced(3), current(1), now_ms=5_000)
    made = apply(base, properties(**{HISTORY: "2"}))
    assert ids(made) == [1, 4]
    # With the gap before it the log would say that 1 was current for longer than it was.
    assert log(made) == [(4, 2_004), (1, 5_000)]
    assert ids(apply(base, properties(**{HISTORY: "1"}))) == [1]


def test_the_log_keeps_versions_that_were_removed_before_until_the_next_is_removed():
    """Registered metadata may log versions that its writer has removed."""
    before = {"timestamp-ms": 1_000, "version-id": 1}
    made = apply(replaced(2), properties(**{HISTORY: "3"}))
    registered = {**made, "versions": made["versions"][1:]}
    registered["version-log"] = [before, *made["version-log"][1:]]
    changed = apply(registered, add(4), current())
    assert (ids(changed), log(changed)[0]) == ([2, 3, 4], (1, 1_000))
    changed = apply(changed, add(5), current())
    assert (ids(changed), log(changed)[0]) == ([3, 4, 5], (3, 2_003))


# --- dialects ----------------------------------------------------------------------------------


def test_a_dialect_is_not_lost_by_accident():
    base = view(view_version=version(1, sql(), sql("Trino")))
    with pytest.raises(InvalidMetadata) as caught:
        apply(base, add(2, sql("SPARK", "select 2")), current())
    assert caught.value.message == (
        "Cannot replace view due to loss of view dialects (replace.drop-dialect.allowed=false):\n"
        "Previous dialects: [spark, trino]\nNew dialects: [spark]"
    )
    assert ids(apply(base, add(2, sql("trino"), sql("SPARK"), sql("duckdb")), current())) == [1, 2]
    # Nothing is lost before the version becomes current.
    assert ids(apply(base, add(2, sql("duckdb")))) == [1, 2]


def test_a_dialect_is_dropped_if_a_property_allows_it():
    base = view(view_version=version(1, sql(), sql("trino")))
    made = apply(base, add(2, sql("duckdb")), current(), properties(**{DROP: "TRUE"}))
    assert made["current-version-id"] == 2
    with pytest.raises(InvalidMetadata):
        apply(base, add(2, sql("duckdb")), current(), properties(**{DROP: "yes"}))


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        (None, "updates must be an array, not null"),
        ([1], "updates[0] must be an object, not an integer"),
        ([{}], "updates[0].action is missing"),
        (
            [{"action": "add-snapshot", "snapshot": {}}],
            "updates[0].action: unknown view update 'add-snapshot'",
        ),
        (
            [{"action": "assign-uuid", "uuid": OTHER_UUID}],
            f"updates[0].uuid: the view has UUID {UUID}, which cannot be reassigned",
        ),
        ([{"action": "assign-uuid", "uuid": "x"}], "updates[0].uuid must be a UUID, not 'x'"),
        (
            [{"action": "upgrade-format-version", "format-version": 0}],
            "updates[0].format-version: cannot downgrade v1 view to v0",
        ),
        (
            [{"action": "upgrade-format-version", "format-version": 2}],
            (
                "updates[0].format-version: cannot upgrade view to unsupported format version: "
                "v2 (supported: v1)"
            ),
        ),
        ([{"action": "add-schema"}], "updates[0].schema is missing"),
        (
            [add(2, **{"schema-id": 5})],
            "updates[0].view-version: cannot add version with unknown schema: 5",
        ),
        (
            [add(2, **{"schema-id": -1})],
            "updates[0].view-version.schema-id is -1, but no schema was added",
        ),
        (
            [add(2, sql(), sql())],
            (
                "Invalid view version: Cannot add multiple queries for dialect spark"
                " (updates[0].view-version.representations[1])"
            ),
        ),
        (
            [add(2), add(2**31 - 1), add(1, sql(text="x"))],
            "updates[2].view-version: there is no id left above 2147483647",
        ),
        ([current()], "updates[0].view-version-id is -1, but no version was added"),
        (
            [properties(a="b"), current(2)],
            "updates[1].view-version-id: cannot set current version to unknown version: 2",
        ),
        ([current(True)], "updates[0].view-version-id must be an integer, not a boolean"),
        (
            [current(2**63)],
            "updates[0].view-version-id must be between -1 and 2147483647",
        ),
        ([{"action": "set-location", "location": "//"}], "updates[0].location must not be empty"),
        ([properties(a=1)], "updates[0].updates['a'] must be a string, not an integer"),
        (
            [{"action": "remove-properties", "removals": "a"}],
            "updates[0].removals must be an array, not a string",
        ),
        ([properties(**{HISTORY: "-1"})], f"{HISTORY} must be positive but was '-1'"),
        ([properties(**{HISTORY: "9" * 10})], f"{HISTORY} must be positive but was '{'9' * 10}'"),
    ],
)
def test_invalid_updates_are_refused(updates, words):
    base = view()
    before = copy.deepcopy(base)
    with pytest.raises(InvalidMetadata) as caught:
        view_documents.apply(base, updates, now_ms=9_000)
    assert caught.value.message == words
    assert base == before


def every_update():
    return [
        {"action": "assign-uuid", "uuid": UUID},
        {"action": "upgrade-format-version", "format-version": 1},
        {"action": "add-schema", "schema": schema(), "last-column-id": 7},
        add(3, sql(), sql("trino"), **{"default-catalog": "c"}),
        current(1),
        properties(a="b", **{HISTORY: "1"}),
        {"action": "remove-properties", "removals": ["comment"]},
        {"action": "set-location", "location": "s3://bucket/elsewhere"},
    ]


def test_there_are_eight_updates():
    assert {update["action"] for update in every_update()} == view_updates.ACTIONS
    assert len(view_updates.ACTIONS) == 8


@pytest.mark.parametrize("update", every_update(), ids=lambda update: update["action"])
def test_mutated_updates_are_refused_or_valid(update):
    base = replaced(1, properties={"comment": "c"})
    refused = 0
    for changed in mutated(update):
        result = outcome(lambda: apply(base, changed))  # noqa: B023
        if result is None:
            refused += 1
        else:
            assert view_documents.parse(view_documents.dump(result)) == result
    assert refused > 25


@pytest.mark.parametrize("argument", ["schema", "view_version", "properties", "location"])
def test_mutated_creations_are_refused_or_valid(argument):
    request = {
        "schema": schema(),
        "view_version": version(1, sql(), sql("trino"), **{"default-catalog": "c"}),
        "properties": {"comment": "c", HISTORY: "3"},
        "location": LOCATION,
    }
    for changed in mutated({"it": request[argument]}):
        result = outcome(lambda: view(**{**request, argument: changed.get("it")}))  # noqa: B023
        if result is not None:
            assert view_documents.parse(view_documents.dump(result)) == result


# --- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_is_read_unchanged(pack):
    document = replaced(2)
    assert view_documents.parse(pack(view_documents.dump(document))) == document


def test_a_file_without_properties():
    document = view()
    for properties in ({}, {"properties": None}):
        content = {**document, **properties}
        if not properties:
            del content["properties"]
        assert view_documents.parse(orjson.dumps(content)) == document


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"format-version": 2}, "format-version must be between 1 and 1"),
        ({"view-uuid": "x"}, "view-uuid must be a UUID, not 'x'"),
        ({"location": ""}, "location must not be empty"),
        ({"current-version-id": 3}, "current-version-id 3 is not in versions"),
        ({"current-version-id": None}, "current-version-id must be an integer, not null"),
        ({"versions": []}, "current-version-id 1 is not in versions"),
        ({"versions": [version(), version()]}, "versions[1]: there are two with version-id 1"),
        ({"versions": [version(**{"schema-id": 2})]}, "versions[0]: there is no schema 2"),
        ({"schemas": []}, "versions[0]: there is no schema 0"),
        ({"schemas": [SCHEMA, SCHEMA]}, "schemas[1]: there are two with schema-id 0"),
        ({"version-log": {}}, "version-log must be an array, not an object"),
        ({"version-log": [{"version-id": 1}]}, "version-log[0].timestamp-ms is missing"),
        ({"properties": []}, "properties must be an object, not an array"),
    ],
)
def test_invalid_files_are_refused(changed, words):
    with pytest.raises(InvalidMetadata) as caught:
        view_documents.parse(orjson.dumps({**view(), **changed}))
    assert caught.value.message == words


@pytest.mark.parametrize("content", [b"", b"[]", b"x", b"\x1f\x8bx", b'{"format-version": 1}'])
def test_a_file_without_a_view_is_refused(content):
    with pytest.raises(InvalidMetadata):
        view_documents.parse(content)


def test_mutated_files_are_refused_or_valid():
    base = replaced(2, properties={"comment": "c"})
    refused = 0
    for changed in mutated(base):
        try:
            content = orjson.dumps(changed)
        except TypeError:
            continue
        result = outcome(lambda: view_documents.parse(content))  # noqa: B023
        if result is None:
            refused += 1
        else:
            view_checking.check(result)
            outcome(lambda: apply(result, *every_update()[2:]))  # noqa: B023
    assert refused > 1_000


def test_a_view_without_its_current_version_is_refused():
    with pytest.raises(InvalidMetadata) as caught:
        apply({**view(), "current-version-id": 9}, properties(a="b"))
    assert caught.value.message == "A view needs a current version: set-current-view-version"


# --- requirements ------------------------------------------------------------------------------


def test_a_requirement_that_is_met():
    view_documents.check([], view())
    view_documents.check([], None)
    view_documents.check([{"type": "assert-view-uuid", "uuid": UUID.upper()}], view())


def test_a_requirement_that_is_not_met_is_refused():
    requirement = {"type": "assert-view-uuid", "uuid": OTHER_UUID}
    with pytest.raises(RequirementFailed) as caught:
        view_documents.check([requirement], view())
    assert caught.value.message == (
        f"Requirement failed: UUID does not match: expected {UUID} != {OTHER_UUID}"
    )
    with pytest.raises(RequirementFailed) as caught:
        view_documents.check([requirement], None)
    assert caught.value.message == "Requirement failed: view does not exist"


@pytest.mark.parametrize(
    ("requirements", "words"),
    [
        ({}, "requirements must be an array, not an object"),
        ([None], "requirements[0] must be an object, not null"),
        ([{}], "requirements[0].type is missing"),
        (
            [{"type": "assert-create"}],
            "requirements[0].type: unknown view requirement 'assert-create'",
        ),
        ([{"type": "assert-view-uuid"}], "requirements[0].uuid is missing"),
        (
            # Requirements that can never hold are reported first, since a retry is useless.
            [{"type": "assert-view-uuid", "uuid": OTHER_UUID}, {"type": "assert-table-uuid"}],
            "requirements[1].type: unknown view requirement 'assert-table-uuid'",
        ),
    ],
)
def test_invalid_requirements_are_refused(requirements, words):
    with pytest.raises(InvalidMetadata) as caught:
        view_documents.check(requirements, view())
    assert caught.value.message == words


def test_mutated_requirements_are_refused_or_hold():
    for document in (view(), None):
        for changed in mutated({"type": "assert-view-uuid", "uuid": UUID}):
            outcome(lambda: view_documents.check([changed], document))  # noqa: B023
