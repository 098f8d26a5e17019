import pytest

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.schema import partitioning, schemas, transforms
from catalog.formats.iceberg.schema.schemas import Column
from tests.catalog.formats.iceberg.examples import schema, spec

COLUMNS = schemas.index(schema(), "schema")


def spec_with_ids(*fields):
    """A spec with field ids: id, source, transform, name."""
    return {"fields": [{"field-id": i, **f} for (i, *_), f in zip(
        fields, spec(*(f[1:] for f in fields))["fields"], strict=True)]}  # fmt: skip


def numbered(new, *specs, last=1000, version=2):
    made = partitioning.with_field_ids(new, list(specs), last, version, "spec")
    return [f["field-id"] for f in made["fields"]]


ACCEPTED = {
    "identity": {"boolean", "int", "long", "float", "double", "decimal(9,2)", "date", "time",
                 "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns", "string", "uuid",
                 "fixed[4]", "binary", "unknown"},
    "bucket[4]": {"int", "long", "decimal(9,2)", "date", "time", "timestamp", "timestamptz",
                  "timestamp_ns", "timestamptz_ns", "string", "uuid", "fixed[4]", "binary"},
    "truncate[4]": {"int", "long", "decimal(9,2)", "string", "binary"},
    "year": {"date", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"},
    "month": {"date", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"},
    "day": {"date", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"},
    "hour": {"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"},
}  # fmt: skip
OTHERS = {"variant", "geometry", "geography(srid:1)"}


@pytest.mark.parametrize("transform", sorted(ACCEPTED))
def test_transforms_accept_the_types_of_the_specification(transform):
    for type_ in ACCEPTED["identity"] | OTHERS:
        columns = {1: Column(1, "c", type_, False, True, True)}
        field = {"source-id": 1, "transform": transform}
        if type_ in ACCEPTED[transform]:
            transforms.check(field, columns, "f", use="partition")
        else:
            with pytest.raises(InvalidMetadata):
                transforms.check(field, columns, "f", use="partition")
        transforms.check({**field, "transform": "void"}, columns, "f", use="partition")


@pytest.mark.parametrize(
    "transform",
    ["", "Identity", "bucket", "bucket[0]", "bucket[-1]", "truncate[2147483648]", "days"],
)
def test_an_unknown_transform_is_refused(transform):
    with pytest.raises(InvalidMetadata, match=r"^f\.transform: "):
        transforms.check({"source-id": 1, "transform": transform}, COLUMNS, "f", use="partition")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ((9, "identity", "x"), "cannot find the source column of this partition field"),
        ((4, "identity", "x"), "cannot partition by non-primitive column 'place'"),
        ((7, "identity", "x"), "column 'tags.element' is within a list or a map"),
        ((3, "day", "x"), "column 'name' of type string does not fit transform day"),
    ],
    ids=["missing", "struct", "element", "type"],
)
def test_unsuitable_sources_are_refused(field, message):
    with pytest.raises(InvalidMetadata) as caught:
        partitioning.check_fit(spec(field), COLUMNS, "spec")
    assert caught.value.message == f"spec.fields[0]: {message}"


def test_struct_fields_are_sources_and_void_needs_no_source():
    partitioning.check_fit(spec((6, "identity", "c"), (99, "void", "v")), COLUMNS, "spec")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (spec((1, "identity", "a"), (2, "day", "a")), "there are two partition fields named 'a'"),
        (spec_with_ids((1000, 1, "identity", "a"), (1000, 2, "day", "b")),
         "there are two partition fields with id 1000"),
    ],
    ids=["name", "id"],
)  # fmt: skip
def test_names_and_ids_are_unique(bad, message):
    with pytest.raises(InvalidMetadata) as caught:
        partitioning.check_structure(bad, "spec")
    assert caught.value.message == f"spec.fields[1]: {message}"


def test_a_field_may_only_share_the_name_of_its_source():
    partitioning.check_names(spec((1, "identity", "id"), (2, "day", "day")), COLUMNS, "spec")
    with pytest.raises(InvalidMetadata) as caught:
        partitioning.check_names(spec((2, "day", "name")), COLUMNS, "spec")
    assert caught.value.message == (
        "spec.fields[0]: 'name' is the name of another column of the schema"
    )
    with pytest.raises(InvalidMetadata, match="day of this column is there already"):
        partitioning.check_names(spec((2, "day", "a"), (2, "day", "b")), COLUMNS, "spec")


def test_v2_reuses_the_id_of_an_equal_field():
    old = spec_with_ids((1000, 2, "day", "d"), (1001, 1, "bucket[4]", "b"))
    other = spec_with_ids((1003, 3, "identity", "n"))
    new = spec((3, "identity", "renamed"), (1, "bucket[8]", "b8"), (2, "day", "d"))
    assert numbered(new, old, other, last=1003) == [1003, 1004, 1000]


def test_field_ids_of_the_client_are_kept():
    assert numbered(
        spec_with_ids((1001, 1, "identity", "a")), spec_with_ids((1000, 2, "day", "d"))
    ) == [1001]
    assert numbered(spec_with_ids((1500, 1, "identity", "a"), (1501, 3, "void", "v"))) == [
        1500,
        1501,
    ]


def test_new_fields_get_consecutive_ids():
    old = spec_with_ids((1000, 2, "day", "d"))
    new = spec((1, "bucket[4]", "b4"), (1, "bucket[8]", "b8"), (3, "identity", "n"))
    assert numbered(new, old) == [1001, 1002, 1003]
    assert numbered(new, old, last=1010) == [1011, 1012, 1013]


def test_a_field_id_means_the_same_field_in_all_specs():
    old = spec_with_ids((1000, 2, "day", "d"))
    assert numbered(spec_with_ids((1000, 2, "void", "d")), old) == [1000]
    with pytest.raises(InvalidMetadata) as caught:
        numbered(spec_with_ids((1000, 1, "identity", "a")), old)
    assert caught.value.message == "spec.fields[0]: field id 1000 is that of day of column 2"


def test_v1_counts_from_1000():
    assert numbered(spec((2, "day", "d"), (1, "bucket[4]", "b")), version=1) == [1000, 1001]
    with pytest.raises(InvalidMetadata) as caught:
        numbered(spec_with_ids((1001, 2, "day", "d")), version=1)
    assert caught.value.message == (
        "spec.fields[0]: field id 1001 is not the next one; v1 counts them from 1000"
    )


def test_specs_are_equal_whatever_their_ids():
    assert partitioning.same(
        {**spec_with_ids((1000, 2, "day", "d")), "spec-id": 1},
        {**spec_with_ids((1005, 2, "day", "d")), "spec-id": 2},
    )
    assert not partitioning.same(spec((2, "day", "d")), spec((2, "day", "e")))
    assert partitioning.last_field_id(spec()) == 999
