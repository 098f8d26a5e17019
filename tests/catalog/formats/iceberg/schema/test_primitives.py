import pytest

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.schema import primitives


@pytest.mark.parametrize(
    ("type_", "base"),
    [
        ("long", "long"),
        ("decimal(38,38)", "decimal"),
        ("decimal( 9 , 2 )", "decimal"),
        ("fixed[16]", "fixed"),
        ("geometry(srid:4326)", "geometry"),
        ("geography(srid:4326, spherical)", "geography"),
    ],
)
def test_parameters_are_not_part_of_the_name(type_, base):
    assert primitives.base_name(type_, "type") == base


@pytest.mark.parametrize(
    "type_",
    ["", "Long", "decimal", "decimal(0,0)", "decimal(39,0)", "decimal(9,10)", "decimal(9)",
     "fixed", "fixed[0]", "fixed[2147483648]", "fixed[-1]", "geometry()", "geography(x, flat)",
     "struct", "timestamp_ms", "long "],
)  # fmt: skip
def test_other_names_are_refused(type_):
    with pytest.raises(InvalidMetadata, match=r"^here: "):
        primitives.base_name(type_, "here")


@pytest.mark.parametrize(
    ("base", "good", "bad"),
    [
        ("boolean", [True, False], [1, "true"]),
        ("int", [0, -(2**31), 2**31 - 1], [2**31, 1.0, True, "1"]),
        ("long", [-(2**63), 2**63 - 1], [2**63, 1.5]),
        ("double", [1, 1.5], ["1.5", True]),
        ("decimal", ["1.50"], [1.5]),
        ("date", ["2026-01-31"], [20484]),
        ("uuid", ["f79c3e09-677c-4bbd-a479-3f349cb785e7"], [{}]),
        ("variant", [], [{}, 1]),
        ("unknown", [], ["x"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "values",
)
def test_a_default_has_the_form_of_its_type(base, good, bad):
    for value in [None, *good]:
        primitives.check_default(base, value, "here")
    for value in bad:
        with pytest.raises(InvalidMetadata, match=r"^here: "):
            primitives.check_default(base, value, "here")
