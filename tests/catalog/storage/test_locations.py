import random
from pathlib import Path
from urllib.parse import quote

import pytest

from catalog.errors import InvalidLocation, InvalidManifestPath
from catalog.storage import locations, stores
from tests.catalog.storage import configurations

NAMES = ["a", "a b", "größe", "🧊", "100%", "a+b", "_versions", "x.lance", "[1]", "a%20b", "#", "?"]


def test_spellings_of_a_location_are_normalized(warehouse: Path):
    dice = random.Random(1)
    for _ in range(200):
        parts = dice.choices([n for n in NAMES if "%" not in n], k=dice.randint(1, 4))
        path = f"{warehouse}/{'/'.join(parts)}"
        for spelling in (
            path,
            path + "/",
            path.replace("/", "//"),
            "/".join(parts),
            "./" + "/".join(parts),
            f"file://{quote(path)}",
            f"file:{quote(path)}",
        ):
            assert locations.check_location(spelling) == path


@pytest.mark.parametrize(
    "location", ["", "/", "//", " ", "/etc", "a/../b", "..", "a\0", "%2e%2e/x"]
)
def test_invalid_locations_are_refused(warehouse: Path, location):
    with pytest.raises(InvalidLocation):
        locations.check_location(location)


@pytest.mark.parametrize("below", ["", "/orders"])
def test_the_directories_of_profile_tests_hold_no_tables(monkeypatch, below):
    lake = configurations.of_endpoint("http://127.0.0.1:1")
    monkeypatch.setattr(stores, "_source", lambda fresh: (lake,))
    taken = f"s3://lake/root/.monodon-test-1{below}"
    for check in (locations.check_location, locations.iceberg_path):
        with pytest.raises(InvalidLocation, match="a name that the server uses itself"):
            check(taken)
        assert check("s3://lake/root/monodon-test-1") == "s3://lake/root/monodon-test-1"


def test_the_warehouse_may_be_a_link(tmp_path: Path, settings):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    settings.MONODON_WAREHOUSE = str(tmp_path / "link")
    assert locations.check_location(f"{tmp_path}/link/t") == f"{tmp_path}/real/t"
    assert locations.new_location("t").startswith(f"{tmp_path}/real/t-")


def test_a_link_may_take_the_place_of_a_missing_warehouse(tmp_path: Path, settings):
    settings.MONODON_WAREHOUSE = str(tmp_path / "link")
    assert locations.check_location(f"{tmp_path}/link/t") == f"{tmp_path}/link/t"
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert locations.check_location(f"{tmp_path}/link/t") == f"{tmp_path}/real/t"


@pytest.mark.parametrize(
    ("path", "canonical"),
    [
        ("missing/a/b", "missing/a/b"),
        ("real/missing", "real/missing"),
        ("real/file", "real/file"),
        ("real/file/x", "real/file/x"),
        ("link", "real/inside"),
        ("link/missing/x", "real/inside/missing/x"),
        ("real/back/real", "real"),
        ("real/nothing/x", "real/missing/x"),
        ("root/x", "real/x"),
    ],
)
def test_links_below_the_warehouse_are_followed(warehouse: Path, settings, path, canonical):
    (warehouse / "root").mkdir()
    settings.MONODON_ALLOWED_ROOTS = [str(warehouse / "root")]
    assert str(warehouse / "root") in locations.allowed_roots()
    (warehouse / "root").rmdir()
    (warehouse / "real/inside").mkdir(parents=True)
    (warehouse / "real/file").touch()
    (warehouse / "link").symlink_to(warehouse / "real/inside")
    (warehouse / "real/back").symlink_to("..")
    (warehouse / "real/nothing").symlink_to("missing")
    (warehouse / "root").symlink_to("real")
    assert locations.iceberg_path(f"{warehouse}/{path}") == f"{warehouse}/{canonical}"


def test_a_link_that_leads_out_of_the_warehouse_is_refused(warehouse: Path):
    (warehouse / "t").mkdir()
    (warehouse / "t/metadata").symlink_to("/etc")
    with pytest.raises(InvalidLocation, match="outside the directories"):
        locations.iceberg_path(f"{warehouse}/t/metadata/1.json")


def test_new_locations_are_unique(warehouse: Path):
    assert len({locations.new_location("t") for _ in range(100)}) == 100


def test_parents_of_a_location():
    assert locations.parents("/a/b/c") == ["/a/b", "/a"]
    assert locations.parents("/a") == []


def test_the_uri_of_a_location():
    assert locations.uri("/a b/größe+%") == "file:///a%20b/gr%C3%B6%C3%9Fe%2B%25"


def test_spellings_of_a_manifest_path_are_normalized(warehouse: Path):
    dice = random.Random(2)
    for number in range(300):
        location = f"{warehouse}/{number}/{'/'.join(dice.choices(NAMES, k=dice.randint(1, 3)))}"
        relative = "_versions/" + dice.choice(NAMES)
        path = f"{location}/{relative}"
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()
        spellings = [path, path.lstrip("/"), f"file://{quote(path)}", f"file:{quote(path)}"]
        spellings += [quote(path), quote(path.lstrip("/")), relative, path.replace("/", "//")]
        for spelling in spellings:
            assert locations.path_in_table(location, spelling) == relative, spelling


def test_a_percent_sign_in_a_name_is_literal_if_the_file_exists(warehouse: Path):
    location = warehouse / "t"
    (location / "_versions").mkdir(parents=True)
    spelled = f"{location}/_versions/a%20b"
    assert locations.path_in_table(str(location), spelled) == "_versions/a%20b"
    (location / "_versions/a b").touch()
    assert locations.path_in_table(str(location), spelled) == "_versions/a b"
    (location / "_versions/a%20b").touch()
    assert locations.path_in_table(str(location), spelled) == "_versions/a%20b"


def test_paths_outside_the_table(warehouse: Path):
    location = f"{warehouse}/t"
    for path in (
        location,
        f"{location}x/_versions/1",
        f"{warehouse}/u/_versions/1",
        "/etc/passwd",
        "file:///etc/passwd",
        "/_versions/1.manifest-x",
        "s3://bucket" + location + "/_versions/1",
        "file://other-host" + location + "/_versions/1",
    ):
        assert locations.path_in_table(location, path) is None, path


def test_a_relative_path_is_relative_to_the_store_or_the_table(warehouse: Path):
    location = f"{warehouse}/t"
    assert locations.path_in_table(location, "etc/passwd") == "etc/passwd"
    assert not locations.is_surely_in_table(location, "etc/passwd")
    assert locations.is_surely_in_table(location, "_versions/1.manifest-x")
    assert locations.is_surely_in_table(location, "tree/dev/_versions/1.manifest-x")
    (warehouse / "t").mkdir()
    (warehouse / "t/staged").write_bytes(b"")
    assert locations.is_surely_in_table(location, "staged")


def test_traversal_is_refused_in_every_spelling(warehouse: Path):
    location = f"{warehouse}/t"
    for dots in ("..", "%2e%2e", "%2E.", ".%2e"):
        for path in (dots, f"{dots}/x", f"_versions/{dots}/x", f"{location}/{dots}/u/x"):
            for spelling in (path, f"file://{path}" if path.startswith("/") else path):
                with pytest.raises(InvalidManifestPath, match=r"holds '\.\.'"):
                    locations.path_in_table(location, spelling)
    # Dots inside a name are not traversal.
    assert locations.path_in_table(location, "_versions/a..b") == "_versions/a..b"
    assert locations.path_in_table(location, "_versions/...") == "_versions/..."
