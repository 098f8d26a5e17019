import random

import pytest

from catalog.errors import InvalidInput
from catalog.formats.lance import naming as lance_naming
from catalog.formats.lance.naming import MAX_VERSION, ManifestName, NamingScheme

V1, V2 = NamingScheme.V1, NamingScheme.V2


def versions() -> list[int]:
    dice = random.Random(1)
    return [
        *range(50),
        MAX_VERSION,
        MAX_VERSION - 1,
        *(dice.randrange(2 ** dice.randint(1, 63)) for _ in range(500)),
    ]


@pytest.mark.parametrize("scheme", [V1, V2])
def test_the_version_is_parsed_from_the_name(scheme):
    for version in versions():
        name = lance_naming.manifest_name(version, scheme)
        assert lance_naming.parse_manifest_name(name) == ManifestName(version, scheme)


def test_names_have_lances_form():
    assert lance_naming.manifest_name(7, V1) == "7.manifest"
    assert lance_naming.manifest_name(1, V2) == "18446744073709551614.manifest"
    assert lance_naming.manifest_name(0, V2) == "18446744073709551615.manifest"
    assert lance_naming.manifest_name(MAX_VERSION, V2) == "09223372036854775808.manifest"


def test_v2_names_sort_from_the_latest():
    names = [lance_naming.manifest_name(version, V2) for version in sorted(set(versions()))]
    assert names == sorted(names, reverse=True)
    assert {len(name) for name in names} == {29}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "manifest",
        ".manifest",
        "7.manifest-8a3c",
        "7.manifest.tmp",
        "a7.manifest",
        "-7.manifest",
        "7.MANIFEST",
        "٧.manifest",
        "7.manifest\n",
        "99999999999999999999.manifest",
        "09223372036854775807.manifest",
        "9223372036854775808.manifest",
        "123456789012345678901.manifest",
    ],
)
def test_invalid_names_have_no_version(name):
    assert lance_naming.parse_manifest_name(name) is None


@pytest.mark.parametrize(
    ("requested", "staged", "expected"),
    [
        ("V1", "18446744073709551614.manifest-x", V1),
        ("v2", "1.manifest-x", V2),
        (None, "1.manifest-8a3c-4d", V1),
        (None, "18446744073709551614.manifest-8a3c-4d", V2),
        ("", "whatever", V2),
        (None, "", V2),
    ],
)
def test_naming_scheme(requested, staged, expected):
    assert lance_naming.naming_scheme(requested, staged) is expected


def test_an_unknown_scheme():
    with pytest.raises(InvalidInput, match="'V3' is not known; use V1 or V2"):
        lance_naming.naming_scheme("V3", "")


@pytest.mark.parametrize("name", ["dev", "team/a", "größe 🧊", "a.b", "v1..2", "x" * 255])
def test_branches(name):
    assert lance_naming.check_branch(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a/_versions", "a\nb", "x" * 256],
)
def test_invalid_branch_names(name):
    with pytest.raises(InvalidInput, match="Branch name"):
        lance_naming.check_branch(name)


def test_final_paths():
    assert lance_naming.final_manifest_path("", 7, V1) == "_versions/7.manifest"
    assert lance_naming.final_manifest_path("a/b", 1, V2) == (
        "tree/a/b/_versions/18446744073709551614.manifest"
    )


@pytest.mark.parametrize(
    "path",
    [
        "_versions/7.manifest-8a3c",
        "tree/dev/_versions/18446744073709551614.manifest-x",
        "draft",
        "staging/draft",
        "tree/data/_versions/7.manifest-x",
    ],
)
def test_staged_names_are_recognized(path):
    assert lance_naming.may_be_staged(path)


@pytest.mark.parametrize(
    "path",
    [
        "_versions/7.manifest",
        "tree/dev/_versions/18446744073709551614.manifest",
        "7.manifest",
        "data/1.lance",
        "data/a/b/1.lance",
        "tree/dev/data/1.lance",
        "_indices/x/index.idx",
        "_deletions/1.arrow",
        "_transactions/1.txn",
        "_refs/tags/v1.json",
    ],
)
def test_other_names_are_not_staged_names(path):
    assert not lance_naming.may_be_staged(path)
