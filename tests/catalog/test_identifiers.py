import random
import string
import uuid

import pytest

from catalog import identifiers
from catalog.errors import InvalidIdentifier
from monodon.client import names as client_names
from monodon.client.errors import InvalidName

ALPHABET = (
    string.ascii_letters + string.digits + " +/.%$&?#='\"\\-_" + "größe東京🦭" + "\u00a0\u200d"
)


def random_names(seed: int, count: int) -> list[tuple[str, ...]]:
    dice = random.Random(seed)
    return [
        tuple(
            "".join(dice.choices(ALPHABET, k=dice.randint(1, 12)))
            for _ in range(dice.randint(1, 6))
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("delimiter", ["$", ".", "::", "|", "🧊", "--"])
def test_parse_is_the_inverse_of_join(delimiter):
    for names in random_names(1, 300):
        if any(delimiter[0] in name for name in names):
            continue
        assert identifiers.parse(delimiter.join(names), delimiter) == names


def test_a_single_delimiter_is_the_root():
    for delimiter in ("$", ".", "::", "/"):
        assert identifiers.parse(delimiter, delimiter) == ()


@pytest.mark.parametrize("text", ["", "$a", "a$", "a$$b", "$$"])
def test_empty_names_are_refused(text):
    with pytest.raises(InvalidIdentifier, match="must not be empty"):
        identifiers.parse(text, "$")


def test_an_empty_delimiter_is_refused():
    with pytest.raises(InvalidIdentifier, match="delimiter"):
        identifiers.parse("a", "")


@pytest.mark.parametrize("name", ["\0", "a\nb", "\t", "\x7f", "\x85", "\ud800", "a\x1fb"])
def test_control_characters_are_refused(name):
    with pytest.raises(InvalidIdentifier, match="control character"):
        identifiers.check_name(name)


@pytest.mark.parametrize(
    "name", [" ", "..", "a\u00a0b", "\u200d", "e\u0301", "👩\u200d🚀", "x" * 255]
)
def test_unusual_names_are_accepted(name):
    assert identifiers.check_name(name) == name


@pytest.mark.parametrize(
    "character",
    [
        "\u00ad",
        "\u200b",
        "\u200e",
        "\u2028",
        "\u202e",
        "\u2060",
        "\u2066",
        "\u3164",
        "\ufeff",
        "\U000e0041",
    ],
    ids=ascii,
)
def test_characters_that_are_not_displayed_are_refused(character):
    """Otherwise a table could pass for another one, for example where its drop is approved."""
    for name in (f"prod{character}", f"{character}prod", f"pr{character}od"):
        with pytest.raises(InvalidIdentifier, match="not displayed"):
            identifiers.check_name(name)


def test_the_length_of_names_is_limited():
    with pytest.raises(InvalidIdentifier, match="256 characters; 255 are allowed"):
        identifiers.check_name("x" * 256)


def test_a_table_requires_a_name():
    assert identifiers.check_table(["t"]) == ("t",)
    with pytest.raises(InvalidIdentifier, match="root namespace is not a table"):
        identifiers.check_table([])


def test_plus_and_space_are_one_name():
    assert identifiers.fold(["a b", "c+d"]) == identifiers.fold(["a+b", "c d"])
    assert identifiers.digest(["a b"]) == identifiers.digest(["a+b"])


def test_digests_of_different_identifiers_differ():
    names_by_digest: dict[object, str] = {}
    for names in [*random_names(2, 3000), (), ("a", "b"), ("ab",), ("a.b",), ("a$b",), ("b", "a")]:
        folded = identifiers.fold(names)
        assert names_by_digest.setdefault(identifiers.digest(names), folded) == folded


def test_digests_never_change():
    """Digests are stored. With another algorithm, no table would be found."""
    assert str(identifiers.digest(())) == "e3b0c442-98fc-1c14-9afb-f4c8996fb924"
    assert str(identifiers.digest(("ws", "a b"))) == str(identifiers.digest(("ws", "a+b")))


def test_slugs_contain_only_safe_characters():
    allowed = set(string.ascii_letters + string.digits + "_-")
    for names in [*random_names(3, 500), ("..", ".."), ("/",), ("🦭",), ("a" * 200, "b")]:
        slug = identifiers.slug(names, 60)
        assert set(slug) <= allowed
        assert 0 < len(slug) <= 60


def test_labels_are_dotted_names():
    assert identifiers.label(("prod", "users")) == "prod.users"
    assert identifiers.label(()) == "(root)"


@pytest.mark.parametrize("word", identifiers._ROUTE_WORDS)
def test_names_with_the_suffix_of_a_route_are_refused(word):
    with pytest.raises(InvalidIdentifier, match="cannot be addressed"):
        identifiers.check_name(f"a{word}")
    for name in (word.removeprefix("/"), f"a-{word.removeprefix('/')}", f"a{word}_"):
        assert identifiers.check_name(name) == name


@pytest.mark.parametrize("segment", identifiers._ROUTE_PARTS)
def test_names_that_contain_a_segment_of_a_route_are_refused(segment):
    for name in (f"a{segment}b", f"{segment}b", f"a{segment}", segment):
        with pytest.raises(InvalidIdentifier, match="cannot be addressed"):
            identifiers.check_name(name)
    assert identifiers.check_name(f"{segment.strip('/')}/b")


def test_long_identifiers_are_not_cached():
    size = identifiers._cached_digest.cache_info().currsize
    for number in range(10):
        long = ("x" * 255, "y" * 255, str(number))
        assert identifiers.digest(long) == identifiers.digest(list(long))
    assert identifiers._cached_digest.cache_info().currsize == size


@pytest.mark.parametrize(
    ("text", "name"),
    {
        "": (),
        " . ": (),
        "$": (),
        "prod": ("prod",),
        "prod.users": ("prod", "users"),
        " prod$users ": ("prod", "users"),
        "a.b$c": ("a.b", "c"),
        "a.b$": ("a.b",),
        'prod."a.b"': ("prod", "a.b"),
        '"a$b".c': ("a$b", "c"),
        '"say ""hi""".x': ('say "hi"', "x"),
        '"a.b"$c.d': ("a.b", "c.d"),
        'pre"a.b"post': ("prea.bpost",),
    }.items(),
)
def test_typed_names_are_read(text, name):
    assert identifiers.typed(text) == name
    assert identifiers.lookup(text) == identifiers.digest(name)


@pytest.mark.parametrize("text", ["a..b", ".a", 'a."b', '"', "a$$b", "$a", "a\x00b", '""'])
def test_texts_that_are_not_names_match_no_row(text):
    with pytest.raises(InvalidIdentifier):
        identifiers.typed(text)
    assert identifiers.lookup(text) == uuid.UUID(int=0)


def test_names_are_typed_as_on_the_command_line():
    dice = random.Random(7)
    for _ in range(2000):
        name = tuple(
            "".join(dice.choices('ab.$"', k=dice.randint(1, 5))) for _ in range(dice.randint(1, 3))
        )
        assert identifiers.typed(identifiers.spelled(name)) == name
        assert client_names.parse(client_names.display(name)) == identifiers.typed(
            client_names.display(name)
        )
        text = ".".join(name)
        try:
            expected = client_names.parse(text)
        except InvalidName:
            continue
        assert identifiers.typed(text) == expected, text


def test_spaces_at_the_ends_of_names_are_quoted():
    assert identifiers.typed(identifiers.spelled((" a", "b "))) == (" a", "b ")
