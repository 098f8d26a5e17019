"""Names as people type them."""

import pytest

from monodon.client.errors import InvalidName
from monodon.client.names import delimiter_of, display, join, parse, path_segment


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("prod.users", ("prod", "users")),
        ("prod$users", ("prod", "users")),
        ("prod$a.b", ("prod", "a.b")),
        ('prod."a.b"', ("prod", "a.b")),
        ('"a$b".c', ("a$b", "c")),
        ('"say ""hi"""', ('say "hi"',)),
        ("users", ("users",)),
        ("$", ()),
        (".", ()),
        ("", ()),
    ],
)
def test_a_typed_name(text, parts):
    assert parse(text) == parts
    assert parse(display(parts)) == parts


@pytest.mark.parametrize("text", ["a..b", "a.", ".a", "a$$b", '"', 'a."b'])
def test_a_name_with_an_empty_part_or_an_open_quote_is_refused(text):
    with pytest.raises(InvalidName):
        parse(text)


def test_the_delimiter_is_in_no_part():
    assert join(("a", "b"), delimiter_of(("a", "b"))) == "a$b"
    assert delimiter_of(("a$b", "c")) == "|"
    assert delimiter_of(("a$|~^", "c")) == "\x1f"
    assert delimiter_of("a$b") == "$"
    assert path_segment((), "$") == "%24"
    assert path_segment(("a/b", "c d"), "$") == "a%2Fb%24c%20d"
    with pytest.raises(InvalidName):
        delimiter_of(("a$|~^\x1f",))
